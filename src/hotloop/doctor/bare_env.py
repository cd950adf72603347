"""How long a step of one env takes by itself, with nothing of ours around it."""

import time
from typing import SupportsFloat

import gymnasium as gym
import numpy as np

from hotloop.assembly import Assembly
from hotloop.envs.gym_types import Infos, Raw
from hotloop.pipeline_trial import act_at_random

ROUNDS, MOST_STEPS, SECONDS_OF_ROUND = 3, 50, 0.1
"""Of which the fastest counts; steps and seconds of each."""


def bare_step_of(assembly: Assembly) -> float | None:
    """Seconds of one env's step, its resets included; None where it steps many in one call."""
    from hotloop.envs.serial import SerialEnvs

    spec, envs = assembly.spec, assembly.open_one_env()
    try:
        if not isinstance(envs.env, SerialEnvs):
            return None
        timed = envs.env.envs[0] = Timed(envs.env.envs[0])
        if spec.env.action_mask:
            envs.mask_actions(spec.env.id)
        envs.reset(spec.seed)
        actions, rounds = np.random.default_rng(spec.seed), []
        for _ in range(1 + ROUNDS):  # the first of which may make what the env needs
            timed.seconds, steps = 0.0, 0
            while steps < MOST_STEPS and timed.seconds < SECONDS_OF_ROUND:
                act_at_random(envs, actions)
                steps += 1
            rounds.append(timed.seconds / steps)
        return min(rounds[1:])
    finally:
        envs.close()


class Timed(gym.Wrapper[Raw, Raw, Raw, Raw]):
    """An env, and how long it was at it."""

    seconds = 0.0

    def step(self, action: Raw) -> tuple[Raw, SupportsFloat, bool, bool, Infos]:
        """As the env does."""
        began = time.perf_counter()
        try:
            return self.env.step(action)
        finally:
            self.seconds += time.perf_counter() - began

    def reset(self, *, seed: int | None = None, options: dict[str, Raw] | None = None) -> tuple[Raw, Infos]:
        """As the env does."""
        began = time.perf_counter()
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            self.seconds += time.perf_counter() - began
