"""An env that takes no time: it shows again what another one did, whatever is done in it, also in another process.

What it shows is what a network sees of the other one: observations as arrays, of the same shapes.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import numpy as np

from hotloop.envs.gym_types import Env, Infos, Raw, Space
from hotloop.envs.host import HostEnvs, open_envs
from hotloop.envs.own import OwnEnvId
from hotloop.envs.serial import MASK
from hotloop.trees import Arrays, ArraySpec, Specs, tree_map

RECORDED = 32
"""Steps, at most."""
ROUNDS = 5


class Recording(NamedTuple):
    """The beginning of an episode, cut off if it is long."""

    observation: Space
    action: Space
    first: Arrays
    first_info: Infos
    steps: list[tuple[Raw, float, bool, bool, Infos]]
    """As an env returns them."""


def record(envs: HostEnvs, seed: int, info_keys: tuple[str, ...]) -> Recording:
    """Step a single env by random actions; `info_keys` are what its infos will have, as zeros."""
    random, spaces = np.random.default_rng(seed), envs.spaces
    first, first_info = only(envs.reset(seed)), _info(envs.legal, info_keys)
    steps: list[tuple[Raw, float, bool, bool, Infos]] = []
    ended = False
    while not ended:
        legal = np.arange(spaces.actions.size) if envs.legal is None else np.flatnonzero(envs.legal[0])
        step = envs.step(random.choice(legal, size=1).astype(np.int32))
        terminated = bool(step.terminated[0])
        ended = terminated or bool(step.truncated[0]) or len(steps) == RECORDED - 1
        info = _info(step.final_legal, info_keys)
        steps.append((only(step.final_obs), float(step.reward[0]), terminated, ended and not terminated, info))
    return Recording(space_of(spaces.observations.shapes), spaces.action, first, first_info, steps)


class RecordedEnv(Env):
    """Plays a recording, again and again."""

    def __init__(self, recording: Recording, **options: Raw) -> None:
        """The options of the other env mean nothing here."""
        del options
        self.observation_space, self.action_space = recording.observation, recording.action
        self._recording, self._turn = recording, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Raw] | None = None) -> tuple[Raw, Infos]:
        """At its beginning."""
        del seed, options
        self._turn = 0
        return self._recording.first, self._recording.first_info

    def step(self, action: Raw) -> tuple[Raw, float, bool, bool, Infos]:
        """The next step; the last one ends the episode."""
        del action
        step = self._recording.steps[self._turn % len(self._recording.steps)]
        self._turn += 1
        return step


def seconds_around(recording: Recording, num_envs: int) -> float:
    """What a vector step of so many such envs takes: nothing of it is the env's own."""
    envs = open_envs(OwnEnvId("recorded", partial(RecordedEnv, recording)), num_envs, {})
    if MASK in recording.first_info:
        envs.mask_actions("recorded")
    try:
        envs.reset(0)
        return seconds_of_steps(partial(envs.step, np.zeros(num_envs, np.int32)))
    finally:
        envs.close()


def seconds_of_steps(step: Callable[[], object]) -> float:
    """Of one of them, in the fastest of some rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(RECORDED):
            step()
        rounds.append((time.perf_counter() - began) / RECORDED)
    return min(rounds)


def only(obs: Arrays) -> Arrays:
    """That of the only env."""
    return tree_map(lambda leaf: np.array(leaf[0]), obs)


def _info(legal: np.ndarray | None, info_keys: tuple[str, ...]) -> Infos:
    masks = {} if legal is None else {MASK: np.array(legal[0])}
    return {**masks, **dict.fromkeys(info_keys, 0.0)}


def space_of(shapes: Specs) -> Space:
    """The space of arrays of these shapes."""
    if isinstance(shapes, dict):
        return gym.spaces.Dict({name: space_of(part) for name, part in shapes.items()})
    if isinstance(shapes, tuple):
        return gym.spaces.Tuple([space_of(part) for part in shapes])
    assert isinstance(shapes, ArraySpec)
    low, high = (0, 255) if shapes.dtype == np.uint8 else (-np.inf, np.inf)
    return gym.spaces.Box(low, high, shapes.shape, shapes.dtype.type)
