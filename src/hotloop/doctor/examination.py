"""Look at a run of a spec for a while: how fast it is, what each stage takes, and how fast it would be without it."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import NamedTuple

from hotloop.assembly import Assembly, Own
from hotloop.doctor.free_on_host import FreeOnHost
from hotloop.doctor.model import ACTING, LEARNING, times_as_fast_without
from hotloop.doctor.occasions import Occasion, occasions_of
from hotloop.doctor.slices import Changed, Ratio, compare
from hotloop.errors import SpecError
from hotloop.pipeline_trial import look_at_one, obstacle
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.host_run import HostRun
from hotloop.pipelines.session import Session
from hotloop.progress import Reporter
from hotloop.run_plan import memory_plan
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

LOOKED_INTO = ("sync", "concurrent", "fused")
SECONDS_TO_FILL = 5.0
"""For rows of a replay on the host: draws from one that is nearly empty come from the caches."""
MOST_BLOCKS_TO_DRAW = 10_000


class Stage(NamedTuple):
    """Of a run, in seconds of an env step."""

    seconds: float
    is_beside: bool
    """Whether it goes on while something longer does: its seconds are not all of the run's."""
    predicted: float | None
    """Times as fast as it is that slices would be without it, by the model; None where there is none."""
    measured: Ratio | None
    """And as they were, with a stand-in that costs nothing."""


class Examined(NamedTuple):
    """What was seen of a run."""

    spec: Spec
    pipeline: str
    machine: Mapping[str, str]
    env_steps_per_s: float
    """Of slices, without what it does now and then."""
    stages: dict[str, Stage]
    between: float
    """Seconds of an env step that are in no stage."""
    occasions: dict[str, Occasion]
    rounds: int
    env_busy: float | None
    """Share of a step of an env on the host in which it uses a core; None for envs on the device."""
    can_be_elsewhere: bool
    """Whether its envs can be in processes of their own."""
    notices: list[str]

    @property
    def seconds(self) -> float:
        """Of an env step, all in all."""
        return 1 / self.env_steps_per_s + self.beside

    @property
    def beside(self) -> float:
        """Seconds of an env step for what is done now and then."""
        return sum(each.per_env_step for each in self.occasions.values())

    def of_whole_run(self, times_as_fast: float) -> float:
        """How many times as fast the whole run is where its slices are so many times as fast."""
        if times_as_fast == math.inf:  # the end of an interval of which nothing is known
            return math.inf
        left = 1 / self.env_steps_per_s / times_as_fast if times_as_fast else math.inf
        return self.seconds / max(left + self.beside, 1e-12)


def examine(spec: Spec, own: Own, seconds: float, reporter: Reporter) -> Examined:
    """Train as the spec says for about so many seconds, and look; nothing of it is kept."""
    until = time.monotonic() + seconds
    if spec.on_policy is not None or spec.replay.sequence is not None:
        raise _not_yet("learning without a replay" if spec.on_policy else "a memory")
    with Assembly(learning_early(spec), own) as assembly:
        pipeline = assembly.pipeline_choice.name
        _refuse(assembly, pipeline)
        notices = _notices(assembly, spec)
        with reporter.busy("compiling, and learning for the first time"):
            env_busy = None if assembly.on_device else look_at_one(assembly).busy
            session = begun(assembly)
            warm_up(session, assembly.spec)
            ways = _ways(session)
        found = compare(session, ways, until, reporter)
        with reporter.busy("a line of metrics, a checkpoint, an evaluation"):
            now_and_then = occasions_of(session, assembly.spec)
        speed, whole = found.env_steps_per_s, 1 / found.env_steps_per_s
        if isinstance(session, DeviceSession):
            stages = {
                name: Stage(whole * (1 - 1 / ratio.value), False, None, ratio)
                for name, ratio in found.times_as_fast.items()
            }
        else:
            stages = _of_host(pipeline, found.stage_seconds, whole, found.times_as_fast)
        between = whole - sum(stage.seconds for stage in stages.values() if not stage.is_beside)
        elsewhere = env_busy is not None and _can_be_elsewhere(assembly)
        machine, rounds = dict(assembly.machine), found.rounds
    return Examined(spec, pipeline, machine, speed, stages, between, now_and_then, rounds, env_busy, elsewhere, notices)


def learning_early(spec: Spec) -> Spec:
    """The spec that learns as soon as it can, that no rule ends and no compiler holds up."""
    steps = min(spec.replay.start, spec.replay.batch_size + spec.env.num_envs * spec.replay.n_step)
    endless = {"stop.episodes": None, "stop.return_at_least": None, "seeds": 1}
    eager = {"torch.mode": "eager"} if _chooses_mode(spec) else {}
    return load_spec(spec, {**endless, **eager, "replay.start": steps})


def _chooses_mode(spec: Spec) -> bool:
    return spec.engine == "torch" and spec.torch.mode == "auto"


def _refuse(assembly: Assembly, pipeline: str) -> None:
    if assembly.spec.agents is not None:
        raise _not_yet("several agents")
    if pipeline not in LOOKED_INTO:
        raise _not_yet(f"pipeline {pipeline}")
    if pipeline == "sync" and assembly.on_device:
        raise _not_yet("pipeline sync with an env on the device")
    if refusal := memory_plan(assembly).refusal():
        raise SpecError(refusal)


def _not_yet(what: str) -> SpecError:
    return SpecError(
        f"the doctor does not look into runs with {what} yet; `hotloop profile` says where their time goes"
    )


def _notices(assembly: Assembly, spec: Spec) -> list[str]:
    """In which this is another run than `hotloop train` would make."""
    found = list(assembly.notices)
    if obstacle(assembly, spec) is None:
        found.append("at the start of a run, pipeline auto measures by itself whether processes are faster")
    if _chooses_mode(spec):
        found.append("torch.mode: eager was looked at, where a run measures whether to compile")
    if spec.seeds > 1:
        found.append(f"one of {spec.seeds} seeds was looked at")
    return found


def _can_be_elsewhere(assembly: Assembly) -> bool:
    try:
        assembly.require_that_envs_can_be_elsewhere("processes")
    except SpecError:
        return False
    return not assembly.has_one_env_only


def _ways(session: Session) -> dict[str, Changed]:
    """Stages of a session that can be free, by name."""
    if isinstance(session, DeviceSession):
        from hotloop.doctor.free_on_device import FreeOnDevice

        return dict(FreeOnDevice(session).stages)
    assert isinstance(session, HostRun)
    free = FreeOnHost(session)
    with free.prepared():
        for _ in range(MOST_BLOCKS_TO_DRAW):
            session.advance(1)
            if free.is_prepared:
                break
        else:
            raise SpecError(f"nothing was learned in {MOST_BLOCKS_TO_DRAW:,} blocks")
    _fill(session, free)
    return dict(free.stages)


def _fill(session: HostRun, free: FreeOnHost) -> None:
    """Store recorded steps until the replay is full, or for some seconds."""
    replay, until = session.learner.replay, time.monotonic() + SECONDS_TO_FILL
    with ExitStack() as freed:
        for stage, change in free.stages.items():
            if stage != "insert":
                freed.enter_context(change())
        while replay.size < replay.capacity and time.monotonic() < until:
            before = replay.ring.inserted
            session.advance(16)
            if replay.ring.inserted == before:  # hindsight waits for whole episodes
                return


def _of_host(
    pipeline: str, seconds: Mapping[str, float], whole: float, measured: Mapping[str, Ratio]
) -> dict[str, Stage]:
    of_run = {name: each for name, each in seconds.items() if name not in ("evaluate", "log")}
    of_run["sample"] += of_run.pop("redraw")  # the same, between gradient steps
    beside = _shorter_side(of_run) if pipeline == "concurrent" else ()
    return {
        name: Stage(each, name in beside, times_as_fast_without(name, pipeline, of_run, whole), measured[name])
        for name, each in of_run.items()
        if name in measured
    }


def _shorter_side(seconds: Mapping[str, float]) -> tuple[str, ...]:
    acting, learning = (sum(seconds.get(name, 0.0) for name in side) for side in (ACTING, LEARNING))
    return ACTING if acting < learning else LEARNING
