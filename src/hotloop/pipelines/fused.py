"""Everything in one XLA program: act, step, insert, sample, learn, for as many blocks as asked.

Read it top to bottom: `block` is one unit of work made of the stages below it, `advance` repeats it on the
device. The host only sees the state between calls, about twice a second.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.envs.device import DeviceEnv, legal_actions, obs_shapes, reset_all
from hotloop.experience import METRICS, Item, Totals, row_example
from hotloop.learning import schedules
from hotloop.pipelines.session import Session
from hotloop.pipelines.vector_step import ActorState, Moved, no_totals, vector_step
from hotloop.replay import device_tree, ring, window
from hotloop.spec import Prioritized, Spec


class FusedState(NamedTuple):
    """The whole of a run: what is in here is what a checkpoint holds."""

    learner: LearnerState
    actor: ActorState
    ring: ring.Ring[Item[jax.Array]]
    key: jax.Array  # never changes: each block folds its number in
    blocks: jax.Array
    env_steps: jax.Array
    episodes: jax.Array
    first_update_at: jax.Array  # env steps at the first gradient step, 0 before it
    totals: Totals[jax.Array]
    priorities: Any = ()  # of a prioritised replay: a device_tree.Tree


class Drawn(NamedTuple):
    """Batches (K, B, …) drawn at once; with priorities also where they lie and what each sample weighs."""

    batches: Item[jax.Array]
    places: Any = None
    weight_KB: Any = None


def pipeline(spec: Spec, env: DeviceEnv, engine: JaxEngine) -> Any:
    """The fused pipeline of one spec: from a replay of transitions, of sequences, or without one."""
    if spec.on_policy is not None:
        from hotloop.pipelines.on_policy import OnPolicy

        return OnPolicy(spec, env, engine)
    if spec.replay.sequence is not None:
        from hotloop.pipelines.recurrent import Recurrent

        return Recurrent(spec, env, engine)  # type: ignore[arg-type]
    return Fused(spec, env, engine)


class Fused:
    """The fused pipeline of one spec: stages as methods, no state of its own."""

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        self.spec, self.env, self.engine = spec, env, engine
        self.block_plan = spec.block_plan
        self.portions = self.block_plan.updates // spec.updates_per_draw
        self.capacity = ring.whole_blocks(spec.replay.capacity, self.block_plan.env_steps)
        self.masked = spec.env.action_mask
        self.row = row_example(obs_shapes(env), env.num_actions if self.masked else None)
        self.sampling = spec.replay.sampling if isinstance(spec.replay.sampling, Prioritized) else None

    def init(self, seed: jax.Array) -> FusedState:
        """The state before the first block."""
        weights_key, envs_key, blocks_key = jax.random.split(jax.random.key(seed), 3)
        num_envs = self.spec.env.num_envs
        env_state, obs_N = reset_all(self.env, envs_key, num_envs)
        zero, learner = jnp.int32(0), self.engine.init(weights_key)
        actor = ActorState(env_state, obs_N, jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32))
        if self.masked:
            actor = actor._replace(legal=legal_actions(self.env, env_state))
        if self.spec.replay.n_step > 1:
            actor = self._with_full_window(actor, learner.params, jax.random.fold_in(jax.random.key(seed), 3))
        return FusedState(
            learner=learner,
            actor=actor,
            ring=ring.empty(self.capacity, self.row),
            key=jax.random.key_data(blocks_key),
            blocks=zero,
            env_steps=zero,
            episodes=zero,
            first_update_at=zero,
            totals=no_totals(),
            priorities=device_tree.empty(self.capacity) if self.sampling else (),
        )

    def _with_full_window(self, actor: ActorState, params: jax.Array, key: jax.Array) -> ActorState:
        """Take the n - 1 vector steps, beyond those a run counts, after which every step gives a transition out."""
        num_envs, steps = self.spec.env.num_envs, self.spec.replay.n_step
        item_N = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_envs, *leaf.shape), leaf.dtype), self.row)
        actor = actor._replace(window=window.empty(steps, item_N))

        def one(carry: Any, i: jax.Array) -> Any:
            return self.vector_step(carry, params, jnp.int32(0), jax.random.fold_in(key, i))[0], None

        return jax.lax.scan(one, (actor, no_totals()), jnp.arange(steps - 1))[0][0]

    def advance(self, state: FusedState, blocks: jax.Array) -> FusedState:
        """Run `blocks` blocks, or fewer when a stop rule that the device can see fires."""
        advanced: FusedState = repeat(self.block, state, blocks, self.spec)
        return advanced

    def block(self, state: FusedState) -> FusedState:
        """q vector steps with the weights of the block's start, then p gradient steps."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
        act_key, sample_key = jax.random.split(key)
        actor, items, totals = self.collect(state, act_key)
        kept, priorities = self.keep(state.ring, state.priorities, items)
        env_steps = state.env_steps + self.block_plan.env_steps
        learning = env_steps >= self.spec.replay.start

        def portion(carry: tuple[LearnerState, Any], keys: tuple[jax.Array, jax.Array]) -> Any:
            learner, priorities = carry
            # Drawn outside the branch, unused before the learning start: with the ring inside, a block is a fifth
            # slower.
            drawn = self.sample(kept, priorities, keys[0], env_steps)

            def learn(learner: LearnerState) -> tuple[LearnerState, jax.Array, jax.Array]:
                return self.learn(learner, drawn, state.env_steps, keys[1])

            def wait(learner: LearnerState) -> tuple[LearnerState, jax.Array, jax.Array]:
                nothing = jnp.zeros(drawn.batches.r_t.shape), jnp.zeros((len(METRICS),), jnp.float32)
                return learner, *nothing

            learner, td_KB, sums = jax.lax.cond(learning, learn, wait, learner)
            return (learner, self.prioritize(priorities, drawn, td_KB, learning)), sums

        start = (state.learner, priorities)
        if self.portions == 1:  # the usual case, without a loop around it
            (learner, priorities), sums = portion(start, (sample_key, key))
        else:
            (learner, priorities), sums_of_each = jax.lax.scan(portion, start, self.portion_keys(key, sample_key))
            sums = jnp.sum(sums_of_each, axis=0)
        every = self.spec.target.every
        learner = self.engine.move_target(learner, env_steps // every - state.env_steps // every)
        totals = totals._replace(update=totals.update + sums)
        return self.next_state(state, learner, actor, kept, priorities, totals, learning)

    def portion_keys(self, key: jax.Array, sample_key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys for the draws and for the networks of each portion of a block's updates (a leading axis)."""
        if self.portions == 1:
            return sample_key[None], key[None]
        both = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(sample_key, i)))(jnp.arange(self.portions))
        return both[:, 0], both[:, 1]

    def keep(
        self, kept: ring.Ring[Item[jax.Array]], priorities: Any, items: Item[jax.Array]
    ) -> tuple[ring.Ring[Item[jax.Array]], Any]:
        """Store a block's transitions; new ones are as likely as the likeliest so far."""
        if self.sampling:
            priorities = device_tree.fill(priorities, kept.position, self.block_plan.env_steps)
        return ring.insert(kept, items), priorities

    def sample(self, kept: ring.Ring[Item[jax.Array]], priorities: Any, key: jax.Array, env_steps: jax.Array) -> Drawn:
        """Draw the batches of a portion of a block's updates: of all of them, unless priorities move meanwhile."""
        shape = (self.spec.updates_per_draw, self.spec.replay.batch_size)
        if not self.sampling:
            return Drawn(ring.sample(kept, key, shape))
        places_KB = device_tree.draw(priorities, key, shape)
        priority_KB = device_tree.priorities(priorities, places_KB)
        beta = schedules.value_at(env_steps.astype(jnp.float32), xp=jnp, **self.sampling.beta.model_dump())
        # (size x probability)^-beta relative to the largest of each batch: size and total cancel out.
        weight_KB = (jnp.min(priority_KB, axis=-1, keepdims=True) / priority_KB) ** beta
        return Drawn(ring.gather(kept, places_KB), places_KB, weight_KB)

    def learn(
        self, learner: LearnerState, drawn: Drawn, env_steps: jax.Array, key: jax.Array
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """The gradient steps on what was drawn."""
        network_key = jax.random.fold_in(key, 2) if self.engine.is_random else None
        rate = self.engine.learning_rate(env_steps)
        return self.engine.update(learner, drawn.batches, rate, drawn.weight_KB, network_key)

    def prioritize(self, priorities: Any, drawn: Drawn, td_KB: jax.Array, learning: Any) -> Any:
        """Priorities by the new TD errors; where one is not finite, or nothing was learned, the old ones."""
        if not self.sampling:
            return priorities
        new_KB = (jnp.abs(td_KB) + self.sampling.epsilon) ** self.sampling.alpha
        new_KB = jnp.minimum(new_KB, device_tree.LARGEST)
        old_KB = device_tree.priorities(priorities, drawn.places)
        new_KB = jnp.where(learning & jnp.isfinite(td_KB), new_KB, old_KB)
        return device_tree.change(priorities, drawn.places, new_KB)

    def next_state(
        self,
        state: FusedState,
        learner: LearnerState,
        actor: ActorState,
        kept: ring.Ring[Item[jax.Array]],
        priorities: Any,
        totals: Totals[jax.Array],
        learning: Any,
    ) -> FusedState:
        """The state after a block, with its counters moved on."""
        env_steps = state.env_steps + self.block_plan.env_steps
        return FusedState(
            learner=learner,
            actor=actor,
            ring=kept,
            key=state.key,
            blocks=state.blocks + 1,
            env_steps=env_steps,
            episodes=state.episodes + (totals.episodes - state.totals.episodes),
            first_update_at=jnp.where(learning & (state.first_update_at == 0), env_steps, state.first_update_at),
            totals=totals,
            priorities=priorities,
        )

    def collect(self, state: FusedState, key: jax.Array) -> tuple[ActorState, Item[jax.Array], Totals[jax.Array]]:
        """Act and step q times; returns the block's transitions as rows for the ring."""
        num_envs, vector_steps, _ = self.block_plan

        def vector_step(carry: tuple[ActorState, Totals[jax.Array]], i: jax.Array) -> Any:
            env_steps = state.env_steps + i * num_envs
            return self.vector_step(carry, state.learner.params, env_steps, jax.random.fold_in(key, i))

        start = (state.actor, state.totals)
        if vector_steps == 1:  # the usual case, without a loop around it
            (actor, totals), rows = vector_step(start, jnp.int32(0))
        else:
            (actor, totals), items = jax.lax.scan(vector_step, start, jnp.arange(vector_steps, dtype=jnp.int32))
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), items)
        return actor, rows, totals

    def vector_step(
        self, carry: tuple[ActorState, Totals[jax.Array]], params: jax.Array, env_steps: jax.Array, key: jax.Array
    ) -> tuple[tuple[ActorState, Totals[jax.Array]], Item[jax.Array]]:
        """Act and step once in every env; gives out a transition of each, with n-step returns that of n - 1 ago."""
        return vector_step(
            self.spec, self.env, self.engine, carry, env_steps, key, partial(self.choose, params), self.row_of
        )

    def choose(
        self, params: jax.Array, actor: ActorState, explore_N: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Exploring actions."""
        return self.engine.act(params, actor.obs, explore_N, key, actor.legal), None

    def row_of(self, actor: ActorState, moved: Moved, noted: Any) -> tuple[ActorState, Item[jax.Array]]:
        """A transition of each env, with n-step returns that of n - 1 steps ago."""
        del noted
        t = moved.transition
        item_N = Item(actor.obs, moved.action, moved.reward, moved.discount, t.final_obs, t.final_legal)
        if self.spec.replay.n_step > 1:
            held, item_N = window.push(actor.window, item_N, moved.ended)
            actor = actor._replace(window=held)
        return actor, item_N

    def check_state(self, state: FusedState) -> None:
        """Raise ValueError for a loaded state whose numbers point outside the ring: nothing checks them later."""
        rows = self.block_plan.env_steps
        # One entry, or one per seed.
        for size, position in zip(*np.atleast_1d(state.ring.size, state.ring.position), strict=True):
            if not 0 <= size <= self.capacity:
                raise ValueError(f"the checkpoint's ring/size is {size}, expected 0 … {self.capacity}")
            if not 0 <= position < self.capacity or position % rows:
                raise ValueError(
                    f"the checkpoint's ring/position is {position}, expected a multiple of {rows} in the ring"
                )
        if self.sampling:
            sizes = np.asarray(state.ring.size)
            for seed in np.ndindex(sizes.shape):
                device_tree.check(jax.tree.map(lambda leaf, at=seed: leaf[at], state.priorities), int(sizes[seed]))

    def session(self, seeds: list[int]) -> Session:
        """The state of a run, for the host loop to drive."""
        from hotloop.pipelines.device_session import DeviceSession

        return DeviceSession(self, seeds)

    @property
    def row_bytes(self) -> int:
        """Memory of one transition in a batch."""
        return ring.num_bytes(1, self.row)

    def num_bytes(self) -> int:
        """Device memory of the replay, before it is allocated."""
        return ring.num_bytes(self.capacity, self.row) + (device_tree.num_bytes(self.capacity) if self.sampling else 0)


def repeat(block: Callable[[Any], Any], state: Any, blocks: jax.Array, spec: Spec) -> Any:
    """Apply `block` to the state of a run so many times, or fewer when a stop rule that the device can see fires."""
    last = state.blocks + blocks

    def wanted(state: Any) -> jax.Array:
        go = state.blocks < last
        go &= state.learner.skipped_in_a_row < spec.guard.skips_in_a_row
        if spec.stop.episodes is not None:
            go &= state.episodes < spec.stop.episodes
        return go

    return jax.lax.while_loop(wanted, block, state)
