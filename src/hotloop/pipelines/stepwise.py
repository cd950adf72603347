"""Sync on a device env: the fused block as separate calls of its stages, with the host in between.

The same functions on the same keys, so it ends in the same bits as `fused`; slower, and easier to look into.
"""

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import DeviceEnv
from hotloop.errors import SpecError
from hotloop.members import Members
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.session import Session
from hotloop.spans import Spans
from hotloop.spec import Spec

SPANS = {
    "collect": "step",
    "insert": "insert",
    "sample": "sample",
    "learn": "update",
    "prioritize": "update",
    "move target": "update",
}
"""Where the time of each stage of a block is counted."""
DONATES = {"insert": 0}
"""Arguments whose memory a stage takes over: the ring is not copied."""


class StageByStage:
    """A `Runner` that compiles each stage by itself, waits for it and counts its time."""

    def __init__(self) -> None:
        self.spans = Spans("step", "insert", "sample", "update", "evaluate", "log")
        self.programs: dict[str, Callable[..., Any]] = {}

    def but_for(self, names: Collection[str]) -> "StageByStage":
        """Another one, with the same programs but for these stages: those it is still to compile."""
        other = StageByStage()
        other.programs = {name: program for name, program in self.programs.items() if name not in names}
        return other

    def stage(self, name: str, stage: Callable[..., Any], *inputs: Any) -> Any:
        """Call it."""
        if name not in self.programs:
            self.programs[name] = jax.jit(stage, donate_argnums=DONATES.get(name, ()))
        with self.spans[SPANS[name]]:
            return jax.block_until_ready(self.programs[name](*inputs))  # sync

    def one_of(self, choice: Any, yes: Callable[[Any], Any], no: Callable[[Any], Any], value: Any) -> Any:
        """Look which it is, and call that."""
        return yes(value) if bool(choice) else no(value)  # sync

    def each(self, portion: Callable[[Any, Any], Any], start: Any, inputs: Any) -> Any:
        """Call one after the other."""
        results = []
        for each in zip(*inputs, strict=True):
            start, result = portion(start, each)
            results.append(result)
        return start, jnp.stack(results)


class Stepwise(Fused):
    """The fused pipeline, its blocks run stage by stage."""

    def __init__(self, spec: Spec, env: DeviceEnv, engine: JaxEngine) -> None:
        if spec.members.are_many:
            raise SpecError(f"seeds is {spec.seeds}, but sync trains one seed at a time; use pipeline fused")
        super().__init__(spec, env, engine)
        self.runner = StageByStage()

    def session(self, members: Members) -> Session:
        """The state of a run, for the host loop to drive."""
        session = DeviceSession(self, members, advance=self.advance_by_stages)
        session.spans = self.runner.spans
        return session

    def advance_by_stages(self, state: FusedState, blocks: Any) -> FusedState:
        """Run `blocks` blocks, or fewer when a stop rule fires within."""
        stop, guard = self.spec.stop, self.spec.guard
        for _ in range(int(blocks)):
            if stop.episodes is not None and int(state.episodes) >= stop.episodes:  # sync
                break
            if int(state.learner.skipped_in_a_row) >= guard.skips_in_a_row:
                break
            state = self.run_block(state, self.runner)
        return state
