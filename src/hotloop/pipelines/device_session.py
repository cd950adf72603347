"""A session whose state lives on the device, of one member or of several side by side."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.envs.device import DeviceEnv
from hotloop.errors import SpecError
from hotloop.evaluate import Episodes, Tell
from hotloop.experience import Totals
from hotloop.members import Members
from hotloop.pipelines.device_play import episodes_program, to_host
from hotloop.pipelines.member_axis import MemberAxis
from hotloop.pipelines.session import Reading
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec


class DeviceState(Protocol):
    """What a session reads of a pipeline's state; all of it is one tree of arrays."""

    @property
    def learner(self) -> LearnerState:
        """All that learning changes."""

    @property
    def env_steps(self) -> jax.Array:
        """Transitions so far."""

    @property
    def episodes(self) -> jax.Array:
        """Episodes that have ended so far."""

    @property
    def first_update_at(self) -> jax.Array:
        """Env steps at the first gradient step, 0 before it."""

    @property
    def totals(self) -> Totals[jax.Array]:
        """Sums since the last line of metrics."""

    def _replace(self, *, totals: Totals[jax.Array] = ..., episodes: jax.Array = ...) -> Self:
        """The same state with other sums."""


S = TypeVar("S", bound=DeviceState)


class DevicePipeline(Protocol[S]):
    """A run as pure functions of its state."""

    spec: Spec
    env: DeviceEnv
    engine: JaxEngine

    def init(self, seed: jax.Array) -> S:
        """The state before the first block."""

    def advance(self, state: S, blocks: jax.Array) -> S:
        """Run `blocks` blocks, or fewer when a stop rule that the device can see fires."""

    def check_state(self, state: S) -> None:
        """Raise ValueError for a loaded state whose numbers point anywhere they must not."""


class DeviceSession(Generic[S]):
    """Compiled programs and the state they change."""

    state: S
    _init: Any
    _evaluate: Any

    def __init__(
        self, pipeline: DevicePipeline[S], members: Members, advance: Callable[[S, Any], S] | None = None
    ) -> None:
        """`advance` stands in for the compiled program that runs blocks."""
        self.pipeline, self.spec, self.members = pipeline, pipeline.spec, members
        self.axis: Any = MemberAxis(len(members), self.spec.devices)
        self.spans = Spans("evaluate", "log")
        self._advance: Any = advance

    def compile(self) -> None:
        """Compile the program that advances a run, the one that begins it, and the one that plays: side by side.

        XLA compiles a program on one thread, outside of Python's lock.
        """
        one = jax.eval_shape(self.pipeline.init, jnp.uint32(0))
        state, seeds = self.axis.shapes(one), self.axis.stack([jnp.uint32(0)] * len(self.members))
        with ThreadPoolExecutor(thread_name_prefix="compile") as pool:
            programs: dict[str, Future[Any]] = {}
            if self._advance is None:
                programs["_advance"] = pool.submit(self._lowered(self.pipeline.advance, state).compile)
            programs["_init"] = pool.submit(self.axis.jit(self.pipeline.init).lower(seeds).compile)
            if self.spec.evaluation.every:
                program, arguments = self._evaluation_program()
                programs["_evaluate"] = pool.submit(program.lower(*arguments).compile)
            for name, compiling in programs.items():
                setattr(self, name, compiling.result())

    def _lowered(self, advance: Callable[[S, jax.Array], S], state: Any) -> Any:
        """A program that runs blocks of all members, for states of these shapes."""
        return self.axis.jit_in_place(advance).lower(state, self._blocks(1))

    def compiled(self, advance: Callable[[S, jax.Array], S]) -> Any:
        """Compile what runs blocks of one member in another way."""
        return self._lowered(advance, self.state).compile()

    @contextmanager
    def advancing_by(self, program: Any) -> Iterator[None]:
        """Within, blocks are run by another program that was `compiled`."""
        own, self._advance = self._advance, program
        try:
            yield
        finally:
            self._advance = own

    def _evaluation_program(self) -> tuple[Any, tuple[Any, ...]]:
        """What plays the greedy episodes of each member, and what it is called with."""
        evaluation, (env, engine) = self.spec.evaluation, (self.pipeline.env, self.pipeline.engine)
        one = episodes_program(env, engine, evaluation.episodes, evaluation.max_steps, self.spec.env.action_mask)
        params = self.axis.shapes(jax.ShapeDtypeStruct((engine.layout.size,), engine.layout.dtype))
        return self.axis.jit(one), (params, self.axis.stack([jax.random.key(0)] * len(self.members)))

    def begin(self) -> None:
        """Start from nothing."""
        self.state = self._init(self.axis.stack([jnp.uint32(seed) for seed in self.members.numbers]))

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Start from what `arrays` returned: all of it."""
        shapes = self.axis.saved_shapes(jax.eval_shape(self.pipeline.init, jnp.uint32(0)))
        saved = from_arrays(_by_name(shapes), arrays, put=jax.device_put)
        in_order = [saved[name] for name in _by_name(shapes)]
        self.state = self.axis.put(jax.tree.unflatten(jax.tree.structure(shapes), in_order))
        self.pipeline.check_state(self.state)
        return []

    def arrays(self) -> dict[str, np.ndarray]:
        """All of the state, by name."""
        arrays: dict[str, np.ndarray] = self.axis.without_idle(self._arrays_of(self.state))
        return arrays

    def _arrays_of(self, state: S) -> dict[str, np.ndarray]:
        return to_arrays(_by_name(state))

    def advance(self, blocks: int) -> None:
        """Start running so many blocks; `read` waits for them."""
        self.state = self._advance(self.state, self._blocks(blocks))

    def read(self) -> Reading:
        """Bring over the few numbers the host needs: the only wait of a chunk."""
        state, learner = self.state, self.state.learner
        numbers = (state.env_steps, state.episodes, state.first_update_at)
        learned = (learner.updates, learner.skipped, learner.skipped_in_a_row)
        read = jax.device_get((*numbers, *learned, state.totals))  # sync
        if not self.members.are_many:
            return Reading(*jax.tree.map(lambda leaf: leaf[None], read))
        return Reading(*self.axis.without_idle(read))

    def own_figures(self) -> dict[str, float]:
        """Nothing beside a Reading."""
        return {}

    def notices(self) -> list[str]:
        """Nothing."""
        return []

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        self.state = self.state._replace(totals=_zeros_in_place_of(self.state.totals))

    def forget_episodes(self) -> None:
        """Count episodes from 0 again."""
        self.state = self.state._replace(episodes=_zeros_in_place_of(self.state.episodes))

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes of each member, on keys of its seed and this env step; one program, so nobody is told."""
        env_steps = self.read().env_steps
        keys = [jax.random.fold_in(jax.random.key(seed), env_steps) for seed in self.members.numbers]
        played = to_host(self._evaluate(self.state.learner.params, self.axis.stack(keys)))  # sync
        return [played] if not self.members.are_many else [played.of(index) for index in range(len(self.members))]

    def close(self) -> None:
        """Nothing outlives it."""

    def weights(self, index: int) -> Any:
        """Flat weight vector of one member."""
        return self.axis.member(self.state.learner.params, index)

    def _blocks(self, count: int) -> Any:
        return self.axis.stack([jnp.int32(count)] * len(self.members), idle=jnp.int32(0))

    def first_state(self) -> S:
        """The whole state of the first member, for a profile."""
        state: S = self.axis.member(self.state, 0)
        return state


def _zeros_in_place_of(arrays: Any) -> Any:
    """Zeros where the arrays were: the compiled program wants them there."""
    return jax.tree.map(lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding), arrays)


def _by_name(tree: Any) -> dict[str, Any]:
    """The arrays of a state by their paths. JAX's own walk: an env's state may be of any class that JAX was told of."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}
    if len(named) < len(found):
        raise SpecError("the state of the env has two arrays of one name: its names must not hold a /")
    return named
