"""Acting and learning with XLA: pure functions of flat vectors, so that a pipeline can put them in its loop."""

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hotloop.engines.building import estimates_of, head_of, torso_of
from hotloop.engines.draws import PASSES, Draw, Draws, Wanted
from hotloop.engines.jax import own
from hotloop.engines.jax.flat import Layout
from hotloop.engines.jax.modules import (
    Functions,
    Given,
    Inputs,
    Mode,
    Module,
    Numbers,
    Params,
    factors,
    perturbed,
    sequential,
)
from hotloop.engines.jax.optimizers import Moments, gradient_transform
from hotloop.engines.networks import RUNNING, HeadOutput, TargetOutputs, noise_size
from hotloop.engines.protocol import Engine, EngineOf, opaque
from hotloop.experience import METRICS, Aimed, Item, Sequences
from hotloop.learning import exploration, loss_scale, schedules, targets
from hotloop.spec import Boltzmann, Network, ScalarHead, Spec
from hotloop.trees import Shapes


class LearnerState(NamedTuple):
    """All that learning changes. `target` is empty when the rule needs no target net."""

    params: jax.Array
    target: jax.Array
    optimizer: Moments
    updates: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array
    loss_scale: "LossScale | tuple[()]" = ()  # of float16


class LossScale(NamedTuple):
    """Factor that keeps small gradients of float16 from vanishing, and for how many updates it has held."""

    factor: jax.Array
    held: jax.Array


Scale = LossScale | tuple[()]
Batch = Item[jax.Array] | Aimed[jax.Array] | Sequences[jax.Array]
"""What one gradient step learns from; sequences are those of a `RecurrentEngine`."""


QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": False}
"""How XLA compiles in a third of the time what is run once."""


class JaxEngine:
    """The engine for one spec: holds shapes and choices, never state."""

    def __init__(
        self, spec: Spec, obs: Shapes, num_actions: int, network: Module | None = None, numbers: Numbers = jnp.float32
    ) -> None:
        """`obs` is a tree of shapes of one observation; `network` is the user's own, if any.

        `numbers` are those of weights and moments: float32, or float64 to be compared with another engine.
        """
        self.spec = spec
        self.num_actions = num_actions
        self._network = self._make_network(network)
        self._head = spec.network.head if isinstance(spec.network, Network) else ScalarHead()
        self._estimates = estimates_of(spec, self._head, jnp, jax.lax.stop_gradient)
        self.is_random = isinstance(spec.network, Network) and spec.network.is_random
        self._dtype = jnp.dtype(spec.precision)
        self._transform = gradient_transform(spec.optimizer)
        self._obs_1 = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), obs)
        self._numbers = jnp.dtype(numbers)
        params = jax.eval_shape(self._fresh, jax.random.key(0))
        self.layout, self._noise_size = Layout(params), noise_size(params)
        self._is_average = self._where_averages()
        self._by_batch = _sharding(spec.devices)
        self._refuse_wrong_output(1)
        if network is not None:
            self._refuse_wrong_output(2)
            self._refuse_not_finite()

    def _refuse_wrong_output(self, count: int) -> None:
        """A network gives one Q-value per action, for so many observations."""
        vector = jax.ShapeDtypeStruct((self.layout.size,), self.layout.dtype)
        q_shape = jax.eval_shape(self.q_values, vector, self._obs(count)).shape
        if q_shape != (count, self.num_actions):
            raise ValueError(
                f"the network returns shape {q_shape} for {count} observation(s), expected "
                f"({count}, {self.num_actions}): one Q-value per action"
            )

    def _refuse_not_finite(self) -> None:
        """Nor is one of them NaN, with a network's first weights: of ours that is known."""

        def first(key: jax.Array) -> jax.Array:
            return self.q_values(self.layout.flatten(self._fresh(key)), self._obs_1)

        key = jax.random.key(0)
        program = jax.jit(first).lower(key)
        try:
            compiled = program.compile(QUICKLY if jax.default_backend() == "cpu" else {})
        except Exception:  # of an XLA that has no such options
            compiled = program.compile()
        q_1A = np.asarray(compiled(key))  # sync
        if not np.isfinite(q_1A).all():
            raise ValueError(
                f"the network returns {q_1A.tolist()} for an observation of zeros; expected finite Q-values"
            )

    def on_host(self) -> Engine:
        """Its functions compiled, for runs whose envs are on the host, and for agents."""
        from hotloop.engines.jax.host import JaxOnHost

        compiled: EngineOf[LearnerState, jax.Array] = JaxOnHost(self)
        return opaque(compiled)

    def init(self, key: jax.Array) -> LearnerState:
        """Fresh weights; the target net starts as a copy of them."""
        params = self.layout.flatten(self._fresh(key))
        target = jnp.array(params, copy=True) if self.has_target else jnp.zeros((0,), params.dtype)
        updates, skipped, in_a_row, held = (jnp.zeros((), jnp.int32) for _ in range(4))  # each is donated by itself
        scale = LossScale(jnp.float32(loss_scale.FIRST), held) if self.spec.precision == "float16" else ()
        return LearnerState(params, target, self._transform.init(params), updates, skipped, in_a_row, scale)

    def _make_network(self, network: Module | None) -> Functions:
        """The network of the spec, or the user's own."""
        return _composed(self.spec, self.num_actions) if network is None else own.functions_of(network)

    def _fresh(self, key: jax.Array) -> Params:
        """A network's own tree of first weights."""
        params = self._network.init(key, self._obs_1)
        if self._numbers == jnp.float32:
            return params
        return jax.tree.map(lambda leaf: leaf.astype(self._numbers), params)

    @property
    def has_target(self) -> bool:
        """Whether there is a target net."""
        return self.spec.target.rule != "vanilla" and self.spec.on_policy is None

    def estimate(self, params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[jax.Array]:
        """What the network says under its own parameters (a tree), in the numbers of the weights."""
        params = self.in_precision(params)
        if mode.noise is not None:
            params = perturbed(params, mode.noise)
        values, tau = self._network.apply(params, obs_B, mode)
        return HeadOutput(values.astype(self._numbers), tau)

    def in_precision(self, params: Params) -> Params:
        """Parameters in the numbers networks compute in; running averages stay as they are."""
        if self.spec.precision == "float32":
            return params
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf if getattr(path[-1], "key", "") in RUNNING else leaf.astype(self._dtype), params
        )

    def q_values(
        self, vector: jax.Array, obs_B: Inputs, key: jax.Array | None = None, given: Given = None
    ) -> jax.Array:
        """Q-values (B, A) of a batch of observations under a flat weight vector.

        With a key, or with what `wanted_to_act` asks for as `given`, those of a noisy draw.
        """
        mode = Mode("act", key, given=given)
        return self._estimates.q(self.estimate(self.layout.unflatten(vector), obs_B, mode).values)

    def greedy(self, params: jax.Array, obs_N: Inputs, legal_NA: jax.Array | None = None) -> jax.Array:
        """Best action of each env, int32 (N,)."""
        q_NA = targets.legal_only(self.q_values(params, obs_N), legal_NA, xp=jnp)
        return jnp.argmax(q_NA, axis=-1).astype(jnp.int32)

    def memory(self, count: int) -> Inputs:
        """What each of `count` envs remembers at the start of an episode: nothing, without a core."""
        del count
        return ()

    def play(
        self, params: jax.Array, memory_N: Inputs, obs_N: Inputs, legal_NA: jax.Array | None = None
    ) -> tuple[Inputs, jax.Array]:
        """The memory after an observation, and the best action of each env."""
        return memory_N, self.greedy(params, obs_N, legal_NA)

    def act(
        self,
        params: jax.Array,
        obs_N: Inputs,
        explore_N: jax.Array,
        key: jax.Array,
        legal_NA: jax.Array | None = None,
    ) -> jax.Array:
        """Exploring action of each env, int32 (N,). `explore_N` is each env's ε or temperature."""
        network_key = None
        if self.is_random:
            key, network_key = jax.random.split(key)
        q_NA = targets.legal_only(self.q_values(params, obs_N, network_key), legal_NA, xp=jnp)
        return self.explore(q_NA, explore_N, key, is_masked=legal_NA is not None)

    def explore(self, q_NA: jax.Array, explore_N: jax.Array, key: jax.Array, is_masked: bool = False) -> jax.Array:
        """Actions by Q-values and chance; illegal ones have a Q-value of -inf."""
        if isinstance(self.spec.exploration, Boltzmann):
            gumbel_NA = jax.random.gumbel(key, q_NA.shape, q_NA.dtype)
            return exploration.boltzmann(q_NA, explore_N[:, None], gumbel_NA, xp=jnp).astype(jnp.int32)
        coin_N, draw_N = jax.random.uniform(key, (2, q_NA.shape[0]))
        action_N = exploration.epsilon_greedy(q_NA, explore_N, coin_N, draw_N, is_masked=is_masked, xp=jnp)
        return action_N.astype(jnp.int32)

    def update(
        self,
        state: LearnerState,
        batches: Batch,
        learning_rate: jax.Array,
        weight_KB: jax.Array | None = None,
        key: jax.Array | None = None,
        draws_K: Draws[jax.Array] | None = None,
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """Gradient steps on K batches (leading axes K, B), `replay.updates_per_batch` on each; returns the TD errors
        (K, B) of the last step on each, and METRICS sums.

        `weight_KB` scales the loss of each sample (importance weights of a prioritised replay); networks that draw
        noise or quantiles take a `key`, or what was drawn for them.
        """
        if self._by_batch is not None:
            batches, weight_KB = jax.lax.with_sharding_constraint((batches, weight_KB), self._by_batch)
        if self.is_random and key is None and draws_K is None:
            raise ValueError("this network draws noise or quantiles; give update a key, or the draws")
        on_each = self.spec.replay.updates_per_batch
        count = batches.a_tm1.shape[0] * on_each
        # The target net stands still, so one forward pass does for all batches; with noise, each has its own draw.
        outputs_K = None if self.is_random else self.target_outputs_of_batches(state.target, batches)
        if on_each > 1:
            again = (batches, outputs_K, weight_KB)
            batches, outputs_K, weight_KB = jax.tree.map(lambda leaf: jnp.repeat(leaf, on_each, axis=0), again)
        if key is not None and self.is_random:
            draws_K = self.draws(key, count)

        def one(
            carry: tuple[jax.Array, Moments, Scale],
            inputs: tuple[Batch, TargetOutputs[jax.Array] | None, jax.Array | None, Draws[jax.Array] | None],
        ) -> tuple[tuple[jax.Array, Moments, Scale], tuple[jax.Array, jax.Array, jax.Array | None]]:
            params, optimizer, scale = carry
            batch, outputs, weight_B, draws = inputs
            if outputs is None:
                outputs = self.target_outputs(state.target, batch, draws)
            factor = scale.factor if scale else None
            gradient, loss, td_B, q = self.gradient(params, batch, outputs, weight_B, draws, factor)
            params, optimizer, norm, finite = self.step(params, optimizer, gradient, loss, learning_rate)
            row = jnp.stack([loss, norm, q, finite.astype(loss.dtype)])
            return (params, optimizer, _rescaled(scale, finite)), (td_B, row, _is_only_overflow(scale, finite))

        (params, optimizer, scale), (td_KB, metrics_KM, overflow_K) = jax.lax.scan(
            one, (state.params, state.optimizer, state.loss_scale), (batches, outputs_K, weight_KB, draws_K)
        )
        # Counted here, once, from what the loop left behind.
        applied_K = metrics_KM[:, METRICS.index("applied")] > 0
        updates = state.updates + jnp.sum(applied_K, dtype=jnp.int32)
        skipped = state.skipped + jnp.sum(~applied_K, dtype=jnp.int32)
        healthy_K = applied_K if overflow_K is None else applied_K | overflow_K
        since_healthy = jnp.argmax(healthy_K[::-1]).astype(jnp.int32)
        in_a_row = jnp.where(jnp.any(healthy_K), since_healthy, state.skipped_in_a_row + count)
        sums = jnp.sum(jnp.where(applied_K[:, None], metrics_KM, 0.0), axis=0)
        learner = LearnerState(params, state.target, optimizer, updates, skipped, in_a_row, scale)
        return learner, (td_KB if on_each == 1 else td_KB[on_each - 1 :: on_each]), sums

    def draws(self, key: jax.Array, count: int) -> Draws[jax.Array]:
        """Draw for so many updates (a leading axis) at once."""
        noise_key, key = jax.random.split(key)
        return Draws(jax.random.split(key, count), factors(noise_key, (count, len(PASSES), self._noise_size)))

    def _draws_of_parts(self, draws: Draws[jax.Array], parts: int) -> Draws[jax.Array]:
        """The draws of each part of a batch (a leading axis): noise is common to all."""
        noise = jnp.broadcast_to(draws.noise_PT, (parts, *draws.noise_PT.shape))
        if draws.key is not None:
            return Draws(jax.random.split(draws.key, parts), noise)
        split = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), draws.given)
        return Draws(None, noise, split)

    def wanted_to_act(self, num_envs: int) -> dict[str, Draw]:
        """What `q_values` takes of chance for so many envs."""
        wanted, params = Wanted(), jax.ShapeDtypeStruct((self.layout.size,), self.layout.dtype)
        if self.is_random:
            jax.eval_shape(lambda vector, obs: self.q_values(vector, obs, given=wanted), params, self._obs(num_envs))
        return dict(wanted)

    def wanted_to_learn(self, updates: int, batch_size: int) -> Draws[Draw] | None:
        """What so many updates take of chance, as Draws of `Draw`s."""
        if not self.is_random:
            return None
        noise = jnp.zeros((len(PASSES), self._noise_size), self.layout.dtype)
        by_pass = {role: Wanted() for role in PASSES}
        asked: Draws[jax.Array] = Draws(None, noise, by_pass)
        vector = jax.ShapeDtypeStruct((self.layout.size,), self.layout.dtype)

        number, obs = jax.ShapeDtypeStruct((batch_size,), self.layout.dtype), self._obs(batch_size)
        batch = Item(obs, jax.ShapeDtypeStruct((batch_size,), jnp.int32), number, number, obs)

        def passes(params: jax.Array, batch: Item[jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            return self.loss(
                self.layout.unflatten(params), batch, self.target_outputs(params, batch, asked), None, asked
            )

        jax.eval_shape(passes, vector, batch)
        given = {
            role: {path: Draw(one.kind, (updates, *one.shape)) for path, one in wanted.items()}
            for role, wanted in by_pass.items()
        }
        return Draws(None, Draw("factors", (updates, *noise.shape)), given)

    def _obs(self, count: int) -> Shapes:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape[1:]), leaf.dtype), self._obs_1)

    def target_outputs_of_batches(
        self, target: jax.Array, batches: Batch, draws: Draws[jax.Array] | None = None
    ) -> TargetOutputs[jax.Array]:
        """What the target net says of K batches (K, B, …), with the same draws for all."""
        lead = batches.a_tm1.shape[:2]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batches)
        return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), self.target_outputs(target, flat, draws))

    def target_outputs(
        self, target: jax.Array, batch: Batch, draws: Draws[jax.Array] | None = None
    ) -> TargetOutputs[jax.Array]:
        """What the target net says of a batch (B, …)."""
        if not self.has_target:
            return TargetOutputs(None, None)
        batch = cast(Item[jax.Array], batch)  # for what is aimed already there is no target net
        params, mode = self.layout.unflatten(target), mode_of("target", draws)
        values_t = self.estimate(params, batch.s_t, mode).values
        soft, choice_BA, bonus_B = self.spec.target.munchausen, None, None
        if self._chooses_apart:
            choice_BA = self._estimates.q(self.estimate(params, batch.s_t, mode_of("choose", draws)).values)
        if soft is not None:
            q_tm1_BA = self._estimates.q(self.estimate(params, batch.s_tm1, mode.part(1)).values)
            log_policy_B = targets.value_of(targets.log_policy(q_tm1_BA, soft.temperature, xp=jnp), batch.a_tm1, xp=jnp)
            bonus_B = soft.alpha * jnp.clip(log_policy_B, soft.clip, 0.0)
        return TargetOutputs(values_t, bonus_B, choice_BA)

    @property
    def _chooses_apart(self) -> bool:
        """Whether the target net is asked twice: for the choice of an action, and for its value."""
        return self._head.chooses_apart and self.spec.target.rule == "target"

    def target(
        self,
        params: Params,
        batch: Item[jax.Array],
        outputs: TargetOutputs[jax.Array],
        draws: Draws[jax.Array] | None = None,
    ) -> jax.Array:
        """What the estimates of a batch are pulled towards, by the target rule."""
        maths, rule, (values_t, bonus_B, choice_BA) = self._estimates, self.spec.target.rule, outputs
        if rule != "target":
            online_t = self.estimate(jax.lax.stop_gradient(params), batch.s_t, mode_of("choose", draws)).values
            values_t = online_t if rule == "vanilla" else values_t
        # Of the net that chooses.
        q_t_BA = choice_BA if choice_BA is not None else maths.q(values_t if rule == "target" else online_t)
        q_t_BA = targets.legal_only(q_t_BA, batch.legal_t, xp=jnp)
        soft = self.spec.target.munchausen
        z_t = (
            targets.best_value(values_t, q_t_BA, xp=jnp)
            if soft is None
            else targets.soft_value(values_t, q_t_BA, soft.temperature, xp=jnp)
        )
        r_t_B = batch.r_t if bonus_B is None else batch.r_t + bonus_B
        return maths.target(r_t_B, batch.discount_t, z_t)

    def loss(
        self,
        params: Params,
        batch: Batch,
        outputs: TargetOutputs[jax.Array],
        weight_B: jax.Array | None = None,
        draws: Draws[jax.Array] | None = None,
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Mean loss of one batch under the network's own parameters; beside it TD errors (B,) and the mean Q-value."""
        maths, batch = self._estimates, cast(Item[jax.Array] | Aimed[jax.Array], batch)
        aim = batch.target if isinstance(batch, Aimed) else self.target(params, batch, outputs, draws)
        target = jax.lax.stop_gradient(aim)
        values, tau = self.estimate(params, batch.s_tm1, mode_of("learn", draws))
        z = targets.value_of(values, batch.a_tm1, xp=jnp)
        loss_B, td_B = maths.loss(z, tau, target)
        return jnp.mean(loss_B if weight_B is None else weight_B * loss_B), (td_B, jnp.mean(maths.q(z)))

    def gradient(
        self,
        params: jax.Array,
        batch: Batch,
        outputs: TargetOutputs[jax.Array],
        weight_B: jax.Array | None = None,
        draws: Draws[jax.Array] | None = None,
        scale: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Flat gradient of one batch's loss; loss, TD errors (B,) and mean Q-value.

        `scale` multiplies the loss on the way and is taken out of the gradient again.
        """
        tree = self.layout.unflatten(params)

        def scaled(tree: Params, *inputs: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
            loss, (td_B, q) = self.loss(tree, *inputs)
            return (loss if scale is None else loss * scale), (loss, td_B, q)

        def of(*inputs: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
            (_, (loss, td_B, q)), grads = jax.value_and_grad(scaled, has_aux=True)(tree, *inputs)
            return self.layout.flatten(grads), loss, td_B, q

        parts = self.spec.optimizer.accumulate
        if parts == 1:
            gradient, loss, td_B, q = of(batch, outputs, weight_B, draws)
        else:
            split = jax.tree.map(lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]), (batch, outputs, weight_B))
            draws_of_parts = None if draws is None else self._draws_of_parts(draws, parts)

            def add(total: jax.Array, inputs: tuple[Any, ...]) -> tuple[jax.Array, list[jax.Array]]:
                gradient, *rest = of(*inputs)
                return total + gradient, rest

            total, (losses, td_PB, qs) = jax.lax.scan(add, jnp.zeros_like(params), (*split, draws_of_parts))
            gradient, loss, td_B, q = total / parts, jnp.mean(losses), td_PB.reshape(-1), jnp.mean(qs)
        if scale is not None:  # running averages ask for their step whatever the loss is multiplied by
            is_scaled = True if self._is_average is None else ~self._is_average
            gradient = jnp.where(is_scaled, gradient / scale, gradient)
        return gradient, loss, td_B, q

    def step(
        self, params: jax.Array, optimizer: Moments, gradient: jax.Array, loss: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, Moments, jax.Array, jax.Array]:
        """Clip and follow a gradient, unless it or the loss is not finite; the norm before clipping, and whether."""
        averages_step: jax.Array | float = 0.0
        if self._is_average is not None:  # running averages take the step they ask for, whatever the optimiser
            averages_step, gradient = (
                jnp.where(self._is_average, gradient, 0.0),
                jnp.where(self._is_average, 0.0, gradient),
            )
        norm = jnp.sqrt(jnp.vdot(gradient, gradient))
        finite = jnp.isfinite(norm) & jnp.isfinite(loss)
        if self.spec.optimizer.clip is not None:
            gradient = gradient * jnp.minimum(1.0, self.spec.optimizer.clip / (norm + 1e-6))
        step, moved = self._transform.update(gradient, optimizer, params)
        if self._is_average is not None:
            step = jnp.where(self._is_average, 0.0, step)
            finite &= jnp.all(jnp.isfinite(averages_step))

        def keep(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(finite, new, old)  # the NaN guard: a bad update leaves no trace

        new = params - learning_rate * step - averages_step
        return keep(new, params), jax.tree.map(keep, moved, optimizer), norm, finite

    def _where_averages(self) -> np.ndarray | None:
        """Which numbers of the flat vector are running averages, if any."""
        mask = np.zeros(self.layout.size, bool)
        for name, (start, end, _) in self.layout.spans().items():
            mask[start:end] = name.rpartition("/")[2] in RUNNING
        return mask if mask.any() else None

    def move_target(self, state: LearnerState, times: jax.Array) -> LearnerState:
        """Mix the online net into the target net `times` times (0 leaves it as it is)."""
        if not self.has_target:
            return state
        if self.spec.target.tau == 1.0:
            return state._replace(target=jnp.where(times > 0, state.params, state.target))
        share = -jnp.expm1(times.astype(state.params.dtype) * math.log1p(-self.spec.target.tau))  # 1 - (1 - tau)^times
        return state._replace(target=state.target + share * (state.params - state.target))

    def learning_rate(self, env_steps: jax.Array) -> jax.Array:
        """Learning rate at an env step."""
        return schedules.value_at(
            env_steps.astype(jnp.float32), xp=jnp, **self.spec.optimizer.learning_rate.model_dump()
        )

    def exploration(self, env_steps: jax.Array) -> jax.Array:
        """ε or temperature at env steps."""
        return schedules.value_at(env_steps.astype(jnp.float32), xp=jnp, **self.spec.exploration_schedule.model_dump())


def mode_of(role: str, draws: Draws[jax.Array] | None) -> Mode:
    """The mode of one pass."""
    if draws is None:
        return Mode(role)
    number, given = PASSES.index(role), None if draws.given is None else draws.given[role]
    return Mode(role, draws.key, draws.noise_PT[number], given).part(number)


def _composed(spec: Spec, num_actions: int) -> Functions:
    network = spec.network
    assert isinstance(network, Network)  # one of the user's own would have been given
    torso, head = torso_of(network, spec.engine), head_of(network, spec.engine, num_actions)
    return sequential(torso=Functions(*torso), head=Functions(*head))


def _sharding(devices: int) -> NamedSharding | None:
    """How the batch axis (the second, after K) lies over devices; with one there is nothing to say."""
    if devices == 1:
        return None
    found = jax.devices()
    if len(found) < devices:
        raise ValueError(f"devices is {devices}, but this machine has {len(found)}; use at most that many")
    return NamedSharding(Mesh(np.array(found[:devices]), ("batch",)), PartitionSpec(None, "batch"))


def _rescaled(scale: Scale, finite: jax.Array) -> Scale:
    """Halve the scale of a loss that overflowed; double it when it has held for long."""
    if not scale:
        return scale
    return LossScale(*loss_scale.rescaled(scale.factor, scale.held, finite, xp=jnp))


def _is_only_overflow(scale: Scale, finite: jax.Array) -> jax.Array | None:
    """Whether a skipped update may only have been scaled too far: no sign of divergence yet."""
    return loss_scale.is_only_overflow(scale.factor, finite) if scale else None
