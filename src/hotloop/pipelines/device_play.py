"""Greedy episodes on device envs: all of an evaluation in one program, or one episode as pictures."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.protocol import Engine
from hotloop.envs.device import Clocked, DeviceEnv, Drawable, legal_actions, reset_all
from hotloop.errors import SpecError
from hotloop.evaluate import Episodes

if TYPE_CHECKING:
    from PIL.Image import Image


def functions_of(engine: Engine) -> JaxEngine:
    """What an engine offers to programs on the device."""
    functions = engine.device_functions
    if not isinstance(functions, JaxEngine):
        raise SpecError("this engine has no programs for device envs; use engine jax")
    return functions


def episodes_program(
    env: DeviceEnv, engine: JaxEngine, episodes: int, max_steps: int, masked: bool = False
) -> Callable[[jax.Array, jax.Array], Any]:
    """Return `run(params, key)`: exactly one greedy episode per env, so that short ones are not over-counted.

    `masked`: only legal actions are taken.
    """

    def run(params: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, dict[str, jax.Array], jax.Array]:
        reset_key, step_key = jax.random.split(key)
        state_E, obs_E = reset_all(env, reset_key, episodes)
        info = jax.eval_shape(jax.vmap(env.step), state_E, jnp.zeros(episodes, jnp.int32), _keys(step_key, episodes))[5]
        clock = env.clock if isinstance(env, Clocked) else None
        nothing = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in info.items() if name != clock}

        def step(carry: Any) -> Any:
            t, state_E, obs_E, alive_E, return_E, length_E, info_E, memory_E = carry
            keys_E = _keys(jax.random.fold_in(step_key, t), episodes)
            memory_E, action_E = engine.play(params, memory_E, obs_E, *_legal(env, state_E, masked))
            state_E, obs_E, reward_E, terminated_E, truncated_E, now_E = jax.vmap(env.step)(state_E, action_E, keys_E)
            return_E = return_E + jnp.where(alive_E, reward_E, 0.0)
            length_E = length_E + alive_E
            info_E = {name: jnp.where(alive_E, now_E[name], info_E[name]) for name in info_E}
            alive_E &= ~(terminated_E | truncated_E)
            return t + 1, state_E, obs_E, alive_E, return_E, length_E, info_E, memory_E

        start = (
            jnp.int32(0),
            state_E,
            obs_E,
            jnp.ones(episodes, bool),
            jnp.zeros(episodes),
            jnp.zeros(episodes, jnp.int32),
            nothing,
            engine.memory(episodes),
        )
        end = jax.lax.while_loop(lambda carry: jnp.any(carry[3]) & (carry[0] < max_steps), step, start)
        return end[4], end[5], end[6], end[3]

    return run


def play_on_device(
    env: DeviceEnv, engine: JaxEngine, params: jax.Array, episodes: int, max_steps: int, masked: bool, seed: int
) -> Episodes:
    """Greedy episodes of a trained agent."""
    run = jax.jit(episodes_program(env, engine, episodes, max_steps, masked))
    return to_host(run(params, jax.random.key(seed)))


def to_host(result: Any) -> Episodes:
    """Bring the outcome of an episodes program to the host."""
    episode_return, length, info, alive = jax.device_get(result)  # sync
    return Episodes(episode_return, length, info, endless=alive)


def record(
    env: DeviceEnv,
    engine: JaxEngine,
    params: jax.Array,
    seed: int,
    max_steps: int,
    every: int = 1,
    masked: bool = False,
) -> "list[Image]":
    """Play one greedy episode (`masked`: of legal actions) and draw every `every`-th state, and the last."""
    if not isinstance(env, Drawable):
        raise TypeError(f"{type(env).__name__} cannot draw itself: it has no render(state)")
    reset_key, step_key = jax.random.split(jax.random.key(seed))

    @jax.jit
    def step(state: Any, obs: Any, memory_1: Any, key: jax.Array) -> Any:
        one_state, one_obs = jax.tree.map(lambda leaf: leaf[None], (state, obs))
        memory_1, action_1 = engine.play(params, memory_1, one_obs, *_legal(env, one_state, masked))
        return memory_1, env.step(state, action_1[0], key)

    (state, obs), memory_1 = jax.jit(env.reset)(reset_key), engine.memory(1)
    frames = [env.render(jax.device_get(state))]
    for t in range(max_steps):
        memory_1, moved = step(state, obs, memory_1, jax.random.fold_in(step_key, t))
        state, obs, _, terminated, truncated, _ = moved
        over = bool(terminated) or bool(truncated)  # sync
        if over or (t + 1) % every == 0:
            frames.append(env.render(jax.device_get(state)))
        if over:
            break
    return frames


def _legal(env: DeviceEnv, state_E: Any, masked: bool) -> tuple[jax.Array, ...]:
    """The masks, as what follows the observations in a call of `greedy`."""
    return (legal_actions(env, state_E),) if masked else ()


def _keys(key: jax.Array, count: int) -> jax.Array:
    return jax.random.split(key, count)
