"""Prioritised replay's selector: draw 512 places and give them new priorities, against a sum tree in plain Python."""

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
HOTLOOP_BATCHES, PYTHON_BATCHES = 200, 4
POOL = 64
"""Sets of new priorities that the loops walk through."""


def run(reporter: Reporter) -> Result:
    """Check that both trees find the same places, then time them, interleaved."""
    from hotloop.replay.sum_tree import SumTree

    _check(SumTree(SMALL))
    pool = np.random.default_rng(1).random((POOL, BATCH))
    large, small, baseline = f"{LARGE:,}/hotloop", f"{SMALL:,}/hotloop", f"{LARGE:,}/python"
    calls = {
        baseline: (_in_python(PythonTree(_priorities(LARGE)), pool), PYTHON_BATCHES),
        large: (_in_hotloop(_filled(SumTree(LARGE)), pool), HOTLOOP_BATCHES),
        small: (_in_hotloop(_filled(SumTree(SMALL)), pool), HOTLOOP_BATCHES),
    }
    seconds = interleave({name: call for name, (call, _) in calls.items()}, rounds=ROUNDS, reporter=reporter)
    per_batch = {name: [second / calls[name][1] for second in times] for name, times in seconds.items()}
    rows = [Row(name, statistics.median(times) * 1e6, f"us per {BATCH}") for name, times in per_batch.items()]
    of_large = rows[1]
    of_large.against = baseline
    of_large.ratio, of_large.spread = paired_ratio(per_batch[baseline], per_batch[large])
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


def _in_hotloop(tree: "SumTree", pool: np.ndarray) -> Callable[[], None]:
    """A call that does HOTLOOP_BATCHES batches, each at once."""
    generator, at = np.random.default_rng(2), 0

    def call() -> None:
        nonlocal at
        for _ in range(HOTLOOP_BATCHES):
            tree.set(tree.find(generator.random(BATCH) * tree.total), pool[at % POOL])
            at += 1

    return call


def _check(tree: "SumTree") -> None:
    """Both find the same places, before and after updates. Priorities are whole numbers, so every sum is exact."""
    generator = np.random.default_rng(3)
    start = generator.integers(0, 9, tree.capacity).astype(np.float64)
    python = PythonTree(start)
    tree.restore(start)
    for _ in range(20):
        masses = generator.random(BATCH) * tree.total
        places = tree.find(masses)
        expected = [python.find(mass) for mass in masses.tolist()]
        if places.tolist() != expected:
            raise ValueError(f"the trees find different places for {(places != expected).sum()} of {BATCH} masses")
        new = generator.integers(0, 9, BATCH).astype(np.float64)
        tree.set(places, new)
        for place, priority in zip(expected, new.tolist(), strict=True):
            python.set(place, priority)
