"""The factor that keeps small gradients of float16 from vanishing: multiplied into the loss, taken out of the gradient.

It is halved when a gradient overflows, and doubled when it has held for long, up to a bound: half of infinity is
infinity, and gradients that are zero for long would take it there.
"""

from hotloop.learning.arrays import Array, Namespace

FIRST, LARGEST, UPDATES_TO_DOUBLE_IT = 2.0**15, 2.0**24, 2_000


def rescaled(factor: Array, held: Array, finite: Array, *, xp: Namespace) -> tuple[Array, Array]:
    """The factor after an update, and for how many updates it has held."""
    is_due = held + 1 >= UPDATES_TO_DOUBLE_IT
    grown, halved = xp.where(is_due, xp.clip(factor * 2, 1.0, LARGEST), factor), xp.clip(factor / 2, 1.0, xp.inf)
    return xp.where(finite, grown, halved), xp.where(finite & ~is_due, held + 1, xp.zeros_like(held))


def is_only_overflow(factor: Array, finite: Array) -> Array:
    """Whether a skipped update may only have been scaled too far: no sign of divergence yet."""
    return ~finite & (factor > 1.0)
