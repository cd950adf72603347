"""Envs that show next to nothing, for tests of what goes on around them."""

import gymnasium as gym
import numpy as np


class Quick(gym.Env):
    """An episode has ten steps, which take no time; `work` is what one does."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    lasts = 10

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.work()
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps >= self.lasts, False, {}

    def work(self):
        """Nothing."""


class Masked(gym.Env):
    """Episodes of seven steps; one action is illegal in each state. `shown` is what is seen of the steps so far."""

    action_space = gym.spaces.Discrete(3)

    def _seen(self):
        return self.shown(), {"action_mask": self._mask()}

    def _mask(self):
        return np.arange(3) != self.steps % 3

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen()

    def step(self, action):
        assert self._mask()[action], "an illegal action"
        self.steps += 1
        obs, info = self._seen()
        return obs, 1.0, self.steps == 7, False, info
