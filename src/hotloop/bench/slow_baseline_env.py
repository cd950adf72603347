"""The slow baseline's environment: N Snakes as torch tensors on the CPU, by the rules of `hotloop.envs.snake`.

Tensor operations over all envs where the original has them (heads, collisions, rewards, features), a Python loop
over envs where it has one (bodies, food, resets). Flood fill is given from outside.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from hotloop.bench.slow_baseline_flood import MOVES, Boards

FOOD, DEATH, STEP, TIME_OUT, SHAPING = 10.0, -10.0, -0.01, -5.0, 0.5
START = ((0, 0), (-1, 0), (-2, 0))
"""Where the first body lies, from the centre: its head, and two cells to the left."""
FEATURES, ACTIONS = 13, 3
Flood = Callable[[Boards, int], np.ndarray]


class Outcome(NamedTuple):
    """What a step of all envs yields. `obs` is where the next step starts.

    `last_obs` differs from it where an episode was truncated: there it is what the bootstrap needs. Where one
    terminated it is the next episode's, as in the original; its value is multiplied by 0.
    """

    obs: torch.Tensor
    last_obs: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    score: torch.Tensor


class SlowSnakes:
    """N games on a G x G grid with three relative actions: 0 straight, 1 left, 2 right."""

    def __init__(self, num_envs: int, flood: Flood, *, seed: int, grid: int = 10, max_steps: int = 1000) -> None:
        self.num_envs, self.flood, self.grid, self.max_steps = num_envs, flood, grid, max_steps
        self.flood_seconds = 0.0
        self._random = torch.Generator().manual_seed(seed)
        self._moves, self._turns = torch.tensor(MOVES), torch.tensor([0, -1, 1])
        self._segments = torch.arange(grid * grid)
        self._start = torch.tensor(START) + grid // 2
        self.bodies = torch.zeros(num_envs, grid * grid, 2, dtype=torch.long)
        self.lengths, self.headings, self.steps = (torch.zeros(num_envs, dtype=torch.long) for _ in range(3))
        self.foods = torch.zeros(num_envs, 2, dtype=torch.long)

    def reset(self) -> torch.Tensor:
        """Begin all games."""
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self.observe()

    def step(self, actions: torch.Tensor) -> Outcome:
        """Move every snake one cell, and begin the next game where one ended."""
        self.headings = (self.headings + self._turns[actions]) % 4
        heads = self.bodies[:, 0]
        new_heads = heads + self._moves[self.headings]
        dead = self._blocked(new_heads)
        ate = ~dead & (new_heads == self.foods).all(1)
        gained = (heads - self.foods).abs().sum(1) - (new_heads - self.foods).abs().sum(1)
        reward = STEP + gained.float() * (SHAPING / self.grid)
        reward[dead], reward[ate] = DEATH, FOOD
        self._move(new_heads, dead, ate)
        self.steps += 1
        truncated = self.steps >= self.max_steps
        reward[truncated] += TIME_OUT
        terminated = dead | (self.lengths == self.grid**2)
        ended, score = terminated | truncated, self.lengths - len(START)
        before_reset = self.observe() if truncated.any() else None
        if ended.any():
            self._begin(ended)
        obs = last_obs = self.observe()
        if before_reset is not None:
            last_obs = torch.where(truncated[:, None], before_reset, obs)
        return Outcome(obs, last_obs, reward, terminated, truncated, score)

    def observe(self) -> torch.Tensor:
        """(N, 13): dangers, direction of the food, heading, and what flood fill says."""
        heads = self.bodies[:, 0]
        starts = [heads + self._moves[(self.headings + turn) % 4] for turn in (0, 1, -1)]
        straight, right, left = (self._blocked(start) for start in starts)
        obs = torch.zeros(self.num_envs, FEATURES)
        obs[:, 0], obs[:, 1], obs[:, 2] = straight, left, right
        obs[:, 3] = self.foods[:, 1] < heads[:, 1]
        obs[:, 4] = self.foods[:, 0] > heads[:, 0]
        obs[:, 5] = self.foods[:, 1] > heads[:, 1]
        obs[:, 6] = self.foods[:, 0] < heads[:, 0]
        for heading in range(3):
            obs[:, 7 + heading] = self.headings == heading
        began = time.perf_counter()
        boards = Boards(
            self.bodies.numpy(),
            self.lengths.numpy(),
            self.headings.numpy(),
            self.foods.numpy(),
            torch.stack(starts, 1).numpy(),
            ~torch.stack([straight, right, left], 1).numpy(),
        )
        room = np.maximum(self.grid**2 - boards.length, 1)
        obs[:, 10:] = torch.from_numpy(self.flood(boards, self.grid) / room[:, None])
        self.flood_seconds += time.perf_counter() - began
        return obs

    def _blocked(self, cells: torch.Tensor) -> torch.Tensor:
        """Whether each env's cell (N, 2) lies outside or on the body."""
        outside = ((cells < 0) | (cells >= self.grid)).any(1)
        on_body = (self.bodies == cells[:, None]).all(2) & (self._segments < self.lengths[:, None])
        return outside | on_body.any(1)

    def _move(self, new_heads: torch.Tensor, dead: torch.Tensor, ate: torch.Tensor) -> None:
        shifted = torch.roll(self.bodies, 1, dims=1)
        for i in torch.where(~dead)[0].tolist():
            if ate[i].item():
                self.lengths[i] += 1
            length = self.lengths[i].item()
            self.bodies[i, 1:length] = shifted[i, 1:length]
            self.bodies[i, 0] = new_heads[i]
            if ate[i].item():
                self._place_food(i)

    def _begin(self, which: torch.Tensor) -> None:
        for i in torch.where(which)[0].tolist():
            self.bodies[i, : len(START)] = self._start
            self.lengths[i], self.headings[i], self.steps[i] = len(START), 1, 0
            self._place_food(i)

    def _place_food(self, i: int) -> None:
        """Draw cells until one is free. A full board keeps its food: that game is won."""
        length = self.lengths[i].item()
        body = self.bodies[i, :length]
        while length < self.grid**2:
            cell = torch.randint(0, self.grid, (2,), generator=self._random)
            if not (body == cell).all(1).any():
                self.foods[i] = cell
                return
