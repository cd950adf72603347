"""What stands in for a stage of a program on the device: pieces that every pipeline's are made of.

A compiler leaves out what nobody uses: with no update, it would draw no batch either. So what stands in for a stage
that only takes looks at all it was given (`looked_at`): the one stage is missing, and no other.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.engine import LearnerState
from hotloop.envs.device import DeviceEnv, DeviceStep, legal_actions, step_all
from hotloop.experience import METRICS, Sequences
from hotloop.pipelines.vector_step import StepEnvs
from hotloop.replay.device import DeviceReplay, Drawn, Priorities, Storage
from hotloop.replay.sequences import SequenceReplay
from hotloop.spec import Spec

RECORDED = 16
"""Vector steps."""
ODD = np.uint32(2_654_435_761)
"""Multiplied by it, numbers side by side lie far apart."""


def recorded_steps(spec: Spec, env: DeviceEnv, env_state: Any) -> StepEnvs:
    """Stands in for `step_all`: one of the vector steps that are recorded now, drawn by the step's own key."""
    record = jax.jit(partial(_record, env, spec.env.action_mask, _shape_of_actions(spec, env)))
    # On the host, from where each device takes them.
    recorded = jax.device_get(record(env_state, jax.random.key(spec.seed)))

    def step_envs(
        env: DeviceEnv, state_N: Any, action_N: jax.Array, key: jax.Array, masked: bool = False
    ) -> tuple[Any, DeviceStep]:
        del env, action_N, masked
        turn = jax.random.key_data(key)[-1] % RECORDED
        return state_N, jax.tree.map(lambda leaf: jnp.asarray(leaf)[turn], recorded)

    return step_envs


def _shape_of_actions(spec: Spec, env: DeviceEnv) -> tuple[int, ...]:
    agents = getattr(env, "num_agents", None)
    return (spec.env.num_envs,) if agents is None else (spec.env.num_envs, agents)


def _record(env: DeviceEnv, masked: bool, shape: tuple[int, ...], env_state: Any, key: jax.Array) -> DeviceStep:
    """Vector steps by random actions, one after the other: a leading axis."""

    def one(env_state: Any, key: jax.Array) -> tuple[Any, DeviceStep]:
        act_key, env_key = jax.random.split(key)
        legal_NA = legal_actions(env, env_state) if masked else None
        return step_all(env, env_state, random_actions(env, act_key, shape, legal_NA), env_key, masked)

    steps: DeviceStep = jax.lax.scan(one, env_state, jax.random.split(key, RECORDED))[1]
    return steps


def random_actions(
    env: DeviceEnv, key: jax.Array, shape: tuple[int, ...], legal_NA: jax.Array | None = None
) -> jax.Array:
    """Random actions, among the legal ones; without masks a hash of the key: drawing numbers is a cost of its own."""
    if legal_NA is None:
        numbers = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape) * ODD
        action = (((numbers ^ jax.random.key_data(key)[-1]) * ODD) >> 16) % env.num_actions
    else:
        action = jnp.argmax(jax.random.uniform(key, legal_NA.shape) * legal_NA, axis=-1)
    return action.astype(jnp.int32)


def no_update(
    learner: LearnerState, batches: Any, rate: jax.Array, weight_KB: jax.Array | None = None, *chance: Any
) -> tuple[LearnerState, jax.Array, jax.Array]:
    """Stands in for `JaxEngine.update`: weights stay as they are, all errors are zero."""
    del rate, chance
    looked, like_td = looked_at((batches, weight_KB)), batches.target if hasattr(batches, "target") else batches.r_t
    sums = [len(like_td) if name == "applied" else looked for name in METRICS]
    return learner, jnp.zeros(like_td.shape), jnp.stack([jnp.float32(each) for each in sums])


def nothing_stored(storage: Storage[Any], items: Any) -> Storage[Any]:
    """Stands in for an insertion."""
    ring = storage.ring
    return storage._replace(ring=ring._replace(position=ring.position + looked_at(items).astype(jnp.int32)))


class _Replay:
    """A replay that does all as the one it stands for."""

    def __init__(self, replay: DeviceReplay[Any, Any]) -> None:
        self.replay, self.capacity, self.has_priorities = replay, replay.capacity, replay.has_priorities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replay, name)


class WithoutInsert(_Replay):
    """A replay that takes nothing in."""

    def insert(self, storage: Storage[Any], items: Any) -> Storage[Any]:
        """Nothing is stored."""
        return nothing_stored(storage, items)


class WithoutSample(_Replay):
    """A replay that gives the first rows of its ring, as they lie: batches of `shape`."""

    def __init__(self, replay: DeviceReplay[Any, Any], shape: tuple[int, int]) -> None:
        super().__init__(replay)
        self._shape = shape

    def sample(self, storage: Storage[Any], key: jax.Array, env_steps: jax.Array) -> Drawn[Any]:
        """The first rows, or stretches of as many."""
        del key, env_steps
        rows = storage.ring.rows
        if isinstance(self.replay, SequenceReplay):
            learned, all_steps = self.replay.length, self.replay.burn_in + self.replay.length + 1
            return Drawn(
                Sequences(
                    obs=self._first(rows.obs, all_steps),
                    first=self._first(rows.first, all_steps),
                    a_tm1=self._first(rows.action, learned),
                    r_t=self._first(rows.r_t, learned),
                    discount_t=self._first(rows.discount_t, learned),
                    truncated=self._first(rows.truncated, learned),
                    memory=self._first(rows.memory),
                )
            )
        if not self.has_priorities:
            return Drawn(self._first(rows))
        return Drawn(self._first(rows), jnp.zeros(self._shape, jnp.int32), jnp.ones(self._shape))

    def _first(self, rows: Any, *steps: int) -> Any:
        """Rows of each sample, or so many steps of them."""
        shape = (*self._shape, *steps)
        count = math.prod(shape)
        first = jnp.arange(count) % self.capacity if count > self.capacity else slice(count)
        return jax.tree.map(lambda leaf: leaf[first].reshape(*shape, *leaf.shape[1:]), rows)

    def learned(
        self, priorities: Priorities, drawn: Drawn[Any], td_KB: jax.Array, is_learning: jax.Array
    ) -> Priorities:
        """Priorities stay."""
        del drawn, td_KB, is_learning
        return priorities


def looked_at(arrays: Any) -> jax.Array:
    """A zero that cannot be told without having made all of these, as they are, in memory: a barrier keeps an array
    whole of which one number is used."""
    made = jax.lax.optimization_barrier(jax.tree.leaves(arrays))
    total = sum(leaf.ravel()[0].astype(jnp.float32) for leaf in made)
    return jnp.where(total == jnp.float32(1.2345e30), 1.0, 0.0)
