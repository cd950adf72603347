"""A short measured piece of a run: the one way to ask how fast a spec is, as it is or with a stage replaced."""

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hotloop import figures
from hotloop.assembly import Assembly, Own, Replace, Substitutes
from hotloop.clock import Clock, StageClock
from hotloop.errors import HotloopError, SpecError
from hotloop.pace import Pace, crossed
from hotloop.pipelines.session import Session
from hotloop.runs.metrics import Metrics
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec


class TookTooLong(HotloopError):
    """A trial has not come to what it measures in time."""


class Trial(NamedTuple):
    """What a piece of a run measured, after its learning start and without its evaluations and checkpoints."""

    env_steps_per_s: float
    updates_per_s: float
    env_steps: int
    updates: int
    seconds: float
    stage_seconds: dict[str, float]
    """Of pipelines whose stages run on the host; a fused program has one stage, itself."""
    notices: list[str]
    """What a person should know of it."""


def trial(
    spec: str | Path | Mapping[str, object] | Spec,
    *,
    replace: Replace | None = None,
    seconds: float = 5.0,
    own: Own | None = None,
    begins_by: float = math.inf,
) -> Trial:
    """Train past the learning start, then for about so many seconds, and say how fast that was; TookTooLong if it has
    not learned by `begins_by`, as `time.monotonic` counts: looked at between blocks, not while programs are compiled.

    `replace` names what stands in for a stage: `env` (a factory or an instance); `replay` and `update` (a function that
    is given the run's own and returns what is used instead, see `assembly.Substitutes`); `log` (False: no line of
    metrics is written; else they go to a temporary folder).
    """
    parsed, substitutes = load_spec(spec, imports_plugins=True), substitutes_of(replace or {})
    with Assembly(parsed, own, substitutes) as assembly, _metrics(substitutes.log) as metrics:
        session, notices = begun(assembly), list(assembly.notices)
        warm_up(session, assembly.spec, begins_by)
        return measured(session, assembly.spec, seconds, metrics, notices)


def substitutes_of(replace: Replace) -> Substitutes:
    """The stand-ins by the names of their stages."""
    if unknown := sorted(set(replace) - set(Substitutes._fields)):
        raise SpecError(f"replace: there is no stage '{unknown[0]}'; the stages are {', '.join(Substitutes._fields)}")
    return Substitutes(**replace)


def begun(assembly: Assembly) -> Session:
    """A session of the spec's own members at its first block, compiled; closing it or the assembly closes its envs."""
    session = assembly.session(assembly.spec.members)
    session.compile()
    session.begin()
    return session


def warm_up(session: Session, spec: Spec, until: float = math.inf) -> None:
    """Train until every member has learned, and then a block more."""
    host = session.read()
    blocks_to_start = -(-spec.replay.start // spec.block_plan.env_steps)
    while not host.first_update_at.all():
        if time.monotonic() > until:
            raise TookTooLong("a trial has not begun to learn in time")
        before = host.env_steps
        left = max(1, blocks_to_start - before // spec.block_plan.env_steps)
        session.advance(left if until == math.inf else 1)
        host = session.read()
        if host.env_steps == before:
            raise SpecError("a trial measures learning, and a stop rule of the spec (stop, guard) ends it before")
    session.advance(1)


def measured(session: Session, spec: Spec, seconds: float, metrics: Metrics | None, notices: list[str]) -> Trial:
    """Train a session that learns for about so many seconds more, with lines of metrics if there is where to."""
    endless = spec.model_copy(update={"stop": spec.stop.model_copy(update={"steps": 2**62})})
    first = host = session.read()
    pace, clock, stages = Pace(endless), Clock(lambda: 0.0, host), StageClock(session.spans)
    stages.lap()
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        before, started = host.env_steps, time.perf_counter()
        blocks = pace.blocks(before)
        session.advance(blocks)
        host = session.read()
        clock.note(host)
        pace.note(blocks, time.perf_counter() - started)
        if host.env_steps == before:
            raise SpecError(f"a stop rule of the spec (stop, guard) ended the trial at env step {before:,}")
        with session.spans["log"]:
            if metrics is not None and crossed(before, host.env_steps, spec.log.every):
                line = figures.line_of(spec, host, passed, clock.lap(host))
                metrics.write("train", host.env_steps, {**line, **session.own_figures()})
                session.forget_totals()
    speed = clock.steady(host)
    return Trial(
        env_steps_per_s=round(speed.env_steps, 1),
        updates_per_s=round(speed.updates, 1),
        env_steps=int((host.steps - first.steps).sum()),
        updates=host.attempts - first.attempts,
        seconds=round(time.perf_counter() - began, 3),
        stage_seconds=stages.lap(),
        notices=[*notices, *session.notices()],
    )


@contextmanager
def _metrics(wanted: bool) -> Iterator[Metrics | None]:
    """Metrics files that nobody keeps."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hotloop-trial-") as folder:
        metrics = Metrics(Path(folder))
        try:
            yield metrics
        finally:
            metrics.close()
