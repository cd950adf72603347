"""Envs for actors in processes of their own: this file imports little, as every actor imports it."""

import os
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
from counting_env import LENGTHS, Counting


class CountingBy(Counting):
    """As `Counting`, and the observation also says which process it is, and which of its envs: (pid, env, episode, t).

    Episodes have random lengths of up to 12 steps; every second one ends by truncation.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float64)
    made = 0  # in this process

    def __init__(self):
        super().__init__(number=CountingBy.made)
        CountingBy.made += 1
        self.seen = np.zeros(4)

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self.length = int(self.np_random.integers(1, 13))
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        ended, by_truncation = self.t >= self.length, self.episode % 2 == 1
        reward = 100.0 * self.episode + self.t + 0.1 * int(action)
        return self._observe(), reward, ended and not by_truncation, ended and by_truncation, {}

    def _observe(self):
        self.seen[:] = (os.getpid(), self.number, self.episode, self.t)
        return self.seen  # the same array every time, as some envs have it


class Pictures(gym.Env):
    """Stacks of three 4x4 frames; each newest frame says episode and step, and episodes last 1 to 7 steps."""

    observation_space = gym.spaces.Box(0, 255, (3, 4, 4), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = getattr(self, "episode", -1) + 1, 0
        self.stack = np.zeros((3, 4, 4), np.uint8)
        self.stack[:] = self._frame()
        return self.stack.copy(), {}

    def step(self, action):
        self.t += 1
        self.stack = np.concatenate([self.stack[1:], self._frame()[None]])
        ended = self.t >= LENGTHS[self.episode % len(LENGTHS)]
        return self.stack.copy(), float(action), ended and self.episode % 2 == 0, ended and self.episode % 2 == 1, {}

    def _frame(self):
        frame = np.zeros((4, 4), np.uint8)
        frame[0, :3] = self.episode % 256, self.t, 7
        return frame


class Unlucky(Counting):
    """Raises in one of five steps, as its random numbers have it."""

    def step(self, action):
        if self.np_random.random() < 0.2:
            raise RuntimeError("out of luck")
        return super().step(action)


class OneStep(Counting):
    """Every episode has one step, and ends."""

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, True, False, info


class Masked(Counting):
    """Only two of the three actions are legal, other ones in every step; the third one raises."""

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": self._mask()}

    def step(self, action):
        if not self._mask()[action]:
            raise AssertionError(f"action {action} is not legal in step {self.t}")
        *rest, _ = super().step(action)
        return *rest, {"action_mask": self._mask()}

    def _mask(self):
        return np.arange(3) != self.t % 3


class Faulty(Counting):
    """Does something wrong in its `at`-th step of this process: raise, exit, die, hang, give NaN, be slow.

    With a `once` file it does so in the first process only that comes to it.
    """

    def __init__(self, what, at=40, once=None, seconds=3600.0):
        super().__init__()
        self.what, self.at, self.once, self.seconds, self.steps = what, at, once, seconds, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at and self._is_first():
            self.go_wrong()
        obs, reward, *rest = super().step(action)
        is_spoiled = self.what == "nan" and self.steps >= self.at
        return obs, float("nan") if is_spoiled else reward, *rest

    def _is_first(self):
        if self.once is None:
            return True
        try:
            Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def go_wrong(self):
        if self.what == "raise":
            raise RuntimeError("the env is out of order")
        if self.what == "exit":
            raise SystemExit("the env has had enough")
        if self.what == "hang":
            self.hang_for_ever()

    def hang_for_ever(self):
        time.sleep(self.seconds)


class OnlyHere(Counting):
    """Can be made in one process only: in an actor it raises from the start."""

    def __init__(self, pid, how="raise"):
        super().__init__()
        if os.getpid() != pid and how == "raise":
            raise FileNotFoundError("no such level: 7-4")
        if os.getpid() != pid and how == "exit":
            os._exit(9)
        if os.getpid() != pid and how == "hang":
            time.sleep(3600)


class Slow(Counting):
    """Each step takes a while, without the processor."""

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


class Sleeping(Counting):
    """Each step takes 5 ms, without the processor, and draws from the random numbers that all of NumPy shares.

    In another process than `only_in` it can be told to raise, or to exit, when it is made.
    """

    opened = 0  # in this process, and not closed

    def __init__(self, only_in=None, how="raise"):
        super().__init__()
        if only_in is not None:
            OnlyHere(only_in, how)
        Sleeping.opened += 1

    def step(self, action):
        time.sleep(0.005)
        obs, reward, *rest = super().step(action)
        return obs, reward + np.random.random(), *rest

    def close(self):
        Sleeping.opened -= 1
