"""Flood fill without a loop over cells: a board is one word of bits per row, and all boards grow at once.

A step of the fill is a handful of bit operations on whole rows; it repeats until no board changes any more.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

LARGEST_GRID = 32


def row_dtype(grid: int) -> jnp.dtype:
    """The narrowest word that holds a row: half as wide is twice as many boards per instruction."""
    return jnp.dtype(jnp.uint16 if grid <= 16 else jnp.uint32)


@custom_vmap
def flood_fill(free: jax.Array, start: jax.Array) -> jax.Array:
    """Cells of `free` that can be reached from those of `start`, up, down, left and right.

    Both are (..., G) rows of bits, bit x of row y being cell (x, y); so is the answer. `start` must lie in `free`.
    """
    lead, grid = start.shape[:-1], start.shape[-1]
    # One column per board: neighbouring boards lie side by side in memory, so a row of them is one vector loop.
    free_GM, start_GM = (rows.reshape(-1, grid).T for rows in (jnp.broadcast_to(free, start.shape), start))
    nothing_1M = jnp.zeros_like(start_GM[:1])

    def grow(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reached, _ = carry
        above = jnp.concatenate([nothing_1M, reached[:-1]])
        below = jnp.concatenate([reached[1:], nothing_1M])
        grown = free_GM & (reached | (reached << 1) | (reached >> 1) | above | below)
        return grown, jnp.max(grown ^ reached) > 0  # faster than any(grown != reached)

    reached, _ = jax.lax.while_loop(lambda carry: carry[1], grow, (start_GM, jnp.bool_(True)))
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
