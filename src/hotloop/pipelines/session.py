"""What the host loop drives: a pipeline with its state, whatever that state is made of."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from hotloop.engines.protocol import Choice, Weights
from hotloop.evaluate import Episodes, Tell
from hotloop.experience import Totals
from hotloop.members import Members
from hotloop.plain import Json
from hotloop.spans import Spans


class Reading(NamedTuple):
    """The few numbers the host loop needs of a state; arrays have one entry per member."""

    steps: np.ndarray  # env steps; they only differ once a stop rule has held a member back
    episodes: np.ndarray
    first_update_at: np.ndarray
    updates: np.ndarray
    skipped: np.ndarray
    skipped_in_a_row: np.ndarray
    totals: Totals[np.ndarray]
    are_in_same_envs: bool = False
    """Whether the members share their envs, so that a step of one is a step of all."""

    @property
    def steps_of_envs(self) -> int:
        """Env steps of all members together, each counted once."""
        return self.env_steps if self.are_in_same_envs else int(np.sum(self.steps))

    @property
    def env_steps(self) -> int:
        """Env steps of the member that is furthest."""
        return int(self.steps.max())

    @property
    def attempts(self) -> int:
        """Gradient steps of all members, those that were skipped included."""
        return int(np.sum(self.updates + self.skipped))


class Stored(Protocol):
    """What is asked of a replay before any of it is allocated."""

    @property
    def capacity(self) -> int:
        """Transitions it holds."""

    @property
    def row_bytes(self) -> int:
        """Memory of one sample in a batch."""

    def num_bytes(self) -> int:
        """Memory of all that it holds."""


class Session(Protocol):
    """A run in progress."""

    def compile(self) -> Choice | None:
        """Make everything ready that takes a while; returns what the engine chose by measuring, if anything."""

    def begin(self) -> None:
        """Start from nothing."""

    spans: Spans
    members: Members

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Start from what `arrays` returned; says what could not be restored, or raises ValueError."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All of the state, by name: what a checkpoint holds."""

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""

    def read(self) -> Reading:
        """Bring over the numbers of the present state; waits for it."""

    def own_figures(self) -> Mapping[str, Json]:
        """What a line of metrics says of this session beside what is in a Reading."""

    def notices(self) -> list[str]:
        """What a person should be told that happened since the last time this was asked."""

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""

    def forget_episodes(self) -> None:
        """Count episodes from 0 again: for blocks after the end of a run, which stop.episodes would hold back."""

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes with the present weights, of each member; changes nothing. On the host `tell` hears of them.

        Each `attempt` plays other episodes.
        """

    def close(self) -> None:
        """Let go of what outlives a run: envs and their processes."""

    def weights(self, index: int) -> Weights:
        """What one member acts with."""


class Pipeline(Protocol):
    """How a run flows: shapes and sizes, no state of its own."""

    @property
    def replay(self) -> Stored | None:
        """What it learns from; None where that is what was just collected."""

    def num_bytes(self) -> int:
        """Memory of what it learns from: its replay, or the steps of a block."""

    def session(self, members: Members) -> Session:
        """The state of a run, for the host loop to drive."""

    def close(self) -> None:
        """Let go of what outlives a run: envs, their processes, the learner's thread."""
