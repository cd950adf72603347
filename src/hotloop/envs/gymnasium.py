"""Device envs for everyone else: as a Gymnasium `Env`, and as a jitted `VectorEnv` with NumPy outputs.

Importing this module registers them: `gymnasium.make("hotloop.envs.gymnasium:hotloop/CartPole-v1")`.
"""

from typing import TypedDict

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hotloop.envs import device, snake_features
from hotloop.envs.device import (
    DeviceEnv,
    Drawable,
    Masked,
    Obs,
    ObsSpec,
    ObsTree,
    State,
    legal_actions,
    reset_all,
    step_all,
)
from hotloop.envs.gym_types import Space
from hotloop.trees import Arrays, Number, Tree


def make_env(env_id: str, render_mode: str | None = None, **options: object) -> "GymnasiumEnv":
    """Build a device env by name, as `gymnasium.make` does."""
    return GymnasiumEnv(device.make_env(env_id, options), render_mode)


def make_vec(env_id: str, num_envs: int = 1, **options: object) -> "GymnasiumVectorEnv":
    """Build a vector of device envs by name, as `gymnasium.make_vec` does."""
    return GymnasiumVectorEnv(device.make_env(env_id, options), num_envs)


Info = dict[str, object]


class VectorState(TypedDict):
    """What a checkpoint keeps of a vector of device envs."""

    state: list[np.ndarray]
    key: np.ndarray
    t: Number


class GymnasiumEnv(gym.Env[Arrays, np.int64]):
    """One device env behind Gymnasium's interface."""

    metadata: dict[str, object] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, env: DeviceEnv, render_mode: str | None = None) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}, expected None or 'rgb_array'")
        if render_mode and not isinstance(env, Drawable):
            raise ValueError(f"{type(env).__name__} cannot draw itself; use render_mode=None")
        self.env, self.render_mode = env, render_mode
        if isinstance(env, Drawable):
            self.metadata = {"render_modes": ["rgb_array"], "render_fps": env.render_fps}
        self.observation_space, self.action_space = _spaces(env)

        def with_mask(state: State, *rest: Tree[jax.Array]) -> tuple[jax.Array | None, *tuple[State, ...]]:
            return env.action_mask(state) if isinstance(env, Masked) else None, state, *rest

        self._reset = jax.jit(lambda key: with_mask(*env.reset(key)))
        self._step = jax.jit(lambda state, action, key: with_mask(*env.step(state, action, key)))

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Arrays, Info]:
        """Begin an episode; the same seed begins the same one."""
        super().reset(seed=seed)
        self._key = jax.random.key(int(self.np_random.integers(2**32)))
        self._key, key = jax.random.split(self._key)
        mask, self._state, obs = self._reset(key)
        return jax.tree.map(np.array, obs), _mask_info(mask)

    def step(self, action: int | np.integer) -> tuple[Arrays, float, bool, bool, Info]:
        """Step once; the caller resets."""
        if not self.action_space.contains(np.int64(action)):
            raise ValueError(f"action is {action!r}, expected one of 0 … {self.env.num_actions - 1}")
        self._key, key = jax.random.split(self._key)
        mask, self._state, obs, reward, terminated, truncated, info = self._step(self._state, jnp.int32(action), key)
        plain = {name: np.asarray(value).item() for name, value in info.items()}
        return (
            jax.tree.map(np.array, obs),
            float(reward),
            bool(terminated),
            bool(truncated),
            {**plain, **_mask_info(mask)},
        )

    def render(self) -> np.ndarray | None:
        """Return the picture of the present state as an array (H, W, 3)."""
        if self.render_mode is None or not isinstance(self.env, Drawable):
            return None
        return np.asarray(self.env.render(jax.device_get(self._state)))


class GymnasiumVectorEnv(VectorEnv[Arrays, np.ndarray, np.ndarray]):
    """N device envs, stepped by one jitted call; an ended episode restarts in the same step."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env: DeviceEnv, num_envs: int) -> None:
        self.env, self.num_envs = env, num_envs
        self.metadata = {**self.metadata, "render_modes": ["rgb_array"] if isinstance(env, Drawable) else []}
        self.single_observation_space, self.single_action_space = _spaces(env)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        masked = isinstance(env, Masked)

        def begin(key: jax.Array) -> tuple[State, Obs, jax.Array | None]:
            state_N, obs_N = reset_all(env, key, num_envs)
            return state_N, obs_N, legal_actions(env, state_N) if masked else None

        self._reset = jax.jit(begin)
        self._step = jax.jit(
            lambda state, action, key, t: step_all(env, state, action, jax.random.fold_in(key, t), masked)
        )

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Arrays, Info]:
        """Begin an episode in every env."""
        super().reset(seed=seed)
        self._key, key = jax.random.split(jax.random.key(int(self.np_random.integers(2**32))))
        self._t = 0
        self._state, obs, legal = self._reset(key)
        return jax.tree.map(np.array, obs), _mask_info(legal)

    def step(self, actions: np.ndarray) -> tuple[Arrays, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Step every env; `infos["final_obs"]` holds the last observation of each episode that ended."""
        action_N = np.asarray(actions, np.int32)
        if action_N.shape != (self.num_envs,):
            raise ValueError(f"actions have shape {action_N.shape}, expected ({self.num_envs},)")
        if ((action_N < 0) | (action_N >= self.env.num_actions)).any():
            raise ValueError(f"actions are {action_N.tolist()}, expected numbers in 0 … {self.env.num_actions - 1}")
        self._state, t = self._step(self._state, action_N, self._key, self._t)
        self._t += 1
        t = jax.device_get(t)  # sync
        done_N = t.terminated | t.truncated
        infos: Info = {**t.info, **_mask_info(t.legal)}
        if done_N.any():
            last = {**t.info, **_mask_info(t.final_legal)}
            infos.update(final_obs=t.final_obs, _final_obs=done_N, final_info=last, _final_info=done_N)
        return jax.tree.map(np.array, t.obs), t.reward.astype(np.float64), t.terminated, t.truncated, infos

    def get_state(self) -> VectorState:
        """All of it as arrays, for a checkpoint."""
        key = np.asarray(jax.random.key_data(self._key))
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self._state)]
        return {"state": leaves, "key": key, "t": np.int64(self._t)}

    def set_state(self, saved: VectorState) -> None:
        """Go on from what `get_state` gave."""
        self._state = jax.tree.unflatten(
            jax.tree.structure(self._state), [jnp.asarray(leaf) for leaf in saved["state"]]
        )
        self._key, self._t = jax.random.wrap_key_data(jnp.asarray(saved["key"])), int(saved["t"])


IDS: dict[str, dict[str, str]] = {
    "hotloop/CartPole-v1": {"env_id": "cartpole"},
    "hotloop/Snake-v1": {"env_id": "snake"},
    **{f"hotloop/Snake{kind.title()}-v1": {"env_id": "snake", "obs": kind} for kind in snake_features.SIZES},
}
"""Gymnasium's names; `gymnasium.make` takes the env's own options too (`grid=20`)."""

for _name, _options in IDS.items():
    gym.register(
        id=_name,
        entry_point="hotloop.envs.gymnasium:make_env",
        vector_entry_point="hotloop.envs.gymnasium:make_vec",
        kwargs=_options,
    )


def _mask_info(mask: jax.Array | None) -> Info:
    """What `info` says of legal actions, in the dtype that `Discrete.sample` takes."""
    return {} if mask is None else {"action_mask": np.array(mask, np.int8)}


def _spaces(env: DeviceEnv) -> "tuple[Space, gym.spaces.Discrete[np.int64]]":
    return space_of(env.obs_spec), gym.spaces.Discrete(env.num_actions)


def space_of(spec: ObsTree) -> Space:
    """Gymnasium's space for observations of a device env."""
    if isinstance(spec, ObsSpec):
        return gym.spaces.Box(spec.low, spec.high, spec.shape, spec.dtype)  # type: ignore[arg-type]  # more than it says
    if isinstance(spec, dict):
        return gym.spaces.Dict({name: space_of(part) for name, part in spec.items()})
    return gym.spaces.Tuple([space_of(part) for part in spec])
