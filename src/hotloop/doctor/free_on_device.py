"""A stage of a program on the device that costs nothing: the same program, with a stand-in for that stage.

| stage | what stands in for it |
|---|---|
| step | one of the vector steps recorded before, drawn by the step's own key |
| select | random actions, the network is not asked |
| insert | nothing is stored |
| sample | the first rows of the ring; priorities stay |
| update | weights stay as they are, all errors are zero |

A compiler leaves out what nobody uses: with no update, it would draw no batch either. So what stands in for a stage
that only takes looks at all it was given: the one stage is missing, and no other.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import LearnerState
from hotloop.envs.device import DeviceEnv, DeviceStep, legal_actions, step_all
from hotloop.experience import METRICS
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.vector_step import ActorState
from hotloop.replay.device import DeviceReplay, Drawn, Priorities, Storage

RECORDED = 16
"""Vector steps."""


class FreeOnDevice:
    """The stages of a session's program that can be free; each has a program of its own, compiled when first asked."""

    def __init__(self, session: DeviceSession[FusedState]) -> None:
        assert isinstance(session.pipeline, Fused)
        self._session, self._pipeline, self._programs = session, session.pipeline, dict[str | None, Any]()
        self.stages: dict[str, Callable[[], AbstractContextManager[None]]] = {
            stage: partial(self._without, stage) for stage in STAND_INS
        }

    def program(self, stage: str | None) -> Any:
        """The compiled program that runs blocks, without this stage; with all of them for None."""
        if stage not in self._programs:
            pipeline = self._pipeline
            if stage is not None:
                pipeline = copy.copy(pipeline)
                STAND_INS[stage](pipeline, self._session.first_state())
            self._programs[stage] = self._session.compiled(pipeline.advance)
        return self._programs[stage]

    @contextmanager
    def _without(self, stage: str) -> Iterator[None]:
        with self._session.advancing_by(self.program(stage)):
            yield


def _free_step(pipeline: Fused, state: FusedState) -> None:
    recorded = jax.jit(partial(_record, pipeline))(state.actor.env, jax.random.key(pipeline.spec.seed))

    def step_envs(
        env: DeviceEnv, state_N: Any, action_N: jax.Array, key: jax.Array, masked: bool = False
    ) -> tuple[Any, DeviceStep]:
        del env, action_N, masked
        turn = jax.random.key_data(key)[-1] % RECORDED
        return state_N, jax.tree.map(lambda leaf: leaf[turn], recorded)

    pipeline.step_envs = step_envs


def _record(pipeline: Fused, env_state: Any, key: jax.Array) -> DeviceStep:
    """Vector steps by random actions, one after the other: a leading axis."""

    def one(env_state: Any, key: jax.Array) -> tuple[Any, DeviceStep]:
        act_key, env_key = jax.random.split(key)
        legal_NA = legal_actions(pipeline.env, env_state) if pipeline.masked else None
        actions = _random(pipeline, act_key, pipeline.spec.env.num_envs, legal_NA)
        return step_all(pipeline.env, env_state, actions, env_key, pipeline.masked)

    steps: DeviceStep = jax.lax.scan(one, env_state, jax.random.split(key, RECORDED))[1]
    return steps


def _free_select(pipeline: Fused, state: FusedState) -> None:
    del state

    def choose(params: jax.Array, actor: ActorState, explore_N: jax.Array, key: jax.Array) -> tuple[jax.Array, None]:
        del params
        return _random(pipeline, key, len(explore_N), actor.legal), None

    pipeline.choose = choose  # type: ignore[method-assign]


def _random(pipeline: Fused, key: jax.Array, num_envs: int, legal_NA: jax.Array | None) -> jax.Array:
    """A random action of each env, among the legal ones."""
    if legal_NA is None:
        action_N = jax.random.bits(key, (num_envs,), jnp.uint32) % pipeline.env.num_actions
    else:
        action_N = jnp.argmax(jax.random.uniform(key, legal_NA.shape) * legal_NA, axis=-1)
    return action_N.astype(jnp.int32)


def _free_insert(pipeline: Fused, state: FusedState) -> None:
    del state
    pipeline.replay = _WithoutInsert(pipeline.replay)


def _free_sample(pipeline: Fused, state: FusedState) -> None:
    del state
    pipeline.replay = _WithoutSample(pipeline.replay, (pipeline.spec.batches_per_draw, pipeline.spec.replay.batch_size))


def _free_update(pipeline: Fused, state: FusedState) -> None:
    del state

    def update(
        learner: LearnerState, batches: Any, rate: jax.Array, weight_KB: jax.Array | None, *chance: Any
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        del rate, chance
        looked_at = _looked_at((batches, weight_KB))
        sums = [len(batches.r_t) if name == "applied" else looked_at for name in METRICS]
        return learner, jnp.zeros(batches.r_t.shape), jnp.stack([jnp.float32(each) for each in sums])

    pipeline.update = update  # type: ignore[assignment]  # whatever it is given by name


class _Replay:
    """A replay that does all as the one it stands for."""

    def __init__(self, replay: DeviceReplay[Any, Any]) -> None:
        self.replay, self.capacity, self.has_priorities = replay, replay.capacity, replay.has_priorities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.replay, name)


class _WithoutInsert(_Replay):
    def insert(self, storage: Storage[Any], items: Any) -> Storage[Any]:
        """Nothing is stored."""
        ring = storage.ring
        return storage._replace(ring=ring._replace(position=ring.position + _looked_at(items).astype(jnp.int32)))


class _WithoutSample(_Replay):
    def __init__(self, replay: DeviceReplay[Any, Any], shape: tuple[int, int]) -> None:
        super().__init__(replay)
        self._shape = shape

    def sample(self, storage: Storage[Any], key: jax.Array, env_steps: jax.Array) -> Drawn[Any]:
        """The first rows of the ring, as they lie."""
        count = self._shape[0] * self._shape[1]
        del key, env_steps
        first = jnp.arange(count) % self.capacity if count > self.capacity else slice(count)
        rows = jax.tree.map(lambda leaf: leaf[first].reshape(*self._shape, *leaf.shape[1:]), storage.ring.rows)
        if not self.has_priorities:
            return Drawn(rows)
        return Drawn(rows, jnp.zeros(self._shape, jnp.int32), jnp.ones(self._shape))

    def learned(
        self, priorities: Priorities, drawn: Drawn[Any], td_KB: jax.Array, is_learning: jax.Array
    ) -> Priorities:
        """Priorities stay."""
        del drawn, td_KB, is_learning
        return priorities


def _looked_at(arrays: Any) -> jax.Array:
    """A zero that cannot be told without having made all of these, as they are, in memory: a barrier keeps an array
    whole of which one number is used."""
    made = jax.lax.optimization_barrier(jax.tree.leaves(arrays))
    total = sum(leaf.ravel()[0].astype(jnp.float32) for leaf in made)
    return jnp.where(total == jnp.float32(1.2345e30), 1.0, 0.0)


STAND_INS: dict[str, Callable[[Fused, FusedState], None]] = {
    "step": _free_step,
    "select": _free_select,
    "insert": _free_insert,
    "sample": _free_sample,
    "update": _free_update,
}
"""Put a stand-in into a pipeline; the state is one of the run that it is for."""
