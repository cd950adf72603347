"""PQN in one XLA program: collect with the block's weights, learn from what was collected, forget it.

The fast alternative to `fused` for device envs: no replay to fill and draw from, no target net to ask. `run_block` is
one unit of work made of the stages below it, `advance` repeats it on the device.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.envs.device import DeviceEnv, obs_shapes, reset_all, step_all
from hotloop.errors import SpecError
from hotloop.experience import Aimed, Totals
from hotloop.learning.returns import lambda_returns
from hotloop.members import Members
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import repeat
from hotloop.pipelines.session import Session
from hotloop.pipelines.vector_step import ActorState, Moved, StepEnvs, no_totals, vector_step
from hotloop.spec import OnPolicy as Choice
from hotloop.spec import Spec
from hotloop.trees import num_bytes

MOST_PACKED = 1 << 16


class OnPolicyState(NamedTuple):
    """The whole of a run: what is in here is what a checkpoint holds. No transition outlives its block."""

    learner: LearnerState
    actor: ActorState
    key: jax.Array  # never changes: each block folds its number in
    blocks: jax.Array
    env_steps: jax.Array
    episodes: jax.Array
    first_update_at: jax.Array  # env steps after the first block, 0 before it
    totals: Totals[jax.Array]


class Collected(NamedTuple):
    """A vector step, N envs wide, as the λ-returns need it."""

    s_tm1: Any
    a_tm1: jax.Array
    r_t: jax.Array
    discount_t: jax.Array
    ended: jax.Array
    best_tm1: jax.Array  # max Q of s_tm1
    best_end: jax.Array  # max Q of s_t where the episode was cut short, else anything


class OnPolicy:
    """The on-policy pipeline of one spec: stages as methods, no state of its own."""

    replay = None
    step_envs: StepEnvs

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        if spec.on_policy is None:
            raise ValueError("the spec has no section on_policy")
        if spec.env.action_mask:
            raise SpecError("env.action_mask is true, but on_policy learns with all actions; leave one of the two out")
        self.spec, self.env, self.engine, self.update = spec, env, engine, engine.update
        self.choice: Choice = spec.on_policy
        self.step_envs = step_all
        self.block_plan = spec.block_plan

    def init(self, seed: jax.Array) -> OnPolicyState:
        """The state before the first block."""
        weights_key, envs_key, blocks_key = jax.random.split(jax.random.key(seed), 3)
        num_envs = self.spec.env.num_envs
        env_state, obs_N = reset_all(self.env, envs_key, num_envs)
        zero = jnp.int32(0)
        return OnPolicyState(
            learner=self.engine.init(weights_key),
            actor=ActorState(env_state, obs_N, jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32)),
            key=jax.random.key_data(blocks_key),
            blocks=zero,
            env_steps=zero,
            episodes=zero,
            first_update_at=zero,
            totals=no_totals(),
        )

    def advance(self, state: OnPolicyState, blocks: jax.Array) -> OnPolicyState:
        """Run `blocks` blocks, or fewer when a stop rule that the device can see fires."""
        advanced: OnPolicyState = repeat(self.run_block, state, blocks, self.spec)
        return advanced

    def run_block(self, state: OnPolicyState) -> OnPolicyState:
        """Collect with the weights of the block's start, then learn from all of it, `epochs` times."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
        act_key, shuffle_key = jax.random.split(key)
        actor, steps, totals = self.collect(state, act_key)
        with jax.named_scope("targets"):
            return_TN = self.targets(state.learner, actor, steps)
        with jax.named_scope("sample"):
            batches = self.shuffle(steps, return_TN, shuffle_key)
        rate = self.engine.learning_rate(state.env_steps)
        with jax.named_scope("learn"):
            learner, _, sums = self.update(state.learner, batches, rate)
        env_steps = state.env_steps + self.block_plan.env_steps
        return OnPolicyState(
            learner=learner,
            actor=actor,
            key=state.key,
            blocks=state.blocks + 1,
            env_steps=env_steps,
            episodes=state.episodes + (totals.episodes - state.totals.episodes),
            first_update_at=jnp.where(state.first_update_at == 0, env_steps, state.first_update_at),
            totals=totals._replace(update=totals.update + sums),
        )

    def collect(self, state: OnPolicyState, key: jax.Array) -> tuple[ActorState, Collected, Totals[jax.Array]]:
        """Act and step; returns the block's steps in order, T of them."""
        num_envs, vector_steps, _ = self.block_plan
        params = state.learner.params

        def record(actor: ActorState, moved: Moved, q_NA: jax.Array) -> tuple[ActorState, Collected]:
            # The next step asks the network about s_t anyway, except where a reset takes its place. Only a truncated
            # episode has a value there, and few are.
            t = moved.transition
            best_end_N = jax.lax.cond(
                jnp.any(t.truncated & ~t.terminated),
                lambda obs_N: jnp.max(self.engine.q_values(params, obs_N), axis=-1),
                lambda _: jnp.zeros(num_envs),
                t.final_obs,
            )
            best_N = jnp.max(q_NA, axis=-1)
            return actor, Collected(
                actor.obs, moved.action, moved.reward, moved.discount, moved.ended, best_N, best_end_N
            )

        def one(carry: tuple[ActorState, Totals[jax.Array]], i: jax.Array) -> Any:
            env_steps, step_key = state.env_steps + i * num_envs, jax.random.fold_in(key, i)
            choose = partial(self.choose, params)
            return vector_step(
                self.spec, self.env, self.engine, carry, env_steps, step_key, choose, record, self.step_envs
            )

        numbers = jnp.arange(vector_steps, dtype=jnp.int32)
        (actor, totals), steps = jax.lax.scan(one, (state.actor, state.totals), numbers)
        return actor, steps, totals

    def choose(
        self, params: jax.Array, actor: ActorState, explore_N: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Exploring actions, and the Q-values (N, A) that they were chosen by."""
        q_NA = self.engine.q_values(params, actor.obs)
        return self.engine.explore(q_NA, explore_N, key), q_NA

    def targets(self, learner: LearnerState, actor: ActorState, steps: Collected) -> jax.Array:
        """λ-returns (T, N) of a block, by the weights it was collected with."""
        best_now_N = jnp.max(self.engine.q_values(learner.params, actor.obs), axis=-1)
        best_next_TN = jnp.concatenate([steps.best_tm1[1:], best_now_N[None]])
        v_TN = jnp.where(steps.ended, steps.best_end, best_next_TN)
        return lambda_returns(
            steps.r_t, steps.discount_t, steps.ended, v_TN, self.choice.trace, xp=jnp, scan=jax.lax.scan
        )

    def shuffle(self, steps: Collected, return_TN: jax.Array, key: jax.Array) -> Aimed[jax.Array]:
        """Minibatches (K, B): each epoch has every transition once, in an order of its own."""
        order_KB = orders(key, self.choice.epochs, self.block_plan.env_steps).reshape(self.block_plan.updates, -1)

        def gather(leaf_TN: jax.Array) -> jax.Array:
            rows = leaf_TN.reshape(-1, *leaf_TN.shape[2:])
            return rows.at[order_KB].get(mode="promise_in_bounds")

        return jax.tree.map(gather, Aimed(steps.s_tm1, steps.a_tm1, return_TN))

    def check_state(self, state: OnPolicyState) -> None:
        """Nothing: no number of a loaded state points anywhere."""

    def close(self) -> None:
        """Nothing outlives a run."""

    def session(self, members: Members) -> Session:
        """The state of a run, for the host loop to drive."""
        return DeviceSession(self, members)

    def num_bytes(self) -> int:
        """Device memory of what a block collects."""
        row = num_bytes(obs_shapes(self.env)) + 6 * 4  # action, reward, discount, end, and two values
        return self.block_plan.env_steps * row


def orders(key: jax.Array, epochs: int, count: int) -> jax.Array:
    """Random orders of 0 … count - 1, int32 (epochs, count).

    Random numbers are sorted with the row's own number as their last digits: in one array, that takes a quarter of the
    time of sorting pairs. Where too few digits would be left to chance, pairs it is. Rows that draw the same number
    stay in order.
    """
    drawn_EM = jax.random.bits(key, (epochs, count), jnp.uint32)
    if count > MOST_PACKED:
        return jnp.argsort(drawn_EM, axis=-1).astype(jnp.int32)
    mask = np.uint32((1 << (count - 1).bit_length()) - 1)
    packed_EM = (drawn_EM & ~mask) | jnp.arange(count, dtype=jnp.uint32)
    return (jax.lax.sort(packed_EM, dimension=-1) & mask).astype(jnp.int32)
