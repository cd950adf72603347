"""How long a step of one env takes by itself, with nothing of ours around it."""

import time
from typing import SupportsFloat

import gymnasium as gym
import numpy as np

from hotloop.assembly import Assembly
from hotloop.envs.gym_types import Infos, Raw
from hotloop.envs.host import HostEnvs
from hotloop.envs.serial import SerialEnvs
from hotloop.pipeline_trial import act_at_random

ROUNDS, MOST_STEPS, SECONDS_OF_ROUND = 3, 50, 0.1
"""Of which the fastest counts; steps and seconds of each."""


def bare_step_of(assembly: Assembly) -> float | None:
    """Seconds of one env's step, its resets included; None where it steps many in one call, or raises."""
    try:
        envs = assembly.open_one_env()
        try:
            return _seconds_of_step(assembly, envs)
        finally:
            envs.close()
    except Exception:  # whatever the user's own code raises: the run is none the worse for it
        return None


def _seconds_of_step(assembly: Assembly, envs: HostEnvs) -> float | None:
    if not isinstance(envs.env, SerialEnvs):
        return None
    timed = envs.env.envs[0] = Timed(envs.env.envs[0])
    if assembly.spec.env.action_mask:
        envs.mask_actions(assembly.spec.env.id)
    envs.reset(assembly.spec.seed)
    actions, rounds = np.random.default_rng(assembly.spec.seed), []
    for _ in range(1 + ROUNDS):  # the first of which may make what the env needs
        timed.seconds, timed.steps = 0.0, 0
        while timed.steps < MOST_STEPS and timed.seconds < SECONDS_OF_ROUND:
            act_at_random(envs, actions)
            if envs.env.failures:  # it is another env now
                return None
        rounds.append(timed.seconds / timed.steps)
    return min(rounds[1:])


class Timed(gym.Wrapper[Raw, Raw, Raw, Raw]):
    """An env, how long it was at it, and for how many steps."""

    seconds, steps = 0.0, 0

    def step(self, action: Raw) -> tuple[Raw, SupportsFloat, bool, bool, Infos]:
        """As the env does."""
        began = time.perf_counter()
        stepped = self.env.step(action)
        self.seconds += time.perf_counter() - began
        self.steps += 1
        return stepped

    def reset(self, **how: Raw) -> tuple[Raw, Infos]:
        """As the env does."""
        began = time.perf_counter()
        begun = self.env.reset(**how)
        self.seconds += time.perf_counter() - began
        return begun
