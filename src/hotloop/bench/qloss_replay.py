"""The replay of `bench qloss` and `bench slm_lab`: lists or arrays, uniform or by a sum tree, as SLM-Lab's.

What is drawn does not depend on how it is stored: the same seed and the same insertions give the same batches.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from hotloop.bench.sum_tree import NumpyTree, PythonTree

MemoryKind = Literal["replay", "prioritized"]
TreeKind = Literal["python", "numpy"]
ALPHA, EPSILON = 0.6, 1e-4
FIRST_ERROR = 100_000.0
"""TD error that a transition counts with until it has been learned from."""


class Transition(NamedTuple):
    """One step of an env."""

    s_tm1: np.ndarray
    a_tm1: int
    r_t: float
    s_t: np.ndarray
    terminated_t: bool


@dataclass
class Batch:
    """B transitions as tensors; `places` is where they lie, `goal` what their Q-values are pulled towards, if known."""

    places: list[int]
    s_tm1: torch.Tensor
    a_tm1: torch.Tensor
    r_t: torch.Tensor
    s_t: torch.Tensor
    terminated_t: torch.Tensor  # 0 or 1
    goal: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def fields(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in the order of a transition."""
        return self.s_tm1, self.a_tm1, self.r_t, self.s_t, self.terminated_t

    def split(self, size: int) -> "list[Batch]":
        """The same transitions in batches of `size`."""
        starts = range(0, len(self), size)
        return [Batch(self.places[i : i + size], *(each[i : i + size] for each in self.fields)) for i in starts]


def joined(batches: "Sequence[Batch]") -> Batch:
    """Several batches as one; a single one is handed on as it is."""
    if len(batches) == 1:
        return batches[0]
    places = [place for batch in batches for place in batch.places]
    return Batch(places, *(torch.cat(each) for each in zip(*(batch.fields for batch in batches), strict=True)))


class Memory:
    """The newest `capacity` transitions; with `has_newest` all that came since the last draw end the next batch."""

    def __init__(
        self,
        kind: MemoryKind,
        capacity: int,
        obs_size: int,
        *,
        in_arrays: bool = False,
        tree: TreeKind = "python",
        has_newest: bool = True,
        seed: int = 0,
    ) -> None:
        self.capacity, self.inserted, self.since_draw, self.has_newest = capacity, 0, 0, has_newest
        self.store: Store = Arrays(capacity, obs_size) if in_arrays else Lists(capacity)
        of_tree = Priorities if tree == "python" else PrioritiesAtOnce
        self.priorities = of_tree(capacity, seed) if kind == "prioritized" else None
        self._random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return min(self.inserted, self.capacity)

    def insert(self, transition: Transition) -> None:
        """Keep one transition, in the place of the oldest once all places are taken."""
        place = self.inserted % self.capacity
        self.store.put(place, transition)
        if self.priorities is not None:
            self.priorities.set([place], [FIRST_ERROR])
        self.inserted += 1
        self.since_draw += 1

    def draw(self, size: int) -> list[int]:
        """The places of one batch."""
        if self.priorities is not None:
            places = self.priorities.draw(size, len(self))
        else:
            places = self._random.integers(len(self), size=size).tolist()
        newest = min(self.since_draw, size) if self.has_newest else 0
        if newest:
            places[-newest:] = [number % self.capacity for number in range(self.inserted - newest, self.inserted)]
        self.since_draw = 0
        return places

    def gather(self, places: list[int]) -> Batch:
        """The transitions at these places."""
        return Batch(places, *self.store.gather(places))

    def learned(self, places: list[int], errors: np.ndarray) -> None:
        """From now on these TD errors count for the places; of a place that is there twice, the later one."""
        if self.priorities is not None:
            self.priorities.set(places, errors.tolist())


class Priorities:
    """Places drawn in proportion to (|TD error| + ε)^α, one by one, without importance weights."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.tree = PythonTree(np.zeros(capacity))
        self._random = random.Random(seed)

    def draw(self, size: int, held: int) -> list[int]:
        """So many places; the sums drift a little, so that a draw at the very end may fall behind the last one held."""
        total = self.tree.sums[1]
        return [min(self.tree.find(self._random.random() * total), held - 1) for _ in range(size)]

    def set(self, places: list[int], errors: list[float]) -> None:
        """Give places the priorities that follow from their TD errors."""
        for place, error in zip(places, errors, strict=True):
            self.tree.set(place, (abs(error) + EPSILON) ** ALPHA)


class PrioritiesAtOnce:
    """The same draws, with all places of a batch at once in a NumPy tree."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.tree = NumpyTree(np.zeros(capacity))
        self._random = random.Random(seed)

    def draw(self, size: int, held: int) -> list[int]:
        """So many places."""
        masses = np.array([self._random.random() for _ in range(size)]) * self.tree.total
        return [int(place) for place in np.minimum(self.tree.find(masses), held - 1)]

    def set(self, places: list[int], errors: list[float]) -> None:
        """Give places the priorities that follow from their TD errors; of a place given twice, the later one."""
        self.tree.set(np.array(places), (np.abs(np.array(errors)) + EPSILON) ** ALPHA)


class Store(Protocol):
    """Where transitions lie."""

    def put(self, place: int, transition: Transition) -> None:
        """Keep a transition at a place."""

    def gather(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """The fields of the transitions at these places, as tensors."""


class Lists:
    """One Python list per field, collected item by item and turned into arrays and tensors at every draw."""

    def __init__(self, capacity: int) -> None:
        self.fields: tuple[list[object], ...] = tuple([None] * capacity for _ in Transition._fields)

    def put(self, place: int, transition: Transition) -> None:
        """Keep references to its parts."""
        for field, value in zip(self.fields, transition, strict=True):
            field[place] = value

    def gather(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """Collect, make arrays, make tensors."""
        chosen = itemgetter(*places) if len(places) > 1 else lambda field: (field[places[0]],)
        s_tm1, a_tm1, r_t, s_t, terminated_t = (
            torch.from_numpy(np.array(chosen(field)).astype(np.float32)) for field in self.fields
        )
        return s_tm1, a_tm1.long(), r_t, s_t, terminated_t


class Arrays:
    """One array per field; a batch is one gather each."""

    def __init__(self, capacity: int, obs_size: int) -> None:
        self.fields: tuple[np.ndarray, ...] = (
            np.zeros((capacity, obs_size), np.float32),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, obs_size), np.float32),
            np.zeros(capacity, np.float32),
        )

    def put(self, place: int, transition: Transition) -> None:
        """Copy its parts."""
        for field, value in zip(self.fields, transition, strict=True):
            field[place] = value

    def gather(self, places: list[int]) -> tuple[torch.Tensor, ...]:
        """One gather per field."""
        at = np.array(places)
        return tuple(torch.from_numpy(field[at]) for field in self.fields)
