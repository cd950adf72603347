"""What pipelines on the host, agents and evaluations know of an engine: this, and nothing else.

An engine holds shapes and choices, never state. Its state is opaque here: it is handed back, saved and restored by
name. All that chance gives to a network is drawn outside and handed in (`engines/draws.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from hotloop.experience import Item

State = Any
"""All that learning changes: weights, target, moments, counters."""
Weights = Any
"""What an engine acts with; a part of its state."""
Policy = Callable[..., np.ndarray]
"""`q(obs_N, draws=None) -> (N, A)`: Q-values with weights that stand still; without draws those of the mean network."""


class Counts(NamedTuple):
    """Gradient steps: done, skipped because a number was not finite, and skipped in a row just now."""

    updates: int
    skipped: int
    skipped_in_a_row: int


class Learned(NamedTuple):
    """What gradient steps left behind."""

    state: State
    td_KB: np.ndarray
    sums: np.ndarray  # METRICS


class Engine(Protocol):
    """Acts and learns for one spec."""

    num_actions: int
    num_weights: int

    @property
    def device_functions(self) -> object:
        """What it does as pure functions, for pipelines that are one program on the device; None if it has none."""

    def memory_available(self) -> int | None:
        """Bytes that the device it learns on can still give; None if that is the host's memory."""

    def init(self, seed: int) -> State:
        """Fresh weights; the target net starts as a copy of them."""

    def wanted_to_learn(self, updates: int, batch: int) -> Any:
        """A tree of `Draw`s that so many updates take; None if nothing is left to chance."""

    def wanted_to_act(self, num_envs: int) -> Any:
        """A tree of `Draw`s that a policy takes to explore; None if nothing is left to chance."""

    def put(self, batches: Any) -> Any:
        """Bring batches to where they are learned from; done when it returns."""

    def learn(
        self,
        state: State,
        items_KB: Item,
        weight_KB: np.ndarray | None,
        learning_rate: float,
        target_moves: int,
        draws: Any,
    ) -> Learned:
        """K gradient steps on K batches, then so many moves of the target net; done when it returns.

        `state` must not be used again.
        """

    def counts(self, state: State) -> Counts:
        """Bring over three numbers."""

    def weights(self, state: State) -> Weights:
        """What the state acts with."""

    def freeze(self, weights: Weights) -> Policy:
        """Act with a copy of these weights."""

    def remember(self, weights: Weights, memory_N: Any, obs_N: Any) -> tuple[np.ndarray, Any]:
        """Greedy actions of a network with a memory, and what it remembers after them; None begins an episode."""

    def to_named(self, weights: Weights) -> dict[str, np.ndarray]:
        """Copies by name: the interchange format of weights."""

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> Weights:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""

    def template(self) -> State:
        """Shapes of a state: a tree of what has a shape and a dtype."""

    def take(self, arrays: State) -> State:
        """A state of NumPy arrays that was loaded, where this engine keeps its own."""
