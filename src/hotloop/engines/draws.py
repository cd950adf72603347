"""What chance gives to a network: asked for by its shape, drawn outside of it, handed in as arrays.

So two engines that are given the same draws can be compared number by number, and a run on the host has one source of
random numbers. Programs on the device draw by key instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from hotloop.trees import Arrays, Tree, tree_map


@dataclass(frozen=True)
class Draw:
    """An array that a network wants: fractions (uniform in 0 … 1), or factors of a noisy layer."""

    kind: Literal["uniform", "factors"]
    shape: tuple[int, ...]


class Wanted(dict[str, Draw]):
    """Notes what a pass asks of chance, by path."""


A = TypeVar("A")
PASSES = ("target", "choose", "learn")
"""Forward passes of one update: of the target net, for the choice of an action, and the one that is differentiated."""


class Draws(NamedTuple, Generic[A]):
    """What chance gives to one update: factors of noisy layers, a row for each of PASSES, and fractions.

    These are drawn by a key where they are wanted, or given as arrays: by pass, then by the path within the network.
    """

    key: A | None
    noise_PT: A
    given: Mapping[str, Mapping[str, A] | Wanted] | None = None


def draw(wanted: Tree[Draw], random: np.random.Generator, dtype: DTypeLike = np.float32) -> Arrays:
    """Draw a tree of arrays for a tree of Draws."""
    drawn = tree_map(lambda one: _drawn(one, random).astype(dtype, copy=False), wanted)
    return drawn  # type: ignore[return-value]  # a Draw has become an array


def _drawn(one: Draw, random: np.random.Generator) -> np.ndarray:
    if one.kind == "uniform":
        return random.random(one.shape, np.float32)
    normal = random.standard_normal(one.shape, np.float32)
    return np.sign(normal) * np.sqrt(np.abs(normal))
