"""Treasure: several agents on one field of sand, in which gems grow; each gem is for whoever steps on it first.

Cells are (x, y) with (0, 0) at the top left, walls included; moves are 0 up, 1 right, 2 down, 3 left.

| open question | decision |
|---|---|
| the grid | `grid` cells a side, walls on the border included: (grid - 2)² cells to stand on |
| start | the agents on cells drawn at random, no two on one; nothing has grown but what the first growth brings |
| a turn | agents choose by what they saw at its start; then they move one after another, by their numbers |
| growth | after the moves, and once before the first turn: whoever chooses sees all that there is |
| where things grow | on each cell inside that has neither an agent nor a thing; on one cell at most one thing a turn |
| rates | at most one of all things, so the rates add up to 1 or less; they are rounded to 1/65536 |
| into a wall | the agent stays, -1 |
| into an agent | the agent stays, 0; a cell that another has left earlier in the turn is free, one entered is not |
| onto a thing | the agent moves, its reward is the thing's value, the thing is gone |
| the end | turn `turns` truncates the epoch, for all agents; nothing terminates it |
| a cell is seen as | one of: wall, agent, a thing, else sand; so the channel of `empty` is always 0 |
| outside of the grid | wall |
| an agent's own cell | agent, like all other agents' cells |
| channels | empty, wall, sand, gem, agent, then further things in the order of their names in the options |
| a frame | channel x row x column, flat; the agent is in the middle |
| the stack | `frames` frames, the oldest first; those before the epoch's start are zeros |
| figures | gems, and one of each further thing: how many each agent has found in this epoch so far |
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec
from hotloop.envs.hashed_bits import hashed_bits

if TYPE_CHECKING:
    from PIL.Image import Image

WALL_BUMP = -1.0
CHANNELS = ("empty", "wall", "sand", "gem", "agent")
EMPTY, WALL, SAND, GEM, AGENT = range(5)
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
LARGEST_GRID = 64
_RESOLUTION = 1 << 16


class Thing(NamedTuple):
    """What can be found: a name, what it is worth, and how likely it grows on an empty cell in a turn."""

    name: str
    value: float
    rate: float


class TreasureState(NamedTuple):
    """One field. Cells inside the walls are numbered along the rows, from 0."""

    things: jax.Array  # (cells,) uint8: 0 nothing, 1 gem, then further things
    cell: jax.Array  # (M,) int32: where each agent is
    found: jax.Array  # (M, kinds) float32: what each agent has found in this epoch
    frames: jax.Array  # (M, frames x numbers of a frame) uint8: what it has seen, oldest first
    t: jax.Array


@dataclass(frozen=True)
class Treasure:
    """A grid of 3–64 cells a side with `agents` agents; `things` are further things: {name: {value, rate}}."""

    grid: int = 10
    agents: int = 5
    radius: int = 2
    gem_rate: float = 0.02
    gem_value: float = 10.0
    frames: int = 5
    turns: int = 50
    things: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _require_whole_numbers(self)
        _require_things(self.things)
        for what, rate, value in [
            ("gem", self.gem_rate, self.gem_value),
            *((f"things.{name}", each["rate"], each["value"]) for name, each in self.things.items()),
        ]:
            if not _is_number(rate) or not 0 <= rate <= 1:
                raise TypeError(f"the rate of {what} is {rate!r}, expected a probability: 0 … 1")
            if not _is_number(value):
                raise TypeError(f"the value of {what} is {value!r}, expected a number")
        if (total := math.fsum(kind.rate for kind in self.kinds)) > 1:
            names = ", ".join(kind.name for kind in self.kinds)
            raise TypeError(f"the rates of {names} add up to {total:g}, expected 1 or less: one thing grows on a cell")

    @cached_property
    def kinds(self) -> tuple[Thing, ...]:
        """All that can be found, gems first."""
        further = (Thing(name, float(each["value"]), float(each["rate"])) for name, each in self.things.items())
        return (Thing("gem", float(self.gem_value), float(self.gem_rate)), *further)

    @property
    def num_agents(self) -> int:
        """How many agents there are."""
        return self.agents

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Their names, in the order in which they move."""
        return tuple(f"agent_{number}" for number in range(self.agents))

    @property
    def num_actions(self) -> int:
        """Up, right, down, left."""
        return len(MOVES)

    @property
    def channels(self) -> tuple[str, ...]:
        """What the channels of a frame show."""
        return (*CHANNELS, *self.things)

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of one frame."""
        return len(self.channels), 2 * self.radius + 1, 2 * self.radius + 1

    @property
    def obs_spec(self) -> ObsSpec:
        """The stack of frames, zeros and ones: a byte each, and torsos of dense layers take bytes as they are."""
        return ObsSpec((self.frames * math.prod(self.frame_shape),), np.uint8, 0, 1)

    @property
    def render_fps(self) -> int:
        """Turns per second that are pleasant to watch."""
        return 5

    def reset(self, key: jax.Array) -> tuple[TreasureState, jax.Array]:
        """Begin an epoch."""
        cell_M, grown = self.first_draws(key)
        unseen = jnp.zeros((self.agents, *self.obs_spec.shape), jnp.uint8)
        things = jnp.where(self._has_agent(cell_M), jnp.uint8(0), grown)
        found = jnp.zeros((self.agents, len(self.kinds)), jnp.float32)
        state = TreasureState(things, cell_M, found, unseen, jnp.int32(0))
        state = self._look(state)
        return state, state.frames

    def step(
        self, state: TreasureState, action_M: jax.Array, key: jax.Array
    ) -> tuple[TreasureState, jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Move all agents one cell, in their order, then let things grow."""
        cell_M, kind_M, is_bump_M = self._move(state, action_M)
        values = np.array([0.0, *(kind.value for kind in self.kinds)], np.float32)
        is_kind_MK = kind_M[:, None] == jnp.arange(1, len(values), dtype=kind_M.dtype)
        reward_M = jnp.where(is_kind_MK, values[1:], 0.0).sum(-1) + jnp.where(is_bump_M, jnp.float32(WALL_BUMP), 0.0)
        # Nothing lies under an agent, so what was found is gone; and nothing grows there.
        is_empty = state.things == 0
        things = jnp.where(
            self._has_agent(cell_M), jnp.uint8(0), jnp.where(is_empty, self.draw_growth(key), state.things)
        )
        found = state.found + is_kind_MK
        after = self._look(TreasureState(things, cell_M, found, state.frames, state.t + 1))
        info = {name: found[:, i] for i, name in enumerate(("gems", *self.things))}
        return after, after.frames, reward_M, jnp.bool_(False), after.t >= self.turns, info

    def first_draws(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What is left to chance in `reset(key)`: cells of the agents (M,), and a growth as `draw_growth` gives."""
        start_key, growth_key = jax.random.split(key)
        order = jax.random.bits(start_key, (self._side**2,), jnp.uint32)
        return jax.lax.top_k(order, self.agents)[1].astype(jnp.int32), self.draw_growth(growth_key)

    def draw_growth(self, key: jax.Array) -> jax.Array:
        """What is left to chance in `step(…, key)`: what grows on a cell if it is empty, uint8 (cells,); 0 nothing."""
        cells = self._side**2
        words = hashed_bits(key, -(-cells // 2))  # two cells a word
        draw = jnp.concatenate([words >> 16, words & 0xFFFF])[:cells]
        below = [round(limit * _RESOLUTION) for limit in np.cumsum([kind.rate for kind in self.kinds])]
        grown = jnp.zeros(cells, jnp.uint8)
        for number, limit in reversed([*enumerate(below, 1)]):
            grown = jnp.where(draw < limit, jnp.uint8(number), grown)
        return grown

    def parts(self) -> dict[str, Callable[[TreasureState], jax.Array]]:
        """What of a step a profile shows on its own."""
        return {"frames": lambda state: self._look(state).frames}

    def render(self, state: TreasureState) -> "Image":
        """Draw one state."""
        from hotloop.envs.treasure_picture import draw

        side, cells = self._side, np.asarray(state.cell)
        things = np.asarray(state.things).reshape(side, side)
        return draw(
            grid=self.grid,
            radius=self.radius,
            kinds=[(kind.name, kind.value) for kind in self.kinds],
            things={(int(x) + 1, int(y) + 1): int(things[y, x]) for y, x in np.argwhere(things)},
            agents=[(int(cell) % side + 1, int(cell) // side + 1) for cell in cells],
            found=np.asarray(state.found).astype(int).tolist(),
            t=int(state.t),
            turns=self.turns,
        )

    @property
    def _side(self) -> int:
        """Cells a side, without the walls."""
        return self.grid - 2

    def _has_agent(self, cell_M: jax.Array) -> jax.Array:
        """Where agents are, bool (cells,)."""
        return (jnp.arange(self._side**2, dtype=jnp.int32)[:, None] == cell_M).any(-1)

    def _move(self, state: TreasureState, action_M: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Where the agents come to stand, what they found there (0 nothing), and who bumped into a wall."""
        side = self._side
        dx_M = (action_M == 1).astype(jnp.int32) - (action_M == 3)
        dy_M = (action_M == 2).astype(jnp.int32) - (action_M == 0)
        x_M, y_M = state.cell % side + dx_M, state.cell // side + dy_M
        is_bump_M = (x_M < 0) | (x_M >= side) | (y_M < 0) | (y_M >= side)
        goal_M = jnp.where(is_bump_M, state.cell, y_M * side + x_M)
        cells = [state.cell[i] for i in range(self.agents)]
        for i in range(self.agents):
            is_taken = jnp.bool_(False)
            for j in range(self.agents):
                if j != i:
                    is_taken |= cells[j] == goal_M[i]
            cells[i] = jnp.where(is_taken, cells[i], goal_M[i])
        cell_M = jnp.stack(cells)
        # Nobody else can have been there in this turn, so it lies there still; under one who stays lies nothing.
        return cell_M, state.things[cell_M], is_bump_M

    def _look(self, state: TreasureState) -> TreasureState:
        """The state with a new frame in every agent's stack."""
        side, wide = self._side, 2 * self.radius + 1
        shown = jnp.where(state.things == 0, jnp.uint8(SAND), jnp.uint8(GEM))
        for number in range(2, len(self.kinds) + 1):
            shown = jnp.where(state.things == number, jnp.uint8(AGENT + number - 1), shown)
        shown = jnp.where(self._has_agent(state.cell), jnp.uint8(AGENT), shown)
        seen = jnp.pad(shown.reshape(side, side), self.radius, constant_values=WALL)

        def window(cell: jax.Array) -> jax.Array:
            # A slice, not an array of indices: XLA copies it by the row, in a third of the time.
            return jax.lax.dynamic_slice(seen, (cell // side, cell % side), (wide, wide)).reshape(-1)

        codes_MW = jax.vmap(window)(state.cell)
        channel = jnp.arange(len(self.channels), dtype=jnp.uint8)
        frame_M = (codes_MW[:, None] == channel[:, None]).astype(jnp.uint8).reshape(self.agents, -1)
        return state._replace(frames=jnp.concatenate([state.frames[:, frame_M.shape[1] :], frame_M], axis=1))


def _require_whole_numbers(env: Treasure) -> None:
    for name in ("grid", "agents", "radius", "frames", "turns"):
        if type(getattr(env, name)) is not int:
            raise TypeError(f"{name} is {getattr(env, name)!r}, expected a whole number")
    if not 3 <= env.grid <= LARGEST_GRID:
        raise TypeError(f"grid is {env.grid}, expected 3 … {LARGEST_GRID} cells a side, walls included")
    cells = (env.grid - 2) ** 2
    if not 1 <= env.agents <= cells:
        raise TypeError(
            f"agents is {env.agents}, but within the walls of grid {env.grid} there is room for 1 … {cells}"
        )
    if not 0 <= env.radius < env.grid:
        raise TypeError(f"radius is {env.radius}, expected 0 … {env.grid - 1}: no farther than the grid ({env.grid})")
    if env.frames < 1:
        raise TypeError(f"frames is {env.frames}, expected 1 or more")
    if not 1 <= env.turns < 2**31:
        raise TypeError(f"turns is {env.turns}, expected 1 … {2**31 - 1}")


def _require_things(things: object) -> None:
    """Names that are not taken, each with a value and a rate."""
    if not isinstance(things, Mapping):
        raise TypeError(
            f"things is {things!r}, expected names, each with value and rate: {{food: {{value: 5, rate: 0.01}}}}"
        )
    taken = {*CHANNELS, "gems"}
    for name, each in things.items():
        if not isinstance(name, str) or not name.isidentifier() or name in taken:
            raise TypeError(f"things has {name!r}, expected a name of letters other than {', '.join(sorted(taken))}")
        if not isinstance(each, Mapping) or set(each) != {"value", "rate"}:
            raise TypeError(f"things.{name} is {each!r}, expected value and rate: {{value: 5, rate: 0.01}}")
    if len(things) > 250:
        raise TypeError(f"things has {len(things)} names, expected 250 at most")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
