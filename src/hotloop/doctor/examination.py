"""Look at a run of a spec for a while: how fast it is, what each stage takes, and how fast it would be without it."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from hotloop.assembly import Assembly, Own
from hotloop.doctor.alternatives import Alternatives
from hotloop.doctor.course import Course, collecting_of, course_of, growth_of
from hotloop.doctor.env_code import look_into_env
from hotloop.doctor.free_learners import all_at_once
from hotloop.doctor.free_on_host import FreeOnHost
from hotloop.doctor.free_team import FreeTeam
from hotloop.doctor.limits import Limits, limits_of
from hotloop.doctor.model import ACTING, BETWEEN, LEARNING, times_as_fast_without
from hotloop.doctor.occasions import Occasion, occasions_of
from hotloop.doctor.slices import Changed, Comparison, Ratio, compare
from hotloop.doctor.watch import Watched
from hotloop.errors import SpecError
from hotloop.interrupts import end_is_wanted
from hotloop.pipeline_trial import look_at_one, obstacle, with_short_parcels
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.host_run import HostRun
from hotloop.pipelines.host_team import HostTeam
from hotloop.pipelines.process_run import ProcessRun
from hotloop.pipelines.process_team import ProcessTeam
from hotloop.pipelines.session import Session
from hotloop.pipelines.supply import InProcesses
from hotloop.profiling.figures import EnvProfile
from hotloop.progress import Reporter
from hotloop.run_plan import memory_plan
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

SECONDS_TO_FILL = 5.0
"""For rows of a replay on the host: draws from one that is nearly empty come from the caches."""
MOST_BLOCKS_TO_DRAW = 10_000
TIMES = 20
"""That weights are made to act, of which the median counts."""
INTO_ENV, MOST_INTO_ENV = 0.15, 3.0
"""Share of the time, and seconds at most, for the functions and lines of an env that takes long."""
TAKES_LONG = 0.2
"""Share of the slices' time from which on an env's steps do."""


class Stage(NamedTuple):
    """Of a run, in seconds of an env step."""

    seconds: float
    is_beside: bool
    """Whether it goes on while something longer does: its seconds are not all of the run's."""
    predicted: float | None
    """Times as fast as it is that slices would be without it, by the model; None where there is none."""
    measured: Ratio | None
    """And as they were, with a stand-in that costs nothing."""
    evidence: tuple[str, ...] = ()
    """What else was seen of it."""
    alone: float | None = None
    """Its seconds while all others cost nothing; None where that was not measured."""


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
    watched: Watched
    """What else the machine did meanwhile."""
    course: Course | None
    """Its first slices and its last; None where there were few."""
    collecting: float
    """Share of the slices' time that went into garbage collection."""
    growth: float | None
    """Bytes of an env step by which the process grows, beyond its replay; None where that is not known."""
    env_code: EnvProfile | None
    """Functions and lines of an env on the host, where its steps take long."""
    at_work: float = 0.0
    """Seconds of cores that an env step takes, in this process and those that it has started."""
    limits: Limits | None = None
    """What this machine can do at the spec's shapes; None where nobody asked."""
    alternatives: Alternatives = Alternatives()
    """What stages take done another way, where that was measured."""
    overhead: float = 0.0
    """Share of the slices' time that measuring itself took."""
    actors: int = 0
    """In processes of their own."""
    new_weights: float = 0.0
    """Seconds of an env step, within those of the update, for having new weights act in this process."""
    between_alone: float | None = None
    """Seconds of what is between stages, while all of them cost nothing; None where that was not measured."""

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
    into_env = min(INTO_ENV * seconds, MOST_INTO_ENV)
    until = time.monotonic() + seconds
    with Assembly(_in_short_parcels(learning_early(spec), own), own) as assembly:
        pipeline = assembly.pipeline_choice.name
        _refuse_if_too_large(assembly)
        notices = _notices(assembly, spec)
        with reporter.busy("compiling, and learning for the first time"):
            of_env = None if assembly.on_device or assembly.spec.agents else look_at_one(assembly)
            env_busy = None if of_env is None else of_env.busy
            session = begun(assembly)
            warm_up(session, assembly.spec)
            look = _look_of(assembly, session)
        found, stages = look(until - (into_env if env_busy is not None else 0.0), reporter)
        now_and_then, missing, limits = dict[str, Occasion](), list[str](), None
        if not end_is_wanted():
            with reporter.busy("a line of metrics, a checkpoint, an evaluation"):
                now_and_then, missing = occasions_of(session, assembly.spec, found.env_steps_per_s)
            with reporter.busy("what this machine can do"):
                limits = limits_of(session, assembly, of_env)
        speed, whole = found.env_steps_per_s, 1 / found.env_steps_per_s
        between = whole - sum(stage.seconds for stage in stages.values() if not stage.is_beside)
        env_code = None
        if env_busy is not None and stages["step"].seconds >= TAKES_LONG * whole and not end_is_wanted():
            with reporter.busy("functions and lines of the env"):
                env_code = look_into_env(assembly, into_env)
        elsewhere = env_busy is not None and _can_be_elsewhere(assembly)
        machine, rounds = dict(assembly.machine), found.rounds
        new_weights = _seconds_of_new_weights(session) if isinstance(session, HostRun) else 0.0
        actors = session.supply.form.actors if isinstance(session, InProcesses) else 0
    return Examined(
        spec,
        pipeline,
        machine,
        speed,
        stages,
        between,
        now_and_then,
        rounds,
        env_busy,
        elsewhere,
        [*notices, *missing],
        watched=found.watched,
        course=course_of(found.pieces, spec.env.num_envs),
        collecting=collecting_of(found.pieces),
        growth=growth_of(found.pieces),
        env_code=env_code,
        at_work=found.cores * whole,
        limits=limits,
        overhead=found.overhead,
        actors=actors,
        new_weights=new_weights,
        between_alone=found.alone.get(BETWEEN),
    )


def _seconds_of_new_weights(run: HostRun) -> float:
    """Of an env step: those of a block act once it has learned."""
    rounds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        run.act_with(run.engine.weights(run.learner.state))
        rounds.append(time.perf_counter() - began)
    return statistics.median(rounds) / run.block_plan.env_steps


def learning_early(spec: Spec) -> Spec:
    """The spec that learns as soon as it can, that no rule ends and no compiler holds up."""
    endless = {"stop.episodes": None, "stop.return_at_least": None, "seeds": 1}
    eager = {"torch.mode": "eager"} if _chooses_mode(spec) else {}
    early = {} if spec.on_policy else {"replay.start": min(spec.replay.start, _steps_to_learn(spec))}
    return load_spec(spec, {**endless, **eager, **early})


def _in_short_parcels(spec: Spec, own: Own) -> Spec:
    """The spec whose actors, if there are any, are not so far ahead that a slice would see nothing of them."""
    if spec.pipeline != "processes":
        return spec
    with Assembly(spec, own) as assembly:
        _refuse_if_too_large(assembly)
        return load_spec(spec, with_short_parcels(assembly.spec, look_at_one(assembly)))


def _steps_to_learn(spec: Spec) -> int:
    """Env steps that give a batch, or sequences."""
    steps, sequence = spec.replay.batch_size + spec.env.num_envs * spec.replay.n_step, spec.replay.sequence
    if sequence is None:
        return steps
    return max(steps, spec.env.num_envs * (sequence.burn_in + sequence.length + 1))


def _chooses_mode(spec: Spec) -> bool:
    return spec.engine == "torch" and spec.torch.mode == "auto"


def _refuse_if_too_large(assembly: Assembly) -> None:
    if refusal := memory_plan(assembly).refusal():
        raise SpecError(refusal)


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


Look = Callable[[float, Reporter], tuple[Comparison, dict[str, Stage]]]
"""Runs slices until a time, and says what of the run each stage is."""


def _look_of(assembly: Assembly, session: Session) -> Look:
    """All that is made before the first slice."""
    if isinstance(session, ProcessRun | ProcessTeam):
        from hotloop.doctor.look_at_processes import look_at_processes

        return look_at_processes(assembly, session)
    ways = _ways(session)

    pipeline = assembly.pipeline_choice.name
    alone = _alone(ways) if pipeline == "sync" and isinstance(session, HostRun | HostTeam) else None

    def look(until: float, reporter: Reporter) -> tuple[Comparison, dict[str, Stage]]:
        found = compare(session, ways, until, reporter, alone=alone)
        return found, _of_device(found) if isinstance(session, DeviceSession) else _of_host(found, pipeline)

    return look


def _ways(session: Session) -> dict[str, Changed]:
    """Stages of a session that can be free, by name."""
    if isinstance(session, DeviceSession):
        from hotloop.doctor.free_on_device import FreeOnDevice

        return dict(FreeOnDevice(session).stages)
    assert isinstance(session, HostRun | HostTeam)
    free = FreeTeam(session) if isinstance(session, HostTeam) else FreeOnHost(session)
    with free.prepared():
        for _ in range(MOST_BLOCKS_TO_DRAW):
            session.advance(1)
            if free.is_prepared:
                break
        else:
            raise SpecError(f"nothing was learned in {MOST_BLOCKS_TO_DRAW:,} blocks")
    _fill(session, free)
    return dict(free.stages)


def _alone(ways: Mapping[str, Changed]) -> dict[str, Changed]:
    """By stage, what makes all others free; and what makes all of them so."""
    others = {name: [change for other, change in ways.items() if other != name] for name in (*ways, BETWEEN)}
    return {name: partial(all_at_once, changes) for name, changes in others.items()}


def _fill(session: HostRun | HostTeam, free: FreeOnHost | FreeTeam) -> None:
    """Store recorded steps until the replay is full, or for some seconds."""
    first = session.runs[0] if isinstance(session, HostTeam) else session
    replay, until = first.learner.replay, time.monotonic() + SECONDS_TO_FILL
    with ExitStack() as freed:
        for stage, change in free.stages.items():
            if stage != "insert":
                freed.enter_context(change())
        while replay.size < replay.capacity and time.monotonic() < until:
            before = replay.ring.inserted
            session.advance(16)
            if replay.ring.inserted == before:  # hindsight waits for whole episodes
                return


def _of_device(found: Comparison) -> dict[str, Stage]:
    """A program has no clock inside; where each stage is a call of its own (`stepwise.py`), most have a span.

    What stages save, each free alone, may add up to more than there is. Their seconds are the nearest ones that do not:
    what is too much is taken off those that are known least.
    """
    whole = 1 / found.env_steps_per_s
    saved = {name: max(0.0, whole * (1 - 1 / ratio.value)) for name, ratio in found.times_as_fast.items()}
    doubt = {name: _doubt(ratio) ** 2 for name, ratio in found.times_as_fast.items()}
    too_much = max(0.0, sum(saved.values()) - whole) / max(sum(doubt.values()), 1e-12)
    timed = {name: found.stage_seconds.get(name, 0.0) for name in ("insert", "sample", "update")}
    return {
        name: Stage(
            max(0.0, saved[name] - too_much * doubt[name]),
            False,
            whole / (whole - timed[name]) if timed.get(name) else None,
            ratio,
        )
        for name, ratio in found.times_as_fast.items()
    }


def _doubt(ratio: Ratio) -> float:
    """How wide the interval of a stage's share is; a twentieth of the share at the least."""
    share = 1 - 1 / ratio.value
    wide = 1.0 if ratio.interval is None or ratio.low <= 0 else 1 / ratio.low - 1 / ratio.high
    return max(wide, abs(share) / 20, 1e-3)


def _of_host(found: Comparison, pipeline: str) -> dict[str, Stage]:
    whole, measured = 1 / found.env_steps_per_s, found.times_as_fast
    of_run = {name: each for name, each in found.stage_seconds.items() if name not in ("evaluate", "log")}
    shown = dict(of_run)
    shown["sample"] += shown.pop("redraw")  # the same, between gradient steps
    beside = _shorter_side(of_run) if pipeline == "concurrent" else ()

    def predicted(name: str) -> float:
        stages = of_run if pipeline == "concurrent" else shown
        left_over = found.left_over.get(name, 0.0)
        return times_as_fast_without(name, pipeline, stages, whole, alone=found.alone, left_over=left_over)

    return {
        name: Stage(each, name in beside, predicted(name), measured.get(name), alone=found.alone.get(name))
        for name, each in shown.items()
        if name in measured or name in ("step", "update")
    }


def _shorter_side(seconds: Mapping[str, float]) -> tuple[str, ...]:
    acting, learning = (sum(seconds.get(name, 0.0) for name in side) for side in (ACTING, LEARNING))
    return ACTING if acting < learning else LEARNING
