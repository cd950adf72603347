"""Everything in one XLA program: act, step, insert, sample, learn, for as many blocks as asked.

Read it top to bottom: `run_block` is one unit of work made of the stages below it, `advance` repeats it on the
device. The host only sees the state between calls, about twice a second.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.envs.device import DeviceEnv, legal_actions, obs_shapes, reset_all, step_all
from hotloop.experience import METRICS, Item, Totals, row_example
from hotloop.members import Members
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.session import Session
from hotloop.pipelines.vector_step import ActorState, Moved, StepEnvs, no_totals, vector_step
from hotloop.replay import window
from hotloop.replay.device import DeviceReplay, Drawn, Storage
from hotloop.replay.transitions import TransitionReplay
from hotloop.spec import Spec


class FusedState(NamedTuple):
    """The whole of a run: what is in here is what a checkpoint holds."""

    learner: LearnerState
    actor: Any  # an ActorState, or that of its pipeline
    replay: Storage[Any]  # of its pipeline's replay
    key: jax.Array  # never changes: each block folds its number in
    blocks: jax.Array
    env_steps: jax.Array
    episodes: jax.Array
    first_update_at: jax.Array  # env steps at the first gradient step, 0 before it
    totals: Totals[jax.Array]


class Runner(Protocol):
    """How the parts of a block are run: within one program, or as calls of their own (`stepwise.py`)."""

    def stage(self, name: str, stage: Callable[..., Any], *inputs: Any) -> Any:
        """One stage of the block."""

    def one_of(self, choice: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], value: Any) -> Any:
        """`yes(value)` or `no(value)`."""

    def each(self, portion: Callable[[Any, Any], Any], start: Any, inputs: Any) -> Any:
        """One portion after the other, as `jax.lax.scan`."""


class InOneProgram:
    """A `Runner` for what is being compiled as a whole."""

    def stage(self, name: str, stage: Callable[..., Any], *inputs: Any) -> Any:
        """Part of the program, whose instructions bear its name."""
        with jax.named_scope(name):
            return stage(*inputs)

    def one_of(self, choice: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], value: Any) -> Any:
        """A branch of the program."""
        return jax.lax.cond(choice, yes, no, value)

    def each(self, portion: Callable[[Any, Any], Any], start: Any, inputs: Any) -> Any:
        """A loop of the program."""
        return jax.lax.scan(portion, start, inputs)


class Fused:
    """The fused pipeline of one spec: stages as methods, no state of its own."""

    replay: DeviceReplay[Any, Any]
    step_envs: StepEnvs

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        self.spec, self.env, self.engine, self.update = spec, env, engine, engine.update
        self.block_plan = spec.block_plan
        self.step_envs = step_all
        self.portions = self.block_plan.updates // spec.updates_per_draw
        self.masked = spec.env.action_mask
        self.row = row_example(obs_shapes(env), env.num_actions if self.masked else None)
        self.replay = self.make_replay()

    def make_replay(self) -> DeviceReplay[Any, Any]:
        """Where what is collected is stored, and drawn from."""
        return TransitionReplay(self.spec, self.row)

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
            replay=self.replay.empty(),
            key=jax.random.key_data(blocks_key),
            blocks=zero,
            env_steps=zero,
            episodes=zero,
            first_update_at=zero,
            totals=no_totals(),
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
        advanced: FusedState = repeat(self.run_block, state, blocks, self.spec)
        return advanced

    def run_block(self, state: FusedState, run: "Runner | None" = None) -> FusedState:
        """q vector steps with the weights of the block's start, then p gradient steps; `run` runs its stages."""
        run = run or InOneProgram()
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
        act_key, sample_key = jax.random.split(key)
        actor, items, totals = run.stage("collect", self.collect, state, act_key)
        ring, priorities = run.stage("insert", self.replay.insert, state.replay, items)
        env_steps = state.env_steps + self.block_plan.env_steps
        is_learning = env_steps >= self.spec.replay.start

        def portion(carry: tuple[LearnerState, Any], keys: tuple[jax.Array, jax.Array]) -> Any:
            learner, priorities = carry
            # Drawn outside the branch, unused before the learning start: with the ring inside, a block is a fifth
            # slower.
            drawn = run.stage("sample", self.replay.sample, Storage(ring, priorities), keys[0], env_steps)

            def learn(learner: LearnerState) -> tuple[LearnerState, jax.Array, jax.Array]:
                return run.stage("learn", self.learn, learner, drawn, state.env_steps, keys[1])

            def wait(learner: LearnerState) -> tuple[LearnerState, jax.Array, jax.Array]:
                nothing = jnp.zeros(drawn.batches.r_t.shape), jnp.zeros((len(METRICS),), jnp.float32)
                return learner, *nothing

            learner, td_KB, sums = run.one_of(is_learning, learn, wait, learner)
            priorities = run.stage("prioritize", self.replay.learned, priorities, drawn, td_KB, is_learning)
            return (learner, priorities), sums

        start = (state.learner, priorities)
        if self.portions == 1:  # the usual case, without a loop around it
            (learner, priorities), sums = portion(start, (sample_key, key))
        else:
            (learner, priorities), sums_of_each = run.each(portion, start, self._portion_keys(sample_key))
            sums = jnp.sum(sums_of_each, axis=0)
        every = self.spec.target.every
        moves = env_steps // every - state.env_steps // every
        learner = run.stage("move target", self.engine.move_target, learner, moves)
        return FusedState(
            learner=learner,
            actor=actor,
            replay=Storage(ring, priorities),
            key=state.key,
            blocks=state.blocks + 1,
            env_steps=env_steps,
            episodes=state.episodes + (totals.episodes - state.totals.episodes),
            first_update_at=jnp.where(is_learning & (state.first_update_at == 0), env_steps, state.first_update_at),
            totals=totals._replace(update=totals.update + sums),
        )

    def _portion_keys(self, sample_key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys for the draws and for the networks of each portion of a block's updates (a leading axis)."""
        both = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(sample_key, i)))(jnp.arange(self.portions))
        return both[:, 0], both[:, 1]

    # -- the stages -------------------------------------------------------------------------------------

    def learn(
        self, learner: LearnerState, drawn: Drawn[Any], env_steps: jax.Array, key: jax.Array
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """The gradient steps on what was drawn."""
        network_key = jax.random.fold_in(key, 2) if self.engine.is_random else None
        rate = self.engine.learning_rate(env_steps)
        return self.update(learner, drawn.batches, rate, drawn.weight_KB, network_key)

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
        choose = partial(self.choose, params)
        return vector_step(self.spec, self.env, self.engine, carry, env_steps, key, choose, self.row_of, self.step_envs)

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
            open_steps, item_N = window.push(actor.window, item_N, moved.ended)
            actor = actor._replace(window=open_steps)
        return actor, item_N

    # -- what a session asks for ------------------------------------------------------------------------

    def check_state(self, state: FusedState) -> None:
        """Raise ValueError for a loaded state whose numbers point outside the replay: nothing checks them later."""
        self.replay.check(state.replay)

    def num_bytes(self) -> int:
        """Memory of the replay, before it is allocated."""
        return self.replay.num_bytes()

    def close(self) -> None:
        """Nothing outlives a run."""

    def session(self, members: Members) -> Session:
        """The state of a run, for the host loop to drive."""
        return DeviceSession(self, members)


def repeat(run_block: Callable[[Any], Any], state: Any, blocks: jax.Array, spec: Spec) -> Any:
    """Run so many blocks, or fewer when a stop rule that the device can see fires."""
    last = state.blocks + blocks

    def wanted(state: Any) -> jax.Array:
        go = state.blocks < last
        go &= state.learner.skipped_in_a_row < spec.guard.skips_in_a_row
        if spec.stop.episodes is not None:
            go &= state.episodes < spec.stop.episodes
        return go

    return jax.lax.while_loop(wanted, run_block, state)
