"""Where the arrays of a tree lie in a stretch of bytes: one behind the other, each on a cache line of its own."""

import math
from dataclasses import dataclass
from typing import cast

import numpy as np

from hotloop.errors import SpecError
from hotloop.trees import Arrays, ArraySpec, Specs, leaves, with_leaves

CACHE_LINE = 64


@dataclass(frozen=True)
class Layout:
    """The specs of a tree, and where each of its arrays begins."""

    specs: Specs
    offsets: tuple[int, ...]
    num_bytes: int
    """Of all together, a multiple of a cache line."""

    @classmethod
    def of(cls, specs: Specs) -> "Layout":
        """The arrays in the order of `trees.leaves`."""
        offsets, end = [], 0
        for spec in spec_leaves(specs):
            if spec.dtype.hasobject:
                raise SpecError(f"an array of {spec.dtype} holds Python objects, which no other process can read")
            offsets.append(end)
            end = whole_lines(end + spec.size * spec.dtype.itemsize)
        return cls(specs, tuple(offsets), end)

    def arrays(self, memory: np.ndarray) -> list[np.ndarray]:
        """Views of `memory` (bytes), in the order of `trees.leaves`."""
        return [
            np.ndarray(spec.shape, spec.dtype, memory.data, offset)
            for spec, offset in zip(spec_leaves(self.specs), self.offsets, strict=True)
        ]

    def tree(self, memory: np.ndarray) -> Arrays:
        """The same views in the form of the specs."""
        return cast(Arrays, with_leaves(self.specs, self.arrays(memory)))


def copy_into(places: list[np.ndarray], arrays: list[np.ndarray]) -> None:
    """Copy all of each array to its place; they fit (`refuse_misfits`)."""
    for place, array in zip(places, arrays, strict=True):
        place[...] = array


def refuse_misfits(places: list[np.ndarray], arrays: list[np.ndarray]) -> None:
    """Raise unless each array has the form of its place: NumPy would broadcast or convert it."""
    for place, array in zip(places, arrays, strict=True):
        if array.shape != place.shape or array.dtype != place.dtype:
            raise ValueError(
                f"an array is {array.dtype}{list(array.shape)}, expected {place.dtype}{list(place.shape)}: the form is "
                "fixed when the transport is opened"
            )


def spec_leaves(specs: Specs) -> list[ArraySpec]:
    """The specs of a tree, in the order of `trees.leaves`."""
    return cast(list[ArraySpec], leaves(specs))


def whole_lines(num_bytes: int) -> int:
    """So many bytes, rounded up to whole cache lines."""
    return math.ceil(num_bytes / CACHE_LINE) * CACHE_LINE
