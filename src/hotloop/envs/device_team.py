"""Device envs with several agents, stepped from the host in one jitted call."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Discrete

from hotloop.envs.device import DeviceEnv, Drawable, State, reset_all, step_all
from hotloop.envs.device_contract import require_contract
from hotloop.envs.gymnasium import space_of
from hotloop.envs.host_spaces import spaces_of
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.envs.team import TeamArrays, TeamSpaces, TeamStep
from hotloop.errors import NotFinite, SpecError
from hotloop.experience import VectorStep
from hotloop.trees import Arrays, leaves, tree_map


class DeviceTeam:
    """N device envs (`envs.team.TeamEnvs`); an ended episode restarts in the same step, for all agents."""

    failures, last_failure = 0, ""

    def __init__(self, env: DeviceEnv, num_envs: int, info_keys: tuple[str, ...] = ()) -> None:
        require_contract(env)
        if not isinstance(env, MultiAgentEnv):
            raise SpecError(f"{type(env).__name__} has no num_agents and agent_names; one agent acts in it")
        self.env, self.num_envs, self.info_keys, self.goes_on = env, num_envs, info_keys, False
        draws = isinstance(env, Drawable)
        one = spaces_of(space_of(env.obs_spec), Discrete(env.num_actions), draws=draws)
        self.spaces = TeamSpaces(tuple(env.agent_names), (one,) * env.num_agents, draws)
        self.fps: object = env.render_fps if isinstance(env, Drawable) else None
        self.obs: list[Arrays] = []
        self._reset = jax.jit(lambda key: reset_all(env, key, num_envs))
        self._step = jax.jit(lambda state, action, key, t: step_all(env, state, action, jax.random.fold_in(key, t)))

    def reset(self, seed: int) -> list[Arrays]:
        """Begin an episode in every env; what each agent sees."""
        self._key, key = jax.random.split(jax.random.key(seed))
        self._t, self.goes_on = 0, False
        self._state, self._seen = self._reset(key)
        self.obs = self._by_agent(jax.device_get(self._seen))  # sync
        return self.obs

    def restart(self, which_N: np.ndarray) -> list[Arrays]:
        """Begin new episodes in some envs; what each agent sees in all of them."""
        self._key, key = jax.random.split(self._key)
        fresh = self._reset(key)

        def chosen(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(which_N.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        self._state, self._seen = jax.tree.map(chosen, fresh, (self._state, self._seen))
        return self._by_agent(jax.device_get(self._seen))  # sync

    def step(self, chosen: Sequence[np.ndarray]) -> TeamStep:
        """Act in every env: actions (N,) of each agent."""
        action_NM = np.stack(chosen, axis=1).astype(np.int32)
        self._state, t = self._step(self._state, action_NM, self._key, self._t)
        self._t, self._seen = self._t + 1, t.obs
        t = jax.device_get(t)  # sync
        ended_N, none_N = t.terminated | t.truncated, np.zeros(self.num_envs, bool)
        obs, final = self._by_agent(t.obs), self._by_agent(t.final_obs)
        steps = []
        for agent, name in enumerate(self.spaces.names):
            reward_N = np.array(t.reward[:, agent], np.float32)
            if not np.isfinite(reward_N).all():
                bad = int(np.argmin(np.isfinite(reward_N)))
                raise NotFinite(f"env {bad} gave {name} a reward that is not finite")
            info = {key: self._figure(key, t.info, agent) for key in self.info_keys}
            flags = (t.terminated, t.truncated, ~none_N, ended_N)
            steps.append(
                VectorStep(obs[agent], final[agent], chosen[agent], reward_N, *flags, failed=none_N, info=info)
            )
        return TeamStep(steps, ended_N, none_N)

    def picture(self) -> np.ndarray | None:
        """What the first env looks like, (H, W, 3)."""
        if not isinstance(self.env, Drawable):
            return None
        state: State = jax.tree.map(lambda leaf: np.asarray(leaf)[0], jax.device_get(self._state))
        return np.asarray(self.env.render(state).convert("RGB"))

    def arrays(self) -> TeamArrays:
        """All of it."""
        kept: dict[str, Arrays] = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(self._state))}
        kept |= {"key": np.asarray(jax.random.key_data(self._key)), "t": np.asarray(self._t, np.int64)}
        return {"state": kept}

    def restore(self, arrays: TeamArrays) -> bool:
        """Take back what `arrays` gave, after a reset; returns whether the episodes go on where they were."""
        self.goes_on = "state" in arrays
        if self.goes_on:
            saved, count = arrays["state"], len(jax.tree.leaves(self._state))
            self._state = jax.tree.unflatten(
                jax.tree.structure(self._state), [jnp.asarray(saved[str(i)]) for i in range(count)]
            )
            self._key = jax.random.wrap_key_data(jnp.asarray(saved["key"]))
            self._t = int(np.asarray(saved["t"]))
        return self.goes_on

    def close(self) -> None:
        """Nothing is open."""

    def _by_agent(self, obs_NM: Arrays) -> list[Arrays]:
        """What is (N, M, …) in envs, for each agent, as a network sees it."""
        found = []
        for agent, name in enumerate(self.spaces.names):
            one: Arrays = tree_map(lambda leaf, agent=agent: np.array(leaf[:, agent]), obs_NM)
            seen = self.spaces.each[agent].observations.encode(one)
            if not all(np.isfinite(leaf).all() for leaf in leaves(seen)):
                raise NotFinite(f"an env gave {name} an observation that is not finite")
            found.append(seen)
        return found

    def _figure(self, key: str, info: dict[str, np.ndarray], agent: int) -> np.ndarray:
        """One key of `info`, of all agents or of this one."""
        if key not in info:
            raise SpecError(f"env.info: the env gave no '{key}'; it gave {sorted(info)}")
        values = np.asarray(info[key], np.float64)
        one: np.ndarray = values[:, agent] if values.ndim == 2 else values
        return one
