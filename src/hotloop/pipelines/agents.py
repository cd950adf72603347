"""Several agents in one env, in one XLA program: each with a network, a replay and an optimiser of its own.

A block is that of `fused`, in which all act together and then each learns: read `run_joint_block`. With shared weights
there is one learner, for which the agents are so many more envs.

Learners are shared out over the devices. Each device holds its learners and a copy of the envs, which all devices step
alike; only actions travel. Axes: L learners (on one device, its own), R = envs x agents of a learner, N envs, M agents.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import reset_all
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.errors import SpecError
from hotloop.experience import METRICS, Item, Totals
from hotloop.members import Members
from hotloop.pipelines.agent_axis import BY_LEARNER, EVERYWHERE, AgentAxis
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.session import Session
from hotloop.replay import window
from hotloop.replay.device import DeviceReplay, Storage
from hotloop.replay.ring import Ring
from hotloop.replay.transitions import TransitionReplay
from hotloop.spec import Spec

STORED = Storage(Ring(rows=0, position=None, size=None), priorities=0)  # type: ignore[arg-type]
"""Which parts of a replay each learner has of its own: all rings turn alike, so an insertion stays one slice."""


class JointActor(NamedTuple):
    """Where the envs are, what the agents of each learner see, and how the running episodes have gone so far."""

    env: Any
    obs: Any  # (L, R, …)
    episode_return: jax.Array  # (L, R)
    episode_length: jax.Array  # (N,)
    window: Any = ()  # with n-step returns, of each learner: steps whose rewards are not complete yet


_Layout: Any = FusedState  # of truth values instead of arrays
LAYOUT = _Layout(
    learner=BY_LEARNER,
    actor=JointActor(EVERYWHERE, BY_LEARNER, BY_LEARNER, EVERYWHERE, BY_LEARNER),  # type: ignore[arg-type]
    replay=Storage(Ring(BY_LEARNER, EVERYWHERE, EVERYWHERE), BY_LEARNER),  # type: ignore[arg-type]
    key=EVERYWHERE,
    blocks=EVERYWHERE,
    env_steps=EVERYWHERE,
    episodes=EVERYWHERE,
    first_update_at=EVERYWHERE,
    totals=BY_LEARNER,
)
"""What of a state each learner has of its own, and what is the same on every device."""


class Agents(Fused):
    """The fused pipeline of an env with several agents."""

    def __init__(self, spec: Spec, env: MultiAgentEnv, engine: JaxEngine) -> None:
        self.num_agents = env.num_agents
        self.num_learners = 1 if spec.has_shared_weights else env.num_agents
        self.per_learner = env.num_agents // self.num_learners
        self.axis = AgentAxis(self.num_learners, LAYOUT)
        super().__init__(spec, env, engine)
        if not self.replay.capacity:
            rows = self.spec.block_plan.env_steps * self.per_learner
            raise SpecError(
                f"replay.capacity is {spec.replay.capacity:,}, but a block of {self.num_agents} agents with shared "
                f"weights brings {rows:,} transitions; use at least {rows:,}"
            )

    def make_replay(self) -> DeviceReplay[Any, Any]:
        """That of one learner."""
        return TransitionReplay(self.spec, self.row, self.spec.block_plan.env_steps * self.per_learner)

    def init(self, seed: jax.Array) -> FusedState:
        """The state before the first block, with idle learners where they do not divide by the devices."""
        weights_key, envs_key, blocks_key = jax.random.split(jax.random.key(seed), 3)
        num_envs, rows = self.spec.env.num_envs, self.axis.rows
        env_state, obs_NM = reset_all(self.env, envs_key, num_envs)
        zero, numbers = jnp.int32(0), jnp.arange(rows)
        learner = jax.vmap(lambda i: self.engine.init(jax.random.fold_in(weights_key, i)))(numbers)
        everyone = self.all_of(rows)
        obs = self._of_part(obs_NM, everyone)
        returns = jnp.zeros((rows, self.per_learner * num_envs))
        actor = JointActor(env_state, obs, returns, jnp.zeros(num_envs, jnp.int32))
        totals = self._no_totals(rows)
        if self.spec.replay.n_step > 1:
            key = jax.random.fold_in(jax.random.key(seed), 3)
            actor = self._with_full_windows(actor, learner.params, key, everyone)
        storage = jax.vmap(lambda _: self.replay.empty(), out_axes=STORED, axis_size=rows)(numbers)
        return FusedState(
            learner,
            actor,
            storage,
            jax.random.key_data(blocks_key),
            zero,
            zero,
            zero,
            zero,
            totals,
        )

    def advance(self, state: FusedState, blocks: jax.Array) -> FusedState:
        """Run `blocks` blocks, or fewer when the episodes are done; on each device, for its part of the learners."""
        last, episodes, part = state.blocks + blocks, self.spec.stop.episodes, self._this_part()

        def wanted(carry: tuple[FusedState, jax.Array]) -> jax.Array:
            state, has_diverged = carry
            go = (state.blocks < last) & ~has_diverged
            return go if episodes is None else go & (state.episodes < episodes)

        def block(carry: tuple[FusedState, jax.Array]) -> tuple[FusedState, jax.Array]:
            after = self.run_joint_block(carry[0], part)
            return after, self._has_diverged(after, part)

        return jax.lax.while_loop(wanted, block, (state, self._has_diverged(state, part)))[0]

    def _has_diverged(self, state: FusedState, part: "Part") -> jax.Array:
        """Whether the last updates of some learner were all skipped; alike on all devices, which stop together."""
        is_idle = part.first + jnp.arange(part.size) >= self.num_learners
        in_a_row = jnp.where(is_idle, 0, state.learner.skipped_in_a_row)
        has = jnp.any(in_a_row >= self.spec.guard.skips_in_a_row)
        return has if part.axis is None else jax.lax.pmax(has.astype(jnp.int32), part.axis) > 0

    def run_joint_block(self, state: FusedState, part: "Part") -> FusedState:
        """q vector steps with the weights of the block's start, then p gradient steps of each learner."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
        act_key, sample_key, learn_key = jax.random.split(key, 3)
        actor, items, totals, ended = self.collect_jointly(state, act_key, part)
        with jax.named_scope("insert"):
            storage = self.insert_all(state.replay, items)
        env_steps = state.env_steps + self.block_plan.env_steps
        is_learning = env_steps >= self.spec.replay.start

        def portion(carry: Any, keys: tuple[jax.Array, jax.Array]) -> Any:
            learner, priorities = carry
            stored = Storage(storage.ring, priorities)
            sample = jax.vmap(self.replay.sample, in_axes=(STORED, 0, None))
            with jax.named_scope("sample"):
                drawn = sample(stored, self._keys(keys[0], part), env_steps)

            def learn(learner: Any) -> Any:
                def one(learner: Any, drawn: Any, key: jax.Array) -> Any:
                    return self.learn(learner, drawn, state.env_steps, key)

                with jax.named_scope("learn"):
                    return jax.vmap(one)(learner, drawn, self._keys(keys[1], part))

            def wait(learner: Any) -> Any:
                shape = drawn.batches.r_t.shape
                return learner, jnp.zeros(shape), jnp.zeros((shape[0], len(METRICS)), jnp.float32)

            learner, td_LKB, sums = jax.lax.cond(is_learning, learn, wait, learner)
            learned = jax.vmap(self.replay.learned, in_axes=(0, 0, 0, None))
            with jax.named_scope("prioritize"):
                priorities = learned(priorities, drawn, td_LKB, is_learning)
            return (learner, priorities), sums

        start = (state.learner, storage.priorities)
        if self.portions == 1:
            (learner, priorities), sums = portion(start, (sample_key, learn_key))
        else:
            (learner, priorities), each = jax.lax.scan(portion, start, self._portion_keys(sample_key))
            sums = jnp.sum(each, axis=0)
        every = self.spec.target.every
        moves = env_steps // every - state.env_steps // every
        return FusedState(
            learner=jax.vmap(self.engine.move_target, in_axes=(0, None))(learner, moves),
            actor=actor,
            replay=Storage(storage.ring, priorities),
            key=state.key,
            blocks=state.blocks + 1,
            env_steps=env_steps,
            episodes=state.episodes + ended,
            first_update_at=jnp.where(is_learning & (state.first_update_at == 0), env_steps, state.first_update_at),
            totals=totals._replace(update=totals.update + sums),
        )

    # -- the stages -------------------------------------------------------------------------------------

    def insert_all(self, storage: Storage[Any], items: Item[jax.Array]) -> Storage[Any]:
        """Store a block's transitions of all learners."""
        return jax.vmap(self.replay.insert, in_axes=(STORED, 0), out_axes=STORED)(storage, items)

    def collect_jointly(self, state: FusedState, key: jax.Array, part: "Part") -> Any:
        """Act and step q times; returns the block's transitions as rows (L, q x R), and how many episodes ended."""
        num_envs, vector_steps, _ = self.block_plan

        def one(carry: Any, i: jax.Array) -> Any:
            env_steps = state.env_steps + i * num_envs
            return self.joint_step(carry, state.learner.params, env_steps, jax.random.fold_in(key, i), part)

        start = (state.actor, state.totals, jnp.int32(0))
        if vector_steps == 1:
            (actor, totals, ended), rows = one(start, jnp.int32(0))
            return actor, rows, totals, ended
        (actor, totals, ended), items = jax.lax.scan(one, start, jnp.arange(vector_steps, dtype=jnp.int32))
        rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1, *leaf.shape[3:]), items)
        return actor, rows, totals, ended

    def joint_step(self, carry: Any, params: jax.Array, env_steps: jax.Array, key: jax.Array, part: "Part") -> Any:
        """All agents act on what they see, and every env takes the actions of all of its agents."""
        actor, totals, ended = carry
        act_key, env_key = jax.random.split(key)
        explore_N = self.engine.exploration(env_steps + jnp.arange(self.spec.env.num_envs, dtype=jnp.int32))
        key_L = self._keys(act_key, part)
        with jax.named_scope("select"):
            action_LR = self.choose_all(params, actor, explore_N, key_L)
        with jax.named_scope("step"):
            env_state, t = self.step_envs(self.env, actor.env, self.of_envs(action_LR, part), env_key, False)
        reward_LR = self._of_part(t.reward.astype(jnp.float32), part)
        discount_N, done_N = self.spec.discount * (1.0 - t.terminated.astype(jnp.float32)), t.terminated | t.truncated
        discount_LR, done_LR = (
            jnp.broadcast_to(jnp.tile(each, self.per_learner), reward_LR.shape) for each in (discount_N, done_N)
        )
        item = Item(actor.obs, action_LR, reward_LR, discount_LR, self._of_part(t.final_obs, part))
        if self.spec.replay.n_step > 1:
            windows, item = jax.vmap(window.push)(actor.window, item, done_LR)
            actor = actor._replace(window=windows)
        actor, totals = self._count_episodes(actor, totals, reward_LR, done_LR, done_N)
        actor = actor._replace(env=env_state, obs=self._of_part(t.obs, part))
        return (actor, totals, ended + jnp.sum(done_N, dtype=jnp.int32)), item

    def choose_all(self, params: jax.Array, actor: JointActor, explore_N: jax.Array, key_L: jax.Array) -> jax.Array:
        """Exploring actions of all agents, (L, R)."""
        explore_R = jnp.tile(explore_N, self.per_learner)

        def act(params: jax.Array, obs: Any, key: jax.Array) -> jax.Array:
            return self.engine.act(params, obs, explore_R, key)

        return jax.vmap(act)(params, actor.obs, key_L)

    def _count_episodes(
        self, actor: JointActor, totals: Totals[jax.Array], reward_LR: jax.Array, done_LR: jax.Array, done_N: jax.Array
    ) -> tuple[JointActor, Totals[jax.Array]]:
        """Add this step to the running episodes and the finished ones to the totals; of shared weights, a mean."""
        return_LR, length_N = actor.episode_return + reward_LR, actor.episode_length + 1
        returns_L = jnp.sum(jnp.where(done_LR, return_LR, 0.0), axis=1) / self.per_learner
        lengths = jnp.sum(jnp.where(done_N, length_N, 0)).astype(jnp.float32)
        totals = totals._replace(
            episodes=totals.episodes + jnp.sum(done_N, dtype=jnp.int32),
            episode_return=totals.episode_return + returns_L,
            episode_length=totals.episode_length + lengths,
        )
        actor = actor._replace(
            episode_return=jnp.where(done_LR, 0.0, return_LR), episode_length=jnp.where(done_N, 0, length_N)
        )
        return actor, totals

    def _with_full_windows(self, actor: JointActor, params: jax.Array, key: jax.Array, part: "Part") -> JointActor:
        """Take the n - 1 vector steps, beyond those a run counts, after which every step gives a transition out."""
        steps, (rows, width) = self.spec.replay.n_step, actor.episode_return.shape
        item_R = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((width, *leaf.shape), leaf.dtype), self.row)
        empty = jax.vmap(lambda _: window.empty(steps, item_R))(jnp.arange(rows))
        start = (actor._replace(window=empty), self._no_totals(rows), jnp.int32(0))

        def one(carry: Any, i: jax.Array) -> Any:
            return self.joint_step(carry, params, jnp.int32(0), jax.random.fold_in(key, i), part)[0], None

        return jax.lax.scan(one, start, jnp.arange(steps - 1))[0][0]

    def _no_totals(self, rows: int) -> Totals[jax.Array]:
        return Totals(jnp.zeros((rows, len(METRICS))), jnp.zeros(rows, jnp.int32), jnp.zeros(rows), jnp.zeros(rows))

    # -- between envs with agents and learners with rows ----------------------------------------------------

    def all_of(self, rows: int) -> "Part":
        """All learners at once, on one device; idle ones are those beyond their number."""
        return Part(jnp.int32(0), rows, None)

    def first_learner(self, state: FusedState) -> FusedState:
        """A state with the parts of the first learner alone, for a profile of its stages."""
        learner, obs = jax.tree.map(lambda leaf: leaf[0], (state.learner, state.actor.obs))
        rows, priorities = jax.tree.map(lambda leaf: leaf[0], (state.replay.ring.rows, state.replay.priorities))
        storage = Storage(state.replay.ring._replace(rows=rows), priorities)
        return state._replace(learner=learner, actor=state.actor._replace(obs=obs), replay=storage)

    def _this_part(self) -> "Part":
        """The learners of the device that this is traced for."""
        count, name = self.axis.rows // self.axis.num_devices, self.axis.name
        first = jnp.int32(0) if name is None else jax.lax.axis_index(name) * count
        return Part(first, count, name)

    def _keys(self, key: jax.Array, part: "Part") -> jax.Array:
        """A key for each learner of a part, which does not depend on where it is."""
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(part.first + jnp.arange(part.size))

    def _of_part(self, values: Any, part: "Part") -> Any:
        """What is (N, M, …) in envs as (L, R, …), for the learners of a part; idle ones get what the last one has."""

        def one(leaf: jax.Array) -> jax.Array:
            by_learner = jnp.moveaxis(leaf, 1, 0).reshape(self.num_learners, -1, *leaf.shape[2:])
            idle = (part.size if part.axis is None else self.axis.rows) - self.num_learners
            if idle:
                by_learner = jnp.concatenate([by_learner, jnp.repeat(by_learner[-1:], idle, axis=0)])
            return by_learner if part.axis is None else jax.lax.dynamic_slice_in_dim(by_learner, part.first, part.size)

        return jax.tree.map(one, values)

    def of_envs(self, action_LR: jax.Array, part: "Part") -> jax.Array:
        """The actions of all agents, of learners on other devices too, as (N, M)."""
        if part.axis is not None:
            action_LR = jax.lax.all_gather(action_LR, part.axis, tiled=True)
        return action_LR[: self.num_learners].reshape(self.num_agents, -1).T

    # -- what a session asks for ------------------------------------------------------------------------

    def check_state(self, state: FusedState) -> None:
        """Raise ValueError for a loaded state whose numbers point outside a replay."""
        ring, priorities = state.replay
        for i in range(self.num_learners):
            self.replay.check(Storage(ring, jax.tree.map(lambda leaf, at=i: leaf[at], priorities)))

    def session(self, members: Members) -> Session:
        """The state of a run, for the host loop to drive."""
        from hotloop.pipelines.agents_session import AgentsSession

        return AgentsSession(self, members)


class Part(NamedTuple):
    """Learners `first` … of those on the axis: the ones of one device, or all, without an axis between devices."""

    first: jax.Array
    size: int
    axis: str | None
