"""A session whose state lives on the device: the fused pipeline, of one seed or of several side by side."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.evaluate import Episodes, Tell
from hotloop.pipelines.device_play import episodes_program, to_host
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.seeds import SeedAxis
from hotloop.pipelines.session import Reading
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans


class DeviceSession:
    """Compiled programs and the state they change."""

    state: FusedState
    _init: Any
    _evaluate: Any

    def __init__(self, pipeline: Fused, seeds: list[int], advance: Callable[..., FusedState] | None = None) -> None:
        """`advance` stands in for the compiled program that runs blocks."""
        self.pipeline, self.spec, self.seeds = pipeline, pipeline.spec, seeds
        self.axis = SeedAxis(len(seeds), self.spec.devices)
        self.spans = Spans("evaluate", "log")
        self._advance: Any = advance

    def compile(self) -> None:
        """Compile the program that advances a run, the one that begins it, and the one that plays: side by side.

        XLA compiles a program on one thread, outside of Python's lock.
        """
        one = jax.eval_shape(self.pipeline.init, jnp.uint32(0))
        state, evaluation = self.axis.shapes(one), self.spec.evaluation
        seeds, keys = (self.axis.stack([value] * len(self.seeds)) for value in (jnp.uint32(0), jax.random.key(0)))
        with ThreadPoolExecutor(thread_name_prefix="compile") as pool:
            programs: dict[str, Future[Any]] = {}
            if self._advance is None:
                lowered = self.axis.jit_in_place(self.pipeline.advance).lower(state, self._blocks(1))
                programs["_advance"] = pool.submit(lowered.compile)
            programs["_init"] = pool.submit(self.axis.jit(self.pipeline.init).lower(seeds).compile)
            if evaluation.every:
                env, engine = self.pipeline.env, self.pipeline.engine
                program = episodes_program(
                    env, engine, evaluation.episodes, evaluation.max_steps, self.spec.env.action_mask
                )
                programs["_evaluate"] = pool.submit(self.axis.jit(program).lower(state.learner.params, keys).compile)
            for name, compiling in programs.items():
                setattr(self, name, compiling.result())

    def begin(self) -> None:
        """Start from nothing."""
        self.state = self._init(self.axis.stack([jnp.uint32(seed) for seed in self.seeds]))

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Start from what `arrays` returned: all of it."""
        one = jax.eval_shape(self.pipeline.init, jnp.uint32(0))
        self.state = self.axis.put(from_arrays(self.axis.kept_shapes(one), arrays, put=jax.device_put))
        self.pipeline.check_state(self.state)
        return []

    def arrays(self) -> dict[str, np.ndarray]:
        """All of the state, by name."""
        arrays: dict[str, np.ndarray] = self.axis.without_idle(to_arrays(self.state))
        return arrays

    def advance(self, blocks: int) -> None:
        """Start running so many blocks; `read` waits for them."""
        self.state = self._advance(self.state, self._blocks(blocks))

    def read(self) -> Reading:
        """Bring over the few numbers the host needs: the only wait of a chunk."""
        state, learner = self.state, self.state.learner
        numbers = (state.env_steps, state.episodes, state.first_update_at)
        learned = (learner.updates, learner.skipped, learner.skipped_in_a_row)
        read = jax.device_get((*numbers, *learned, state.totals))  # sync
        if len(self.seeds) == 1:
            return Reading(*jax.tree.map(lambda leaf: leaf[None], read))
        return Reading(*self.axis.without_idle(read))

    def own_figures(self) -> dict[str, float]:
        """Nothing beside a Reading."""
        return {}

    def notices(self) -> list[str]:
        """Nothing."""
        return []

    def forget_totals(self) -> None:
        """Zeros in the same places: the compiled program wants its arrays where they were."""
        zeros = jax.tree.map(
            lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), self.state.totals
        )
        self.state = self.state._replace(totals=zeros)

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes of each seed, on keys of that seed and this env step; one program, so nobody is told."""
        env_steps = self.read().env_steps
        keys = [jax.random.fold_in(jax.random.key(seed), env_steps) for seed in self.seeds]
        played = to_host(self._evaluate(self.state.learner.params, self.axis.stack(keys)))  # sync
        return [played] if len(self.seeds) == 1 else [played.of(index) for index in range(len(self.seeds))]

    def close(self) -> None:
        """Nothing outlives it."""

    def weights(self, index: int) -> Any:
        """Flat weight vector of one seed."""
        return self.axis.seed(self.state.learner.params, index)

    def _blocks(self, count: int) -> Any:
        return self.axis.stack([jnp.int32(count)] * len(self.seeds), idle=jnp.int32(0))

    def first_state(self) -> FusedState:
        """The whole state of the first seed, for a profile."""
        state: FusedState = self.axis.seed(self.state, 0)
        return state
