"""The sum tree against a plain array of priorities and its running sums."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba.core import caching

from hotloop.replay.sum_tree import FAN_OUT, SumTree, _compiled

CAPACITIES = st.one_of(st.integers(1, 5000), st.sampled_from([1, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097]))


class NaiveTree:
    """Priorities in an array; everything else is computed when it is asked for."""

    def __init__(self, capacity: int) -> None:
        self.leaves = np.zeros(capacity)

    def set(self, places: np.ndarray, priorities: np.ndarray) -> None:
        for place, priority in zip(places.tolist(), priorities.tolist(), strict=True):
            self.leaves[place] = priority

    def find(self, masses: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.cumsum(self.leaves), masses, side="right")


def filled(priorities: Any) -> SumTree:
    tree = SumTree(len(priorities))
    tree.restore(np.asarray(priorities, np.float64))
    return tree


def assert_sums_are_those_of_the_children(tree: SumTree) -> None:
    """To the bit, by other code than the tree's own, from the leaves up to the root."""
    sums = tree.leaves
    levels = 0
    while levels == 0 or len(sums) > 1:
        levels += 1
        groups = np.zeros((-(-len(sums) // FAN_OUT), 4, 4))
        groups.reshape(-1)[: len(sums)] = sums
        fours = (groups[..., 0] + groups[..., 1]) + (groups[..., 2] + groups[..., 3])
        sums = (fours[:, 0] + fours[:, 1]) + (fours[:, 2] + fours[:, 3])
        start = tree._starts[-1 - levels]
        np.testing.assert_array_equal(tree._nodes[start:].reshape(-1)[: len(sums)], sums)
    assert levels == len(tree._starts) - 1
    assert tree.total == sums[0]


def batch(random: np.random.Generator, capacity: int, *, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Places with many duplicates, sometimes neighbours; a third of the priorities are zero."""
    count = int(random.integers(1, 600))
    if random.random() < 0.3:
        places = (random.integers(capacity) + np.arange(count)) % capacity
    else:
        places = random.integers(0, random.integers(1, capacity + 1), count)
    priorities = random.integers(1, 1000, count).astype(float) if whole else 10.0 ** random.uniform(-6, 6, count)
    return places, np.where(random.random(count) < 1 / 3, 0.0, priorities)


@settings(max_examples=80, deadline=None)
@given(capacity=CAPACITIES, seed=st.integers(0, 2**32), batches=st.integers(1, 8))
@example(capacity=1, seed=0, batches=3)
def test_whole_priorities_are_found_exactly_where_the_running_sum_passes(
    capacity: int, seed: int, batches: int
) -> None:
    random, tree, naive = np.random.default_rng(seed), SumTree(capacity), NaiveTree(capacity)
    for _ in range(batches):
        places, priorities = batch(random, capacity, whole=True)
        tree.set(places, priorities)
        naive.set(places, priorities)

        np.testing.assert_array_equal(tree.leaves, naive.leaves)
        np.testing.assert_array_equal(tree.priorities(places), naive.leaves[places])
        assert tree.total == naive.leaves.sum()
        assert_sums_are_those_of_the_children(tree)
        if tree.total > 0:
            edges = np.cumsum(naive.leaves)[:-1]
            masses = np.concatenate([random.random(64) * tree.total, edges[edges < tree.total], [0.0]])
            np.testing.assert_array_equal(tree.find(masses), naive.find(masses))


@settings(max_examples=80, deadline=None)
@given(capacity=CAPACITIES, seed=st.integers(0, 2**32), batches=st.integers(1, 8))
def test_priorities_of_all_sizes_are_found_to_rounding_and_zero_is_never_found(
    capacity: int, seed: int, batches: int
) -> None:
    random, tree, naive = np.random.default_rng(seed), SumTree(capacity), NaiveTree(capacity)
    for _ in range(batches):
        places, priorities = batch(random, capacity, whole=False)
        tree.set(places, priorities)
        naive.set(places, priorities)
        assert_sums_are_those_of_the_children(tree)
        total = tree.total
        np.testing.assert_allclose(total, naive.leaves.sum(), rtol=1e-12)
        if total == 0:
            continue
        sums = np.cumsum(naive.leaves)
        around = [sums, np.nextafter(sums, 0), np.nextafter(sums, np.inf), [0.0, total, np.nextafter(total, 0)]]
        masses = np.clip(np.concatenate([*around, random.random(64) * total]), 0, total)
        found = tree.find(masses)

        assert (naive.leaves[found] > 0).all()
        slack = 1e-12 * total
        assert (masses <= sums[found] + slack).all()
        assert (masses >= sums[found] - naive.leaves[found] - slack).all()


@pytest.mark.parametrize("capacity", [1, 16, 17, 4096, 5000])
def test_at_both_edges_the_first_and_the_last_positive_place_is_found(capacity: int) -> None:
    for only in {0, capacity // 2, capacity - 1}:
        for priority in (5e-324, 1e-300, 0.1, 1e300):
            tree = SumTree(capacity)
            tree.set(np.array([only]), np.array([priority]))
            masses = np.array([0.0, np.nextafter(tree.total, 0), tree.total])
            np.testing.assert_array_equal(tree.find(masses), only)
    positive = np.arange(capacity) % 3 == 0
    tree = filled(np.where(positive, 0.1, 0.0))
    first, last = tree.find(np.array([0.0, np.nextafter(tree.total, np.inf)]))
    assert (first, last) == (0, np.flatnonzero(positive)[-1])


def test_ten_million_updates_leave_no_drift() -> None:
    random, capacity, size = np.random.default_rng(0), 20_000, 512
    places = random.integers(0, capacity, (500, size))
    priorities = np.where(random.random((500, size)) < 0.1, 0.0, 10.0 ** random.uniform(-6, 6, (500, size)))
    tree, updates = SumTree(capacity), 0
    while updates < 10_000_000:
        tree.set(places[updates // size % 500], priorities[updates // 7 % 499])
        updates += size

    np.testing.assert_allclose(tree.total, tree.leaves.sum(), rtol=1e-12)
    assert_sums_are_those_of_the_children(tree)


def test_small_priorities_survive_large_ones_which_sums_in_float32_lose() -> None:
    """Priorities of 1e6 come and go beside those of 1e-6, as large TD errors do."""
    capacity = 4096
    small, large, few = np.full(capacity, 1e-6), np.full(64, 1e6), np.arange(64)
    tree = filled(small)
    in_float32 = np.float32(small.sum())
    for step in range(100):
        places = (few * 61 + step) % capacity
        for priority in (large, small[:64]):
            change = np.float32(priority.sum()) - np.float32(tree.priorities(places).sum())
            in_float32 = np.float32(in_float32 + change)
            tree.set(places, priority)

    assert abs(in_float32 / small.sum() - 1) > 0.01  # what the test guards against does happen
    np.testing.assert_allclose(tree.total, small.sum(), rtol=1e-12)
    found = tree.find((np.arange(capacity) + 0.5) * 1e-6)
    np.testing.assert_array_equal(found, np.arange(capacity))


def test_places_are_drawn_in_proportion_to_their_priorities() -> None:
    random, draws = np.random.default_rng(0), 1_000_000
    priorities = np.where(np.arange(1000) % 4 == 0, 0.0, random.uniform(0.5, 5.0, 1000))
    tree = filled(priorities)

    counts = np.bincount(tree.find(random.random(draws) * tree.total), minlength=1000)

    assert (counts[priorities == 0] == 0).all()
    positive = priorities > 0
    expected = draws * priorities[positive] / priorities.sum()
    chi_square, freedom = (((counts[positive] - expected) ** 2) / expected).sum(), positive.sum() - 1
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom)


def test_find_keeps_the_shape_of_the_masses() -> None:
    tree = filled(np.arange(100.0))
    masses = np.random.default_rng(0).random((3, 7)) * tree.total
    found = tree.find(masses)
    assert found.shape == (3, 7)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found.ravel(), tree.find(masses.ravel()))
    np.testing.assert_array_equal(found.T, tree.find(masses.T))
    np.testing.assert_array_equal(tree.priorities(found), found)
    assert tree.find(np.zeros((0, 4))).shape == (0, 4)


def test_of_duplicates_the_last_wins() -> None:
    tree = SumTree(40)
    tree.set(np.array([7, 39, 7, 7]), np.array([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(tree.priorities(np.array([7, 39])), [4.0, 2.0])
    assert tree.total == 6.0


def test_arrays_that_are_read_only_strided_or_of_other_types_are_taken() -> None:
    tree = SumTree(40)
    places, priorities = np.arange(8, dtype=np.int32)[::2], np.arange(8, dtype=np.float32)[::2]
    places.flags.writeable = priorities.flags.writeable = False
    tree.set(places, priorities)
    unaligned = np.frombuffer(b"_" + np.array([0.0, 11.0]).tobytes(), np.float64, offset=1)
    np.testing.assert_array_equal(tree.find(unaligned), [2, 6])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-9, 1e308])
def test_a_bad_priority_is_named_and_nothing_changes(bad: float) -> None:
    tree = filled(np.arange(300.0))
    nodes = tree._nodes.copy()
    with pytest.raises(ValueError, match=re.escape(f"priority {bad} of place 17 ")):
        tree.set(np.array([3, 17, 5]), np.array([1.0, bad, np.nan]))
    leaves = tree.leaves
    leaves[123] = bad
    with pytest.raises(ValueError, match=re.escape(f"priority {bad} of place 123 ")):
        tree.restore(leaves)
    np.testing.assert_array_equal(tree._nodes, nodes)


@pytest.mark.parametrize("bad", [-1, 300, 2**40])
def test_a_place_outside_is_named_and_nothing_changes(bad: int) -> None:
    tree = filled(np.arange(300.0))
    nodes = tree._nodes.copy()
    with pytest.raises(ValueError, match=f"place {bad} is not in a sum tree of 300"):
        tree.set(np.array([3, bad]), np.ones(2))
    with pytest.raises(ValueError, match=f"place {bad} is not in a sum tree of 300"):
        tree.priorities(np.array([bad]))
    np.testing.assert_array_equal(tree._nodes, nodes)


def test_what_makes_no_sense_is_refused() -> None:
    tree = SumTree(10)
    with pytest.raises(ValueError, match="all priorities are zero"):
        tree.find(np.zeros(1))
    with pytest.raises(ValueError, match="give one for each place"):
        tree.set(np.arange(3), np.ones(2))
    with pytest.raises(ValueError, match="use integers"):
        tree.set(np.array([1.5]), np.ones(1))
    with pytest.raises(ValueError, match="do not fit"):
        tree.restore(np.ones(11))
    with pytest.raises(ValueError, match="at least 1"):
        SumTree(0)
    tree.set(np.arange(10), np.ones(10))
    for mass in (np.nan, -0.1, 10.1):
        with pytest.raises(ValueError, match=f"mass {mass} is not between 0 and the tree's total 10"):
            tree.find(np.array([1.0, mass]))


@settings(max_examples=30, deadline=None)
@given(capacity=CAPACITIES, seed=st.integers(0, 2**32))
def test_a_restored_tree_is_the_same_to_the_bit(capacity: int, seed: int) -> None:
    random, tree = np.random.default_rng(seed), SumTree(capacity)
    for _ in range(3):
        tree.set(*batch(random, capacity, whole=False))
    other = filled(random.random(capacity))
    other.restore(tree.leaves)
    np.testing.assert_array_equal(other._nodes, tree._nodes)


def test_leaves_are_a_copy() -> None:
    tree = filled(np.ones(5))
    tree.leaves[:] = 7
    assert tree.total == 5.0


@pytest.mark.parametrize("capacity", [1, 16, 17, 257, 1_000_000])
def test_the_memory_is_what_num_bytes_says(capacity: int) -> None:
    nodes = SumTree(capacity)._nodes
    owner = nodes
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert owner.nbytes == SumTree.num_bytes(capacity)
    assert nodes.ctypes.data % 128 == 0


@pytest.mark.parametrize(
    "failing", [(caching._CacheLocator, "ensure_cache_path"), (caching.IndexDataCacheFile, "save")]
)
def test_kernels_compile_where_they_cannot_be_kept(failing: tuple[type, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder that can be written to, or a full disk."""
    calls = []

    def fail(*args: Any) -> None:
        calls.append(args)
        raise OSError("no room")

    def double(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(*failing, fail)
    assert _compiled("int64(int64)")(double)(21) == 42
    assert calls
