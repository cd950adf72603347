"""Numbers that change with the env step: learning rate, ε, temperature."""

import math

from hotloop.learning.arrays import Array, Curve, Curves


def value_at(step: Array, *, kind: str, xp: Curves, **fields: float | str) -> Array:
    """Value of a schedule at `step` (an array of env steps, already float)."""
    return _KINDS[kind](step, xp, **fields)


class Scalars:
    """A namespace for one plain number: a hundredth of what NumPy takes for the same."""

    exp, floor, cos = math.exp, math.floor, math.cos

    @staticmethod
    def clip(value: float, min: float = -math.inf, max: float = math.inf) -> float:
        """`value` within bounds."""
        return min if value < min else max if value > max else value

    @staticmethod
    def where(condition: bool, first: float, second: float) -> float:
        """One of two numbers."""
        return first if condition else second

    @staticmethod
    def full_like(_: float, value: float) -> float:
        """The value itself."""
        return value


def _constant(step: Array, xp: Curves, value: float) -> Array:
    return xp.full_like(step, value)


def _linear(step: Array, xp: Curves, start: float, end: float, steps: int) -> Array:
    return start + (end - start) * xp.clip(step / steps, 0.0, 1.0)


def _exponential(step: Array, xp: Curves, start: float, end: float, rate: float, every: int) -> Array:
    return xp.clip(start * xp.exp(math.log(rate) * (step / every)), min=end)


def _step(step: Array, xp: Curves, start: float, end: float, rate: float, every: int) -> Array:
    return xp.clip(start * xp.exp(math.log(rate) * xp.floor(step / every)), min=end)


def _cosine(step: Array, xp: Curves, start: float, end: float, steps: int) -> Array:
    return end + (start - end) * 0.5 * (1.0 + xp.cos(math.pi * xp.clip(step / steps, 0.0, 1.0)))


def _periodic(step: Array, xp: Curves, start: float, end: float, steps: int, period: int) -> Array:
    ceiling = 1.0 - xp.clip(step / steps, 0.0, 1.0)
    # The phase is taken within one period first: float32 cannot hold the cosine of millions of turns.
    wave = 0.5 * (1.0 + xp.cos((2.0 * math.pi / period) * (step % period)))
    return end + (start - end) * ceiling * wave


def _slm_lab(step: Array, xp: Curves, decay: str, start: float, end: float, after: int, until: int) -> Array:
    share = xp.clip((step - after) / (until - after), 0.0, 1.0)
    if decay == "linear":
        value = start + (end - start) * share
    elif decay == "rate":
        value = start * xp.exp(math.log(0.9) * 20.0 * share)
    else:
        value = 0.5 * end * (start - end) * (1.0 + xp.cos(60.0 * share) * (1.0 - share))
    return xp.where(step < after, start, xp.where(step >= until, end, xp.clip(value, min=end)))


_KINDS: dict[str, Curve] = {
    "constant": _constant,
    "linear": _linear,
    "exponential": _exponential,
    "step": _step,
    "cosine": _cosine,
    "periodic": _periodic,
    "slm_lab": _slm_lab,
}
