"""NumPy's names for torch's functions: the namespace that the maths of `hotloop.learning` is written in."""

import math
from collections.abc import Callable
from typing import Any

import torch

from hotloop.learning.arrays import Array


class TorchArrays:
    """A `Namespace` of `hotloop.learning.arrays`, for numbers of one dtype on one device."""

    inf = math.inf

    def __init__(self, numbers: torch.dtype, device: torch.device) -> None:
        self._numbers, self._device = numbers, device

    @property
    def int32(self) -> Callable[[Array], Array]:
        """The dtype."""
        return torch.int32

    def exp(self, x: Array, /) -> Array:
        """Of each number."""
        return torch.exp(x)

    def abs(self, x: Array, /) -> Array:
        """Of each number."""
        return torch.abs(x)

    def log(self, x: Array, /) -> Array:
        """Of each number."""
        return torch.log(x)

    def clip(self, x: Array, low: Array, high: Array, /) -> Array:
        """Each number within bounds."""
        return torch.clamp(x, low, high)

    def minimum(self, x: Array, y: Array, /) -> Array:
        """The smaller of each two; the second may be a plain number."""
        return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y)

    def where(self, condition: Array, x: Array, y: Array, /) -> Array:
        """The second where the first is true, else the third."""
        return torch.where(condition, x, y)

    def arange(self, count: int, /) -> Array:
        """0, 1, 2, … in the numbers of the weights: what is made of them is in these too."""
        return torch.arange(count, dtype=self._numbers, device=self._device)

    def zeros_like(self, x: Array, /) -> Array:
        """Zeros in the shape of an array."""
        return torch.zeros_like(x)

    def full(self, shape: Any, value: float, dtype: Any = None) -> Array:
        """One value in a shape."""
        size = (shape,) if isinstance(shape, int) else shape
        return torch.full(size, value, dtype=dtype or self._numbers, device=self._device)

    def any(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Whether one is true along an axis."""
        return torch.any(x, dim=axis, keepdim=keepdims)

    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """The largest along an axis."""
        return torch.amax(x, dim=axis, keepdim=keepdims)

    def argmax(self, x: Array, axis: int) -> Array:
        """Where the first of the largest is along an axis."""
        return torch.argmax(x, dim=axis)

    def sum(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Of all along an axis."""
        return torch.sum(x, dim=axis, keepdim=keepdims)

    def mean(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """Of all along an axis."""
        return torch.mean(x, dim=axis, keepdim=keepdims)

    def cumsum(self, x: Array, axis: int) -> Array:
        """Of all up to each along an axis."""
        return torch.cumsum(x, dim=axis)


def detached(x: Array) -> Array:
    """Hide an array from differentiation."""
    return x.detach()
