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

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs import boards, snake_features
from hotloop.envs.boards import LARGEST_GRID, row_dtype
from hotloop.envs.device import ObsSpec
from hotloop.registry import nearest

if TYPE_CHECKING:
    from PIL.Image import Image

FOOD, DEATH, STEP, TIME_OUT, SHAPING = 10.0, -10.0, -0.01, -5.0, 0.5
SMALLEST_GRID = 5
ACTIONS = {"relative": 3, "absolute": 4}


class SnakeState(NamedTuple):
    """One game. All boards are (G,) rows of bits; the body's order is in the headings its cells were left in."""

    body: jax.Array  # where the snake is, head included
    left_by_low: jax.Array  # low bit of the heading in which the head left each cell of the body
    left_by_high: jax.Array  # and its high bit
    x: jax.Array
    y: jax.Array
    tail_x: jax.Array
    tail_y: jax.Array
    heading: jax.Array
    food_x: jax.Array
    food_y: jax.Array
    length: jax.Array
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
        if not 1 <= self.max_steps < 2**31:
            raise TypeError(f"max_steps is {self.max_steps}, expected 1 … {2**31 - 1}")
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
        middle, back = self.grid // 2, self.grid // 2 - self.start_length + 1
        body = np.zeros(self.grid, row_dtype(self.grid))
        body[middle] = sum(1 << x for x in range(back, middle + 1))
        food_x, food_y = self._place_food(jnp.asarray(body), jnp.int32(self.start_length), key)
        state = SnakeState(
            body=jnp.asarray(body),
            left_by_low=jnp.asarray(body),  # heading 1, right
            left_by_high=jnp.zeros(self.grid, body.dtype),
            x=jnp.int32(middle),
            y=jnp.int32(middle),
            tail_x=jnp.int32(back),
            tail_y=jnp.int32(middle),
            heading=jnp.int32(1),
            food_x=food_x,
            food_y=food_y,
            length=jnp.int32(self.start_length),
            t=jnp.int32(0),
        )
        return state, self.observe(state)

    def step(
        self, state: SnakeState, action: jax.Array, key: jax.Array
    ) -> tuple[SnakeState, jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Move one cell."""
        heading = self._turn(state.heading, action)
        x, y = boards.neighbour(state.x, state.y, heading)
        next_head = boards.cell(x, y, self.grid)
        dead = ~boards.any_bit(next_head & boards.free(state.body))
        ate = ~dead & (x == state.food_x) & (y == state.food_y)
        moved = self._move(state, heading, x, y, dead, ate)
        food_x, food_y = self._place_food(moved.body, moved.length, key)
        moved = moved._replace(
            food_x=jnp.where(ate, food_x, state.food_x), food_y=jnp.where(ate, food_y, state.food_y), t=state.t + 1
        )
        before = boards.distance(state.x, state.y, state.food_x, state.food_y)
        after = boards.distance(x, y, state.food_x, state.food_y)
        on_the_way = STEP + (before - after).astype(jnp.float32) * (SHAPING / self.grid)
        truncated = moved.t >= self.max_steps
        reward = jnp.where(dead, DEATH, jnp.where(ate, FOOD, on_the_way)) + jnp.where(truncated, TIME_OUT, 0.0)
        won = moved.length == self.grid**2
        info = {"score": moved.length - self.start_length}
        return moved, self.observe(moved), reward, dead | won, truncated, info

    def observe(self, state: SnakeState) -> jax.Array:
        """What the agent sees of a state."""
        return snake_features.observe(self.obs, state)

    def action_mask(self, state: SnakeState) -> jax.Array:
        """All but reversing into the neck, which absolute actions can ask for."""
        each = jnp.arange(self.num_actions)
        if self.actions == "relative":
            return each >= 0
        return (state.length == 1) | ((each - state.heading) % 4 != 2)

    def parts(self) -> dict[str, Callable[[SnakeState], jax.Array]]:
        """What of a step a profile shows on its own."""
        parts: dict[str, Callable[[SnakeState], jax.Array]] = {"features": self.observe}
        if self.obs in ("flood", "selective", "enhanced"):
            parts["flood fill in them"] = lambda state: boards.count(snake_features.reach(self.obs, state))
        return parts

    def render(self, state: SnakeState) -> "Image":
        """Draw one state."""
        from hotloop.envs.snake_picture import draw

        return draw(
            grid=self.grid,
            body=self.cells_of(state),
            heading=int(state.heading),
            food=(int(state.food_x), int(state.food_y)),
            score=int(state.length) - self.start_length,
            t=int(state.t),
        )

    def cells_of(self, state: SnakeState) -> list[tuple[int, int]]:
        """The body's cells (x, y) from head to tail, on the host."""
        x, y, cells = int(state.tail_x), int(state.tail_y), []
        for _ in range(int(state.length)):
            cells.append((x, y))
            low, high = ((int(rows[y]) >> x) & 1 for rows in (state.left_by_low, state.left_by_high))
            dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0))[low + 2 * high]
            x, y = x + dx, y + dy
        return cells[::-1]

    def _move(
        self, state: SnakeState, heading: jax.Array, x: jax.Array, y: jax.Array, dead: jax.Array, ate: jax.Array
    ) -> SnakeState:
        """Put the head on (x, y); the tail follows unless the snake ate. A dead one only turns."""
        old_head = boards.cell(state.x, state.y, self.grid)
        low = jnp.where((heading & 1) > 0, state.left_by_low | old_head, state.left_by_low & ~old_head)
        high = jnp.where((heading & 2) > 0, state.left_by_high | old_head, state.left_by_high & ~old_head)
        tail = boards.cell(state.tail_x, state.tail_y, self.grid)
        tail_heading = boards.any_bit(low & tail) + 2 * boards.any_bit(high & tail)
        tail_x, tail_y = boards.neighbour(state.tail_x, state.tail_y, tail_heading)
        stays = dead | ate
        return state._replace(
            body=jnp.where(stays, state.body, state.body & ~tail) | boards.cell(x, y, self.grid),  # a wall has no bit
            left_by_low=jnp.where(dead, state.left_by_low, low),
            left_by_high=jnp.where(dead, state.left_by_high, high),
            x=jnp.where(dead, state.x, x),
            y=jnp.where(dead, state.y, y),
            tail_x=jnp.where(stays, state.tail_x, tail_x),
            tail_y=jnp.where(stays, state.tail_y, tail_y),
            heading=heading,
            length=state.length + ate,
        )

    def _turn(self, heading: jax.Array, action: jax.Array) -> jax.Array:
        if self.actions == "absolute":
            return jnp.where((action - heading) % 4 == 2, heading, action)
        return (heading + jnp.where(action == 1, -1, jnp.where(action == 2, 1, 0))) % 4

    def _place_food(self, body: jax.Array, length: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A cell drawn uniformly from the free ones: the k-th, found by counting bits."""
        count = jnp.maximum(self.grid**2 - length, 1).astype(jnp.uint32)
        k = (jax.random.bits(key, (), jnp.uint32) % count).astype(jnp.int32)
        return boards.kth_cell(boards.free(body), k)
