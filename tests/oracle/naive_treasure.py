"""Treasure once more, from the table of its rules: dicts of cells, one agent after the other, one cell after the other.

Chance is handed in, never drawn here. `Growth` says what would grow on each cell inside the walls if the cell were
empty: a name per cell (x, y), "" for nothing. `starts_of` and `growth_of` read what
`Treasure.first_draws` and `Treasure.draw_growth` give.
"""

from collections.abc import Mapping, Sequence

import numpy as np

Cell = tuple[int, int]
Growth = Mapping[Cell, str]
STEPS: tuple[Cell, ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Moves 0 up, 1 right, 2 down, 3 left, as (dx, dy)."""


def inside(grid: int) -> list[Cell]:
    """Cells within the walls, along the rows."""
    return [(x, y) for y in range(1, grid - 1) for x in range(1, grid - 1)]


def starts_of(grid: int, numbers: Sequence[int]) -> list[Cell]:
    """Start cells, from their numbers along the rows."""
    return [inside(grid)[int(number)] for number in numbers]


def growth_of(grid: int, names: Sequence[str], kinds: Sequence[int]) -> dict[Cell, str]:
    """A growth, from the number of a kind per cell along the rows: 0 nothing, 1 the first of `names`, …"""
    assert len(kinds) == (grid - 2) ** 2
    return {cell: ("", *names)[int(kind)] for cell, kind in zip(inside(grid), kinds, strict=True)}


class NaiveTreasure:
    """One epoch."""

    def __init__(
        self,
        starts: Sequence[Cell],
        growth: Growth,
        *,
        grid: int = 10,
        radius: int = 2,
        frames: int = 5,
        turns: int = 50,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """`values`: what each thing is worth, gem first."""
        self.grid, self.radius, self.turns = grid, radius, turns
        self.values = {"gem": 10.0} if values is None else dict(values)
        self.channels = ["empty", "wall", "sand", "gem", "agent", *list(self.values)[1:]]
        assert len(set(starts)) == len(starts)
        self.agents, self.things, self.t = list(starts), {}, 0
        self.found = [dict.fromkeys(self.values, 0) for _ in starts]
        self.grow(growth)
        nothing = [0] * (len(self.channels) * (2 * radius + 1) ** 2)
        self.stacks = [[nothing] * (frames - 1) + [self.frame(number)] for number in range(len(starts))]

    def step(self, actions: Sequence[int], growth: Growth) -> tuple[list[float], bool, bool]:
        """A turn: moves in order, then growth, then everybody looks; rewards, terminated, truncated."""
        rewards = [self.move(number, int(action)) for number, action in enumerate(actions)]
        self.grow(growth)
        self.t += 1
        for number, stack in enumerate(self.stacks):
            stack.append(self.frame(number))
            stack.pop(0)
        return rewards, False, self.t == self.turns

    def move(self, number: int, action: int) -> float:
        x, y = self.agents[number]
        goal = x + STEPS[action][0], y + STEPS[action][1]
        if self.is_wall(goal):
            return -1.0
        if goal in self.agents:
            return 0.0
        self.agents[number] = goal
        if goal not in self.things:
            return 0.0
        name = self.things.pop(goal)
        self.found[number][name] += 1
        return self.values[name]

    def grow(self, growth: Growth) -> None:
        for cell in inside(self.grid):
            if cell not in self.agents and cell not in self.things and growth[cell]:
                self.things[cell] = growth[cell]

    def is_wall(self, cell: Cell) -> bool:
        return not (1 <= cell[0] <= self.grid - 2 and 1 <= cell[1] <= self.grid - 2)

    def look(self, cell: Cell) -> str:
        if self.is_wall(cell):
            return "wall"
        if cell in self.agents:
            return "agent"
        return self.things.get(cell, "sand")

    def frame(self, number: int) -> list[int]:
        """What one agent sees now: channel by channel, row by row."""
        x, y = self.agents[number]
        reach = range(-self.radius, self.radius + 1)
        return [
            int(self.look((x + dx, y + dy)) == channel) for channel in self.channels for dy in reach for dx in reach
        ]

    def observation(self, number: int) -> np.ndarray:
        """Its stack of frames, oldest first, flat."""
        return np.array([value for frame in self.stacks[number] for value in frame], np.uint8)
