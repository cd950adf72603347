"""What an actor and the learner tell each other in single words: state and counts there, allowance and stop here.

Those that the actor writes and those that the learner writes are on different cache lines: neither takes the other's
line away whenever it writes.
"""

import os
import time
from typing import NamedTuple

import numpy as np

from hotloop.transport.events import EventKind, EventWriter
from hotloop.transport.layout import whole_lines
from hotloop.transport.protocol import NO_VERSION, ActorState, ActorStatus
from hotloop.transport.words import WORD_BYTES, Word


class ActorWords(NamedTuple):
    """Written by the actor, in this order in memory; behind them the nanoseconds of each state."""

    incarnation: Word
    pid: Word
    heartbeat_ns: Word
    state: Word
    transitions: Word
    parcels: Word
    dropped_parcels: Word
    dropped_transitions: Word
    env_failures: Word
    weights_version: Word


class LearnerWords(NamedTuple):
    """Written by the learner, in this order in memory."""

    allowance: Word
    stop: Word
    released: Word
    """Parcels of the actor's ring."""


_TIMES_AT = len(ActorWords._fields)
_LEARNER_AT = whole_lines((_TIMES_AT + len(ActorState)) * WORD_BYTES)
CONTROL_BYTES = _LEARNER_AT + whole_lines(len(LearnerWords._fields) * WORD_BYTES)


class Control:
    """All words of one actor, as both ends see them."""

    def __init__(self, memory: np.ndarray) -> None:
        """In the first CONTROL_BYTES of an actor's memory."""
        self.actor = ActorWords(*(Word(memory, index) for index in range(_TIMES_AT)))
        self.nanoseconds = [Word(memory, _TIMES_AT + state) for state in ActorState]
        learner = memory[_LEARNER_AT:CONTROL_BYTES]
        self.learner = LearnerWords(*(Word(learner, index) for index in range(len(LearnerWords._fields))))

    def status(self) -> ActorStatus:
        """What the learner reads."""
        return ActorStatus(
            **{name: word.load() for name, word in self.actor._asdict().items() if name != "state"},
            state=ActorState(self.actor.state.load()),
            allowance=self.learner.allowance.load(),
            released=self.learner.released.load(),
            nanoseconds={state: self.nanoseconds[state].load() for state in ActorState},
        )


class ActorRecord:
    """What the actor writes."""

    def __init__(self, control: Control, events: EventWriter, *, parcels: int) -> None:
        """Begin as another incarnation; counts go on, and `parcels` are what the ring says were handed over."""
        self._words, self._nanoseconds, self._events = control.actor, control.nanoseconds, events
        self._events.note(EventKind.OPENED, os.getpid())
        self._words.pid.store(os.getpid())
        self._words.parcels.store(parcels)
        self._words.weights_version.store(NO_VERSION)
        self._since = time.monotonic_ns()
        self.state = ActorState.STARTING
        self.enter(ActorState.STARTING)
        self._words.incarnation.add(1)  # last: who sees it sees the rest

    def enter(self, state: ActorState) -> None:
        """Add the time since the last call to the state that was, and be in this one."""
        now = time.monotonic_ns()
        self._nanoseconds[self.state].add(now - self._since)
        self._events.note(self.state, now, self._since)
        self._since = now
        self.state = state
        self._words.state.store(state)
        self._words.heartbeat_ns.store(now)

    def count(self, *, transitions: int = 0, env_failures: int = 0) -> None:
        """Add to what the actor counts by itself."""
        if transitions:
            self._words.transitions.add(transitions)
        if env_failures:
            self._words.env_failures.add(env_failures)

    def count_dropped(self, transitions: int) -> None:
        """Add a parcel that was given up, of so many transitions."""
        self._words.dropped_parcels.add(1)
        self._words.dropped_transitions.add(transitions)
        self._events.note(EventKind.DROPPED, transitions)

    def count_parcels(self, total: int, in_ring: int) -> None:
        """Say how many have been handed over, of which so many are still there."""
        self._words.parcels.store(total)
        self._events.note(EventKind.HANDED_OVER, in_ring)

    def use_weights(self, version: int) -> None:
        """Say which version acts from now on."""
        self._words.weights_version.store(version)
        self._events.note(EventKind.TOOK_WEIGHTS, version)
