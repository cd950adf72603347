"""Gymnasium's spaces as arrays: what an observation looks like to a network, and which action a number means.

| space | array |
|---|---|
| Box | as it is; float64 becomes float32, whole numbers other than uint8 too |
| Discrete, MultiDiscrete, MultiBinary | ones and zeros, uint8 |
| Dict, Tuple | a dict or tuple of the above |
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from gymnasium import spaces

from hotloop.envs.serial import MASK
from hotloop.spec_reading import SpecError

MOST_ACTIONS = 1024


class Observations(NamedTuple):
    """`shapes` is a tree of ShapeDtypeStructs of one observation; `encode` turns N of the env's into arrays of ours."""

    shapes: Any
    encode: Callable[[Any], Any]


class Actions(NamedTuple):
    """`decode` turns numbers 0 … size - 1, one per env, into the actions of the env."""

    size: int
    decode: Callable[[np.ndarray], Any]


class HostSpaces(NamedTuple):
    """The spaces of one env on the host, and how to read them: all that an agent needs of it to act."""

    observation: gym.Space[Any]
    action: gym.Space[Any]
    observations: Observations
    actions: Actions
    draws: bool = False  # whether the env says that it can return pictures

    def mask(self, given: Any, env_id: str) -> np.ndarray:
        """One env's `action_mask`, bool (A,); raises SpecError if it is none."""
        try:
            mask = np.asarray(given)
            seen = f"{mask.dtype}{mask.shape}"
        except ValueError:  # parts of different lengths
            mask, seen = np.zeros(0), f"a {type(given).__name__}"
        size = self.actions.size
        if mask.shape != (size,) or mask.dtype.kind not in "biuf":
            is_plain = isinstance(self.action, spaces.Discrete)
            flat = "" if is_plain else f" of {self.action}, all combinations in one flat array"
            raise SpecError(
                f"env.action_mask: info['{MASK}'] of {env_id} is {seen}, expected ({size},): one entry per action{flat}"
            )
        return mask.astype(bool)


def spaces_of(observation: gym.Space[Any], action: gym.Space[Any], *, draws: bool = False) -> HostSpaces:
    """Read the spaces of one env; raises SpecError for those that cannot be learned from."""
    return HostSpaces(observation, action, observations(observation), actions(action), draws)


def observations(space: gym.Space[Any], what: str = "the observation") -> Observations:
    """How to read observations of this space; raises SpecError for one that a network cannot see."""
    if isinstance(space, spaces.Box):
        dtype = np.uint8 if space.dtype == np.uint8 else np.float32
        return Observations(jax.ShapeDtypeStruct(space.shape, dtype), lambda obs: np.array(obs, dtype))
    if isinstance(space, spaces.Discrete):
        return _one_hot([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1).tolist(), np.asarray(space.start).reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return Observations(jax.ShapeDtypeStruct(space.shape, np.uint8), lambda obs: np.array(obs, np.uint8))
    if isinstance(space, spaces.Dict):
        named = {name: observations(part, f"{what}['{name}']") for name, part in space.items()}
        return Observations(
            {name: part.shapes for name, part in named.items()},
            lambda obs: {name: part.encode(obs[name]) for name, part in named.items()},
        )
    if isinstance(space, spaces.Tuple):
        parts = [observations(part, f"{what}[{i}]") for i, part in enumerate(space)]
        return Observations(
            tuple(part.shapes for part in parts),
            lambda obs: tuple(part.encode(seen) for part, seen in zip(parts, obs, strict=True)),
        )
    raise SpecError(
        f"{what} is a {type(space).__name__} space; a network can see Box, Discrete, MultiDiscrete, MultiBinary, "
        "and Dict or Tuple of these: wrap the env so that it returns one of them"
    )


def actions(space: gym.Space[Any]) -> Actions:
    """How to number the actions of this space; raises SpecError for one that has no numbers."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return Actions(int(space.n), lambda chosen_N: chosen_N.astype(np.int64) + start)
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
        count = math.prod(sizes)
        if count > MOST_ACTIONS:
            raise SpecError(
                f"the actions are MultiDiscrete{sizes}: {count:,} combinations, and one Q-value each is too many "
                f"(at most {MOST_ACTIONS:,}); wrap the env so that it has fewer"
            )
        shape, starts = space.nvec.shape, np.asarray(space.start)

        def decode(chosen_N: np.ndarray) -> np.ndarray:
            parts = np.stack(np.unravel_index(chosen_N, sizes), axis=-1)
            return parts.reshape(len(chosen_N), *shape).astype(np.int64) + starts

        return Actions(count, decode)
    raise SpecError(f"the actions are {space}; hotloop needs Discrete ones (or a small MultiDiscrete)")


def _one_hot(sizes: list[int], starts: list[int]) -> Observations:
    offsets = np.cumsum([0, *sizes[:-1]]) - np.array(starts)
    width = sum(sizes)

    def encode(obs: Any) -> np.ndarray:
        places_NK = np.asarray(obs).reshape(len(obs), -1) + offsets
        ones = np.zeros((len(places_NK), width), np.uint8)
        np.put_along_axis(ones, places_NK, 1, axis=1)
        return ones

    return Observations(jax.ShapeDtypeStruct((width,), np.uint8), encode)
