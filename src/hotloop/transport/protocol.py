"""The two ends of a transport: what an actor and a learner can do, however parcels and weights travel between them.

A **parcel** is what an actor hands over at once: a tree of arrays whose form is fixed when the transport is opened. How
much of it is used is written in its own arrays. Nothing here blocks but three functions that wait, with a timeout.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from hotloop.transport.events import Event
from hotloop.trees import Arrays

NO_VERSION = -1
"""The version of an actor that has got no weights yet; versions of weights are 0 and above."""


class ActorState(IntEnum):
    """What an actor is doing: from when its end is opened until it is closed."""

    STARTING = 0
    ENV = 1
    ACT = 2
    HAND_OVER = 3
    WAIT = 4
    ENDED = 5


class ActorStatus(NamedTuple):
    """What is known of an actor; each figure is whole, but they are read one after the other.

    All counts go on when a process takes the place of another: they belong to the actor, as its allowance does.
    """

    incarnation: int
    """How many processes have been this actor; 0 until the first has opened its end."""
    pid: int
    heartbeat_ns: int
    """When it last said something, by `time.monotonic_ns`, which all processes of a machine share."""
    state: ActorState
    transitions: int
    """Made, whether or not they were handed over: what a process makes and dies with counts too."""
    parcels: int
    """Handed over."""
    dropped_parcels: int
    dropped_transitions: int
    """Those that were in them."""
    env_failures: int
    weights_version: int
    """In use; NO_VERSION until it has some."""
    allowance: int
    """Transitions it may make in total."""
    released: int
    """Parcels that the learner has let it write over."""
    nanoseconds: Mapping[ActorState, int]
    """Spent in each state, up to the heartbeat."""


class Parcel(NamedTuple):
    """A parcel that an actor has handed over, as read-only views that are valid until it is released."""

    actor: int
    number: int
    """Of this actor's parcels, from 0 on."""
    arrays: Arrays


class Weights(NamedTuple):
    """One whole version of the weights, by name; the arrays are the caller's own."""

    version: int
    arrays: Mapping[str, np.ndarray]


class ActorEnd(Protocol):
    """What an actor has of the transport. It has one thread, which alone uses this."""

    def hand_over(self, parcel: Arrays, rows: Sequence[int] | None = None) -> bool:
        """Copy a parcel to where the learner finds it; False at once if there is no room, and nothing has happened.

        `rows` has for each array, in the order of `trees.leaves`, how many of its leading rows are used: only those are
        copied, and what the learner sees behind them means nothing. Without it all of every array is copied.
        """

    def newest_weights(self) -> Weights | None:
        """The newest version, if it is not the one that this gave last."""

    @property
    def transitions_left(self) -> int:
        """How many transitions it may still make; what it has made is told by `count`."""

    @property
    def should_stop(self) -> bool:
        """Whether it is to close its envs and end."""

    def enter(self, state: ActorState) -> None:
        """Say what it does from now on, which is its heartbeat too; handing over and waiting say so by themselves."""

    def count(self, *, transitions: int = 0, env_failures: int = 0) -> None:
        """Add to the figures of its status."""

    def count_dropped(self, transitions: int) -> None:
        """Add a parcel of so many transitions that it gives up."""

    @property
    def dropped_transitions(self) -> int:
        """In all parcels that this actor has given up, also as another process."""

    def wait_for_allowance(self, timeout: float) -> bool:
        """Wait until it may make a transition or should stop; False after `timeout` seconds."""

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until a parcel can be handed over or it should stop; False after `timeout` seconds."""

    def close(self) -> None:
        """Say that it has ended and give its resources back; once is enough, twice does no harm."""


class LearnerEnd(Protocol):
    """What a learner has of the transport. One thread at a time uses it."""

    def committed(self) -> Iterator[Parcel]:
        """Parcels that have been handed over, each given once: one of every actor in turn, those of an actor in order.

        It ends when there are none left, or when an actor has given as many as its ring holds.
        """

    def release(self, parcel: Parcel) -> None:
        """Let the actor write over a parcel; those of an actor are released in the order in which they came."""

    def in_ring(self, actor: int) -> int:
        """Parcels of an actor that have been handed over and not released."""

    def wait(self, timeout: float) -> bool:
        """Wait until there is a parcel that `committed` has not given yet; False after `timeout` seconds."""

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Have actors find these weights; versions increase, and no actor is waited for."""

    def allow(self, actor: int, transitions: int) -> None:
        """Set how many transitions an actor may make in total, since the transport was opened."""

    def statuses(self) -> list[ActorStatus]:
        """What is known of each actor."""

    def dropped_transitions(self, actor: int) -> int:
        """In all parcels that an actor has given up: a figure of its status by itself, for who looks often."""

    def want_events(self, is_wanted: bool) -> None:
        """Have actors write down what they do from now on, or no more; it never makes them wait."""

    def events(self, actor: int) -> list[Event]:
        """What an actor has written down since this was last asked, in order; it is asked often, as room is bounded."""

    def lost_events(self) -> list[int]:
        """Of each actor how many events found no room, ever."""

    def ask_to_stop(self) -> None:
        """Have all actors end, those that wait and those that are yet to start as well."""

    def close(self) -> None:
        """Give its resources back; views that are still in use stay valid."""
