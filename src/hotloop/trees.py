"""Trees of arrays on the host, without an engine: dicts, tuples and named tuples, in the order JAX has them too.

What makes, keeps and sends experience works on these, so that a process that only steps envs starts without JAX.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, Union, cast, overload, runtime_checkable

import numpy as np
import optree
from numpy.typing import DTypeLike

A = TypeVar("A")
Form = TypeVar("Form")
"""A tree with what it is made of: a function that keeps it gives back the very same."""


@runtime_checkable
class HasShape(Protocol):
    """An array of any engine, or a description of one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def dtype(self) -> DTypeLike:
        """Type of its numbers."""

    @property
    def size(self) -> int:
        """How many they are."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array that need not exist yet."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __init__(self, shape: Iterable[int], dtype: DTypeLike) -> None:
        object.__setattr__(self, "shape", tuple(shape))
        object.__setattr__(self, "dtype", np.dtype(dtype))

    @property
    def size(self) -> int:
        """Numbers in it."""
        return int(np.prod(self.shape, dtype=np.int64))


Tree = Union[A, Mapping[str, "Tree[A]"], Sequence["Tree[A]"], None]  # noqa: UP007  # it names itself
"""An A, or a dict, tuple, list or named tuple of trees; None is a tree without arrays."""
Arrays = Tree[np.ndarray]
Specs = Tree[ArraySpec]
Shapes = Tree[HasShape]
Number = np.number | np.ndarray
"""A number to be saved, or the array without axes it comes back as."""


# optree has a type of trees of its own, which knows no named tuple, and what a function makes of a leaf is its own
# affair: that is what is ignored below (by a comment: a cast is a call, and these are called in every step).


@overload
def leaves(tree: Arrays) -> list[np.ndarray]: ...
@overload
def leaves(tree: Shapes) -> Sequence[HasShape]: ...
def leaves(tree: Shapes) -> Sequence[HasShape]:
    """The arrays of a tree, dicts in the order of their sorted keys."""
    if type(tree) is np.ndarray:  # most observations are one array
        return [tree]
    return optree.tree_leaves(tree)  # type: ignore[arg-type]


def tree_map(function: Callable[..., object], tree: Form, *others: object) -> Form:
    """A tree of the same form, each array replaced by `function` of it and its likes in `others`."""
    if type(tree) is np.ndarray and not any(type(other) is not np.ndarray for other in others):
        return function(tree, *others)  # type: ignore[return-value]
    return optree.tree_map(function, tree, *others)  # type: ignore[arg-type, return-value]


def empty_of(specs: Specs, lead: tuple[int, ...]) -> Arrays:
    """Arrays with axes before those of `specs`, their memory reserved and untouched."""
    return cast(Arrays, tree_map(lambda leaf: np.empty((*lead, *leaf.shape), leaf.dtype), specs))


def zeros_of(specs: Specs, lead: tuple[int, ...]) -> Arrays:
    """Arrays of zeros with axes before those of `specs`."""
    return cast(Arrays, tree_map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), specs))


def specs_of(specs: Specs, lead: tuple[int, ...]) -> Specs:
    """The like of `specs` with axes before theirs."""
    return tree_map(lambda leaf: ArraySpec((*lead, *leaf.shape), leaf.dtype), specs)


def num_bytes(tree: Shapes) -> int:
    """Memory of all arrays of a tree, or of those its ArraySpecs describe."""
    return sum(int(leaf.size) * np.dtype(leaf.dtype).itemsize for leaf in leaves(tree))


def named_leaves(tree: object) -> dict[str, HasShape]:
    """The arrays by their path, e.g. `learner/params`."""
    paths: list[optree.PyTreeAccessor] = optree.tree_accessors(tree)  # type: ignore[arg-type]
    return {"/".join(_name(entry) for entry in path): path(tree) for path in paths}


def with_leaves(tree: Form, new: Iterable[object]) -> Form:
    """A tree of the same form with these arrays, in the order of `leaves`."""
    return cast(Form, optree.tree_unflatten(optree.tree_structure(tree), new))  # type: ignore[arg-type]


def _name(entry: optree.PyTreeEntry) -> str:
    return str(entry.field if isinstance(entry, optree.NamedTupleEntry) else entry.entry)
