"""Envs of the gymnax package as device envs: `env.id: gymnax:NAME`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec, State
from hotloop.errors import SpecError
from hotloop.registry import nearest


def from_gymnax(name: str, **params: object) -> "GymnaxEnv":
    """Build the gymnax env called `name`; options replace its parameters (e.g. max_steps_in_episode)."""
    try:
        import gymnax
    except ModuleNotFoundError as error:
        raise SpecError(f"env gymnax:{name} needs the package {error.name}; pip install 'hotloop[gymnax]'") from None
    if name not in gymnax.registered_envs:
        raise SpecError(f"env.id: unknown gymnax env '{name}'; {nearest(name, list(gymnax.registered_envs))}")
    env, defaults = gymnax.make(name)
    return GymnaxEnv(name, env, defaults.replace(**params))


class GymnaxEnv:
    """The contract over gymnax: its own termination and truncation, without its autoreset."""

    def __init__(self, name: str, env: Any, params: Any) -> None:
        from gymnax.environments import spaces

        self._env, self._params = env, params
        actions, observations = env.action_space(params), env.observation_space(params)
        if not isinstance(actions, spaces.Discrete):
            raise SpecError(f"gymnax:{name} has {type(actions).__name__} actions; hotloop needs Discrete ones")
        if not isinstance(observations, spaces.Box):
            raise SpecError(f"gymnax:{name} has {type(observations).__name__} observations; hotloop needs a Box")
        self.num_actions = int(actions.n)
        dtype = np.uint8 if observations.dtype == jnp.uint8 else np.float32
        shape = tuple(observations.shape)
        # Some envs declare bounds that their observations leave; bounds here only describe, so take them as given.
        low, high = (np.broadcast_to(np.asarray(b, dtype), shape) for b in (observations.low, observations.high))
        self.obs_spec = ObsSpec(shape, dtype, low, high)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Begin an episode."""
        obs, state = self._env.reset_env(key, self._params)
        return state, obs.astype(self.obs_spec.dtype)

    def step(
        self, state: State, action: jax.Array, key: jax.Array
    ) -> tuple[State, jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Step once; gymnax's info is left out, its keys differ from env to env."""
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(state, self._params)
        return (
            state,
            obs.astype(self.obs_spec.dtype),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, bool),
            jnp.asarray(truncated, bool),
            {},
        )
