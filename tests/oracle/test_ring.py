"""The device ring against a plain Python deque."""

import re
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotloop.experience import Item, row_example
from hotloop.replay import ring
from hotloop.replay.ring import Ring

pytestmark = pytest.mark.less_optimised

ROW = row_example(jax.ShapeDtypeStruct((2,), np.float32))
insert = jax.jit(ring.insert)
sample = jax.jit(ring.sample, static_argnums=2)


def numbered_rows(numbers: Any) -> Item:
    """Rows whose every field tells the row's number; numbers begin at 1, so an unwritten row is none of them."""
    n = np.asarray(numbers)
    as_float = n.astype(np.float32)
    return Item(
        s_tm1=np.stack([as_float, as_float + 0.5], -1),
        a_tm1=n.astype(np.int32),
        r_t=as_float * 2,
        discount_t=as_float / 4,
        s_t=np.stack([as_float + 1, -as_float], -1),
    )


def filled(capacity: int, rows_per_insert: int, inserts: int) -> tuple[Ring, deque[int]]:
    """A ring after `inserts` inserts, and what a deque holds after the same."""
    device, oracle = ring.empty(capacity, ROW), deque[int](maxlen=capacity)
    for i in range(inserts):
        numbers = range(1 + i * rows_per_insert, 1 + (i + 1) * rows_per_insert)
        device = insert(device, numbered_rows(numbers))
        oracle.extend(numbers)
    return device, oracle


def assert_fields_belong_together(rows: Item) -> None:
    expected = numbered_rows(rows.a_tm1)
    for field in Item._fields:
        np.testing.assert_array_equal(getattr(rows, field), getattr(expected, field), err_msg=field)


@settings(max_examples=60)
@given(rows_per_insert=st.integers(1, 5), multiple=st.integers(1, 4), inserts=st.integers(0, 17))
@example(rows_per_insert=3, multiple=4, inserts=4)  # just full
@example(rows_per_insert=3, multiple=4, inserts=5)  # one insert over the edge
@example(rows_per_insert=5, multiple=1, inserts=3)  # each insert replaces everything
def test_a_ring_holds_the_newest_rows_in_order(rows_per_insert: int, multiple: int, inserts: int) -> None:
    capacity = rows_per_insert * multiple
    device, oracle = filled(capacity, rows_per_insert, inserts)

    assert int(device.size) == len(oracle)
    assert int(device.position) == (inserts * rows_per_insert) % capacity
    oldest = int(device.position) if len(oracle) == capacity else 0
    oldest_first = (oldest + np.arange(len(oracle))) % capacity
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[oldest_first], device.rows)
    assert rows.a_tm1.tolist() == list(oracle)
    assert_fields_belong_together(rows)


@settings(max_examples=40)
@given(
    rows_per_insert=st.integers(1, 5), multiple=st.integers(1, 4), inserts=st.integers(1, 17), seed=st.integers(0, 99)
)
def test_a_sampled_row_is_always_a_stored_row(rows_per_insert: int, multiple: int, inserts: int, seed: int) -> None:
    device, oracle = filled(rows_per_insert * multiple, rows_per_insert, inserts)
    rows = sample(device, jax.random.key(seed), (3, 40))
    assert rows.s_tm1.shape == (3, 40, 2)
    assert rows.r_t.shape == (3, 40)
    assert set(np.asarray(rows.a_tm1).flat) <= set(oracle)
    assert_fields_belong_together(rows)


@pytest.mark.parametrize("inserts", [9, 40], ids=["partly filled", "wrapped around"])
def test_every_stored_row_is_sampled_equally_often(inserts: int) -> None:
    device, oracle = filled(64, 4, inserts)
    per_row = 1000
    draws = np.asarray(sample(device, jax.random.key(0), (len(oracle), per_row)).a_tm1)
    counts = np.array([(draws == number).sum() for number in oracle])
    assert counts.sum() == draws.size
    chi_square, freedom = ((counts - per_row) ** 2 / per_row).sum(), len(oracle) - 1
    # Five standard deviations; far too even would not be random either.
    assert freedom - 4 * (2 * freedom) ** 0.5 < chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_samples_follow_the_key_and_successive_draws_are_independent() -> None:
    device, _ = filled(64, 4, 16)
    first, again, other = (np.asarray(sample(device, jax.random.key(seed), (2, 500)).a_tm1) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.mean(first == other) < 0.05
    assert np.mean(first[0] == first[1]) < 0.05, "two batches of one call differ"
    assert abs(np.corrcoef(first[0][:-1], first[0][1:])[0, 1]) < 0.15


def test_gather_reads_the_rows_asked_for() -> None:
    device, _ = filled(12, 3, 2)
    rows = ring.gather(device, jnp.array([[5, 0], [2, 2]]))
    assert rows.a_tm1.tolist() == [[6, 1], [3, 3]]
    assert_fields_belong_together(rows)


@pytest.mark.parametrize(("capacity", "count"), [(10, 3), (10, 4), (3, 4), (100_000, 256)])
def test_an_insert_that_would_cross_the_end_is_refused(capacity: int, count: int) -> None:
    message = f"a ring of {capacity} rows cannot take {count} at a time; round with whole_blocks()"
    with pytest.raises(ValueError, match=re.escape(message)):
        ring.insert(ring.empty(capacity, ROW), numbered_rows(range(count)))


@given(capacity=st.integers(1, 10**7), rows_per_insert=st.integers(1, 10**4))
def test_whole_blocks_is_the_largest_capacity_that_inserts_fill_exactly(capacity: int, rows_per_insert: int) -> None:
    whole = ring.whole_blocks(capacity, rows_per_insert)
    assert whole % rows_per_insert == 0
    assert whole <= capacity < whole + rows_per_insert


def test_the_memory_said_beforehand_is_the_memory_taken() -> None:
    image = row_example(jax.ShapeDtypeStruct((5, 4, 3), np.uint8))
    for row, bytes_per_row in ((ROW, 2 * 8 + 3 * 4), (image, 2 * 60 + 3 * 4)):
        taken = sum(leaf.nbytes for leaf in jax.tree.leaves(ring.empty(7, row).rows))
        assert ring.num_bytes(7, row) == taken == 7 * bytes_per_row


def test_rows_keep_their_own_dtype() -> None:
    image = row_example(jax.ShapeDtypeStruct((2, 2, 1), np.uint8))
    pixels = np.array([[[[250], [1]], [[2], [255]]]], np.uint8)
    one = np.ones(1, np.float32)
    device = ring.insert(ring.empty(1, image), Item(pixels, one.astype(np.int32), one, one, pixels[:, ::-1]))
    rows = ring.sample(device, jax.random.key(0), (1,))
    assert rows.s_tm1.dtype == np.uint8
    assert rows.a_tm1.dtype == np.int32
    np.testing.assert_array_equal(rows.s_tm1, pixels)
    np.testing.assert_array_equal(rows.s_t, pixels[:, ::-1])
