"""Greedy episodes that all agents of a device env play together: an evaluation in one program, or one as pictures."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import Drawable, reset_all
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.evaluate import Episodes, TeamEpisodes

if TYPE_CHECKING:
    from PIL.Image import Image


def team_program(
    env: MultiAgentEnv, engine: JaxEngine, episodes: int, max_steps: int
) -> Callable[[jax.Array, jax.Array], Any]:
    """Return `run(params, key)`: E greedy episodes, each in its own env; weights are (M, W), or (1, W) for all."""

    def run(params: jax.Array, key: jax.Array) -> Any:
        reset_key, step_key = jax.random.split(key)
        state_E, obs_EM = reset_all(env, reset_key, episodes)
        action_EM = jnp.zeros((episodes, env.num_agents), jnp.int32)
        info = jax.eval_shape(jax.vmap(env.step), state_E, action_EM, jax.random.split(step_key, episodes))[5]
        nothing = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in info.items()}

        def step(carry: Any) -> Any:
            t, state_E, obs_EM, alive_E, return_EM, length_E, info_E = carry
            keys_E = jax.random.split(jax.random.fold_in(step_key, t), episodes)
            action_EM = joint_actions(engine, params, obs_EM)
            state_E, obs_EM, reward_EM, terminated_E, truncated_E, now_E = jax.vmap(env.step)(
                state_E, action_EM, keys_E
            )
            return_EM = return_EM + jnp.where(alive_E[:, None], reward_EM, 0.0)
            length_E = length_E + alive_E

            def last(now: jax.Array, before: jax.Array) -> jax.Array:
                return jnp.where(alive_E.reshape(-1, *[1] * (now.ndim - 1)), now, before)

            info_E = {name: last(now_E[name], info_E[name]) for name in info_E}
            alive_E &= ~(terminated_E | truncated_E)
            return t + 1, state_E, obs_EM, alive_E, return_EM, length_E, info_E

        start = (
            jnp.int32(0),
            state_E,
            obs_EM,
            jnp.ones(episodes, bool),
            jnp.zeros((episodes, env.num_agents)),
            jnp.zeros(episodes, jnp.int32),
            nothing,
        )
        end = jax.lax.while_loop(lambda carry: jnp.any(carry[3]) & (carry[0] < max_steps), step, start)
        return end[4], end[5], end[6], end[3]

    return run


def joint_actions(engine: JaxEngine, params: jax.Array, obs_EM: Any) -> jax.Array:
    """The best action of each agent in each env, (E, M), by its own weights or by those of all."""
    if params.shape[0] == 1:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs_EM)
        lead = jax.tree.leaves(obs_EM)[0].shape[:2]
        return engine.greedy(params[0], flat).reshape(lead)
    obs_ME = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), obs_EM)
    return jax.vmap(engine.greedy)(params, obs_ME).T


def outcomes(result: Any) -> TeamEpisodes:
    """Bring the outcome of a team program to the host."""
    return_EM, length_E, info, alive_E = jax.device_get(result)  # sync
    num_agents = return_EM.shape[1]

    def of(index: int) -> Episodes:
        own = {name: values[:, index] if values.ndim == 2 else values for name, values in info.items()}
        return Episodes(return_EM[:, index], length_E, own, endless=alive_E)

    means = {name: values.mean(axis=1) if values.ndim == 2 else values for name, values in info.items()}
    of_all = Episodes(return_EM.mean(axis=1), length_E, means, endless=alive_E)
    return TeamEpisodes([of(index) for index in range(num_agents)], of_all)


def play_team(
    env: MultiAgentEnv, engine: JaxEngine, params: jax.Array, episodes: int, max_steps: int, seed: int
) -> TeamEpisodes:
    """Greedy episodes of trained agents."""
    run = jax.jit(team_program(env, engine, episodes, max_steps))
    return outcomes(run(params, jax.random.key(seed)))


def record_team(
    env: Drawable, engine: JaxEngine, params: jax.Array, seed: int, max_steps: int, every: int = 1
) -> "list[Image]":
    """Play one greedy episode and draw every `every`-th state, and the last."""
    assert isinstance(env, MultiAgentEnv)
    reset_key, step_key = jax.random.split(jax.random.key(seed))

    @jax.jit
    def step(state: Any, obs_M: Any, key: jax.Array) -> Any:
        action_1M = joint_actions(engine, params, jax.tree.map(lambda leaf: leaf[None], obs_M))
        return env.step(state, action_1M[0], key)

    state, obs_M = jax.jit(env.reset)(reset_key)
    frames = [env.render(jax.device_get(state))]
    for t in range(max_steps):
        state, obs_M, _, terminated, truncated, _ = step(state, obs_M, jax.random.fold_in(step_key, t))
        over = bool(np.asarray(terminated) | np.asarray(truncated))  # sync
        if over or (t + 1) % every == 0:
            frames.append(env.render(jax.device_get(state)))
        if over:
            break
    return frames
