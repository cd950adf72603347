"""Prioritised replay's selector: draw 512 places, give them new priorities; against sum trees in Python and NumPy."""

import random
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.progress import Reporter

if TYPE_CHECKING:
    from hotloop.replay.sum_tree import SumTree

BATCH = 512
LARGE, SMALL = 1_000_000, 10_000
ROUNDS = 15
HOTLOOP_BATCHES, NUMPY_BATCHES, PYTHON_BATCHES = 200, 20, 4
POOL = 64
"""Sets of new priorities that the loops walk through."""


def run(reporter: Reporter) -> Result:
    """Check that all trees find the same places, then time them, interleaved."""
    from hotloop.replay.sum_tree import SumTree

    _check(SumTree(SMALL))
    pool = np.random.default_rng(1).random((POOL, BATCH))
    large, small = f"{LARGE:,}/hotloop", f"{SMALL:,}/hotloop"
    python, numpy = f"{LARGE:,}/python", f"{LARGE:,}/numpy"
    calls = {
        python: (_in_python(PythonTree(_priorities(LARGE)), pool), PYTHON_BATCHES),
        numpy: (_at_once(NumpyTree(_priorities(LARGE)), pool, NUMPY_BATCHES), NUMPY_BATCHES),
        large: (_at_once(_filled(SumTree(LARGE)), pool, HOTLOOP_BATCHES), HOTLOOP_BATCHES),
        small: (_at_once(_filled(SumTree(SMALL)), pool, HOTLOOP_BATCHES), HOTLOOP_BATCHES),
    }
    seconds = interleave({name: call for name, (call, _) in calls.items()}, rounds=ROUNDS, reporter=reporter)
    per_batch = {name: [second / calls[name][1] for second in times] for name, times in seconds.items()}
    rows = [Row(name, statistics.median(times) * 1e6, f"us per {BATCH}") for name, times in per_batch.items()]
    of_large = rows[2]
    for baseline in (python, numpy):
        ratio, spread = paired_ratio(per_batch[baseline], per_batch[large])
        rows.append(Row(large, of_large.value, of_large.unit, ratio, baseline, spread))
    rows.remove(of_large)
    cost, spread = paired_ratio(per_batch[large], per_batch[small])
    growth = Row(f"{LARGE:,} places", of_large.value, of_large.unit, cost, small, spread, means=COST)
    work = f"draw {BATCH} masses, find their places, set {BATCH} new priorities there"
    settings = {"a batch": work, "same places": "checked before timing", "threads": 1}
    return Result("sum_tree", {**machine(), **settings}, [*rows, growth])


class PythonTree:
    """The classical binary sum tree in a list: the children of node i are 2i and 2i + 1."""

    def __init__(self, priorities: np.ndarray) -> None:
        self.first_leaf = 1 << (len(priorities) - 1).bit_length()
        self.sums = [0.0] * (2 * self.first_leaf)
        self.sums[self.first_leaf : self.first_leaf + len(priorities)] = priorities.tolist()
        for node in range(self.first_leaf - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def set(self, place: int, priority: float) -> None:
        """Change one priority, and add the difference to all sums above it."""
        sums, node = self.sums, place + self.first_leaf
        change = priority - sums[node]
        while node:
            sums[node] += change
            node >>= 1

    def find(self, mass: float) -> int:
        """The place where the running sum passes the mass."""
        sums, first_leaf, node = self.sums, self.first_leaf, 1
        while node < first_leaf:
            node *= 2
            if mass >= sums[node]:
                mass -= sums[node]
                node += 1
        return node - first_leaf


class NumpyTree:
    """The same tree in an array, all places of a batch at once: a loop over levels instead of places."""

    def __init__(self, priorities: np.ndarray) -> None:
        self.first_leaf = 1 << (len(priorities) - 1).bit_length()
        self.sums = np.zeros(2 * self.first_leaf)
        self.sums[self.first_leaf : self.first_leaf + len(priorities)] = priorities
        level = self.first_leaf
        while level > 1:
            level //= 2
            self.sums[level : 2 * level] = self.sums[2 * level : 4 * level].reshape(-1, 2).sum(axis=1)

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self.sums[1])

    def set(self, places: np.ndarray, priorities: np.ndarray) -> None:
        """Change priorities, and sum again what lies above them."""
        nodes = places + self.first_leaf
        self.sums[nodes] = priorities
        while nodes[0] > 1:
            nodes = nodes >> 1
            self.sums[nodes] = self.sums[2 * nodes] + self.sums[2 * nodes + 1]

    def find(self, masses: np.ndarray) -> np.ndarray:
        """The places where the running sum passes each mass."""
        nodes, left = np.ones(len(masses), np.int64), masses.copy()
        for _ in range(self.first_leaf.bit_length() - 1):
            nodes *= 2
            below = self.sums[nodes]
            is_right = left >= below
            left -= np.where(is_right, below, 0.0)
            nodes += is_right
        return nodes - self.first_leaf


def _priorities(capacity: int) -> np.ndarray:
    return np.random.default_rng(0).random(capacity)


def _filled(tree: "SumTree") -> "SumTree":
    tree.restore(_priorities(tree.capacity))
    return tree


def _in_python(tree: PythonTree, pool: np.ndarray) -> Callable[[], None]:
    """A call that does PYTHON_BATCHES batches, place by place."""
    sets, draw, at = pool.tolist(), random.Random(2).random, 0

    def call() -> None:
        nonlocal at
        for _ in range(PYTHON_BATCHES):
            total = tree.sums[1]
            places = [tree.find(draw() * total) for _ in range(BATCH)]
            for place, priority in zip(places, sets[at % POOL], strict=True):
                tree.set(place, priority)
            at += 1

    return call


def _at_once(tree: "SumTree | NumpyTree", pool: np.ndarray, batches: int) -> Callable[[], None]:
    """A call that does so many batches, the places of each at once."""
    generator, at = np.random.default_rng(2), 0

    def call() -> None:
        nonlocal at
        for _ in range(batches):
            tree.set(tree.find(generator.random(BATCH) * tree.total), pool[at % POOL])
            at += 1

    return call


def _check(tree: "SumTree") -> None:
    """All find the same places, before and after updates. Priorities are whole numbers, so every sum is exact."""
    generator = np.random.default_rng(3)
    start = generator.integers(0, 9, tree.capacity).astype(np.float64)
    python, in_numpy = PythonTree(start), NumpyTree(start)
    tree.restore(start)
    for _ in range(20):
        masses = generator.random(BATCH) * tree.total
        places = tree.find(masses)
        expected = [python.find(mass) for mass in masses.tolist()]
        if places.tolist() != expected or in_numpy.find(masses).tolist() != expected:
            raise ValueError(f"the trees find different places for some of {BATCH} masses")
        new = generator.integers(0, 9, BATCH).astype(np.float64)
        tree.set(places, new)
        in_numpy.set(places, new)
        for place, priority in zip(expected, new.tolist(), strict=True):
            python.set(place, priority)
