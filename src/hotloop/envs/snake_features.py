"""What a snake sees: features of its board, computed on rows of bits.

| kind | numbers |
|---|---|
| basic, 10 | danger straight, left, right; food up, right, down, left; heading up, right, down |
| flood, 13 | basic + share of the free cells that a move straight, right, left leaves within reach |
| selective, 18 | flood + tail up, right, down, left; tail within reach |
| enhanced, 23 | flood + ways on after a move straight, right, left; tail up, right, down, left; tail within reach; |
| | distance to the tail; length |
| grid, G x G x 3 | an image, 0 or 255: head, body, food |

Note the order: dangers are straight, left, right; floods and ways on are straight, right, left.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hotloop.envs.flood import flood_fill, row_dtype

SIZES = {"basic": 10, "flood": 13, "selective": 18, "enhanced": 23, "grid": 0}
STRAIGHT, LEFT, RIGHT = 0, -1, 1


class Board(NamedTuple):
    """One game, as far as it can be seen."""

    rows: jax.Array  # (G,) bits of the body, head included
    x: jax.Array
    y: jax.Array
    tail_x: jax.Array
    tail_y: jax.Array
    food_x: jax.Array
    food_y: jax.Array
    heading: jax.Array
    length: jax.Array


def observe(kind: str, board: Board) -> jax.Array:
    """The observation of this kind."""
    if kind == "grid":
        return _image(board)
    grid = board.rows.shape[0]
    free = free_rows(board.rows, grid)
    # Where each move would lead, as bits; nothing where it would be death.
    next_DG = jnp.stack([_next_cell(board, turn, grid) & free for turn in (STRAIGHT, RIGHT, LEFT)])
    safe_D = jnp.max(next_DG, axis=-1) > 0
    straight, right, left = safe_D
    features = [
        *(~straight, ~left, ~right),
        *_directions(board, board.food_x, board.food_y),
        *(board.heading == way for way in (0, 1, 2)),
    ]
    if kind == "basic":
        return _as_vector(features)
    to_tail = free | bit(board.tail_x, board.tail_y, grid)
    if kind == "flood":
        reached_DG = flood_fill(free, next_DG)
    else:  # one more board: from the head, through the cell that the tail is about to leave
        around_head = _spread(bit(board.x, board.y, grid)) & to_tail
        starts = jnp.concatenate([next_DG, around_head[None]])
        reached_DG = flood_fill(jnp.stack([free, free, free, to_tail]), starts)
    room = jnp.maximum(grid * grid - board.length, 1).astype(jnp.float32)
    features += [count / room for count in _count(reached_DG[:3])]  # one by one: a shared divisor loses its last bit
    if kind == "flood":
        return _as_vector(features)
    tail_reached = jnp.any(reached_DG[3] & bit(board.tail_x, board.tail_y, grid))
    tail = [*_directions(board, board.tail_x, board.tail_y), tail_reached]
    if kind == "selective":
        return _as_vector([*features, *tail])
    ways_on = _count(_spread(next_DG) & free & ~next_DG) / 4
    tail_distance = jnp.abs(board.x - board.tail_x) + jnp.abs(board.y - board.tail_y)
    sizes = [tail_distance / (2 * (grid - 1)), board.length / grid**2]
    return _as_vector([*features, *ways_on, *tail, *sizes])


def free_rows(rows: jax.Array, grid: int) -> jax.Array:
    """Bits of the cells without a body."""
    return ~rows & ((1 << grid) - 1)


def bit(x: jax.Array, y: jax.Array, grid: int) -> jax.Array:
    """Rows with one bit set, or none where the cell lies outside of the grid."""
    is_there = (jnp.arange(grid) == y) & (x >= 0) & (x < grid)
    return jnp.where(is_there, jnp.uint32(1) << jnp.maximum(x, 0).astype(jnp.uint32), 0).astype(row_dtype(grid))


def position(cell: jax.Array, grid: int) -> tuple[jax.Array, jax.Array]:
    """A cell number as (x, y)."""
    return cell % grid, cell // grid


def neighbour(x: jax.Array, y: jax.Array, heading: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next cell in a heading; it may lie outside of the grid."""
    dx = (heading == 1).astype(jnp.int32) - (heading == 3)
    dy = (heading == 2).astype(jnp.int32) - (heading == 0)
    return x + dx, y + dy


def _next_cell(board: Board, turn: int, grid: int) -> jax.Array:
    return bit(*neighbour(board.x, board.y, (board.heading + turn) % 4), grid)


def _directions(board: Board, x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [y < board.y, x > board.x, y > board.y, x < board.x]


def _spread(rows: jax.Array) -> jax.Array:
    """The cells and their neighbours; bits beyond the grid are left for the caller's mask."""
    nothing = jnp.zeros_like(rows[..., :1])
    above = jnp.concatenate([nothing, rows[..., :-1]], axis=-1)
    below = jnp.concatenate([rows[..., 1:], nothing], axis=-1)
    return rows | (rows << 1) | (rows >> 1) | above | below


def _count(rows: jax.Array) -> jax.Array:
    return jnp.sum(jax.lax.population_count(rows).astype(jnp.int32), axis=-1).astype(jnp.float32)


def _as_vector(features: list[jax.Array]) -> jax.Array:
    return jnp.stack([feature.astype(jnp.float32) for feature in features])


def _image(board: Board) -> jax.Array:
    grid = board.rows.shape[0]
    head = bit(board.x, board.y, grid)
    planes = jnp.stack([head, board.rows & ~head, bit(board.food_x, board.food_y, grid)], axis=-1)  # (G, 3)
    columns = jnp.arange(grid, dtype=board.rows.dtype)
    cells = (planes[:, None, :] >> columns[None, :, None]) & 1
    return cells.astype(jnp.uint8) * 255
