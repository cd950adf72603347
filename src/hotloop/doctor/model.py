"""What a run's speed follows from: the seconds of its stages, and which of them go on side by side.

| pipeline | seconds of an env step |
|---|---|
| sync | the sum of all stages, and what is between them |
| concurrent | drawing, then the longer of two sides (acting, stepping and storing; learning), and what is between |
| processes | the longest of: what actors do, what the learner does, all work on all cores; and what is between |

A run that is not concurrent yet would begin each block's gradient steps late where its acting holds Python's lock: a
thread that wants the lock gets it when the other lets go, or after its switch interval (5 ms).

A stage that costs nothing is taken out of these sums. What is left of a run that does one thing after the other then
finds more of the caches as it left them: the larger the share that is gone, the less the others take, down to about
half (`warmed`: as it was in the planted runs that set thresholds), and never by more than a millisecond of a step of
all envs, as long stages warm their caches themselves (chosen with all planted runs in sight). Of cores
that both sides of pipeline concurrent want nothing is in here: where they are too few, the measured figure differs, and
says so.
"""

import sys
from collections.abc import Mapping

ACTING, LEARNING, BEFORE = ("select", "step", "insert"), ("redraw", "transfer", "update"), ("sample",)
"""Stages of pipeline concurrent: of the host loop, of the learner beside it, and before both. `redraw` is drawing, too:
between gradient steps."""
OF_ACTORS, OF_LEARNER = ("select", "step", "hand over"), ("insert", "sample", "transfer", "update", "publish")
LARGE, WARMER, WARMEST, MOST_SAVED = 0.4, 0.9, 0.55, 1e-3
"""From which share on a stage that is gone leaves the others warmer; by how much of their time for each share more;
what they take at the least; seconds that a vector step saves so at the most."""
TO_A_THREAD = 1e-4
"""Seconds of handing a block's gradient steps to another thread and waiting for it, on a usual core."""
BETWEEN = "between"
"""Stages of pipeline processes, and what the learner does between them; seconds of actors are those that pass while
each does its share."""


def times_as_fast_without(
    stage: str,
    pipeline: str,
    stages: Mapping[str, float],
    whole: float,
    work: Mapping[str, float] | None = None,
    together: int = 1,
) -> float:
    """How many times as fast a run is predicted to be with a stage that costs nothing.

    `stages` and `whole` are seconds of an env step; `work` is what each stage takes of all cores together, for pipeline
    processes; `together` is how many envs step at once.
    """
    work = work or {}
    between = whole - seconds_of(pipeline, stages, work)
    free = {stage: 0.0, "redraw": 0.0} if stage == "sample" else {stage: 0.0}
    left = max(seconds_of(pipeline, {**stages, **free}, {**work, **free}) + between, 1e-12)
    return whole / (warmed(left, whole, together) if pipeline == "sync" else left)


def warmed(left: float, whole: float, together: int = 1) -> float:
    """Seconds of an env step of what is left of the whole, when its caches are as it left them."""
    gone = 1 - left / whole
    factor = min(1.0, max(WARMEST, 1 - WARMER * (gone - LARGE)))
    return max(left * factor, left - MOST_SAVED / together)


def seconds_of(pipeline: str, stages: Mapping[str, float], work: Mapping[str, float] | None = None) -> float:
    """Of an env step, what is between its stages left out."""
    if pipeline == "processes":
        return max(_sum(stages, OF_ACTORS), _sum(stages, (*OF_LEARNER, BETWEEN)), sum((work or {}).values()))
    if pipeline == "concurrent":
        return _sum(stages, BEFORE) + max(_sum(stages, ACTING), _sum(stages, LEARNING))
    return sum(stages.values())


def seconds_if_concurrent(stages: Mapping[str, float], block: int, *, holds_lock: bool) -> float:
    """Of an env step, of a run whose blocks of so many env steps were one thing after the other."""
    acting, learning = _sum(stages, ACTING), _sum(stages, LEARNING)
    late = min(acting, sys.getswitchinterval() / block) if holds_lock else 0.0
    return _sum(stages, BEFORE) + max(acting, late + learning) + TO_A_THREAD / block


def _sum(stages: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(stages.get(name, 0.0) for name in names)
