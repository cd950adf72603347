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

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from hotloop.envs import boards

if TYPE_CHECKING:
    from hotloop.envs.snake import SnakeState

SIZES = {"basic": 10, "flood": 13, "selective": 18, "enhanced": 23, "grid": 0}
STRAIGHT, LEFT, RIGHT = 0, -1, 1


def observe(kind: str, state: "SnakeState") -> jax.Array:
    """The observation of this kind."""
    if kind == "grid":
        return _image(state)
    grid = state.body.shape[0]
    free = boards.free(state.body)
    # Where each move would lead, as bits; nothing where it would be death.
    next_DG = jnp.stack([_next_cell(state, turn, grid) & free for turn in (STRAIGHT, RIGHT, LEFT)])
    straight, right, left = boards.any_bit(next_DG)
    features = [
        *(~straight, ~left, ~right),
        *_directions(state, state.food_x, state.food_y),
        *(state.heading == way for way in (0, 1, 2)),
    ]
    if kind == "basic":
        return _as_vector(features)
    tail = boards.cell(state.tail_x, state.tail_y, grid)
    if kind == "flood":
        reached_DG = boards.flood_fill(free, next_DG)
    else:  # one more board: from the head, through the cell that the tail is about to leave
        around_head = boards.spread(boards.cell(state.x, state.y, grid)) & (free | tail)
        starts = jnp.concatenate([next_DG, around_head[None]])
        reached_DG = boards.flood_fill(jnp.stack([free, free, free, free | tail]), starts)
    room = jnp.maximum(grid * grid - state.length, 1).astype(jnp.float32)
    # Behind the barrier XLA divides; by one number for all it would multiply with 1 / room, which is not exact.
    features += list(boards.count(reached_DG[:3]) / jax.lax.optimization_barrier(jnp.broadcast_to(room, (3,))))
    if kind == "flood":
        return _as_vector(features)
    tail_reached = boards.any_bit(reached_DG[3] & tail)
    tail_features = [*_directions(state, state.tail_x, state.tail_y), tail_reached]
    if kind == "selective":
        return _as_vector([*features, *tail_features])
    ways_on = boards.count(boards.spread(next_DG) & free & ~next_DG) / 4
    tail_distance = boards.distance(state.x, state.y, state.tail_x, state.tail_y)
    sizes = [tail_distance / (2 * (grid - 1)), state.length / grid**2]
    return _as_vector([*features, *ways_on, *tail_features, *sizes])


def _next_cell(state: "SnakeState", turn: int, grid: int) -> jax.Array:
    return boards.cell(*boards.neighbour(state.x, state.y, (state.heading + turn) % 4), grid)


def _directions(state: "SnakeState", x: jax.Array, y: jax.Array) -> list[jax.Array]:
    return [y < state.y, x > state.x, y > state.y, x < state.x]


def _as_vector(features: list[jax.Array]) -> jax.Array:
    return jnp.stack([feature.astype(jnp.float32) for feature in features])


def _image(state: "SnakeState") -> jax.Array:
    grid = state.body.shape[0]
    head = boards.cell(state.x, state.y, grid)
    planes = jnp.stack([head, state.body & ~head, boards.cell(state.food_x, state.food_y, grid)], axis=-1)  # (G, 3)
    columns = jnp.arange(grid, dtype=planes.dtype)
    cells = (planes[:, None, :] >> columns[None, :, None]) & 1
    return cells.astype(jnp.uint8) * 255
