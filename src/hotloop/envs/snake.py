"""Snake: eat, grow, do not bite yourself. The rules; what the agent sees is in `snake_features.py`.

Cells are (x, y) with (0, 0) at the top left; headings are 0 up, 1 right, 2 down, 3 left.

| open question | decision |
|---|---|
| start | head at (G // 2, G // 2), body to its left, heading right, food on a random free cell |
| relative actions | 0 straight, 1 left, 2 right |
| absolute actions | the headings; reversing is ignored, the snake goes straight on |
| the tail's cell | moving into it is death, although the tail would leave it in the same step |
| death | the board stays as it was before the fatal move, only the heading has turned |
| a step | -0.01 + 0.5 / G per cell of Manhattan distance to the food that it gained |
| food, death | +10 and -10 instead of that |
| time-out | at step `max_steps`, whatever else happened in it: -5 is added and the episode is truncated |
| a full board | the last food fills it: +10, and the episode terminates, won |
| score | foods eaten |
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs import snake_features
from hotloop.envs.device import ObsSpec
from hotloop.envs.flood import LARGEST_GRID, row_dtype
from hotloop.registry import nearest

if TYPE_CHECKING:
    from PIL.Image import Image

FOOD, DEATH, STEP, TIME_OUT, SHAPING = 10.0, -10.0, -0.01, -5.0, 0.5
SMALLEST_GRID = 5
ACTIONS = {"relative": 3, "absolute": 4}


class SnakeState(NamedTuple):
    """One game. `cells` is a ring of the body's cell numbers y * G + x, the head at `head`, the tail behind it."""

    rows: jax.Array  # (G,) bits: where the body is, head included
    cells: jax.Array  # (G * G,) uint16
    head: jax.Array
    length: jax.Array
    heading: jax.Array
    food: jax.Array
    t: jax.Array


@dataclass(frozen=True)
class Snake:
    """A grid of 5–32 cells a side; `obs` is basic, flood, selective, enhanced or grid."""

    grid: int = 10
    obs: str = "flood"
    actions: str = "relative"
    start_length: int = 3
    max_steps: int = 1000

    def __post_init__(self) -> None:
        for name in ("grid", "start_length", "max_steps"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name} is {getattr(self, name)!r}, expected a whole number")
        if not SMALLEST_GRID <= self.grid <= LARGEST_GRID:
            raise TypeError(f"grid is {self.grid}, expected {SMALLEST_GRID} … {LARGEST_GRID} cells a side")
        room = self.grid // 2 + 1
        if not 1 <= self.start_length <= room:
            raise TypeError(
                f"start_length is {self.start_length}, but from the centre of a {self.grid}x{self.grid} grid to its "
                f"edge there is room for 1 … {room}"
            )
        if self.max_steps < 1:
            raise TypeError(f"max_steps is {self.max_steps}, expected at least 1")
        for name, known in (("obs", list(snake_features.SIZES)), ("actions", list(ACTIONS))):
            value = getattr(self, name)
            if value not in known:
                raise TypeError(f"unknown {name} {value!r}; {nearest(str(value), known)}")

    @property
    def num_actions(self) -> int:
        """Three relative or four absolute ones."""
        return ACTIONS[self.actions]

    @property
    def obs_spec(self) -> ObsSpec:
        """Features between 0 and 1, or an image of head, body and food."""
        if self.obs == "grid":
            return ObsSpec((self.grid, self.grid, 3), np.uint8, 0, 255)
        return ObsSpec((snake_features.SIZES[self.obs],), np.float32, 0.0, 1.0)

    @property
    def render_fps(self) -> int:
        """Steps per second that are pleasant to watch."""
        return 15

    def reset(self, key: jax.Array) -> tuple[SnakeState, jax.Array]:
        """Begin a game."""
        middle, length = self.grid // 2, self.start_length
        body = [middle * self.grid + middle - i for i in reversed(range(length))]  # from tail to head
        rows = np.zeros(self.grid, row_dtype(self.grid))
        rows[middle] = sum(1 << (cell % self.grid) for cell in body)
        cells = np.zeros(self.grid**2, np.uint16)
        cells[:length] = body
        state = SnakeState(
            rows=jnp.asarray(rows),
            cells=jnp.asarray(cells),
            head=jnp.int32(length - 1),
            length=jnp.int32(length),
            heading=jnp.int32(1),
            food=jnp.int32(0),
            t=jnp.int32(0),
        )
        state = state._replace(food=self._place_food(state, key))
        return state, self.observe(state)

    def step(
        self, state: SnakeState, action: jax.Array, key: jax.Array
    ) -> tuple[SnakeState, jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Move one cell."""
        grid = self.grid
        heading = self._turn(state.heading, action)
        x, y = snake_features.position(self._cell_at(state, state.head), grid)
        new_x, new_y = snake_features.neighbour(x, y, heading)
        new_cell = new_y * grid + new_x
        new_bit = snake_features.bit(new_x, new_y, grid)
        dead = ~jnp.any(new_bit & snake_features.free_rows(state.rows, grid))
        ate = ~dead & (new_cell == state.food)

        tail_x, tail_y = snake_features.position(self._cell_at(state, state.head - state.length + 1), grid)
        tail_bit = jnp.where(ate, 0, snake_features.bit(tail_x, tail_y, grid)).astype(state.rows.dtype)
        head = jnp.where(dead, state.head, (state.head + 1) % grid**2)
        is_new_head = (jnp.arange(grid**2) == head) & ~dead
        moved = SnakeState(
            rows=jnp.where(dead, state.rows, (state.rows | new_bit) & ~tail_bit),
            cells=jnp.where(is_new_head, new_cell.astype(jnp.uint16), state.cells),
            head=head,
            length=state.length + ate,
            heading=heading,
            food=state.food,
            t=state.t + 1,
        )
        moved = moved._replace(food=jnp.where(ate, self._place_food(moved, key), state.food))

        food_x, food_y = snake_features.position(state.food, grid)
        gained = _distance(x, y, food_x, food_y) - _distance(new_x, new_y, food_x, food_y)
        on_the_way = STEP + gained.astype(jnp.float32) * (SHAPING / grid)
        truncated = moved.t >= self.max_steps
        reward = jnp.where(dead, DEATH, jnp.where(ate, FOOD, on_the_way)) + jnp.where(truncated, TIME_OUT, 0.0)
        won = moved.length == grid**2
        info = {"score": moved.length - self.start_length}
        return moved, self.observe(moved), reward, dead | won, truncated, info

    def observe(self, state: SnakeState) -> jax.Array:
        """What the agent sees of a state."""
        head = snake_features.position(self._cell_at(state, state.head), self.grid)
        tail = snake_features.position(self._cell_at(state, state.head - state.length + 1), self.grid)
        food = snake_features.position(state.food, self.grid)
        seen = snake_features.Board(state.rows, *head, *tail, *food, state.heading, state.length)
        return snake_features.observe(self.obs, seen)

    def render(self, state: SnakeState) -> "Image":
        """Draw one state."""
        from hotloop.envs.snake_picture import draw

        last = int(state.head)
        body = [int(state.cells[(last - i) % self.grid**2]) for i in range(int(state.length))]
        return draw(
            grid=self.grid,
            body=[(cell % self.grid, cell // self.grid) for cell in body],
            heading=int(state.heading),
            food=(int(state.food) % self.grid, int(state.food) // self.grid),
            score=int(state.length) - self.start_length,
            t=int(state.t),
        )

    def _turn(self, heading: jax.Array, action: jax.Array) -> jax.Array:
        if self.actions == "absolute":
            return jnp.where((action - heading) % 4 == 2, heading, action)
        return (heading + jnp.where(action == 1, -1, jnp.where(action == 2, 1, 0))) % 4

    def _cell_at(self, state: SnakeState, place: jax.Array) -> jax.Array:
        return state.cells.at[place % self.grid**2].get(mode="promise_in_bounds").astype(jnp.int32)

    def _place_food(self, state: SnakeState, key: jax.Array) -> jax.Array:
        """A cell drawn uniformly from the free ones: the k-th, found by counting bits."""
        free = snake_features.free_rows(state.rows, self.grid)
        count = jnp.maximum(self.grid**2 - state.length, 1).astype(jnp.uint32)
        k = (jax.random.bits(key, (), jnp.uint32) % count).astype(jnp.int32)
        in_row = jax.lax.population_count(free).astype(jnp.int32)
        up_to_row = jnp.cumsum(in_row)
        y = jnp.sum(up_to_row <= k)
        row = jnp.sum(jnp.where(jnp.arange(self.grid) == y, free, 0), dtype=jnp.uint32)
        left_of = jnp.sum(jnp.where(jnp.arange(self.grid) == y, up_to_row - in_row, 0))
        columns = jnp.arange(self.grid, dtype=jnp.uint32)
        rank = jax.lax.population_count(row & ((jnp.uint32(2) << columns) - 1)).astype(jnp.int32)
        x = jnp.sum(rank <= k - left_of)
        return (y * self.grid + x).astype(jnp.int32)


def _distance(x: jax.Array, y: jax.Array, to_x: jax.Array, to_y: jax.Array) -> jax.Array:
    return jnp.abs(x - to_x) + jnp.abs(y - to_y)
