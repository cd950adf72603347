"""Sync on a device env: the fused block as separate calls of its stages, with the host in between.

The same functions on the same keys, so it ends in the same bits as `fused`; slower, and easier to look into.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import METRICS, JaxEngine
from hotloop.envs.device import DeviceEnv
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.session import Session
from hotloop.replay import ring
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.spec_reading import SpecError


class Stepwise(Fused):
    """The stages of the fused pipeline, each compiled by itself."""

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        if spec.seeds > 1:
            raise SpecError(f"seeds is {spec.seeds}, but sync trains one seed at a time; use pipeline fused")
        super().__init__(spec, env, engine)
        self.spans = Spans("step", "insert", "sample", "update", "log")
        self._collect, self._insert = jax.jit(self.collect), jax.jit(ring.insert, donate_argnums=0)
        shape = (self.block_plan.updates, spec.replay.batch_size)
        self._sample = jax.jit(lambda kept, key: ring.sample(kept, key, shape))
        self._learn = jax.jit(
            lambda learner, batches, steps, key: engine.update(
                learner, batches, engine.learning_rate(steps), None, self.network_key(key)
            )
        )
        self._move_target = jax.jit(engine.move_target)

    def session(self, seeds: list[int]) -> Session:
        """The state of a run, for the host loop to drive."""
        session = DeviceSession(self, seeds, advance=self.advance_by_stages)
        session.spans = self.spans
        return session

    def advance_by_stages(self, state: FusedState, blocks: Any) -> FusedState:
        """Run `blocks` blocks, or fewer when a stop rule fires within."""
        stop, guard = self.spec.stop, self.spec.guard
        for _ in range(int(blocks)):
            if stop.episodes is not None and int(state.episodes) >= stop.episodes:  # sync
                break
            if int(state.learner.skipped_in_a_row) >= guard.skips_in_a_row:
                break
            state = self.block_by_stages(state)
        return state

    def block_by_stages(self, state: FusedState) -> FusedState:
        """One block as `Fused.block` does it."""
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
        act_key, sample_key = jax.random.split(key)
        with self.spans["step"]:
            actor, items, totals = jax.block_until_ready(self._collect(state, act_key))  # sync
        with self.spans["insert"]:
            kept = jax.block_until_ready(self._insert(state.ring, items))  # sync
        env_steps = state.env_steps + self.block_plan.env_steps
        learner, sums = state.learner, jnp.zeros((len(METRICS),), jnp.float32)
        learning = int(env_steps) >= self.spec.replay.start
        if learning:
            with self.spans["sample"]:
                batches = jax.block_until_ready(self._sample(kept, sample_key))  # sync
            with self.spans["update"]:
                learner, _, sums = jax.block_until_ready(self._learn(learner, batches, state.env_steps, key))  # sync
        every = self.spec.target.every
        learner = self._move_target(learner, env_steps // every - state.env_steps // every)
        totals = totals._replace(update=totals.update + sums)
        return self.next_state(state, learner, actor, kept, totals, learning)
