"""The contract of a device env with several agents: as `device.DeviceEnv`, with a leading agent axis M."""

from typing import Protocol, runtime_checkable

import jax

from hotloop.envs.device import Obs, ObsTree, State


@runtime_checkable
class MultiAgentEnv(Protocol):
    """An environment of M agents as pure functions, traceable by JAX; the episode ends for all of them at once."""

    @property
    def num_agents(self) -> int:
        """How many agents there are: M."""

    @property
    def agent_names(self) -> tuple[str, ...]:
        """A name for each agent, in the order of the axis M."""

    @property
    def obs_spec(self) -> ObsTree:
        """What one observation of ONE agent looks like: an array, or a dict or tuple of such."""

    @property
    def num_actions(self) -> int:
        """Actions of each agent are 0 … num_actions - 1."""

    def reset(self, key: jax.Array) -> tuple[State, Obs]:
        """Begin an episode; the observation's arrays have a leading axis M."""

    def step(
        self, state: State, action_M: jax.Array, key: jax.Array
    ) -> tuple[State, Obs, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Return state, obs_M, reward_M, terminated, truncated, info. Never resets by itself.

        terminated and truncated are one truth value each; a value of info is a scalar, or (M,): one entry per agent.
        """
