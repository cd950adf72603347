"""What a run's speed follows from: the seconds of its stages, and which of them go on side by side.

| pipeline | seconds of an env step |
|---|---|
| sync | the sum of all stages, and what is between them |
| concurrent | drawing, then the longer of two sides (acting, stepping and storing; learning), and what is between |
| processes | the longest of: what actors do, what the learner does, all work on all cores; and what is between |

A run that is not concurrent yet would begin each block's gradient steps late where its acting holds Python's lock: a
thread that wants the lock gets it when the other lets go, or after its switch interval (5 ms).

A stage that costs nothing is taken out of these sums. What is left of a run that does one thing after the other then
takes less than before, too: between two of its turns fewer others have pushed its data and code out of the caches. How
much less is measured: what a stage takes while all others cost nothing (`alone`). It comes the nearer to that, the
larger the part of all others that is gone (`left_without`). So does a side that gets a core of its own. Of cores
that both sides of pipeline concurrent want nothing is in here: where they are too few, the measured figure differs, and
says so.
"""

import sys
from collections.abc import Collection, Mapping

ACTING, LEARNING, BEFORE = ("select", "step", "insert"), ("redraw", "transfer", "update"), ("sample",)
"""Stages of pipeline concurrent: of the host loop, of the learner beside it, and before both. `redraw` is drawing, too:
between gradient steps."""
OF_ACTORS, OF_LEARNER = ("select", "step", "hand over"), ("insert", "sample", "transfer", "update", "publish")
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
    alone: Mapping[str, float] | None = None,
    left_over: float = 0.0,
) -> float:
    """How many times as fast a run is predicted to be with a stand-in in the place of a stage.

    `stages` and `whole` are seconds of an env step; `work` is what each stage takes of all cores together, for pipeline
    processes; `alone` is what stages take while all others cost nothing, and `left_over` what of the stage itself is
    left with its stand-in, for pipeline sync.
    """
    if pipeline == "sync":
        left = sum(left_without((stage,), with_between(stages, whole), alone or {}).values())
        return whole / max(left + min(left_over, stages.get(stage, 0.0)), 1e-12)
    work = work or {}
    between = whole - seconds_of(pipeline, stages, work)
    free = {stage: 0.0, "redraw": 0.0} if stage == "sample" else {stage: 0.0}
    return whole / max(seconds_of(pipeline, {**stages, **free}, {**work, **free}) + between, 1e-12)


def with_between(stages: Mapping[str, float], whole: float) -> dict[str, float]:
    """All that an env step takes, as if what is between its stages were one."""
    return {**stages, BETWEEN: max(0.0, whole - sum(stages.values()))}


def left_without(gone: Collection[str], stages: Mapping[str, float], alone: Mapping[str, float]) -> dict[str, float]:
    """Seconds of an env step that the other stages take when some are gone, or done elsewhere."""
    whole, removed = sum(stages.values()), sum(stages.get(name, 0.0) for name in gone)
    left = {}
    for name, now in stages.items():
        if name not in gone:
            of_others = min(1.0, removed / max(whole - now, 1e-12))
            left[name] = now - of_others * max(0.0, now - alone.get(name, now))
    return left


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
