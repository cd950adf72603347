"""What a step of one env takes by itself, with nothing of ours around it; one that cannot be timed costs no report."""

import time

import gymnasium as gym
import numpy as np

from hotloop.assembly import Assembly, Own
from hotloop.doctor.bare_env import bare_step_of
from hotloop.spec.reading import load_spec

SMALL = {"evaluation.every": 0, "env.num_envs": 4, "pipeline": "sync", "replay.capacity": 1_000, "replay.start": 100}


class Sleeps(gym.Env):
    """2 ms in a step, 8 ms in a reset, which comes every fourth step."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None):  # as some have it, without options
        time.sleep(8e-3)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(2e-3)
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps == 4, False, {}


class Raises(Sleeps):
    """In its ninth step."""

    made = 0

    def step(self, action):
        Raises.made += 1
        if Raises.made == 9:
            raise RuntimeError("out of luck")
        return super().step(action)


def bare(env):
    with Assembly(load_spec({}, SMALL), Own(env=env)) as assembly:
        return bare_step_of(assembly)


def test_steps_and_resets_are_timed():
    assert 3.9e-3 < bare(Sleeps) < 8e-3, "2 ms, a quarter of 8 ms, and what a busy machine adds to sleep"


def test_one_that_raises_is_not_timed():
    assert bare(Raises) is None


def test_of_envs_that_step_in_one_call_nothing_is_said():
    with Assembly(load_spec({}, {**SMALL, "env.id": "CartPole-v1", "env.vectorization": "native"})) as assembly:
        assert bare_step_of(assembly) is None
