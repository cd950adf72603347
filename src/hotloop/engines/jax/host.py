"""The JAX engine for runs on the host: its pure functions compiled, NumPy in and out."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.engines.draws import Draw, Draws
from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.engines.jax.modules import Module, Params
from hotloop.engines.protocol import Choice, Counts, Learned, Lesson, Policy
from hotloop.experience import Item, Items
from hotloop.spec import Network, Spec
from hotloop.trees import Arrays, Form, Shapes, leaves


def make_engine(spec: Spec, obs: Shapes, num_actions: int, network: Module | None = None) -> "JaxOnHost":
    """The engine of one spec, with a memory if its network has one; `network` is the user's own, if any."""
    if isinstance(spec.network, Network) and spec.network.core is not None:
        from hotloop.engines.jax.recurrent import RecurrentEngine

        return JaxOnHost(RecurrentEngine(spec, obs, num_actions, network))
    return JaxOnHost(JaxEngine(spec, obs, num_actions, network))


class JaxOnHost:
    """An `EngineOf[LearnerState, jax.Array]` of `engines.protocol`."""

    def __init__(self, engine: JaxEngine) -> None:
        self.engine, self.num_actions, self.num_weights = engine, engine.num_actions, engine.layout.size
        self._init = jax.jit(engine.init)
        self._compiled_update = jax.jit(self._update, donate_argnums=0)
        self._compiled_update_all = jax.jit(self._update_all, donate_argnums=0)
        self._moved = jax.jit(engine.move_target, donate_argnums=0)
        self._q = jax.jit(engine.q_values)
        self._play = jax.jit(engine.play)
        self._drawn_q = jax.jit(lambda params, obs_N, draws: engine.q_values(params, obs_N, given=draws))

    @property
    def device_functions(self) -> JaxEngine:
        """Its functions, not compiled yet."""
        return self.engine

    def memory_available(self) -> int | None:
        """Bytes the device can still give; None if it has no memory of its own, as a CPU."""
        stats = jax.devices()[0].memory_stats() or {}
        if "bytes_limit" in stats:
            return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
        return None

    def _update(
        self,
        state: LearnerState,
        items_KB: Item[jax.Array],
        weight_KB: jax.Array | None,
        learning_rate: jax.Array,
        target_moves: jax.Array,
        draws: Draws[jax.Array] | None,
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        """What is compiled: gradient steps, then moves of the target net."""
        state, td_KB, sums = self.engine.update(state, items_KB, learning_rate, weight_KB, draws_K=draws)
        return self.engine.move_target(state, target_moves), td_KB, sums

    def init(self, seed: int) -> LearnerState:
        """Fresh weights; the target net starts as a copy of them."""
        state: LearnerState = self._init(jax.random.key(seed))
        return state

    def wanted_to_learn(self, updates: int, batch: int) -> Draws[Draw] | None:
        """Draws that so many updates take; None if nothing is left to chance."""
        return self.engine.wanted_to_learn(updates, batch)

    def wanted_to_act(self, num_envs: int) -> dict[str, Draw] | None:
        """Draws that a policy takes to explore; None if nothing is left to chance."""
        return self.engine.wanted_to_act(num_envs) or None

    def prepare(self, items_KB: Items, weight_KB: np.ndarray | None, draws: Arrays, updates: float) -> Choice | None:
        """Compile the update, however often it will run."""
        del updates
        self.update(self.init(0), items_KB, weight_KB, 0.0, 0, draws)
        return None

    def close(self) -> None:
        """Nothing outlives a run."""

    def put(self, batches: Form) -> Form:
        """Bring batches to the device; done when it returns."""
        there: Form = jax.block_until_ready(jax.device_put(batches))  # sync
        return there

    def update(
        self,
        state: LearnerState,
        items_KB: Items,
        weight_KB: np.ndarray | None,
        learning_rate: float,
        target_moves: int,
        draws: Arrays,
    ) -> Learned[LearnerState]:
        """K gradient steps on K batches, then so many moves of the target net; done when it returns."""
        numbers = (np.float32(learning_rate), np.int32(target_moves))
        updated = self._compiled_update(state, items_KB, weight_KB, *numbers, draws)
        state, td_KB, sums = jax.block_until_ready(updated)  # sync
        return Learned(state, td_KB, np.asarray(sums))

    @property
    def prefers_batches(self) -> bool:
        """Not on a CPU: five learners of `treasure` take 1.1 to 1.4 times as long in one batched program there."""
        return jax.default_backend() != "cpu"

    def _update_all(
        self,
        states: Sequence[LearnerState],
        items: Sequence[Item[jax.Array]],
        weights: Sequence[jax.Array | None],
        rates_L: jax.Array,
        moves_L: jax.Array,
        draws: Sequence[Draws[jax.Array] | None],
    ) -> list[tuple[LearnerState, jax.Array, jax.Array]]:
        """What is compiled: `_update` of all learners, batched."""
        batched = (_stacked(states), _stacked(items), _stacked(weights), rates_L, moves_L, _stacked(draws))
        updated_L = jax.vmap(self._update)(*batched)
        return [jax.tree.map(lambda leaf, i=i: leaf[i], updated_L) for i in range(len(states))]

    def update_all(self, lessons: Sequence[Lesson[LearnerState]]) -> list[Learned[LearnerState]]:
        """K gradient steps of each learner, in one program; done when it returns."""
        states, items, weights, rates, moves, draws = zip(*lessons, strict=True)
        numbers = (np.asarray(rates, np.float32), np.asarray(moves, np.int32))
        updated = self._compiled_update_all(states, items, weights, *numbers, draws)
        each = jax.block_until_ready(updated)  # sync
        return [Learned(state, td_KB, np.asarray(sums)) for state, td_KB, sums in each]

    def move_target(self, state: LearnerState, times: int) -> LearnerState:
        """Mix the online net into the target net so many times."""
        moved: LearnerState = self._moved(state, np.int32(times))
        return moved

    def counts(self, state: LearnerState) -> Counts:
        """Bring over three numbers."""
        return Counts(*(int(number) for number in (state.updates, state.skipped, state.skipped_in_a_row)))  # sync

    def weights(self, state: LearnerState) -> jax.Array:
        """The flat vector of the online net."""
        return state.params

    def freeze(self, weights: jax.Array) -> Policy:
        """Act with a copy of these weights."""
        kept = weights.copy()

        def q(obs_N: Arrays, draws: Arrays = None) -> np.ndarray:
            return np.asarray(self._q(kept, obs_N) if draws is None else self._drawn_q(kept, obs_N, draws))

        return q

    def remember(self, weights: jax.Array, memory_N: Shapes, obs_N: Arrays) -> tuple[np.ndarray, Shapes]:
        """Greedy actions and what is remembered after them; None is the memory at the start of an episode."""
        memory_N = self.engine.memory(leaves(obs_N)[0].shape[0]) if memory_N is None else memory_N
        memory_N, action_N = self._play(weights, memory_N, obs_N)
        return np.asarray(action_N), memory_N

    def to_named(self, weights: jax.Array) -> dict[str, np.ndarray]:
        """Copies by name."""
        return self.engine.layout.to_named(weights)

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> jax.Array:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""
        return self.engine.layout.from_named(arrays)

    def as_given(self, weights: jax.Array) -> Params:
        """The tree that a flax module's `init` gives and its `apply` takes."""
        return self.engine.layout.unflatten(weights)

    def template(self) -> LearnerState:
        """Shapes of a state."""
        shapes: LearnerState = jax.eval_shape(self.engine.init, jax.random.key(0))
        return shapes

    def give(self, state: LearnerState) -> LearnerState:
        """A state to be saved: as it is."""
        return state

    def take(self, arrays: LearnerState) -> LearnerState:
        """A loaded state on the device."""
        state: LearnerState = jax.device_put(arrays)
        return state


def _stacked(parts: Sequence[Form]) -> Form:
    """Trees of one form as one, with an axis more."""
    stacked: Form = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    return stacked
