"""The device's sum tree against a plain array of priorities, sums in float64, and the host's tree."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from hotloop.replay import device_tree
from hotloop.replay.device_tree import FAN_OUT, Tree
from hotloop.replay.sum_tree import SumTree

CAPACITIES = [1, 15, 16, 17, 300, 5000]
DRAWS, BATCH = 400_000, 48
BY_CHANCE = 1e-6
"""A test at a fixed key fails if its outcome is rarer than this for a right tree."""

draw = jax.jit(device_tree.draw, static_argnums=2)
change = jax.jit(device_tree.change)
fill = jax.jit(device_tree.fill, static_argnums=2)


def tree_of(priorities: Any, largest: float = 1.0) -> Tree:
    """A tree by loops: each level holds sums of 16 of the one below, and zeros behind them."""
    values = np.asarray(priorities, np.float64)
    levels: list[np.ndarray] = []
    while not levels or len(levels[-1]) > 1:
        padded = np.zeros(-(-len(values) // FAN_OUT) * FAN_OUT)
        padded[: len(values)] = values
        levels.append(padded.reshape(-1, FAN_OUT).astype(np.float32))
        values = np.array([sum(group.tolist()) for group in padded.reshape(-1, FAN_OUT)])
    return Tree(tuple(jnp.asarray(level) for level in levels), jnp.float32(largest))


def leaves_of(tree: Tree, capacity: int) -> np.ndarray:
    leaves = np.asarray(tree.sums[0]).reshape(-1)
    assert not leaves[capacity:].any(), "places beyond the capacity have no priority"
    return leaves[:capacity]


def assert_sums_are_those_of_the_children(tree: Tree) -> None:
    """From the leaves up to the root's children; what lies behind the last group is zero."""
    for below, above in zip(tree.sums[:-1], tree.sums[1:], strict=True):
        sums, held = np.asarray(below, np.float64).sum(axis=-1), np.asarray(above).reshape(-1)
        np.testing.assert_allclose(held[: len(sums)], sums, rtol=1e-6, atol=0)
        assert not held[len(sums) :].any()
    assert tree.sums[-1].shape == (1, FAN_OUT)
    np.testing.assert_allclose(device_tree.total(tree), np.asarray(tree.sums[0], np.float64).sum(), rtol=1e-6, atol=0)


def larger_of_duplicates(leaves: np.ndarray, places: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What `change` should leave behind, place by place."""
    changed: dict[int, float] = {}
    for place, priority in zip(places.reshape(-1).tolist(), new.reshape(-1).tolist(), strict=True):
        changed[place] = max(priority, changed.get(place, 0.0))
    leaves = leaves.copy()
    for place, priority in changed.items():
        leaves[place] = priority
    return leaves


def chance_of(counts: np.ndarray, priorities: np.ndarray) -> float:
    """Chance of counts at least as far from the priorities' proportions; rare places are put together."""
    expected = counts.sum() * priorities / priorities.sum()
    rare = expected < 25
    cells, wanted = [*counts[~rare], counts[rare].sum()], [*expected[~rare], expected[rare].sum()]
    if wanted[-1] == 0:
        cells, wanted = cells[:-1], wanted[:-1]
    chi_square = sum((seen - due) ** 2 / due for seen, due in zip(cells, wanted, strict=True))
    return float(stats.chi2.sf(chi_square, max(len(cells) - 1, 1)))


def some_priorities(capacity: int, orders: float, seed: int = 0) -> np.ndarray:
    """Over so many orders of magnitude, every fourth zero; a tree of one place has one that is not."""
    random = np.random.default_rng(seed)
    priorities = 10.0 ** random.uniform(-orders / 2, orders / 2, capacity)
    priorities[3::4] = 0.0
    return priorities.astype(np.float32).astype(np.float64)


# -- drawing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orders", [0.5, 3, 10])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_places_are_drawn_in_proportion_to_their_priorities(capacity: int, orders: float) -> None:
    priorities = some_priorities(capacity, orders)
    places = np.asarray(draw(tree_of(priorities), jax.random.key(1), (DRAWS,)))
    assert places.min() >= 0
    assert places.max() < capacity, "a place beyond the capacity was drawn"
    counts = np.bincount(places, minlength=capacity)
    assert (counts[priorities == 0] == 0).all()
    assert chance_of(counts, priorities) > BY_CHANCE
    if capacity > 1:
        assert chance_of(counts, np.roll(priorities, 1) + 1e-30) < BY_CHANCE, "the test would see a shift by one place"


def test_draws_by_a_wrong_proportion_would_be_seen() -> None:
    """Priorities that are off by a tenth in every second place."""
    priorities = some_priorities(300, 0.5)
    counts = np.bincount(np.asarray(draw(tree_of(priorities), jax.random.key(1), (DRAWS,))), minlength=300)
    assert chance_of(counts, priorities * np.where(np.arange(300) % 2, 1.1, 1.0)) < BY_CHANCE


@pytest.mark.heavy
def test_of_a_million_equal_places_all_are_equally_likely() -> None:
    """The number of times that each is drawn is spread as it is for draws by chance, in every 16th part of a group."""
    capacity = 1_000_000
    leaves = np.ones(capacity)
    places = np.asarray(draw(tree_of(leaves), jax.random.key(2), (4_000_000,)))
    counts = np.bincount(places, minlength=capacity)
    assert len(counts) == capacity
    for cells in (counts.reshape(-1, FAN_OUT).sum(axis=0), counts.reshape(-1, 1000).sum(axis=1)):
        assert stats.chisquare(cells).pvalue > BY_CHANCE
    dispersion = ((counts - 4.0) ** 2).sum() / 4.0
    assert abs(dispersion - capacity) < 6 * np.sqrt(2 * capacity)


def test_draws_have_the_shape_asked_for_and_hang_on_the_key() -> None:
    tree = tree_of(np.ones(300))
    one, again, other = (np.asarray(draw(tree, jax.random.key(seed), (3, 7))) for seed in (0, 0, 1))
    assert one.shape == (3, 7)
    assert one.dtype == np.int32
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
    np.testing.assert_array_equal(device_tree.priorities(tree_of(np.arange(300)), jnp.asarray(one)), one)


ENDS_OF_GROUPS: dict[str, Any] = {
    "the first of each group": lambda i: i % FAN_OUT == 0,
    "the last of each group": lambda i: i % FAN_OUT == FAN_OUT - 1,
    "one amid each group": lambda i: i % FAN_OUT == 7,
    "whole groups": lambda i: i // FAN_OUT % 3 == 1,
    "whole groups of groups": lambda i: i // FAN_OUT**2 != 1,
    "the first place": lambda i: i == 0,
    "the last place": lambda i: i == i.max(),
}


@pytest.mark.parametrize("where", ENDS_OF_GROUPS)
@pytest.mark.parametrize("neighbour", ["tiny", "huge", "both"])
def test_priority_zero_is_never_drawn(where: str, neighbour: str) -> None:
    at = np.arange(600)
    is_positive = ENDS_OF_GROUPS[where](at)
    size: Any = {"tiny": 1e-30, "huge": 1e30, "both": np.where(at % 32 < 16, 1e-30, 1e30)}[neighbour]
    for priorities in (np.where(is_positive, size, 0.0), np.where(is_positive, 0.0, size)):
        if priorities.any():
            places = np.asarray(draw(tree_of(priorities), jax.random.key(3), (20_000,)))
            assert (priorities[places] > 0).all()


@settings(max_examples=60)
@given(
    capacity=st.sampled_from(CAPACITIES[:-1]),
    seed=st.integers(0, 2**32),
    luck=st.sampled_from([0.0, 2.0**-23, 0.5, 1.0 - 2.0**-24, 1.0]),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
@example(capacity=300, seed=0, luck=1.0, share=0.0)
def test_the_ends_of_chance_draw_no_priority_zero(capacity: int, seed: int, luck: float, share: float) -> None:
    """At every step down; 1.0 stands for a sum that rounding has lifted to the whole: it must not walk off the end."""
    random = np.random.default_rng(seed)
    priorities = np.where(random.random(capacity) < share, 10.0 ** random.uniform(-30, 30, capacity), 0.0)
    priorities[random.integers(capacity)] = 10.0 ** random.uniform(-30, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "uniform", lambda key, shape: jnp.full(shape, luck, jnp.float32))
        [place] = np.asarray(device_tree.draw(tree_of(priorities), jax.random.key(0), (1,)))
    assert place < capacity
    assert priorities[place] > 0


def test_the_hosts_tree_draws_the_same_frequencies() -> None:
    """Two samples of equal size from one distribution: χ² of their difference."""
    for capacity, orders in ((17, 1), (300, 4), (5000, 2)):
        priorities = some_priorities(capacity, orders, seed=5)
        host = SumTree(capacity)
        host.set(np.arange(capacity), priorities)
        masses = np.random.default_rng(0).random(DRAWS) * host.total
        theirs = np.bincount(host.find(masses), minlength=capacity)
        ours = np.bincount(np.asarray(draw(tree_of(priorities), jax.random.key(4), (DRAWS,))), minlength=capacity)
        assert device_tree.total(tree_of(priorities)) == pytest.approx(host.total, rel=1e-6)
        enough = ours + theirs >= 25
        chi_square = ((ours - theirs) ** 2 / np.maximum(ours + theirs, 1))[enough].sum()
        assert stats.chi2.sf(chi_square, enough.sum() - 1) > BY_CHANCE
        assert enough.sum() > capacity // 3


# -- changing -----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(capacity=st.sampled_from(CAPACITIES), seed=st.integers(0, 2**32), spread=st.sampled_from([1, 5, 10**6]))
def test_changes_take_the_larger_of_duplicates_in_any_order(capacity: int, seed: int, spread: int) -> None:
    random = np.random.default_rng(seed)
    old = some_priorities(capacity, 6, seed)
    places = random.integers(0, min(capacity, spread), BATCH) + random.integers(max(1, capacity - spread + 1))
    new = np.where(random.random(BATCH) < 0.2, 0.0, 10.0 ** random.uniform(-5, 5, BATCH)).astype(np.float32)
    tree = tree_of(old, largest=7.0)

    changed = change(tree, jnp.asarray(places, jnp.int32), jnp.asarray(new))

    expected = larger_of_duplicates(old, places, new)
    np.testing.assert_array_equal(leaves_of(changed, capacity), expected.astype(np.float32))
    assert_sums_are_those_of_the_children(changed)
    assert changed.largest == max(7.0, new.max())
    order = random.permutation(BATCH)
    for other in (order, order[::-1]):
        again = change(tree, jnp.asarray(places[other], jnp.int32), jnp.asarray(new[other]))
        jax.tree.map(np.testing.assert_array_equal, again, changed)


def test_a_change_may_have_any_shape_and_lower_priorities() -> None:
    tree = tree_of(np.arange(1.0, 41.0), largest=40.0)
    places, new = np.array([[7, 39, 7], [0, 7, 20]]), np.array([[1.0, 2.0, 3.0], [0.5, 2.5, 0.0]], np.float32)
    changed = device_tree.change(tree, jnp.asarray(places), jnp.asarray(new))
    expected = np.arange(1.0, 41.0)
    expected[[7, 39, 0, 20]] = [3.0, 2.0, 0.5, 0.0]
    np.testing.assert_array_equal(leaves_of(changed, 40), expected)
    assert changed.largest == 40.0, "the largest ever, not the largest now"
    assert float(device_tree.total(changed)) == expected.sum()


@pytest.mark.parametrize("capacity", [1, 15, 16, 17, 300, pytest.param(4800, marks=pytest.mark.heavy)])
def test_a_block_is_filled_wherever_it_lies(capacity: int) -> None:
    """Every position that a ring inserts at, up to the last block."""
    old = some_priorities(capacity, 3)
    tree = tree_of(old, largest=123.0)
    for count in (count for count in (1, 3, 5, 15, 16, 17, 60, 300, 1600, 4800) if capacity % count == 0):
        starts = range(0, capacity, count)
        for start in [*starts][:40] + [*starts][-3:]:
            filled = fill(tree, jnp.int32(start), count)
            expected = old.copy()
            expected[start : start + count] = 123.0
            np.testing.assert_array_equal(leaves_of(filled, capacity), expected.astype(np.float32))
            assert_sums_are_those_of_the_children(filled)
            assert filled.largest == 123.0


@pytest.mark.parametrize(("capacity", "batch", "count"), [(300, 32, 12), (5000, 64, 8), (6000, 4, 2), (17, 64, 17)])
def test_thousands_of_changes_in_one_loop_are_those_of_an_array(capacity: int, batch: int, count: int) -> None:
    random, steps = np.random.default_rng(0), 3000
    places = random.integers(0, capacity, (steps, batch)).astype(np.int32)
    new = (10.0 ** random.uniform(-6, 6, (steps, batch))).astype(np.float32)
    starts = (np.arange(steps) * count % (capacity - capacity % count)).astype(np.int32)

    @jax.jit
    def all_of(tree: Tree) -> Tree:
        def one(i: Any, tree: Tree) -> Tree:
            filled = device_tree.fill(tree, jnp.asarray(starts)[i], count)
            return device_tree.change(filled, jnp.asarray(places)[i], jnp.asarray(new)[i])

        return jax.lax.fori_loop(0, steps, one, tree)

    tree = all_of(device_tree.empty(capacity))
    leaves, largest = np.zeros(capacity, np.float32), np.float32(1.0)
    for i in range(steps):
        leaves[starts[i] : starts[i] + count] = largest
        leaves[places[i]] = 0.0
        np.maximum.at(leaves, places[i], new[i])
        largest = max(largest, new[i].max())
    np.testing.assert_array_equal(leaves_of(tree, capacity), leaves)
    assert tree.largest == largest
    assert_sums_are_those_of_the_children(tree)
    device_tree.check(tree, capacity)


def test_ten_million_changes_leave_no_drift() -> None:
    """Priorities of 1e6 come and go beside those of 1e-6: differences added up in float32 would lose the small ones."""
    capacity, size = 20_000, 512
    steps = 10_000_000 // size + 1

    @jax.jit
    def all_of(tree: Tree, key: jax.Array) -> Tree:
        def one(i: Any, tree: Tree) -> Tree:
            place_key, priority_key = jax.random.split(jax.random.fold_in(key, i))
            places = jax.random.randint(place_key, (size,), 0, capacity)
            return device_tree.change(
                tree, places, 10.0 ** jax.random.uniform(priority_key, (size,), minval=-6, maxval=6)
            )

        return jax.lax.fori_loop(0, steps, one, tree)

    tree = all_of(device_tree.empty(capacity), jax.random.key(0))
    assert_sums_are_those_of_the_children(tree)
    small = jnp.full((size,), 1e-6)
    for start in range(0, capacity, size):
        tree = change(tree, jnp.minimum(jnp.arange(start, start + size), capacity - 1), small)
    assert_sums_are_those_of_the_children(tree)
    assert float(device_tree.total(tree)) == pytest.approx(capacity * 1e-6, rel=1e-6), "no trace of the large ones"


# -- a tree that was loaded ---------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_whole_tree_is_accepted(capacity: int, part: float) -> None:
    size = int(capacity * part)
    priorities = np.zeros(capacity)
    priorities[:size] = 10.0 ** np.random.default_rng(0).uniform(-5, 5, size)
    tree = tree_of(priorities)
    device_tree.check(tree, size)
    device_tree.check(jax.device_get(tree), size)
    assert device_tree.num_bytes(capacity) == sum(np.asarray(level).nbytes for level in tree.sums)
    jax.tree.map(np.testing.assert_array_equal, device_tree.empty(capacity), tree_of(np.zeros(capacity)))


def loaded(levels: list[np.ndarray], largest: float = 1.0) -> Tree:
    return Tree(tuple(jnp.asarray(level) for level in levels), jnp.float32(largest))


NOT_FINITE, NOT_ITS_ROWS, SUMS = "not all finite and positive", "not those of its 290 transitions", "sums of priorities"
DAMAGE: dict[str, tuple[str, tuple[int, ...], float, str]] = {
    "NaN": ("leaf", (3, 4), np.nan, NOT_FINITE),
    "infinite": ("leaf", (3, 4), np.inf, NOT_FINITE),
    "negative": ("leaf", (3, 4), -1.0, NOT_FINITE),
    "negative beyond the rows": ("leaf", (18, 9), -1.0, NOT_FINITE),
    "a row without priority": ("leaf", (3, 4), 0.0, NOT_ITS_ROWS),
    "the last row without priority": ("leaf", (18, 1), 0.0, NOT_ITS_ROWS),
    "a priority behind the last row": ("leaf", (18, 2), 1.0, NOT_ITS_ROWS),
    "a priority beyond the capacity": ("leaf", (18, 15), 1.0, NOT_ITS_ROWS),
    "largest NaN": ("largest", (), np.nan, NOT_FINITE),
    "largest infinite": ("largest", (), np.inf, NOT_FINITE),
    "largest zero": ("largest", (), 0.0, NOT_FINITE),
    "largest negative": ("largest", (), -2.0, NOT_FINITE),
    "a wrong sum": ("sum", (1, 0, 2), 5.0, SUMS),
    "a sum that is NaN": ("sum", (1, 0, 2), np.nan, SUMS),
    "a negative sum": ("sum", (1, 0, 2), -1.0, SUMS),
    "a wrong sum at the root": ("sum", (2, 0, 1), 5.0, SUMS),
    "a leaf that its sum does not know": ("leaf alone", (3, 4), 9.0, SUMS),
    "a sum of no leaves": ("sum", (1, 1, 5), 1e6, SUMS),
    "a sum of no leaves at the root": ("sum", (2, 0, 2), 1e6, SUMS),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_tree_is_refused_in_one_line(what: str) -> None:
    """Of a tree of 300 places with 290 rows; sums above what is changed fit it, unless they are what is wrong."""
    kind, at, value, message = DAMAGE[what]
    priorities = np.zeros(19 * FAN_OUT)
    priorities[:290] = np.random.default_rng(0).uniform(0.5, 2.0, 290)
    whole = tree_of(priorities)
    levels, largest = [np.array(level) for level in whole.sums], 1.0
    device_tree.check(whole, 290)
    if kind == "leaf":
        priorities.reshape(-1, FAN_OUT)[at] = value
        levels = [np.array(level) for level in tree_of(priorities).sums]
    elif kind == "leaf alone":
        levels[0][at] = value
    elif kind == "largest":
        largest = value
    else:
        level, *place = at
        levels[level][tuple(place)] = value
        if level == 1:  # the root's children fit what is wrong below them
            levels[2][0, :2] = levels[1].sum(axis=-1)
    with pytest.raises(ValueError, match=message) as refused:
        device_tree.check(loaded(levels, largest), 290)
    assert "damaged" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_wrong_sums_of_tiny_priorities_are_refused() -> None:
    """They are compared in proportion: 1e-9 in place of 1.6e-9 is as wrong as 1 in place of 1.6."""
    levels = [np.array(level) for level in tree_of(np.full(300, 1e-10)).sums]
    levels[1][0, 0] = 1e-9
    levels[2][0, :2] = levels[1].sum(axis=-1)
    with pytest.raises(ValueError, match=SUMS):
        device_tree.check(loaded(levels), 300)
