"""Trees of arrays on the host, without an engine: dicts, tuples and named tuples, in the order JAX has them too.

What makes, keeps and sends experience works on these, so that a process that only steps envs starts without JAX.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

Tree = Any
"""An array, or a dict, tuple, list or named tuple of trees; None is a tree without arrays."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array that need not exist yet."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, shape: Iterable[int], dtype: Any) -> None:
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", np.dtype(dtype))

    @property
    def size(self) -> int:
        """Numbers in it."""
        return int(np.prod(self.shape, dtype=np.int64))


def leaves(tree: Tree) -> list[Any]:
    """The arrays of a tree, dicts in the order of their sorted keys."""
    return [tree] if type(tree) is np.ndarray else optree.tree_leaves(tree)  # most observations are one array


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Any:
    """A tree of the same form, each array replaced by `function` of it and its likes in `others`."""
    if type(tree) is np.ndarray and not any(type(other) is not np.ndarray for other in others):
        return function(tree, *others)
    return optree.tree_map(function, tree, *others)


def num_bytes(tree: Tree) -> int:
    """Memory of all arrays of a tree, or of those its ArraySpecs describe."""
    return sum(int(leaf.size) * np.dtype(leaf.dtype).itemsize for leaf in leaves(tree))


def named_leaves(tree: Tree) -> dict[str, Any]:
    """The arrays by their path, e.g. `learner/params`."""
    return {"/".join(_name(entry) for entry in accessor): accessor(tree) for accessor in optree.tree_accessors(tree)}


def with_leaves(tree: Tree, new: Iterable[Any]) -> Any:
    """A tree of the same form with these arrays, in the order of `leaves`."""
    return optree.tree_unflatten(optree.tree_structure(tree), new)


def _name(entry: Any) -> str:
    return str(entry.field if isinstance(entry, optree.NamedTupleEntry) else entry.entry)
