"""Look at a run of a spec for a while: how fast it is, what each stage takes, and how fast it would be without it."""

import gc
import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from hotloop.assembly import Assembly, Own
from hotloop.doctor import occasions
from hotloop.doctor.model import times_as_fast_without
from hotloop.doctor.occasions import Occasion
from hotloop.doctor.slices import Changed, Ratio, compare
from hotloop.errors import SpecError
from hotloop.pipeline_trial import look_at_one
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused
from hotloop.pipelines.learning_run import LearningRun
from hotloop.pipelines.session import Session
from hotloop.pipelines.supply import InProcesses
from hotloop.plain import number
from hotloop.progress import Reporter
from hotloop.registry import PIPELINES
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

PREPARING_BLOCKS = 2


class Stage(NamedTuple):
    """Of a run, in seconds of an env step."""

    seconds: float
    is_beside: bool
    """Whether it goes on while something longer does: its seconds are not all of the run's."""
    predicted: float | None
    """Times as fast as it is that the run would be without it, by the model."""
    measured: Ratio | None
    """And as it was, with a stand-in that costs nothing."""


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

    @property
    def all_stages(self) -> dict[str, float]:
        """Seconds of an env step, by stage."""
        return {name: stage.seconds for name, stage in self.stages.items()}

    @property
    def seconds(self) -> float:
        """Of an env step, all in all."""
        return 1 / self.env_steps_per_s + sum(each.per_env_step for each in self.occasions.values())


def examine(spec: Spec, own: Own, seconds: float, reporter: Reporter) -> Examined:
    """Train as the spec says for about so many seconds, and look; nothing of it is kept."""
    until = time.monotonic() + seconds
    with Assembly(_early(spec), own) as assembly:
        pipeline = assembly.pipeline_choice.name
        if (learns_from := assembly.spec.learns_from) != "transitions":
            raise SpecError(f"the doctor looks at one agent that learns from transitions; this one is of {learns_from}")
        with reporter.busy("compiling, and learning for the first time"):
            env_busy = None if assembly.on_device else look_at_one(assembly).busy
            session = begun(assembly)
            warm_up(session, assembly.spec)
            ways = _ways(session)
        found = compare(session, ways, until, reporter)
        with reporter.busy("a line of metrics, a checkpoint, an evaluation"):
            now_and_then = occasions.occasions_of(session, assembly.spec)
        whole = 1 / found.env_steps_per_s
        if isinstance(session, DeviceSession):
            stages = {
                name: Stage(whole * max(0.0, 1 - 1 / ratio.value), False, None, ratio)
                for name, ratio in found.times_as_fast.items()
            }
        else:
            stages = _of_host(pipeline, found.stage_seconds, whole, found.times_as_fast, _actors_busy(session))
        counted = sum(stage.seconds for stage in stages.values() if not stage.is_beside)
        between = max(0.0, whole - counted)
        machine = dict(assembly.machine)
    gc.collect()
    speed, rounds = found.env_steps_per_s, found.rounds
    return Examined(spec, pipeline, machine, speed, stages, between, now_and_then, rounds, env_busy)


def _early(spec: Spec) -> Spec:
    """The spec that learns as soon as it can, and that no rule ends."""
    steps = min(spec.replay.start, spec.replay.batch_size + spec.env.num_envs * spec.replay.n_step)
    endless = {"stop.episodes": None, "stop.return_at_least": None, "seeds": 1}
    return load_spec(spec, {**endless, "replay.start": steps})


def _ways(session: Session) -> dict[str, Changed]:
    """Stages of a session that can be free, by name."""
    if isinstance(session, DeviceSession) and type(session.pipeline) is Fused:
        from hotloop.doctor.free_on_device import FreeOnDevice

        return dict(FreeOnDevice(session).stages)
    if isinstance(session, LearningRun):
        from hotloop.doctor.free_on_host import FreeOnHost

        free = FreeOnHost(session)
        with free.prepared():
            session.advance(PREPARING_BLOCKS)
        return dict(free.stages)
    raise TypeError(f"a session of {type(session).__name__}, expected one of a learner of transitions")


def _of_host(
    pipeline: str, seconds: Mapping[str, float], whole: float, measured: Mapping[str, Ratio], busy: float | None
) -> dict[str, Stage]:
    of_run = {name: each for name, each in seconds.items() if name not in ("evaluate", "log")}
    sides = _shorter_side(of_run) if PIPELINES[pipeline].steps_meanwhile and busy is None else ()
    return {
        name: Stage(
            each,
            name in sides,
            times_as_fast_without(name, pipeline, of_run, whole, busy) if name in measured else None,
            measured.get(name),
        )
        for name, each in of_run.items()
        if each or name in measured
    }


def _shorter_side(seconds: Mapping[str, float]) -> tuple[str, ...]:
    from hotloop.doctor.model import ACTING, LEARNING

    acting, learning = (math.fsum(seconds.get(name, 0.0) for name in side) for side in (ACTING, LEARNING))
    return ACTING if acting < learning else LEARNING


def _actors_busy(session: Session) -> float | None:
    """Share of their time that actors do not wait; None where there are none."""
    if not isinstance(session, InProcesses):
        return None
    figures = session.own_figures()
    return 1.0 - number(figures, "actors_wait_share")
