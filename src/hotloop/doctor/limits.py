"""What this machine takes for the least that each stage must do: how near a run is to what is possible here at all.

| stage | the least |
|---|---|
| update | the matrix products of its gradient steps, by themselves |
| step | the bare env; several at once where they are in processes or threads |
| insert | a plain copy of the bytes that an env step stores |
| sample, transfer | a plain copy of the batches' bytes |

An env on the device is a part of the program, and has no bare form.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from hotloop import registry
from hotloop.assembly import Assembly
from hotloop.cores import usable_cores
from hotloop.doctor.bare_env import bare_step_of
from hotloop.engines.draws import draw
from hotloop.engines.products import Products, seconds_of
from hotloop.engines.protocol import Engine, Lesson, State
from hotloop.experience import Items
from hotloop.pipeline_trial import Look
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.host_run import HostRun
from hotloop.pipelines.learning_run import LearningRun
from hotloop.pipelines.session import Session
from hotloop.pipelines.supply import InProcesses
from hotloop.plain import Figures
from hotloop.replay.host import HostReplay
from hotloop.spec import Spec
from hotloop.trees import num_bytes

if TYPE_CHECKING:
    from hotloop.pipelines.fused import FusedState

Floor = Callable[[Engine, Lesson[State]], Products]
"""As `EngineRecord.floor` names it."""
MOSTLY_WAITS = 0.5
"""Share of an env's step below which its core is free for others."""
APART = 0.05
"""From which difference on two shares are both said."""
ON_PROCESSOR = ("cpu", "torch cpu")
"""What engines say of where they are if that is the host's own processor."""
SECONDS_OF_STEPS = 0.3
"""How long gradient steps are timed."""
SECONDS_OF_COPY, LARGEST_COPY = 0.05, 64 << 20
"""How long a copy is timed; bytes from which on a part of them is copied."""


class Limits(NamedTuple):
    """What was found out of this machine, with the shapes of a spec."""

    least: dict[str, float]
    """By stage: seconds of an env step that it takes at least, as far as that is known."""
    products: Products | None
    """Of a gradient step; None where it was not timed."""
    bare_step: float | None
    """Seconds of one env's step by itself; None on the device."""
    are_in_turn: bool
    """Whether envs are stepped one after the other, on one core."""
    cores: int
    gradient_step: float | None = None
    """Seconds of one by itself, as fast as it was; None on the device, where it is a part of the program."""
    at_once: int = 1
    """Envs on the host that step at the same time."""

    def arithmetic(self, seconds: float) -> float | None:
        """How much of gradient steps that take so many seconds of an env step are their products.

        Where it is known what one takes by itself, what else the machine does meanwhile does not count.
        """
        share = self.share("update", seconds)
        if share is None or self.products is None or self.gradient_step is None:
            return share
        return max(share, min(1.0, self.products.seconds / self.gradient_step))

    def share(self, stage: str, seconds: float) -> float | None:
        """How much of a stage that takes so many seconds is its least; None where that is not known."""
        if stage not in self.least or seconds <= 0:
            return None
        return min(1.0, self.least[stage] / seconds)

    def in_words(self, stage: str, seconds: float) -> str:
        """How near a stage that takes so many seconds is to its limit; empty where that is not known."""
        share = self.share(stage, seconds)
        if share is None:
            return ""
        if stage == "update" and self.products is not None:
            alone = f"{self.products.flops_per_s / 1e9:.3g} GFLOP/s alone"
            arithmetic = self.arithmetic(seconds) or 0.0
            said = f"{share:.0%} of it are its matrix products ({alone})"
            return f"{said}, {arithmetic:.0%} of a gradient step by itself" if arithmetic - share >= APART else said
        if stage == "step":
            return f"{share:.0%} of it is the env itself"
        return f"{seconds / self.least[stage]:.3g}x the time of copying the same bytes"

    def as_figures(self) -> Figures:
        """As JSON has it."""
        made = self.products
        return {
            "least": {**self.least},
            "products": None if made is None else {**made._asdict(), "flops_per_s": round(made.flops_per_s)},
            "bare_env_step": self.bare_step,
            "envs_at_once": self.at_once,
            "cores": self.cores,
            "gradient_step": self.gradient_step,
        }


def limits_of(session: Session, assembly: Assembly, look: Look | None) -> Limits:
    """Find them out; `look` is what was seen of one env on the host."""
    spec, least = assembly.spec, dict[str, float]()
    products = _products(session, assembly)
    if products is not None:
        least["update"] = products.seconds * spec.replay_ratio
    least |= _copies(session, assembly)
    bare_step, cores = (None if look is None else bare_step_of(assembly) or look.of_step), usable_cores()
    at_once = 1 if look is None else envs_at_once(spec, look.busy, cores)
    if isinstance(session, InProcesses) and look is not None:
        actors = 1 if spec.actors.here else session.supply.form.actors
        at_once = actors if look.busy < MOSTLY_WAITS else min(cores, actors)
    if bare_step is not None and not _steps_in_one_call(session):
        least["step"] = bare_step / at_once
    in_turn = look is not None and not _steps_in_one_call(session) and spec.env.vectorization in ("auto", "sync")
    gradient_step = _gradient_step(session, assembly) if isinstance(session, HostRun) else None
    return Limits(least, products, bare_step, in_turn, cores, gradient_step, at_once)


def envs_at_once(spec: Spec, busy: float, cores: int) -> int:
    """How many envs step at the same time; `busy` is the share of a step in which one uses a core."""
    if spec.env.vectorization not in ("async", "threads"):
        return 1
    return spec.env.num_envs if busy < MOSTLY_WAITS else min(cores, spec.env.num_envs)


def _steps_in_one_call(session: Session) -> bool:
    """Whether envs have a way of their own to step all at once: one by itself says nothing of them then."""
    from hotloop.envs.host import HostEnvs
    from hotloop.envs.serial import SerialEnvs

    if not isinstance(session, HostRun) or not isinstance(session.actor.envs, HostEnvs):
        return True
    is_elsewhere = session.spec.env.vectorization == "async"
    return not (is_elsewhere or isinstance(session.actor.envs.env, SerialEnvs))


def _products(session: Session, assembly: Assembly) -> Products | None:
    """None where several devices share them, and of what is not learned from single transitions."""
    spec = assembly.spec
    if spec.devices > 1 or spec.learns_from != "transitions":
        return None
    floor: Floor = registry.imported(registry.ENGINES[spec.engine].floor)
    if isinstance(session, LearningRun):
        return floor(session.engine, session.learner.blank_lesson())
    assert isinstance(session, DeviceSession)
    return floor(assembly.engine, _lesson_on_device(session, assembly.engine))


def _gradient_step(run: HostRun, assembly: Assembly) -> float:
    """Seconds of one, where as many as in the run are one call and nothing else goes on."""
    state, items, weight, rate, moves, draws = run.learner.blank_lesson()
    if run.learner.transfers_apart:
        items, weight = run.learner.to_device(items, weight)

    def calls(times: int) -> None:
        nonlocal state
        for _ in range(times):
            state = run.engine.update(state, items, weight, rate, moves, draws).state

    on_processor = assembly.machine["backend"] in ON_PROCESSOR
    return seconds_of(calls, SECONDS_OF_STEPS, on_processor=on_processor) / assembly.spec.updates_per_draw


def _lesson_on_device(session: "DeviceSession[FusedState]", engine: Engine) -> Lesson[State]:
    """One of the form of those that are drawn on the device: shapes."""
    import jax

    from hotloop.pipelines.fused import Fused

    pipeline, spec = session.pipeline, session.spec
    assert isinstance(pipeline, Fused)

    def drawn() -> object:
        return pipeline.replay.sample(pipeline.replay.empty(), jax.random.key(0), jax.numpy.int32(0))

    shapes = jax.eval_shape(drawn)
    wanted = engine.wanted_to_learn(spec.updates_per_draw, spec.replay.batch_size)
    draws = draw(wanted, np.random.default_rng(0)) if wanted else None
    return Lesson(engine.template(), cast(Items, shapes.batches), shapes.weight_KB, 0.0, 0, draws)


def _copies(session: Session, assembly: Assembly) -> dict[str, float]:
    """Seconds of an env step that copies take, by stage; nothing on a device whose memory is not the host's."""
    spec, rows = assembly.spec, assembly.spec.env.num_envs
    if spec.learns_from != "transitions":
        return {}
    if isinstance(session, LearningRun):
        stored, drawn = _stored_bytes(session.learner.replay, spec), session.learner.replay.row_bytes
    else:
        from hotloop.pipelines.fused import Fused

        assert isinstance(session, DeviceSession)
        if assembly.machine["backend"] != "cpu" or not isinstance(session.pipeline, Fused):
            return {}
        stored = drawn = session.pipeline.replay.row_bytes
    at_once = spec.batches_per_draw * spec.replay.batch_size * drawn
    batches = _seconds_of_copy(at_once) * spec.replay_ratio / spec.updates_per_draw
    return {"insert": _seconds_of_copy(rows * stored) / rows, "sample": batches, "transfer": batches}


def _stored_bytes(replay: HostReplay, spec: Spec) -> int:
    """Of a transition; where frames are shared, of one frame and of where the others are."""
    stored = num_bytes(replay.row)
    if stored < replay.row_bytes:
        stored += num_bytes(replay.whole_row.s_t) // max(1, spec.replay.stacked_frames)
    return stored


def _seconds_of_copy(size: int) -> float:
    part = max(1, min(size, LARGEST_COPY))
    source, copy = np.ones(part, np.uint8), np.empty(part, np.uint8)

    def run(times: int) -> None:
        for _ in range(times):
            np.copyto(copy, source)

    return seconds_of(run, SECONDS_OF_COPY, on_processor=True) * size / part
