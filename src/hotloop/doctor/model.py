"""What a run's speed follows from: the seconds of its stages, and which of them go on side by side.

| pipeline | seconds of an env step |
|---|---|
| sync | the sum of all stages, and what is between them |
| concurrent | drawing, then the longer of two sides (acting, stepping and storing; learning), and what is between |
| processes | the longer of what the learner does and what its actors do |

A stage that costs nothing is taken out of these sums. Cores that both sides want are not in here: where they are too
few, the measured figure differs, and says so.
"""

from collections.abc import Mapping

ACTING, LEARNING, BEFORE = ("select", "step", "insert"), ("transfer", "update", "redraw"), ("sample",)
"""Stages of pipeline concurrent: of the host loop, of the learner beside it, and before both."""
WAITING = "wait"


def times_as_fast_without(
    stage: str, pipeline: str, stages: Mapping[str, float], whole: float, actors_busy: float | None = None
) -> float:
    """How many times as fast a run is predicted to be with a stage that costs nothing.

    `stages` and `whole` are seconds of an env step, `actors_busy` the share of their time that actors do not wait.
    """
    if stage == "sample":  # which drawing again is a part of
        left = {name: 0.0 if name in ("sample", "redraw") else seconds for name, seconds in stages.items()}
    else:
        left = {**stages, stage: 0.0}
    return whole / max(_seconds(pipeline, left, _between(pipeline, stages, whole), whole, actors_busy), 1e-12)


def _seconds(
    pipeline: str, stages: Mapping[str, float], between: float, whole: float, actors_busy: float | None
) -> float:
    if pipeline == "concurrent":
        sides = max(_sum(stages, ACTING), _sum(stages, LEARNING))
        return _sum(stages, BEFORE) + sides + between
    if pipeline == "processes":
        busy = sum(seconds for name, seconds in stages.items() if name != WAITING) + between
        return max(busy, whole * (1.0 if actors_busy is None else actors_busy))
    return sum(stages.values()) + between


def _between(pipeline: str, stages: Mapping[str, float], whole: float) -> float:
    """Seconds of an env step that are in no stage."""
    if pipeline == "concurrent":
        counted = _sum(stages, BEFORE) + max(_sum(stages, ACTING), _sum(stages, LEARNING))
    else:
        counted = sum(stages.values())
    return max(0.0, whole - counted)


def _sum(stages: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(stages.get(name, 0.0) for name in names)
