"""Envs of `hotloop bench processes`: their steps take so much work of a processor, or so much time without any.

Work is a number of turns of a loop, found once by measuring, and not a time to pass: an env that has to share its core
takes longer for it, as any program does.
"""

import time

import gymnasium as gym
import numpy as np

OBSERVED, LENGTH = 8, 200
"""Numbers that are seen, steps of an episode."""
CALIBRATION_SECONDS = 0.3


class WorkingEnv(gym.Env[np.ndarray, np.int64]):
    """Balls that fall and bounce, in plain Python: `work` small steps of theirs are one step of the env."""

    def __init__(self, work: int = 0, waits: float = 0.0) -> None:
        """`waits` are seconds that a step waits for nothing, as it would for a simulator in another program."""
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVED,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self._work, self._waits = work, waits

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Balls at rest at heights of their own."""
        super().reset(seed=seed)
        self._heights: list[float] = [float(height) for height in self.np_random.random(OBSERVED)]
        self._speeds = [0.0] * OBSERVED
        self._steps = 0
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Push one ball, let all fall."""
        self._speeds[int(action)] += 0.1
        fall(self._heights, self._speeds, self._work)
        if self._waits:
            time.sleep(self._waits)
        self._steps += 1
        return self._seen(), self._heights[0], False, self._steps >= LENGTH, {}

    def _seen(self) -> np.ndarray:
        return np.array(self._heights, np.float32)


def fall(heights: list[float], speeds: list[float], times: int) -> None:
    """So many small steps, of one ball after the other."""
    count = len(heights)
    for turn in range(times):
        ball = turn % count
        speed = speeds[ball] - 0.01
        height = heights[ball] + 0.01 * speed
        if height < 0.0:
            height, speed = -height, -0.9 * speed
        heights[ball], speeds[ball] = height, speed


def work_of(seconds: float) -> int:
    """Small steps that take so long on this machine, alone."""
    heights, speeds, times = [0.5] * OBSERVED, [0.0] * OBSERVED, 2_000
    fastest, until = float("inf"), time.perf_counter() + CALIBRATION_SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        fall(heights, speeds, times)
        fastest = min(fastest, time.perf_counter() - started)
    return max(1, round(times * seconds / fastest))
