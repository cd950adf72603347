"""Treasure as the document's code has it: a grid of Python objects, looked at cell by cell; and the same by NumPy.

The rules are those of `hotloop.envs.treasure`; things other than gems are left out. Both games take chance from the
same draws, so they play the same epochs.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

SIDE, AGENTS, RADIUS, TURNS = 10, 5, 2, 50
GEM_RATE, GEM_VALUE, WALL_VALUE = 0.02, 10.0, -1.0
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
KINDS = ("empty", "wall", "sand", "gem", "agent")
EMPTY, WALL, SAND, GEM, AGENT = range(5)
FRAME_SIZE = len(KINDS) * (2 * RADIUS + 1) ** 2
Cell = tuple[int, int]


class Draws(Protocol):
    """What is left to chance; cells within the walls are numbered along the rows."""

    def starts(self) -> Sequence[int]:
        """A cell for each agent, no two the same."""

    def growth(self) -> np.ndarray:
        """Whether a gem grows on each cell if it is empty, bool (cells,)."""


class RandomDraws:
    """The game's own chance."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def starts(self) -> Sequence[int]:
        """A cell for each agent, no two the same."""
        return [int(cell) for cell in self.random.choice((SIDE - 2) ** 2, AGENTS, replace=False)]

    def growth(self) -> np.ndarray:
        """Whether a gem grows on each cell if it is empty, bool (cells,)."""
        return self.random.random((SIDE - 2) ** 2) < GEM_RATE


class Game(Protocol):
    """Epochs of five agents."""

    t: int

    def reset(self) -> None:
        """Begin an epoch."""

    def step(self, actions: Sequence[int]) -> list[float]:
        """Take a turn: moves in the order of the agents, then growth. Returns their rewards."""

    def frame(self, number: int) -> np.ndarray:
        """What one agent sees now, float32 (125,)."""


class Entity:
    """What is in a cell."""

    kind, value, is_passable = EMPTY, 0.0, True


class Wall(Entity):
    """Not to be passed."""

    kind, value, is_passable = WALL, WALL_VALUE, False


class Sand(Entity):
    """Nothing but the ground."""

    kind = SAND


class Gem(Entity):
    """For whoever comes first."""

    kind, value = GEM, GEM_VALUE


class Agent(Entity):
    """One of the agents, and where it is."""

    kind, is_passable = AGENT, False

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y


class ObjectGame:
    """The grid is lists of objects; a frame is put together cell by cell."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.one_hot = {kind: np.eye(len(KINDS), dtype=np.float32)[kind] for kind in range(1, len(KINDS))}
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self.t = 0
        self.cells: list[list[Entity]] = [
            [Sand() if 0 < x < SIDE - 1 and 0 < y < SIDE - 1 else Wall() for x in range(SIDE)] for y in range(SIDE)
        ]
        self.agents = [Agent(*_cell(number)) for number in self.draws.starts()]
        for agent in self.agents:
            self.cells[agent.y][agent.x] = agent
        self._grow()

    def step(self, actions: Sequence[int]) -> list[float]:
        """Take a turn: moves in the order of the agents, then growth. Returns their rewards."""
        rewards = [self._move(agent, action) for agent, action in zip(self.agents, actions, strict=True)]
        self._grow()
        self.t += 1
        return rewards

    def frame(self, number: int) -> np.ndarray:
        """What one agent sees now, float32 (125,)."""
        agent, width = self.agents[number], 2 * RADIUS + 1
        frame = np.zeros((len(KINDS), width, width), np.float32)
        for row in range(width):
            for column in range(width):
                x, y = agent.x + column - RADIUS, agent.y + row - RADIUS
                is_outside = not (0 <= x < SIDE and 0 <= y < SIDE)
                kind = WALL if is_outside else self.cells[y][x].kind
                frame[:, row, column] = self.one_hot[kind]
        return frame.reshape(-1)

    def _move(self, agent: Agent, action: int) -> float:
        x, y = agent.x + MOVES[action][0], agent.y + MOVES[action][1]
        goal = self.cells[y][x]
        if goal.is_passable:
            self.cells[agent.y][agent.x] = Sand()
            self.cells[y][x] = agent
            agent.x, agent.y = x, y
        return goal.value

    def _grow(self) -> None:
        for number, grows in enumerate(self.draws.growth()):
            x, y = _cell(number)
            if grows and self.cells[y][x].kind == SAND:
                self.cells[y][x] = Gem()


class NumpyGame:
    """Improved by hand: the grid is one array with walls as far as an agent can see; a frame is a slice of it."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.one_hot = np.eye(len(KINDS), dtype=np.float32)
        self.values = np.zeros(len(KINDS))
        self.values[[WALL, GEM]] = WALL_VALUE, GEM_VALUE
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self.t = 0
        self.cells = np.full((SIDE + 2 * RADIUS - 2, SIDE + 2 * RADIUS - 2), WALL, np.uint8)
        self.inside = self.cells[RADIUS:-RADIUS, RADIUS:-RADIUS]
        self.inside[...] = SAND
        self.agents = [_cell(number) for number in self.draws.starts()]
        for x, y in self.agents:
            self.inside[y - 1, x - 1] = AGENT
        self._grow()

    def step(self, actions: Sequence[int]) -> list[float]:
        """Take a turn: moves in the order of the agents, then growth. Returns their rewards."""
        rewards = [self._move(number, action) for number, action in enumerate(actions)]
        self._grow()
        self.t += 1
        return rewards

    def frame(self, number: int) -> np.ndarray:
        """What one agent sees now, float32 (125,)."""
        x, y = self.agents[number]
        window = self.cells[y - 1 : y + 2 * RADIUS, x - 1 : x + 2 * RADIUS]
        return self.one_hot[window].transpose(2, 0, 1).reshape(-1)

    def _move(self, number: int, action: int) -> float:
        x, y = self.agents[number]
        to_x, to_y = x + MOVES[action][0], y + MOVES[action][1]
        kind = int(self.cells[to_y + RADIUS - 1, to_x + RADIUS - 1])
        if kind in (SAND, GEM):
            self.inside[y - 1, x - 1] = SAND
            self.inside[to_y - 1, to_x - 1] = AGENT
            self.agents[number] = to_x, to_y
        return float(self.values[kind])

    def _grow(self) -> None:
        grows = self.draws.growth().reshape(self.inside.shape) & (self.inside == SAND)
        self.inside[grows] = GEM


def _cell(number: int) -> Cell:
    """(x, y) of a cell within the walls, by its number along the rows."""
    return number % (SIDE - 2) + 1, number // (SIDE - 2) + 1
