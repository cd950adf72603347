"""Device envs of several agents for everyone else: as a PettingZoo `ParallelEnv` with NumPy outputs.

`pip install 'hotloop[multi]'`, then `hotloop.envs.pettingzoo.parallel_env("treasure", agents=3)`.
"""

from collections.abc import Mapping

import gymnasium as gym
import jax
import numpy as np
from pettingzoo import ParallelEnv

from hotloop.envs import device
from hotloop.envs.device import Drawable
from hotloop.envs.gym_types import Space
from hotloop.envs.gymnasium import space_of
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.trees import Arrays

Info = dict[str, object]


def parallel_env(env_id: str = "treasure", render_mode: str | None = None, **options: object) -> "PettingZooEnv":
    """Build a device env of several agents by name, with its own options."""
    env: object = device.make_env(env_id, options)
    if not isinstance(env, MultiAgentEnv):
        raise ValueError(f"env '{env_id}' has one agent, expected one of several; use hotloop.envs.gymnasium for it")
    return PettingZooEnv(env, render_mode, name=env_id)


class PettingZooEnv(ParallelEnv):
    """One device env of several agents behind PettingZoo's parallel interface; a step is one jitted call."""

    def __init__(self, env: MultiAgentEnv, render_mode: str | None = None, *, name: str = "") -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}, expected None or 'rgb_array'")
        if render_mode and not isinstance(env, Drawable):
            raise ValueError(f"{type(env).__name__} cannot draw itself; use render_mode=None")
        self.env, self.render_mode = env, render_mode
        drawn = {"render_modes": ["rgb_array"], "render_fps": env.render_fps} if isinstance(env, Drawable) else {}
        self.metadata = {"name": name or type(env).__name__, "is_parallelizable": True, "render_modes": [], **drawn}
        self.possible_agents = list(env.agent_names)
        self.agents: list[str] = []
        self.observation_spaces = {agent: space_of(env.obs_spec) for agent in env.agent_names}
        self.action_spaces: dict[str, gym.spaces.Discrete[np.int64]] = {
            agent: gym.spaces.Discrete(env.num_actions) for agent in env.agent_names
        }
        self._random = np.random.default_rng()
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)

    def observation_space(self, agent: str) -> Space:
        """What an agent sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> "gym.spaces.Discrete[np.int64]":
        """What an agent can do."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[dict[str, Arrays], dict[str, Info]]:
        """Begin an episode; the same seed begins the same one."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._key, key = jax.random.split(jax.random.key(int(self._random.integers(2**32))))
        self._state, obs = self._reset(key)
        self.agents = list(self.possible_agents)
        return self._by_agent(jax.device_get(obs)), {agent: {} for agent in self.agents}  # sync

    def step(
        self, actions: Mapping[str, int | np.integer]
    ) -> tuple[dict[str, Arrays], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Step all agents; when the episode has ended, `agents` is empty until the next reset."""
        if not self.agents:  # as PettingZoo's own envs: nobody is left, so nothing happens
            return {}, {}, {}, {}, {}
        action_M = np.array([self._checked(agent, actions) for agent in self.agents], np.int32)
        self._key, key = jax.random.split(self._key)
        self._state, *seen = self._step(self._state, action_M, key)
        obs, reward_M, terminated, truncated, info = jax.device_get(seen)  # sync
        agents = self.agents
        if terminated or truncated:
            self.agents = []
        return (
            self._by_agent(obs),
            dict(zip(agents, reward_M.tolist(), strict=True)),
            dict.fromkeys(agents, bool(terminated)),
            dict.fromkeys(agents, bool(truncated)),
            {agent: {name: _own(value, i) for name, value in info.items()} for i, agent in enumerate(agents)},
        )

    def render(self) -> np.ndarray | None:
        """Return the picture of the present state as an array (H, W, 3)."""
        if self.render_mode is None or not isinstance(self.env, Drawable):
            return None
        return np.asarray(self.env.render(jax.device_get(self._state)))

    def _checked(self, agent: str, actions: Mapping[str, int | np.integer]) -> int:
        if agent not in actions:
            raise ValueError(f"actions are for {', '.join(actions) or 'nobody'}, expected one for {agent}, too")
        if not self.action_spaces[agent].contains(np.int64(actions[agent])):
            raise ValueError(f"action of {agent} is {actions[agent]!r}, expected one of 0 … {self.env.num_actions - 1}")
        return int(actions[agent])

    def _by_agent(self, obs_M: Arrays) -> dict[str, Arrays]:
        return {
            agent: jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), obs_M)
            for i, agent in enumerate(self.possible_agents)
        }


def _own(value: np.ndarray, number: int) -> object:
    """What a figure says of one agent: its own entry, or the one for all."""
    return np.asarray(value[number] if np.ndim(value) else value).item()
