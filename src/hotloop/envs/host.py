"""Any Gymnasium vector env as one kind of step: what was seen, what came of it, and where the next step begins.

All three of Gymnasium's autoreset modes come out the same: `final_obs` is the state a step led to, `obs` the one the
next step starts from, and a step in which an env was only reset is not `valid`: nothing was done in it.
"""

from importlib import import_module
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from hotloop import registry
from hotloop.envs.host_spaces import actions, observations
from hotloop.spec_reading import SpecError


class HostStep(NamedTuple):
    """A vector step of N envs; observations are trees of arrays (N, …), all of them copies."""

    obs: Any
    final_obs: Any
    reward: np.ndarray  # float32
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray


def make_vector_env(env_id: str, num_envs: int, options: dict[str, Any]) -> Any:
    """Build N envs: by the env's own vector entry point if it has one, else one after the other."""
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            import_module(module)  # which registers the env; gym.spec would not
        spec = gym.spec(name)
        if spec.vector_entry_point is not None:
            return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
        # Reset by us: with SAME_STEP Gymnasium keeps the last observation of an env that reuses its array, and the
        # reset then overwrites it.
        reset_by_us = {"autoreset_mode": AutoresetMode.DISABLED}
        return gym.make_vec(env_id, num_envs, vectorization_mode="sync", vector_kwargs=reset_by_us, **options)
    except ModuleNotFoundError as error:
        raise SpecError(f"env.id {env_id}: there is no module {error.name}; is it installed, is it spelt so?") from None
    except gym.error.UnregisteredEnv:
        ours = f"known: {', '.join(registry.ENVS)}, and any Gymnasium id (module:Id imports the module first)"
        hint = registry.nearest(env_id, [*registry.ENVS, *gym.registry], otherwise=ours)
        raise SpecError(f"env.id: unknown env '{env_id}'; {hint}") from None
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env.id {env_id}: {type(error).__name__}: {error}") from error


class HostEnvs:
    """A Gymnasium vector env, watched over."""

    def __init__(self, env: Any) -> None:
        self.env, self.num_envs = env, int(env.num_envs)
        self.observations = observations(env.single_observation_space)
        self.actions = actions(env.single_action_space)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.autoreset = AutoresetMode(mode) if not isinstance(mode, AutoresetMode) else mode
        self._ended = np.zeros(self.num_envs, bool)

    def reset(self, seed: int) -> Any:
        """Begin an episode in every env."""
        obs, _ = self.env.reset(seed=seed)
        self._ended[:] = False
        return self._seen(obs)

    def step(self, chosen_N: np.ndarray) -> HostStep:
        """Act in every env."""
        obs, reward, terminated, truncated, infos = self.env.step(self.actions.decode(chosen_N))
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        seen = self._seen(obs)
        ended, valid = terminated | truncated, np.ones(self.num_envs, bool)
        final = seen
        if self.autoreset == AutoresetMode.NEXT_STEP:
            valid = ~self._ended  # an env that had ended was reset in this step, and nothing else
            self._ended = ended & valid
        elif ended.any():
            if self.autoreset == AutoresetMode.SAME_STEP:
                final = self._with_final(seen, infos, ended)
            else:
                fresh, _ = self.env.reset(options={"reset_mask": ended})
                seen = self._seen(fresh)
        reward = np.array(reward, np.float32)
        self._refuse_what_is_not_finite(reward, final, valid)
        return HostStep(seen, final, reward, terminated & valid, truncated & valid, valid)

    def close(self) -> None:
        """Let the envs go."""
        self.env.close()

    def _seen(self, obs: Any) -> Any:
        return self.observations.encode(obs)

    def _with_final(self, seen: Any, infos: dict[str, Any], ended: np.ndarray) -> Any:
        """The last observations of ended episodes in place of the first ones of the next."""
        last = infos.get("final_obs")
        if last is None:
            raise SpecError(
                "the env says autoreset_mode SAME_STEP but gives no infos['final_obs'] where an episode ends; "
                "its last observations are lost"
            )
        final = jax.tree.map(np.copy, seen)
        for i in np.flatnonzero(ended):
            one = jax.tree.map(lambda leaf: np.asarray(leaf)[None], _one_of(last, int(i)))
            jax.tree.map(lambda kept, new, i=i: kept.__setitem__(i, new[0]), final, self._seen(one))
        return final

    def _refuse_what_is_not_finite(self, reward: np.ndarray, obs: Any, valid: np.ndarray) -> None:
        """NaN never enters the replay: name the env and stop."""
        bad = ~np.isfinite(reward) & valid
        what = "reward"
        if not bad.any():
            what = "observation"
            for leaf in jax.tree.leaves(obs):
                if leaf.dtype == np.float32 and not np.isfinite(leaf).all():
                    bad = valid & ~np.isfinite(leaf.reshape(self.num_envs, -1)).all(axis=1)
        if bad.any():
            raise NotFinite(f"env {int(np.flatnonzero(bad)[0])} gave a {what} that is not finite")


class NotFinite(Exception):
    """An env gave a NaN or an infinity; the message names it."""


def _one_of(last: Any, index: int) -> Any:
    """One env's final observation: Gymnasium gives an object array, or a batch (a tree of arrays)."""
    if isinstance(last, dict):
        return {name: _one_of(part, index) for name, part in last.items()}
    if isinstance(last, tuple):
        return tuple(_one_of(part, index) for part in last)
    return last[index]
