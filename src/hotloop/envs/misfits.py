"""An observation that has not the form its space says, in words."""

from collections.abc import Mapping

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from hotloop.envs.gym_types import Raw, Space
from hotloop.errors import EnvFailed

REMEDY = "make the env and its observation_space agree (hotloop check-env says more)"


def misfit(space: Space, obs: Raw, what: str = "an observation") -> str | None:
    """How the form of one observation is not that of its space: what was seen, what was expected; None if it is.

    Looks at keys, lengths and shapes, not at numbers.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return f"{what} that is a {type(obs).__name__}, its space says a dict of {', '.join(space)}"
        if missing := [key for key in space if key not in obs]:
            return f"{what} without the part {missing[0]!r}, its space says {', '.join(space)}"
        return _first([misfit(part, obs[key], f"{what}[{key!r}]") for key, part in space.items()])
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space):
            seen = f"{len(obs)} parts" if isinstance(obs, tuple | list) else f"one {type(obs).__name__}"
            return f"{what} of {seen}, its space says {len(space)}"
        parts = zip(space, obs, strict=True)
        return _first([misfit(part, one, f"{what}[{i}]") for i, (part, one) in enumerate(parts)])
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return None
    try:
        shape = np.shape(obs)
    except ValueError:  # parts of different lengths
        return f"{what} whose rows differ in length, its space says {space.shape}"
    return None if shape == space.shape else f"{what} of shape {shape}, its space says {space.shape}"


def refuse_misfit(space: Space, obs: Raw, whose: str) -> None:
    """Raise EnvFailed if an observation has not the form of its space."""
    if said := misfit(space, obs):
        raise EnvFailed(f"{whose} gave {said}; {REMEDY}")


class GivesWhatItSays(gym.ObservationWrapper[Raw, Raw, Raw]):
    """An env in a process of its own, whose observations are looked at there: beyond, they are bytes."""

    def observation(self, observation: Raw) -> Raw:
        """Leave it as it is, or raise EnvFailed."""
        refuse_misfit(self.observation_space, observation, "an env")
        return observation


def _first(found: list[str | None]) -> str | None:
    return next((one for one in found if one), None)
