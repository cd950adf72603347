"""A network's parameters as one flat vector, and back.

With parameters, gradients, moments and target as one vector each, clipping, the NaN guard, the optimiser and
a target copy are single fused loops instead of one small kernel per layer.
"""

import math
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.modules import Params


class Layout:
    """Where each named parameter lives in the flat vector."""

    def __init__(self, params: Params) -> None:
        """Take the structure of `params` (arrays or ShapeDtypeStructs, all float32, or all float64)."""
        leaves, self._treedef = jax.tree_util.tree_flatten_with_path(params)
        self.dtype = np.dtype(np.float64 if leaves and leaves[0][1].dtype == np.float64 else np.float32)
        for path, leaf in leaves:
            if leaf.dtype != self.dtype:
                raise ValueError(f"parameter {_name(path)} is {leaf.dtype}, expected {self.dtype}")
        self.names = [_name(path) for path, _ in leaves]
        self.shapes = [tuple(leaf.shape) for _, leaf in leaves]
        ends = np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()
        self._spans = list(zip([0, *ends], ends, strict=False))
        self.size = int(ends[-1]) if ends else 0

    def unflatten(self, vector: jax.Array) -> Params:
        """Views of the vector as the network's own tree."""
        leaves = [vector[a:b].reshape(shape) for (a, b), shape in zip(self._spans, self.shapes, strict=True)]
        return jax.tree.unflatten(self._treedef, leaves)

    def flatten(self, params: Params) -> jax.Array:
        """One vector from the network's own tree."""
        pieces = [leaf.reshape(-1) for leaf in jax.tree.leaves(params)]
        # Kept apart from what made the pieces: a plain copy of each, instead of a choice of piece per element.
        return jnp.concatenate(jax.lax.optimization_barrier(pieces))

    def spans(self) -> dict[str, tuple[int, int, tuple[int, ...]]]:
        """Begin, end and shape of each named parameter in the vector."""
        return {n: (a, b, shape) for n, (a, b), shape in zip(self.names, self._spans, self.shapes, strict=True)}

    def to_named(self, vector: jax.Array | np.ndarray) -> dict[str, np.ndarray]:
        """Named arrays, views of one copy of the vector: the interchange format of weights."""
        host = np.array(vector)
        pairs = zip(self.names, self._spans, self.shapes, strict=True)
        return {name: host[a:b].reshape(shape) for name, (a, b), shape in pairs}

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> jax.Array:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""
        expected = dict(zip(self.names, self.shapes, strict=True))
        seen = {name: tuple(array.shape) for name, array in arrays.items()}
        if seen != expected:
            wrong = sorted(name for name in {*seen, *expected} if seen.get(name) != expected.get(name))
            first = wrong[0]
            raise ValueError(
                f"weights do not fit the network: {first} is {seen.get(first, 'absent')}, "
                f"expected {expected.get(first, 'no such parameter')} ({len(wrong)} mismatch(es))"
            )
        return jnp.asarray(np.concatenate([np.asarray(arrays[n], self.dtype).reshape(-1) for n in self.names]))


def _name(path: Iterable[object]) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path)
