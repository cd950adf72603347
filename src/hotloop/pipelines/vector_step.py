"""One vector step on the device: act, step, count. What acting is, and what is recorded of it, is the pipeline's."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import DeviceEnv, DeviceStep, step_all
from hotloop.errors import SpecError
from hotloop.experience import METRICS, Totals
from hotloop.spec import Spec


class ActorState(NamedTuple):
    """Where the envs are, and how the running episodes have gone so far."""

    env: Any
    obs: Any
    episode_return: jax.Array
    episode_length: jax.Array
    window: Any = ()  # with n-step returns: steps whose rewards are not complete yet
    legal: Any = None  # with action masks: which actions `obs` allows


class Moved(NamedTuple):
    """What came of a vector step, N envs wide."""

    action: jax.Array
    reward: jax.Array  # float32
    discount: jax.Array  # γ, or 0 where the episode was terminated
    ended: jax.Array
    transition: DeviceStep


Choose = Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Any]]
"""`choose(actor, explore_N, key) -> action_N, noted`; explore_N is each env's ε or temperature."""
Record = Callable[[Any, Moved, Any], tuple[Any, Any]]
"""`record(actor, moved, noted) -> actor, row_N`: what is remembered of the step, and what goes to the replay."""

StepEnvs = Callable[[DeviceEnv, Any, jax.Array, jax.Array, bool], tuple[Any, DeviceStep]]
"""As `envs.device.step_all`."""


def vector_step(
    spec: Spec,
    env: DeviceEnv,
    engine: JaxEngine,
    carry: tuple[Any, Totals[jax.Array]],
    env_steps: jax.Array,
    key: jax.Array,
    choose: Choose,
    record: Record,
    step_envs: StepEnvs = step_all,
) -> tuple[tuple[Any, Totals[jax.Array]], Any]:
    """Act and step once in every env; returns where the envs are then, sums, and what is recorded."""
    actor, totals = carry
    act_key, env_key = jax.random.split(key)
    explore_N = engine.exploration(env_steps + jnp.arange(spec.env.num_envs, dtype=jnp.int32))
    with jax.named_scope("select"):
        action_N, noted = choose(actor, explore_N, act_key)
    with jax.named_scope("step"):
        env_state, t = step_envs(env, actor.env, action_N, env_key, spec.env.action_mask)
    moved = Moved(action_N, t.reward.astype(jnp.float32), _discounts(spec, t), t.terminated | t.truncated, t)
    actor, row_N = record(actor, moved, noted)
    actor, totals = count_episodes(actor, totals, t.reward, moved.ended)
    return (actor._replace(env=env_state, obs=t.obs, legal=t.legal), totals), row_N


def _discounts(spec: Spec, t: DeviceStep) -> jax.Array:
    """γ of each env's step, by the time it took if the spec says so; 0 where the episode was terminated."""
    goes_on_N = 1.0 - t.terminated.astype(jnp.float32)
    if spec.discount_per is None:
        return spec.discount * goes_on_N
    if spec.discount_per not in t.info:
        raise SpecError(f"discount_per: {spec.env.id} gives no '{spec.discount_per}'; it gives {sorted(t.info)}")
    return spec.discount ** t.info[spec.discount_per].astype(jnp.float32) * goes_on_N


def no_totals() -> Totals[jax.Array]:
    """All sums at zero."""
    return Totals(jnp.zeros((len(METRICS),), jnp.float32), jnp.int32(0), jnp.float32(0), jnp.float32(0))


def count_episodes(
    actor: ActorState, totals: Totals[jax.Array], reward_N: jax.Array, done_N: jax.Array
) -> tuple[ActorState, Totals[jax.Array]]:
    """Add this step to the running episodes and the finished ones to the totals."""
    return_N = actor.episode_return + reward_N
    length_N = actor.episode_length + 1
    totals = totals._replace(
        episodes=totals.episodes + jnp.sum(done_N, dtype=jnp.int32),
        episode_return=totals.episode_return + jnp.sum(jnp.where(done_N, return_N, 0.0)),
        episode_length=totals.episode_length + jnp.sum(jnp.where(done_N, length_N, 0)).astype(jnp.float32),
    )
    actor = actor._replace(
        episode_return=jnp.where(done_N, 0.0, return_N), episode_length=jnp.where(done_N, 0, length_N)
    )
    return actor, totals
