"""Sync on a device env: the fused block as separate calls of its stages, with the host in between.

The same functions on the same keys, so it ends in the same bits as `fused`; slower, and easier to look into.
"""

from typing import Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import DeviceEnv
from hotloop.errors import SpecError
from hotloop.experience import METRICS
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.session import Session
from hotloop.spans import Spans
from hotloop.spec import Spec


class Stepwise(Fused):
    """The stages of the fused pipeline, each compiled by itself."""

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        if spec.seeds > 1:
            raise SpecError(f"seeds is {spec.seeds}, but sync trains one seed at a time; use pipeline fused")
        super().__init__(spec, env, engine)
        self.spans = Spans("step", "insert", "sample", "update", "evaluate", "log")
        self._collect, self._keep = jax.jit(self.collect), jax.jit(self.keep, donate_argnums=(0, 1))
        self._sample, self._learn, self._prioritize = (
            jax.jit(stage) for stage in (self.sample, self.learn, self.prioritize)
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
            kept, priorities = jax.block_until_ready(self._keep(state.ring, state.priorities, items))  # sync
        env_steps = state.env_steps + self.block_plan.env_steps
        learner, sums = state.learner, jnp.zeros((len(METRICS),), jnp.float32)
        learning = int(env_steps) >= self.spec.replay.start
        for draw_key, network_key in zip(*self.portion_keys(key, sample_key), strict=True) if learning else ():
            with self.spans["sample"]:
                drawn = jax.block_until_ready(self._sample(kept, priorities, draw_key, env_steps))  # sync
            with self.spans["update"]:
                learner, td_KB, more = self._learn(learner, drawn, state.env_steps, network_key)
                priorities, sums = self._prioritize(priorities, drawn, td_KB, True), sums + more
                jax.block_until_ready((learner, priorities))  # sync
        every = self.spec.target.every
        learner = self._move_target(learner, env_steps // every - state.env_steps // every)
        totals = totals._replace(update=totals.update + sums)
        return self.next_state(state, learner, actor, kept, priorities, totals, learning)
