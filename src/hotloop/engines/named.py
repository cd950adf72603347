"""Where each named parameter lives in a flat vector: the same names, shapes and order in every engine."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike


class NamedSpans:
    """Names and shapes of parameters, one behind the other."""

    def __init__(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]], dtype: DTypeLike) -> None:
        self.names, self.shapes, self.dtype = list(names), list(shapes), np.dtype(dtype)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        ends = np.cumsum(self.sizes).tolist()
        self._spans = list(zip([0, *ends], ends, strict=False))
        self.size = int(ends[-1]) if ends else 0

    def spans(self) -> dict[str, tuple[int, int, tuple[int, ...]]]:
        """Begin, end and shape of each named parameter in the vector."""
        return {n: (a, b, shape) for n, (a, b), shape in zip(self.names, self._spans, self.shapes, strict=True)}

    def split(self, host: np.ndarray) -> dict[str, np.ndarray]:
        """Named views of a vector: the interchange format of weights."""
        return {name: host[a:b].reshape(shape) for name, (a, b, shape) in self.spans().items()}

    def joined(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """One vector of named arrays; raises ValueError naming what does not fit this network."""
        expected = dict(zip(self.names, self.shapes, strict=True))
        seen = {name: tuple(array.shape) for name, array in arrays.items()}
        if seen != expected:
            wrong = sorted(name for name in {*seen, *expected} if seen.get(name) != expected.get(name))
            first = wrong[0]
            raise ValueError(
                f"weights do not fit the network: {first} is {seen.get(first, 'absent')}, "
                f"expected {expected.get(first, 'no such parameter')} ({len(wrong)} mismatch(es))"
            )
        return np.concatenate([np.asarray(arrays[n], self.dtype).reshape(-1) for n in self.names])
