"""An env whose observation says which env, episode and step it is: what is stored can be checked against it."""

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LENGTHS = (1, 4, 2, 7, 3)
"""Episodes last so long, one after the other; every second one ends by truncation."""


class Counting(gym.Env):
    """Observation: env, episode, step. Reward: 100 x episode + step + 0.1 x action."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, number=0, spoil=None, reuses=True):
        self.number, self.episode, self.t, self.spoil = number, -1, 0, spoil
        self.seen, self.reuses = np.zeros(3), reuses  # one array for every observation, as some envs have

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        ended = self.t >= LENGTHS[(self.episode + self.number) % len(LENGTHS)]
        by_truncation = self.episode % 2 == 1
        reward = 100.0 * self.episode + self.t + 0.1 * int(action)
        if self.spoil == (self.number, self.episode, self.t):
            reward = float("nan")
        return self._observe(), reward, ended and not by_truncation, ended and by_truncation, {}

    def _observe(self):
        self.seen[:] = (self.number, self.episode, self.t)
        return self.seen if self.reuses else self.seen.copy()


def counting_envs(count, mode, spoil=None):
    """With SAME_STEP Gymnasium itself loses the last observation of an env that reuses its array."""
    reuses = mode != AutoresetMode.SAME_STEP
    return SyncVectorEnv([lambda i=i: Counting(i, spoil, reuses) for i in range(count)], autoreset_mode=mode)
