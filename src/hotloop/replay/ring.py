"""The device ring: transitions in device memory, written and sampled inside the compiled loop.

Rows are inserted a block at a time and the capacity is a whole number of blocks, so an insert never wraps:
`dynamic_update_slice` clamps silently at the end instead of wrapping, which would overwrite wrong rows.
"""

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hotloop import trees
from hotloop.trees import Shapes

Rows = TypeVar("Rows")
"""Transitions (`Item`), or single steps (`sequences.Step`)."""


class Ring(NamedTuple, Generic[Rows]):
    """`rows` has leading axis capacity; `position` is where the next insert begins; `size` rows are valid."""

    rows: Rows
    position: jax.Array
    size: jax.Array


def whole_blocks(capacity: int, rows_per_insert: int) -> int:
    """Largest capacity up to `capacity` that inserts of `rows_per_insert` fill exactly."""
    return capacity - capacity % rows_per_insert


def empty(capacity: int, row: Shapes) -> Ring[Any]:  # of rows like it, as arrays
    """A ring of `capacity` rows shaped like `row` (arrays or ShapeDtypeStructs)."""
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    return Ring(rows, jnp.int32(0), jnp.int32(0))


def insert(ring: Ring[Rows], items: Rows) -> Ring[Rows]:
    """Write M consecutive rows; M must be the same every time and divide the capacity."""
    capacity, count = _leading(ring.rows), _leading(items)
    if capacity % count:
        raise ValueError(f"a ring of {capacity} rows cannot take {count} at a time; round with whole_blocks()")
    rows = jax.tree.map(
        lambda stored, new: jax.lax.dynamic_update_slice_in_dim(stored, new, ring.position, axis=0),
        ring.rows,
        items,
    )
    return Ring(rows, (ring.position + count) % capacity, jnp.minimum(ring.size + count, capacity))


def sample(ring: Ring[Rows], key: jax.Array, shape: tuple[int, ...]) -> Rows:
    """Draw rows uniformly with replacement, as arrays of leading `shape`."""
    # Modulo of 32 random bits: the bias of one row over another is below size / 2^32.
    draws = jax.random.bits(key, shape, jnp.uint32) % ring.size.astype(jnp.uint32)
    return gather(ring, draws.astype(jnp.int32))


def gather(ring: Ring[Rows], index: jax.Array) -> Rows:
    """Rows at `index`, which must be valid: no clamping is paid for."""
    rows: Rows = jax.tree.map(lambda stored: stored.at[index].get(mode="promise_in_bounds"), ring.rows)
    return rows


def num_bytes(capacity: int, row: Shapes) -> int:
    """Device memory of a ring, before it is allocated."""
    return capacity * trees.num_bytes(row)


def check(ring: Ring[Rows], capacity: int, rows_per_insert: int) -> None:
    """Raise ValueError for a loaded ring, of one member or several, whose numbers point outside of it."""
    for size, position in zip(*np.atleast_1d(ring.size, ring.position), strict=True):
        if not 0 <= size <= capacity:
            raise ValueError(f"the checkpoint's replay/ring/size is {size}, expected 0 … {capacity}")
        if not 0 <= position < capacity or position % rows_per_insert:
            expected = f"a multiple of {rows_per_insert} in the ring"
            raise ValueError(f"the checkpoint's replay/ring/position is {position}, expected {expected}")


def _leading(items: object) -> int:
    return int(jax.tree.leaves(items)[0].shape[0])
