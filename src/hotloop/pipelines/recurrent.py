"""The fused pipeline for networks with a memory: envs carry it along, the replay keeps it, learning starts from it.

`replay.batch_size` counts sequences here: a gradient step learns from batch_size x sequence.length transitions.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.engines.jax.cores import forget
from hotloop.engines.jax.recurrent import RecurrentEngine
from hotloop.envs.device import DeviceEnv, obs_shapes
from hotloop.errors import SpecError
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.vector_step import Moved
from hotloop.replay import sequences
from hotloop.replay.device import DeviceReplay
from hotloop.replay.sequences import SequenceReplay
from hotloop.spec import Sequence, Spec


class RememberingActor(NamedTuple):
    """Where the envs are, how the running episodes have gone so far, and what is remembered of them."""

    env: Any
    obs: Any
    episode_return: jax.Array
    episode_length: jax.Array
    memory: Any  # zeros where an episode begins
    first: jax.Array  # whether it does
    legal: Any = None  # as in every actor's state; there are no masks here


class Recurrent(Fused):
    """The stages of the fused pipeline, with steps and sequences in place of transitions."""

    engine: RecurrentEngine

    def __init__(self, spec: Spec, env: DeviceEnv, engine: RecurrentEngine) -> None:
        if spec.replay.sequence is None or not isinstance(engine, RecurrentEngine):
            raise SpecError("replay.sequence is for networks with a core; one of your own has none, leave it out")
        if spec.env.action_mask:
            raise SpecError("env.action_mask is not for networks with a core; leave one of them out")
        super().__init__(spec, env, engine)
        self._refuse_too_few(spec.replay.sequence)

    def _refuse_too_few(self, sequence: Sequence) -> None:
        """A replay that cannot hold one sequence, or learning that would begin before there is one."""
        steps, num_envs = sequence.burn_in + sequence.length + 1, self.block_plan.num_envs
        needed, block = steps * num_envs, self.block_plan.env_steps
        for name, rows in (("replay.start", self.spec.replay.start), ("replay.capacity", self.replay.capacity)):
            if rows < needed:
                raise SpecError(
                    f"{name} is {rows:,} env steps, but sequences of {steps} (burn_in + length + 1) in {num_envs} "
                    f"env(s) take {needed:,}; use at least {-(-needed // block) * block:,}, or shorter sequences"
                )

    def make_replay(self) -> DeviceReplay[Any, Any]:
        """Single steps with their memory, drawn as sequences."""
        sequence = self.spec.replay.sequence
        assert sequence is not None
        memory = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), jax.eval_shape(lambda: self.engine.memory(1))
        )
        row = sequences.row_example(obs_shapes(self.env), memory)
        return SequenceReplay(self.spec, row, sequence.length, sequence.burn_in)

    def init(self, seed: jax.Array) -> FusedState:
        """The state before the first block."""
        begun, num_envs = super().init(seed), self.spec.env.num_envs
        memory, first = self.engine.memory(num_envs), jnp.ones(num_envs, bool)
        actor = begun.actor
        return begun._replace(
            actor=RememberingActor(actor.env, actor.obs, actor.episode_return, actor.episode_length, memory, first)
        )

    def choose(self, params: jax.Array, actor: Any, explore_N: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        """Exploring actions, and what is remembered after the observation."""
        memory_N, q_NA = self.engine.recall(params, actor.memory, actor.obs)
        return self.engine.explore(q_NA, explore_N, key), memory_N

    def row_of(self, actor: Any, moved: Moved, noted: Any) -> tuple[Any, Any]:
        """The step of each env, with the memory before it; what is remembered is forgotten where an episode ended."""
        t = moved.transition
        step_N = sequences.Step(
            obs=actor.obs,
            action=moved.action,
            r_t=moved.reward,
            discount_t=moved.discount,
            first=actor.first,
            truncated=t.truncated & ~t.terminated,
            memory=actor.memory,
        )
        return actor._replace(memory=forget(noted, moved.ended), first=moved.ended), step_N
