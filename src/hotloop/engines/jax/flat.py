"""A network's parameters as one flat vector, and back.

With parameters, gradients, moments and target as one vector each, clipping, the NaN guard, the optimiser and
a target copy are single fused loops instead of one small kernel per layer.
"""

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.modules import Params
from hotloop.engines.named import NamedSpans


class Layout(NamedSpans):
    """Where each named parameter lives in the flat vector."""

    def __init__(self, params: Params) -> None:
        """Take the structure of `params` (arrays or ShapeDtypeStructs, all float32, or all float64)."""
        leaves, self._treedef = jax.tree_util.tree_flatten_with_path(params)
        dtype = np.dtype(np.float64 if leaves and leaves[0][1].dtype == np.float64 else np.float32)
        for path, leaf in leaves:
            if leaf.dtype != dtype:
                raise ValueError(f"parameter {_name(path)} is {leaf.dtype}, expected {dtype}")
        super().__init__([_name(path) for path, _ in leaves], [tuple(leaf.shape) for _, leaf in leaves], dtype)

    def unflatten(self, vector: jax.Array) -> Params:
        """Views of the vector as the network's own tree."""
        leaves = [vector[a:b].reshape(shape) for (a, b), shape in zip(self._spans, self.shapes, strict=True)]
        return jax.tree.unflatten(self._treedef, leaves)

    def flatten(self, params: Params) -> jax.Array:
        """One vector from the network's own tree."""
        pieces = [leaf.reshape(-1) for leaf in jax.tree.leaves(params)]
        # Kept apart from what made the pieces: a plain copy of each, instead of a choice of piece per element.
        return jnp.concatenate(jax.lax.optimization_barrier(pieces))

    def to_named(self, vector: jax.Array | np.ndarray) -> dict[str, np.ndarray]:
        """Named arrays, views of one copy of the vector."""
        return self.split(np.array(vector))

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> jax.Array:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""
        return jnp.asarray(self.joined(arrays))


def _name(path: Iterable[object]) -> str:
    return "/".join(str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part)))) for part in path)
