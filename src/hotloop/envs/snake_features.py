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
    next_DG = next_cells(state)
    straight, right, left = boards.any_bit(next_DG)
    features = [
        *(~straight, ~left, ~right),
        *_directions(state, state.food_x, state.food_y),
        *(state.heading == way for way in (0, 1, 2)),
    ]
    if kind == "basic":
        return _as_vector(features)
    reached_DG = reach(kind, state)
    room = jnp.maximum(grid * grid - state.length, 1).astype(jnp.float32)
    # Behind the barrier XLA divides; by one number for all it would multiply with 1 / room, which is not exact.
    features += list(boards.count(reached_DG[:3]) / jax.lax.optimization_barrier(jnp.broadcast_to(room, (3,))))
    if kind == "flood":
        return _as_vector(features)
    tail_reached = boards.any_bit(reached_DG[3] & boards.cell(state.tail_x, state.tail_y, grid))
    tail_features = [*_directions(state, state.tail_x, state.tail_y), tail_reached]
    if kind == "selective":
        return _as_vector([*features, *tail_features])
    ways_on = boards.count(boards.spread(next_DG) & boards.free(state.body) & ~next_DG) / 4
    tail_distance = boards.distance(state.x, state.y, state.tail_x, state.tail_y)
    sizes = [tail_distance / (2 * (grid - 1)), state.length / grid**2]
    return _as_vector([*features, *ways_on, *tail_features, *sizes])


def next_cells(state: "SnakeState") -> jax.Array:
    """Where a move straight, right, left leads, as three boards; nothing where it would be death."""
    grid = state.body.shape[0]
    ways = [boards.neighbour(state.x, state.y, (state.heading + turn) % 4) for turn in (STRAIGHT, RIGHT, LEFT)]
    return jnp.stack([boards.cell(x, y, grid) for x, y in ways]) & boards.free(state.body)


def reach(kind: str, state: "SnakeState") -> jax.Array:
    """What can be reached after each move; for the kinds that ask for the tail also from the head, as fourth board."""
    grid, free, next_DG = state.body.shape[0], boards.free(state.body), next_cells(state)
    if kind == "flood":
        return boards.flood_fill(free, next_DG)
    with_tail = free | boards.cell(state.tail_x, state.tail_y, grid)  # the tail is about to leave its cell
    around_head = boards.spread(boards.cell(state.x, state.y, grid)) & with_tail
    starts = jnp.concatenate([next_DG, around_head[None]])
    return boards.flood_fill(jnp.stack([free, free, free, with_tail]), starts)


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
