"""Boards as rows of bits: a board is one word per row, bit x of row y being the cell (x, y).

What would be a loop over cells is a handful of bit operations on whole rows. Headings are 0 up, 1 right, 2 down,
3 left; the functions below take one board, and vmap makes them take many.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

LARGEST_GRID = 32


def row_dtype(grid: int) -> jnp.dtype:
    """The narrowest word that holds a row: half as wide is twice as many boards per instruction."""
    return jnp.dtype(jnp.uint16 if grid <= 16 else jnp.uint32)


def free(body: jax.Array) -> jax.Array:
    """Cells without a body."""
    return ~body & jnp.asarray((1 << body.shape[-1]) - 1, body.dtype)


def cell(x: jax.Array, y: jax.Array, grid: int) -> jax.Array:
    """A board with one bit set, or none where (x, y) lies outside of it."""
    is_there = (jnp.arange(grid) == y) & (x >= 0) & (x < grid)
    return jnp.where(is_there, jnp.uint32(1) << jnp.maximum(x, 0).astype(jnp.uint32), 0).astype(row_dtype(grid))


def any_bit(rows: jax.Array) -> jax.Array:
    """Whether any cell of a board is set."""
    return jnp.max(rows, axis=-1) > 0


def count(rows: jax.Array) -> jax.Array:
    """Cells that are set, int32."""
    return jnp.sum(jax.lax.population_count(rows).astype(jnp.int32), axis=-1)


def neighbour(x: jax.Array, y: jax.Array, heading: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next cell in a heading; it may lie outside of the grid."""
    dx = (heading == 1).astype(jnp.int32) - (heading == 3)
    dy = (heading == 2).astype(jnp.int32) - (heading == 0)
    return x + dx, y + dy


def distance(x: jax.Array, y: jax.Array, to_x: jax.Array, to_y: jax.Array) -> jax.Array:
    """Manhattan distance."""
    return jnp.abs(x - to_x) + jnp.abs(y - to_y)


def kth_cell(rows: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(x, y) of the k-th set cell, counted from 0 along the rows."""
    grid = rows.shape[-1]
    line = jnp.arange(grid)
    in_row = jax.lax.population_count(rows).astype(jnp.float32)
    up_to_row = (in_row @ jnp.triu(jnp.ones((grid, grid)))).astype(jnp.int32)  # a running sum; cumsum is slower
    y = jnp.sum(up_to_row <= k, dtype=jnp.int32)
    before = jnp.max(jnp.where(line < y, up_to_row, 0))
    row = jnp.max(jnp.where(line == y, rows, 0)).astype(jnp.uint32)
    rank = jax.lax.population_count(row & ((jnp.uint32(2) << line.astype(jnp.uint32)) - 1)).astype(jnp.int32)
    return jnp.sum(rank <= k - before, dtype=jnp.int32), y


def spread(rows: jax.Array) -> jax.Array:
    """The cells and their neighbours; bits beyond the grid's right edge are left to the caller's mask."""
    nothing = jnp.zeros_like(rows[..., :1])
    above = jnp.concatenate([nothing, rows[..., :-1]], axis=-1)
    below = jnp.concatenate([rows[..., 1:], nothing], axis=-1)
    return rows | (rows << 1) | (rows >> 1) | above | below


@custom_vmap
def flood_fill(free: jax.Array, start: jax.Array) -> jax.Array:
    """Cells of `free` that can be reached from those of `start`, up, down, left and right.

    Both are (..., G), as is the answer; `start` must lie in `free`. All boards grow by one cell in all four
    directions at a time, until none changes any more.
    """
    lead, grid = start.shape[:-1], start.shape[-1]
    # One column per board: neighbouring boards lie side by side in memory, so a row of them is one vector loop.
    free_GM, start_GM = (rows.reshape(-1, grid).T for rows in (jnp.broadcast_to(free, start.shape), start))
    nothing_1M = jnp.zeros_like(start_GM[:1])

    def grow(reached: jax.Array) -> jax.Array:
        above = jnp.concatenate([nothing_1M, reached[:-1]])
        below = jnp.concatenate([reached[1:], nothing_1M])
        return free_GM & (reached | (reached << 1) | (reached >> 1) | above | below)

    def grow_twice(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        # Two steps a turn, one from buffer to buffer each: with one XLA copies the board first. max is faster than any.
        once = jax.lax.optimization_barrier(grow(carry[0]))
        twice = grow(once)
        return twice, jnp.max(twice ^ once) > 0

    reached, _ = jax.lax.while_loop(lambda carry: carry[1], grow_twice, (start_GM, jnp.bool_(True)))
    return reached.T.reshape(*lead, grid)


@flood_fill.def_vmap
def _all_boards_in_one_loop(
    axis_size: int, in_batched: list[bool], free: jax.Array, start: jax.Array
) -> tuple[jax.Array, bool]:
    """Under vmap: still one loop for all boards, instead of one that freezes each board when it is done."""
    if not in_batched[1]:
        start = jnp.broadcast_to(start, (axis_size, *start.shape))
    if in_batched[0]:
        free = free.reshape(axis_size, *(1,) * (start.ndim - free.ndim), *free.shape[1:])
    return flood_fill(free, start), True
