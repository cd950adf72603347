"""What pipelines on the host, agents and evaluations know of an engine: this, and nothing else.

An engine holds shapes and choices, never state. Its state is opaque here: it is handed back, saved and restored by
name. All that chance gives to a network is drawn outside and handed in (`engines/draws.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, NewType, Protocol, TypeVar, cast

import numpy as np

from hotloop.engines.draws import Draw
from hotloop.experience import Items
from hotloop.trees import Arrays, Form, HasShape, Shapes, Tree

S = TypeVar("S")
W = TypeVar("W")
State = NewType("State", tuple[Shapes, ...])
"""All that learning changes: weights, target, moments, counters; only its engine looks inside."""
Weights = NewType("Weights", object)
"""What an engine acts with; a part of its state."""


class Policy(Protocol):
    """Acts with weights that stand still."""

    def __call__(self, obs_N: Arrays, draws: Arrays = None) -> np.ndarray:
        """Q-values (N, A); without draws those of the mean network."""


class Counts(NamedTuple):
    """Gradient steps: done, skipped because a number was not finite, and skipped in a row just now."""

    updates: int
    skipped: int
    skipped_in_a_row: int


class Learned(NamedTuple, Generic[S]):
    """What gradient steps left behind."""

    state: S
    td_KB: HasShape  # where the engine has it; np.asarray brings it over
    sums: np.ndarray  # METRICS


class Lesson(NamedTuple, Generic[S]):
    """What `update` is called with."""

    state: S
    items_KB: Items
    weight_KB: np.ndarray | None
    learning_rate: float
    target_moves: int
    draws: Arrays


class Choice(NamedTuple):
    """What an engine chose by measuring, where the spec leaves it the choice: a field, its value, and why."""

    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.value} ({self.reason})"


class EngineOf(Protocol[S, W]):
    """Acts and learns for one spec, with a state S and weights W of its own kind."""

    num_actions: int
    num_weights: int

    @property
    def device_functions(self) -> object:
        """What it does as pure functions, for pipelines that are one program on the device; None if it has none."""

    def memory_available(self) -> int | None:
        """Bytes that the device it learns on can still give; None if that is the host's memory."""

    def init(self, seed: int) -> S:
        """Fresh weights; the target net starts as a copy of them."""

    def wanted_to_learn(self, updates: int, batch: int) -> Tree[Draw]:
        """A tree of `Draw`s that so many updates take; None if nothing is left to chance."""

    def wanted_to_act(self, num_envs: int) -> Tree[Draw]:
        """A tree of `Draw`s that a policy takes to explore; None if nothing is left to chance."""

    def prepare(self, items_KB: Items, weight_KB: np.ndarray | None, draws: Arrays, updates: float) -> Choice | None:
        """Do what takes a while before so many gradient steps on batches like these; returns what was chosen, if
        anything."""

    def close(self) -> None:
        """Let go of what outlives a run."""

    def put(self, batches: Form) -> Form:
        """Bring batches to where they are learned from; their arrays must not change until they have been."""

    def update(
        self,
        state: S,
        items_KB: Items,
        weight_KB: np.ndarray | None,
        learning_rate: float,
        target_moves: int,
        draws: Arrays,
    ) -> Learned[S]:
        """Gradient steps on K batches, `replay.updates_per_batch` on each, then so many moves of the target net; done
        when it returns.

        `state` must not be used again. TD errors are those of each batch's last step.
        """

    @property
    def prefers_batches(self) -> bool:
        """Whether learners of one shape learn faster in one batched program than one after the other."""

    def update_all(self, lessons: Sequence[Lesson[S]]) -> list[Learned[S]]:
        """`update` for several learners, in one batched program if it prefers that."""

    def move_target(self, state: S, times: int) -> S:
        """Mix the online net into the target net so many times, without a gradient step; `state` is not used again."""

    def counts(self, state: S) -> Counts:
        """Bring over three numbers."""

    def weights(self, state: S) -> W:
        """What the state acts with."""

    def freeze(self, weights: W) -> Policy:
        """Act with a copy of these weights."""

    def remember(self, weights: W, memory_N: Shapes, obs_N: Arrays) -> tuple[np.ndarray, Shapes]:
        """Greedy actions of a network with a memory, and what it remembers after them; None begins an episode."""

    def to_named(self, weights: W) -> dict[str, np.ndarray]:
        """Copies by name: the interchange format of weights."""

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> W:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""

    def as_given(self, weights: W) -> object:
        """Weights in the form in which a network of the user's own has them, to be used without us."""

    def template(self) -> S:
        """Shapes of a state: a tree of what has a shape and a dtype."""

    def give(self, state: S) -> S:
        """A state to be saved, of what `np.asarray` takes."""

    def take(self, arrays: S) -> S:
        """A state of NumPy arrays that was loaded, where this engine keeps its own."""


Engine = EngineOf[State, Weights]
"""An engine to those who hand its state back, and never look inside."""


def opaque(engine: EngineOf[S, W]) -> Engine:
    """The same engine, its state and weights closed to whoever is given it."""
    return cast(Engine, engine)
