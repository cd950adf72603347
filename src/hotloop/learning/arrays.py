"""What the maths is written in: arrays of any framework, and the namespace of functions on them."""

from collections.abc import Callable
from typing import Any, Protocol

Array = Any
"""An array of the framework that `xp` is of: JAX, NumPy and PyTorch share operators and methods, but no type."""
Constant = Callable[[Array], Array]
"""Hides a number from differentiation, as `jax.lax.stop_gradient` does."""

Curve = Callable[..., Array]
"""Value at a step: `curve(step, xp, **fields)` with the fields of its schedule."""
Scan = Callable[..., tuple[Array, Array]]
"""`jax.lax.scan`, or what works like it."""


class Curves(Protocol):
    """What schedules ask of a namespace."""

    def exp(self, x: Array, /) -> Array:
        """Of each number."""

    def floor(self, x: Array, /) -> Array:
        """Of each number."""

    def cos(self, x: Array, /) -> Array:
        """Of each number."""

    def clip(self, x: Array, /, min: Array = ..., max: Array = ...) -> Array:
        """Each number within bounds."""

    def full_like(self, x: Array, value: float, /) -> Array:
        """One value in the shape of an array."""

    def where(self, condition: Array, first: Array, second: Array, /) -> Array:
        """The first where the condition holds, else the second."""


class Namespace(Protocol):
    """What the rest of the maths asks of it, as the array API has it: jax.numpy, numpy, or torch behind a wrapper."""

    inf: float

    @property
    def int32(self) -> Callable[[Array], Array]:
        """The dtype."""

    def exp(self, x: Array, /) -> Array:
        """Of each number."""

    def abs(self, x: Array, /) -> Array:
        """Of each number."""

    def log(self, x: Array, /) -> Array:
        """Of each number."""

    @property
    def clip(self) -> Callable[[Array, Array, Array], Array]:
        """Each number within bounds."""

    @property
    def minimum(self) -> Callable[[Array, Array], Array]:
        """The smaller of each two."""

    @property
    def where(self) -> Callable[[Array, Array, Array], Array]:
        """The second where the first is true, else the third."""

    @property
    def arange(self) -> Callable[[int], Array]:
        """0, 1, 2, …"""

    def zeros_like(self, x: Array, /) -> Array:
        """Zeros in the shape of an array."""

    @property
    def full(self) -> Callable[..., Array]:
        """`full(shape, value, dtype=…)`."""

    @property
    def any(self) -> Callable[..., Array]:
        """Along an `axis`, as all of the following."""

    @property
    def max(self) -> Callable[..., Array]:
        """The largest."""

    @property
    def argmax(self) -> Callable[..., Array]:
        """Where the largest is."""

    @property
    def sum(self) -> Callable[..., Array]:
        """Of all."""

    @property
    def mean(self) -> Callable[..., Array]:
        """Of all."""

    @property
    def cumsum(self) -> Callable[..., Array]:
        """Of all up to each."""
