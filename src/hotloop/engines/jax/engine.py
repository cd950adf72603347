"""Acting and learning with XLA: pure functions of flat vectors, so that a pipeline can put them in its loop."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop import registry
from hotloop.engines.jax.flat import Layout
from hotloop.engines.jax.modules import Module, sequential
from hotloop.engines.jax.optimizers import direction
from hotloop.learning import losses, schedules, targets
from hotloop.spec import Boltzmann, CustomNetwork, Spec


class LearnerState(NamedTuple):
    """All that learning changes. `target` is empty when the rule needs no target net."""

    params: jax.Array
    target: jax.Array
    optimizer: Any
    updates: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array


METRICS = ("loss", "grad_norm", "q", "applied")
"""What `update` sums over its gradient steps, in this order; `applied` counts those that were not skipped."""


class JaxEngine:
    """The engine for one spec: holds shapes and choices, never state."""

    def __init__(self, spec: Spec, obs: Any, num_actions: int, network: Module | None = None) -> None:
        """`obs` is a tree of ShapeDtypeStructs of one observation; `network` is the user's own, if any."""
        self.spec = spec
        self.num_actions = num_actions
        self._network = _composed(spec, num_actions) if network is None else network
        self._direction = direction(spec.optimizer)
        self._obs_1 = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), obs)
        params = jax.eval_shape(self._network.init, jax.random.key(0), self._obs_1)
        self.layout = Layout(params)
        q_shape = jax.eval_shape(self._network.apply, params, self._obs_1).shape
        if q_shape != (1, num_actions):
            raise ValueError(
                f"the network returns shape {q_shape} for one observation, expected (1, {num_actions}): "
                "one Q-value per action"
            )

    def init(self, key: jax.Array) -> LearnerState:
        """Fresh weights; the target net starts as a copy of them."""
        params = self.layout.flatten(self._network.init(key, self._obs_1))
        needs_target = self.spec.target.rule != "vanilla"
        target = jnp.array(params, copy=True) if needs_target else jnp.zeros((0,), jnp.float32)
        counters = [jnp.zeros((), jnp.int32) for _ in range(3)]  # buffers of their own: each is donated
        return LearnerState(params, target, self._direction.init(params), *counters)

    def q_values(self, vector: jax.Array, obs_B: Any) -> jax.Array:
        """Q-values (B, A) of a batch of observations under a flat weight vector."""
        return self._network.apply(self.layout.unflatten(vector), obs_B)

    def greedy(self, params: jax.Array, obs_N: Any) -> jax.Array:
        """Best action of each env, int32 (N,)."""
        return jnp.argmax(self.q_values(params, obs_N), axis=-1).astype(jnp.int32)

    def act(self, params: jax.Array, obs_N: Any, explore_N: jax.Array, key: jax.Array) -> jax.Array:
        """Exploring action of each env, int32 (N,). `explore_N` is each env's ε or temperature."""
        q_NA = self.q_values(params, obs_N)
        if isinstance(self.spec.exploration, Boltzmann):
            return jax.random.categorical(key, q_NA / explore_N[:, None]).astype(jnp.int32)
        coin_N, draw_N = jax.random.uniform(key, (2, q_NA.shape[0]))
        random_N = jnp.minimum((draw_N * self.num_actions).astype(jnp.int32), self.num_actions - 1)
        return jnp.where(coin_N < explore_N, random_N, jnp.argmax(q_NA, axis=-1).astype(jnp.int32))

    def update(
        self, state: LearnerState, batches: Any, learning_rate: jax.Array, weight_KB: jax.Array | None = None
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """K gradient steps on K batches (leading axes K, B); returns TD errors (K, B) and METRICS sums.

        `weight_KB` scales the loss of each sample (importance weights of a prioritised replay).
        """
        q_t_KBA = self.frozen_values(state.target, batches.s_t)

        def one(carry: Any, inputs: Any) -> Any:
            params, optimizer = carry
            gradient, loss, td_B, q = self.gradient(params, *inputs)
            params, optimizer, norm, finite = self.step(params, optimizer, gradient, loss, learning_rate)
            return (params, optimizer), (td_B, jnp.stack([loss, norm, q, finite.astype(jnp.float32)]))

        (params, optimizer), (td_KB, metrics_KM) = jax.lax.scan(
            one, (state.params, state.optimizer), (batches, q_t_KBA, weight_KB)
        )
        # Counted here, once, from what the loop left behind.
        applied_K = metrics_KM[:, METRICS.index("applied")] > 0
        updates = state.updates + jnp.sum(applied_K, dtype=jnp.int32)
        skipped = state.skipped + jnp.sum(~applied_K, dtype=jnp.int32)
        since_applied = jnp.argmax(applied_K[::-1]).astype(jnp.int32)
        in_a_row = jnp.where(jnp.any(applied_K), since_applied, state.skipped_in_a_row + applied_K.shape[0])
        sums = jnp.sum(jnp.where(applied_K[:, None], metrics_KM, 0.0), axis=0)
        return LearnerState(params, state.target, optimizer, updates, skipped, in_a_row), td_KB, sums

    def frozen_values(self, target: jax.Array, s_t_KB: Any) -> jax.Array | None:
        """What the target net says of K batches (K, B, A): it stands still, so one forward pass does for all."""
        if self.spec.target.rule == "vanilla":
            return None
        lead = jax.tree.leaves(s_t_KB)[0].shape[:2]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), s_t_KB)
        return self.q_values(target, flat).reshape(*lead, self.num_actions)

    def loss(
        self, params: Any, batch: Any, q_t_BA: jax.Array | None, weight_B: jax.Array | None = None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Mean loss of one batch under the network's own parameters; beside it TD errors (B,) and the mean Q-value."""
        rule = self.spec.target.rule
        if rule == "target":
            v_t_B = targets.max_value(q_t_BA, xp=jnp)
        else:
            online_BA = self._network.apply(jax.lax.stop_gradient(params), batch.s_t)
            if rule == "vanilla":
                v_t_B = targets.max_value(online_BA, xp=jnp)
            else:
                v_t_B = targets.double_value(q_t_BA, online_BA, xp=jnp)
        target_B = jax.lax.stop_gradient(targets.bootstrapped(batch.r_t, batch.discount_t, v_t_B))
        q_a_B = targets.value_of(self._network.apply(params, batch.s_tm1), batch.a_tm1, xp=jnp)
        td_B = target_B - q_a_B
        penalty_B = self._penalty(td_B) if weight_B is None else weight_B * self._penalty(td_B)
        return jnp.mean(penalty_B), (td_B, jnp.mean(q_a_B))

    def gradient(
        self, params: jax.Array, batch: Any, q_t_BA: jax.Array | None, weight_B: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Flat gradient of one batch's loss; loss, TD errors (B,) and mean Q-value."""
        of_loss = jax.value_and_grad(self.loss, has_aux=True)
        (loss, (td_B, q)), grads = of_loss(self.layout.unflatten(params), batch, q_t_BA, weight_B)
        return self.layout.flatten(grads), loss, td_B, q

    def step(
        self, params: jax.Array, optimizer: Any, gradient: jax.Array, loss: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array, jax.Array]:
        """Clip and follow a gradient, unless it or the loss is not finite; the norm before clipping, and whether."""
        norm = jnp.sqrt(jnp.vdot(gradient, gradient))
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        if self.spec.optimizer.clip is not None:
            gradient = gradient * jnp.minimum(1.0, self.spec.optimizer.clip / (norm + 1e-6))
        step, moved = self._direction.update(gradient, optimizer, params)

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(finite, new, old)  # the NaN guard: a bad update leaves no trace

        return keep(params - learning_rate * step, params), jax.tree.map(keep, moved, optimizer), norm, finite

    def move_target(self, state: LearnerState, times: jax.Array) -> LearnerState:
        """Mix the online net into the target net `times` times (0 leaves it as it is)."""
        if self.spec.target.rule == "vanilla":
            return state
        if self.spec.target.tau == 1.0:
            return state._replace(target=jnp.where(times > 0, state.params, state.target))
        share = -jnp.expm1(times.astype(jnp.float32) * math.log1p(-self.spec.target.tau))  # 1 - (1 - tau)^times
        return state._replace(target=state.target + share * (state.params - state.target))

    def learning_rate(self, env_steps: jax.Array) -> jax.Array:
        """Learning rate at an env step."""
        return schedules.value_at(
            env_steps.astype(jnp.float32), xp=jnp, **self.spec.optimizer.learning_rate.model_dump()
        )

    def exploration(self, env_steps: jax.Array) -> jax.Array:
        """ε or temperature at env steps."""
        return schedules.value_at(env_steps.astype(jnp.float32), xp=jnp, **self.spec.exploration_schedule.model_dump())

    def _penalty(self, td_B: jax.Array) -> jax.Array:
        if self.spec.loss.kind == "mse":
            return losses.mse(td_B)
        return losses.huber(td_B, self.spec.loss.delta, xp=jnp)


def _composed(spec: Spec, num_actions: int) -> Module:
    if isinstance(spec.network, CustomNetwork):
        raise ValueError(
            f"this spec was trained with a network of your own ({spec.network.name}); pass it again from Python: "
            "hotloop.load(run, network=module)"
        )
    torso, head = spec.network.torso, spec.network.head
    return sequential(
        torso=registry.load(registry.TORSOS, torso.kind, "torso")(torso),
        head=registry.load(registry.HEADS, head.kind, "head")(head, num_actions),
    )
