"""Gymnasium's spaces as arrays: what an observation looks like to a network, and which action a number means.

| space | array |
|---|---|
| Box | as it is; float64 becomes float32, whole numbers other than uint8 too |
| Discrete, MultiDiscrete, MultiBinary | ones and zeros, uint8 |
| Dict, Tuple | a dict or tuple of the above |
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from hotloop.envs.gym_types import Env, Raw, Space
from hotloop.envs.host_batches import batched
from hotloop.envs.serial import MASK
from hotloop.errors import SpecError
from hotloop.trees import Arrays, ArraySpec, Specs

MOST_ACTIONS = 1024


class Observations(NamedTuple):
    """`shapes` is a tree of ArraySpecs of one observation; `encode` turns N of the env's into arrays of ours.

    `space` is the part of the env's space that is seen.
    """

    shapes: Specs
    encode: Callable[[Raw], Arrays]
    space: Space
    is_chosen: bool = False  # by `env.observe`; what an env gives beside it is then left out

    def batch(self, obs: Raw) -> tuple[Arrays, bool]:
        """One observation, or N of them, as arrays of ours (N, …), and whether it was one.

        Of a Dict the chosen parts are enough, and of a single one it alone. Raises ValueError for what is neither.
        """
        batch, is_single = batched(self.space, self._chosen_parts(obs))
        return self.encode(batch), is_single

    def _chosen_parts(self, obs: Raw) -> Raw:
        """Leave out what is not seen of a Dict, or of a list of them; name a single part that came alone."""
        if not isinstance(self.space, spaces.Dict):
            return obs
        if isinstance(obs, Mapping):
            return {name: part for name, part in obs.items() if name in self.space.spaces or not self.is_chosen}
        if isinstance(obs, list | tuple) and obs and isinstance(obs[0], Mapping):
            return [self._chosen_parts(one) for one in obs]
        return {next(iter(self.space)): obs} if self.is_chosen and len(self.space) == 1 else obs


class Actions(NamedTuple):
    """`decode` turns numbers 0 … size - 1, one per env, into the actions of the env."""

    size: int
    decode: Callable[[np.ndarray], np.ndarray]


class HostSpaces(NamedTuple):
    """The spaces of one env on the host, and how to read them: all that an agent needs of it to act."""

    observation: Space
    action: Space
    observations: Observations
    actions: Actions
    draws: bool = False  # whether the env says that it can return pictures

    def mask(self, given: Raw, env_id: str) -> np.ndarray:
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


def spaces_of(observation: Space, action: Space, observe: tuple[str, ...] = (), *, draws: bool = False) -> HostSpaces:
    """Read the spaces of one env; raises SpecError for those that cannot be learned from."""
    return HostSpaces(observation, action, observations(observation, observe), actions(action), draws)


def observations(space: Space, observe: tuple[str, ...] = ()) -> Observations:
    """How to read observations of this space; raises SpecError for one that a network cannot see.

    `observe` chooses keys of a Dict; one alone is seen without its name.
    """
    chosen = _chosen(space, observe) if observe else space
    try:
        found = _read(chosen, "the observation")
    except SpecError as error:
        visible = [name for name, part in space.items() if _is_visible(part)] if isinstance(space, spaces.Dict) else []
        remedy = f"leave it out with --set env.observe=[{','.join(visible)}], or " if visible else ""
        raise SpecError(f"{error}: {remedy}wrap the env so that it returns one of them") from None
    if len(observe) != 1:
        return found._replace(is_chosen=bool(observe))
    [name] = observe
    alone = _read(_chosen(space, observe)[name], f"the observation['{name}']")
    return Observations(alone.shapes, lambda obs: alone.encode(obs[name]), chosen, is_chosen=True)


class ShowsChosen(gym.ObservationWrapper[dict[str, Raw], Raw, dict[str, Raw]]):
    """An env that gives nothing but chosen keys of its Dict observation, where the others need not be sent along."""

    def __init__(self, env: Env, observe: tuple[str, ...]) -> None:
        super().__init__(env)
        self.observation_space = _chosen(env.observation_space, observe)
        self._observe = observe

    def observation(self, observation: dict[str, Raw]) -> dict[str, Raw]:
        """Leave the others out."""
        return {name: observation[name] for name in self._observe}


def _chosen(space: Space, observe: tuple[str, ...]) -> spaces.Dict:
    if not isinstance(space, spaces.Dict):
        raise SpecError(f"env.observe chooses keys, but the observation is {space}, which has none; leave it out")
    for name in observe:
        if name not in space.spaces:
            known = ", ".join(space.spaces)
            raise SpecError(f"env.observe names '{name}', but the keys of the observation are {known}")
    return spaces.Dict({name: space[name] for name in observe})


def _is_visible(space: Space) -> bool:
    try:
        _read(space, "it")
    except SpecError:
        return False
    return True


def _read(space: Space, what: str) -> Observations:
    """As `observations`, of a part that is called `what`."""
    if isinstance(space, spaces.Box):
        dtype = np.uint8 if space.dtype == np.uint8 else np.float32
        return Observations(ArraySpec(space.shape, dtype), lambda obs: np.array(obs, dtype), space)
    if isinstance(space, spaces.Discrete):
        return _one_hot([int(space.n)], [int(space.start)], space)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1).tolist(), np.asarray(space.start).reshape(-1).tolist(), space)
    if isinstance(space, spaces.MultiBinary):
        return Observations(ArraySpec(space.shape, np.uint8), lambda obs: np.array(obs, np.uint8), space)
    if isinstance(space, spaces.Dict):
        named = {name: _read(part, f"{what}['{name}']") for name, part in space.items()}
        return Observations(
            {name: part.shapes for name, part in named.items()},
            lambda obs: {name: part.encode(obs[name]) for name, part in named.items()},
            space,
        )
    if isinstance(space, spaces.Tuple):
        parts = [_read(part, f"{what}[{i}]") for i, part in enumerate(space)]
        return Observations(
            tuple(part.shapes for part in parts),
            lambda obs: tuple(part.encode(seen) for part, seen in zip(parts, obs, strict=True)),
            space,
        )
    raise SpecError(
        f"{what} is a {type(space).__name__} space; a network can see Box, Discrete, MultiDiscrete, MultiBinary, "
        "and Dict or Tuple of these"
    )


def actions(space: Space) -> Actions:
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
            actions_N: np.ndarray = parts.reshape(len(chosen_N), *shape).astype(np.int64) + starts
            return actions_N

        return Actions(count, decode)
    raise SpecError(f"the actions are {space}; hotloop needs Discrete ones (or a small MultiDiscrete)")


def _one_hot(sizes: list[int], starts: list[int], space: Space) -> Observations:
    offsets = np.cumsum([0, *sizes[:-1]]) - np.array(starts)
    width = sum(sizes)

    def encode(obs: Raw) -> np.ndarray:
        places_NK = np.asarray(obs).reshape(len(obs), -1) + offsets
        ones = np.zeros((len(places_NK), width), np.uint8)
        np.put_along_axis(ones, places_NK, 1, axis=1)
        return ones

    return Observations(ArraySpec((width,), np.uint8), encode, space)
