"""All that the doctor does with a spec: look at its run, predict what settings would bring, try the best of them."""

import gc
import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hotloop.assembly import Own
from hotloop.cores import usable_cores
from hotloop.doctor.alternatives import Alternatives, other_steps, other_updates
from hotloop.doctor.examination import Examined, examine
from hotloop.doctor.race import race
from hotloop.doctor.remedies import Remedy, less_work, same_result
from hotloop.doctor.slices import Ratio
from hotloop.engines.jax.setup import users_variables
from hotloop.interrupts import Interrupts, end_is_wanted
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.trainer_process import SHARES_A_GPU

LOOKING, MEASURING = 0.35, 0.25
"""Shares of the time that are for looking at the run, and for stages done another way; the rest is for trying."""
TRIED = 3
LEAST = 15.0
"""Seconds for stages done another way, however long the look at the run took."""
WORTH_MEASURING = 0.15
"""Share of the time that a stage must take for other ways of it to be measured."""
INTERRUPTED = "the doctor was stopped before it was tried"


class Tried(NamedTuple):
    """A remedy, and what came of it."""

    remedy: Remedy
    measured: Ratio | None
    """Times as fast as it is, all in all."""
    why_not: str
    """Why it was not measured, if it was not."""


class Diagnosis(NamedTuple):
    """What is the matter, and what helps."""

    seen: Examined
    remedies: list[Tried]
    less_work: Sequence[Remedy] = ()
    """What would be faster and learn differently; predicted, not tried."""


def diagnose(spec: Spec, own: Own, minutes: float, reporter: Reporter, tried: int = TRIED) -> Diagnosis:
    """Look at a run of the spec, then try what is predicted to help; about so many minutes, and nothing is kept.

    SIGINT ends it with what it has by then, if that is something.
    """
    began, seconds = time.monotonic(), 60 * minutes
    variables = users_variables()
    for name, value in SHARES_A_GPU.items():
        os.environ.setdefault(name, value)
    with Interrupts():
        seen = examine(spec, own, LOOKING * seconds, reporter)
        gc.collect()  # replay and weights, which may take most of the memory
        measured = _alternatives(seen, own, variables, began + (LOOKING + MEASURING) * seconds, reporter)
        seen = seen._replace(alternatives=measured, notices=[*seen.notices, *measured.notices])
        remedies, less = same_result(seen, usable_cores()), less_work(seen)
        if own.env is not None or own.network is not None:
            why = "an env or a network from Python stays in its process"
            return Diagnosis(seen, [Tried(remedy, None, why) for remedy in remedies], less)
        best = [remedy for remedy in remedies if remedy.can_be_raced][:tried]
        found = race(spec, [remedy.changes for remedy in best], began + seconds, variables, reporter) if best else []
        is_stopped = end_is_wanted()
    outcome = {id(remedy): each for remedy, each in zip(best, found, strict=True)}
    came = [_tried(seen, remedy, outcome.get(id(remedy)), is_stopped=is_stopped) for remedy in remedies]
    stopped = ["stopped by a signal: this is what was known by then"] if is_stopped else []
    return Diagnosis(seen._replace(notices=[*seen.notices, *stopped]), came, less)


def _alternatives(
    seen: Examined, own: Own, variables: Mapping[str, str], until: float, reporter: Reporter
) -> Alternatives:
    """Of stages that take enough of the time."""
    shares = {name: stage.seconds / seen.seconds for name, stage in seen.stages.items()}
    cores, found = usable_cores(), Alternatives()
    until = max(until, time.monotonic() + LEAST)
    if end_is_wanted():
        return found
    if seen.env_busy is not None and shares.get("step", 0.0) >= WORTH_MEASURING:
        found = other_steps(seen.spec, own, cores, until, reporter)
    if shares.get("update", 0.0) >= WORTH_MEASURING and own.network is None and own.env is None:
        of_updates = other_updates(seen.spec, variables, cores, until, reporter)
        found = Alternatives(found.steps, of_updates.updates, [*found.notices, *of_updates.notices])
    return found


def _tried(seen: Examined, remedy: Remedy, outcome: Ratio | str | None, *, is_stopped: bool) -> Tried:
    if isinstance(outcome, Ratio):
        return Tried(remedy, Ratio(*(seen.of_whole_run(bound) for bound in outcome)), "")
    counted = "less promising than others" if remedy.can_be_raced else "counted: too rare for a short training"
    if is_stopped and remedy.can_be_raced:
        return Tried(remedy, None, INTERRUPTED)
    return Tried(remedy, None, outcome or counted)
