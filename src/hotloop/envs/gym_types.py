"""Gymnasium's types, as far as they say anything: what an env gives and takes is known by its spaces, when it runs."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

import gymnasium as gym

from hotloop.trees import Arrays

if TYPE_CHECKING:
    from hotloop.envs.device import DeviceEnv

Env = gym.Env[Any, Any]
Space = gym.Space[Any]
TimeLimit = gym.wrappers.TimeLimit[Any, Any]
Make = Callable[..., Env]
"""Makes an env, given its options."""
Given = Union[Env, "DeviceEnv", Callable[..., "Env | DeviceEnv"]]
"""What a user may give as an env: one, or what makes one, given its options."""
Wrap = Callable[[Env], gym.Wrapper[Any, Any, Any, Any]]
Options = Mapping[str, Any]
"""Keyword arguments of an env of the user's own."""
Raw = Any
"""What an env of a user's own gave, before it was read: an observation, a reward, a mask."""
Infos = dict[str, Any]
"""Of a step of a vector env, as Gymnasium has them: arrays by key, and under `_key` where there is one."""


class VectorEnv(Protocol):
    """What is asked of a vector env: Gymnasium's own, one of an env's own making, or ours."""

    num_envs: int
    single_observation_space: Space
    single_action_space: Space
    metadata: dict[str, Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Raw, Infos]:
        """Begin episodes."""

    def step(self, actions: Raw, /) -> tuple[Raw, Raw, Raw, Raw, Infos]:
        """Act in every env."""

    def close(self) -> None:
        """Let the envs go."""


class Saveable(Protocol):
    """An env that lets its state be saved, as a tree of arrays whose shapes do not change."""

    def get_state(self) -> Arrays:
        """All of it."""

    def set_state(self, state: Arrays, /) -> None:
        """Go on from there."""
