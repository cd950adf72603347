"""What a run's speed follows from: the seconds of its stages, and which of them go on side by side.

| pipeline | seconds of an env step |
|---|---|
| sync | the sum of all stages, and what is between them |
| concurrent | drawing, then the longer of two sides (acting, stepping and storing; learning), and what is between |

A stage that costs nothing is taken out of these sums. Cores that both sides want are not in here: where they are too
few, the measured figure differs, and says so.
"""

from collections.abc import Mapping

ACTING, LEARNING, BEFORE = ("select", "step", "insert"), ("transfer", "update"), ("sample",)
"""Stages of pipeline concurrent: of the host loop, of the learner beside it, and before both."""


def times_as_fast_without(stage: str, pipeline: str, stages: Mapping[str, float], whole: float) -> float:
    """How many times as fast a run is predicted to be with a stage that costs nothing.

    `stages` and `whole` are seconds of an env step.
    """
    between = whole - seconds_of(pipeline, stages)
    return whole / max(seconds_of(pipeline, {**stages, stage: 0.0}) + between, 1e-12)


def seconds_of(pipeline: str, stages: Mapping[str, float]) -> float:
    """Of an env step, what is between its stages left out."""
    if pipeline == "concurrent":
        return _sum(stages, BEFORE) + max(_sum(stages, ACTING), _sum(stages, LEARNING))
    return sum(stages.values())


def _sum(stages: Mapping[str, float], names: tuple[str, ...]) -> float:
    return sum(stages.get(name, 0.0) for name in names)
