"""All that the doctor does with a spec: look at its run, predict what settings would bring, try the best of them."""

import gc
import os
import time
from typing import NamedTuple

from hotloop.assembly import Own
from hotloop.cores import usable_cores
from hotloop.doctor.examination import Examined, examine
from hotloop.doctor.race import race
from hotloop.doctor.remedies import Remedy, same_result
from hotloop.doctor.slices import Ratio
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.trainer_process import CHOSEN_BY_A_RUN

LOOKING = 0.4
"""Share of the time that is for looking; the rest is for trying."""
TRIED = 3


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


def diagnose(spec: Spec, own: Own, minutes: float, reporter: Reporter) -> Diagnosis:
    """Look at a run of the spec, then try what is predicted to help; about so many minutes, and nothing is kept."""
    until = time.monotonic() + 60 * minutes
    variables = {name: os.environ[name] for name in CHOSEN_BY_A_RUN if name in os.environ}  # before a run chooses
    seen = examine(spec, own, LOOKING * 60 * minutes, reporter)
    gc.collect()  # replay and weights, which may take most of the memory
    remedies = same_result(seen, usable_cores())
    if own.env is not None or own.network is not None:
        why = "an env or a network from Python stays in its process"
        return Diagnosis(seen, [Tried(remedy, None, why) for remedy in remedies])
    best = [remedy for remedy in remedies if remedy.can_be_raced][:TRIED]
    found = race(spec, [remedy.changes for remedy in best], until, variables, reporter) if best else []
    outcome = {id(remedy): each for remedy, each in zip(best, found, strict=True)}
    return Diagnosis(seen, [_tried(seen, remedy, outcome.get(id(remedy))) for remedy in remedies])


def _tried(seen: Examined, remedy: Remedy, outcome: Ratio | str | None) -> Tried:
    if isinstance(outcome, Ratio):
        return Tried(remedy, Ratio(*(seen.of_whole_run(bound) for bound in outcome)), "")
    counted = "less promising than others" if remedy.can_be_raced else "counted: too rare for a short training"
    return Tried(remedy, None, outcome or counted)
