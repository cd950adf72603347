"""Schedules: a number that changes with the env step."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from hotloop.spec.section import PositiveInt, Section


class Constant(Section):
    """The same value always. A bare number in the spec means this."""

    kind: Literal["constant"] = "constant"
    value: float
    """The value."""


class Linear(Section):
    """A straight line from `start` to `end`, then `end`."""

    kind: Literal["linear"]
    start: float
    """Value at the first env step."""
    end: float
    """Value from `steps` on."""
    steps: PositiveInt | Annotated[float, Field(gt=0)]
    """Env steps the line takes."""


class Exponential(Section):
    """`start` x `rate`^(env step / `every`), never below `end`."""

    kind: Literal["exponential"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Lowest value."""
    rate: float = Field(gt=0, le=1)
    """Factor per `every` env steps."""
    every: PositiveInt = 1
    """Env steps over which one factor `rate` is applied, smoothly."""


class Staircase(Section):
    """`start` x `rate`^floor(env step / `every`), never below `end`."""

    kind: Literal["step"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Lowest value."""
    rate: float = Field(gt=0, le=1)
    """Factor at each jump."""
    every: PositiveInt
    """Env steps between jumps."""


class Cosine(Section):
    """Half a cosine from `start` down to `end`, then `end`."""

    kind: Literal["cosine"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Value from `steps` on."""
    steps: PositiveInt
    """Env steps the half wave takes."""


class Periodic(Section):
    """A cosine wave between `end` and a ceiling that falls in a straight line from `start` to `end`."""

    kind: Literal["periodic"]
    start: float
    """Ceiling at the first env step."""
    end: float
    """Floor of the wave, and the value from `steps` on."""
    steps: PositiveInt
    """Env steps until the wave has died away."""
    period: PositiveInt
    """Env steps of one wave."""


class SlmLabDecay(Section):
    """SLM-Lab's decays, to the letter: `start` before the env step `after`; then, never below `end`:

    linear: a straight line that reaches `end` at `until`. rate: `start` x 0.9^x with x from 0 to 20 at `until`, then
    `end`. periodic: `end` x (`start` - `end`) / 2 x (1 + cos x · (1 - x / 60)) with x from 0 to 60 at `until`, then
    `end`."""

    kind: Literal["slm_lab"]
    decay: Literal["linear", "rate", "periodic"]
    """Its form."""
    start: float
    """Value before it begins."""
    end: float
    """Lowest value."""
    after: int = Field(default=0, ge=0)
    """Env step from which on it changes."""
    until: PositiveInt
    """Env step from which on it is `end`."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.until <= self.after:
            raise ValueError(f"until is {self.until}, but it begins after {self.after}; use a later end")
        return self


def _number_is_constant(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number:
        return {"kind": "constant", "value": value}
    if not isinstance(value, dict | Section):
        raise ValueError(f"expected a number or a schedule such as {{kind: linear, …}}, got {str(value)[:40]!r}")
    return {"kind": "constant", **value} if isinstance(value, dict) else value


AnySchedule = Constant | Linear | Exponential | Staircase | Cosine | Periodic | SlmLabDecay
Schedule = Annotated[
    Annotated[AnySchedule, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]


def ends(schedule: AnySchedule) -> dict[str, float]:
    """The numbers a schedule moves between."""
    return {name: getattr(schedule, name) for name in ("value", "start", "end") if hasattr(schedule, name)}
