"""The contract of a device env with several agents: as that of one (`device.py`), with an axis for them."""

from typing import Protocol, runtime_checkable

from hotloop.envs.device import DeviceEnv


@runtime_checkable
class MultiAgentEnv(DeviceEnv, Protocol):
    """An environment as pure functions, traceable by JAX, in which M agents act at once.

    `obs_spec` and `num_actions` are those of one agent. What belongs to the agents has a leading axis M: observations,
    actions, rewards, and figures in `info` that are each agent's own. `terminated` and `truncated` are one truth value
    each: an episode ends for all of them.
    """

    @property
    def num_agents(self) -> int:
        """M."""

    @property
    def agent_names(self) -> tuple[str, ...]:
        """What they are called, in the order of the axis."""
