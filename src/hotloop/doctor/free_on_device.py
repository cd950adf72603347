"""A stage of a program on the device that costs nothing: the same program, with a stand-in for that stage.

| stage | what stands in for it |
|---|---|
| step | one of the vector steps recorded before, drawn by the step's own key |
| select | random actions, the network is not asked; what it remembers stays |
| insert | nothing is stored |
| sample | the first rows of the ring; priorities stay. Without a replay: what was collected, in its order |
| update | weights stay as they are, all errors are zero |

`device_stand_ins.py` has the pieces, and says why the compiler leaves out no other stage.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hotloop.doctor.device_stand_ins import (
    WithoutInsert,
    WithoutSample,
    no_update,
    nothing_stored,
    random_actions,
    recorded_steps,
)
from hotloop.experience import Aimed
from hotloop.pipelines.agents import Agents, JointActor
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused
from hotloop.pipelines.on_policy import Collected, OnPolicy
from hotloop.pipelines.stepwise import Stepwise

BY_STAGES = {
    "step": ("collect",),
    "select": ("collect",),
    "insert": ("insert",),
    "sample": ("sample", "prioritize"),
    "update": ("learn",),
}
"""What of a block, as `stepwise.py` calls its parts, is another program with a stand-in for a stage."""
PutInto = Callable[[Any, Any], None]
"""Put a stand-in into a pipeline; given are that and a state of the run that it is for."""


class FreeOnDevice:
    """The stages of a session's program that can be free; each has a program of its own, compiled when first asked."""

    def __init__(self, session: DeviceSession[Any]) -> None:
        self._session, self._pipeline, self._programs = session, session.pipeline, dict[str | None, Any]()
        self._stand_ins = _stand_ins_of(session.pipeline)
        self.stages: dict[str, Callable[[], AbstractContextManager[None]]] = {
            stage: partial(self._without, stage) for stage in self._stand_ins
        }

    def program(self, stage: str | None) -> Any:
        """What runs blocks without this stage, compiled; with all of them for None."""
        if stage not in self._programs:
            pipeline: Any = self._pipeline
            if stage is not None:
                pipeline = copy.copy(pipeline)
                self._stand_ins[stage](pipeline, self._session.first_state())
            self._programs[stage] = self._made(pipeline, stage)
        return self._programs[stage]

    def _made(self, pipeline: Any, stage: str | None) -> Any:
        if not isinstance(pipeline, Stepwise):
            return self._session.compiled(pipeline.advance)
        if stage is not None:
            pipeline.runner = pipeline.runner.but_for(BY_STAGES[stage])
        return pipeline.advance_by_stages

    @contextmanager
    def _without(self, stage: str) -> Iterator[None]:
        with self._session.advancing_by(self.program(stage)):
            yield


def _stand_ins_of(pipeline: object) -> Mapping[str, PutInto]:
    if isinstance(pipeline, OnPolicy):
        return OF_ROLLOUTS
    if isinstance(pipeline, Agents):
        return OF_AGENTS
    assert isinstance(pipeline, Fused)
    return STAND_INS


def _free_step(pipeline: Fused | OnPolicy, state: Any) -> None:
    pipeline.step_envs = recorded_steps(pipeline.spec, pipeline.env, state.actor.env)


def _free_update(pipeline: Fused | OnPolicy, state: Any) -> None:
    del state
    pipeline.update = no_update  # type: ignore[assignment]  # whatever it is given by name


def _free_select(pipeline: Fused, state: Any) -> None:
    del state

    def choose(params: jax.Array, actor: Any, explore_N: jax.Array, key: jax.Array) -> tuple[jax.Array, Any]:
        del params
        return random_actions(pipeline.env, key, explore_N.shape, actor.legal), getattr(actor, "memory", None)

    pipeline.choose = choose  # type: ignore[method-assign]


def _free_insert(pipeline: Fused, state: Any) -> None:
    del state
    pipeline.replay = WithoutInsert(pipeline.replay)


def _free_sample(pipeline: Fused, state: Any) -> None:
    del state
    pipeline.replay = WithoutSample(pipeline.replay, (pipeline.spec.batches_per_draw, pipeline.spec.replay.batch_size))


STAND_INS: dict[str, PutInto] = {
    "step": _free_step,
    "select": _free_select,
    "insert": _free_insert,
    "sample": _free_sample,
    "update": _free_update,
}
"""Of programs that learn from a replay of transitions or of sequences."""


# -- several agents -------------------------------------------------------------------------------------


def _free_select_of_all(pipeline: Agents, state: Any) -> None:
    del state

    def choose_all(params: jax.Array, actor: JointActor, explore_N: jax.Array, key_L: jax.Array) -> jax.Array:
        del params, explore_N
        return random_actions(pipeline.env, key_L[0], actor.episode_return.shape)

    pipeline.choose_all = choose_all  # type: ignore[method-assign]


def _free_insert_of_all(pipeline: Agents, state: Any) -> None:
    del state
    pipeline.insert_all = nothing_stored  # type: ignore[method-assign]


OF_AGENTS: dict[str, PutInto] = {**STAND_INS, "select": _free_select_of_all, "insert": _free_insert_of_all}


# -- without a replay -----------------------------------------------------------------------------------


def _free_select_of_rollouts(pipeline: OnPolicy, state: Any) -> None:
    del state

    def choose(params: jax.Array, actor: Any, explore_N: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        del params, actor
        shape = (*explore_N.shape, pipeline.env.num_actions)
        # Numbers that the compiler does not know, so that what is done with Q-values is done with them.
        return random_actions(pipeline.env, key, explore_N.shape), jnp.broadcast_to(explore_N[:, None], shape)

    pipeline.choose = choose  # type: ignore[method-assign]


def _free_shuffle(pipeline: OnPolicy, state: Any) -> None:
    del state

    def in_order(steps: Collected, return_TN: jax.Array, key: jax.Array) -> Aimed[jax.Array]:
        del key

        def batches(leaf_TN: jax.Array) -> jax.Array:
            rows = leaf_TN.reshape(-1, *leaf_TN.shape[2:])
            again = jnp.broadcast_to(rows, (pipeline.choice.epochs, *rows.shape))
            return again.reshape(pipeline.block_plan.updates, -1, *rows.shape[1:])

        aimed: Aimed[jax.Array] = jax.tree.map(batches, Aimed(steps.s_tm1, steps.a_tm1, return_TN))
        return aimed

    pipeline.shuffle = in_order  # type: ignore[method-assign]


OF_ROLLOUTS: dict[str, PutInto] = {
    "step": _free_step,
    "select": _free_select_of_rollouts,
    "sample": _free_shuffle,
    "update": _free_update,
}
