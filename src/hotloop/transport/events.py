"""What an actor does, event by event, while someone wants to know: a bounded queue in its shared memory.

An event is two words. It counts once `written` says so, which is stored after it: of a process that is killed, the
event that it was writing is missing, and its successor writes on. An actor never waits here: what finds no room is
counted as lost. While nobody wants to know, an event costs one load and an `if`.
"""

import time
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hotloop.transport.layout import CACHE_LINE
from hotloop.transport.words import WORD_BYTES, Word

RECORDS = 4096
"""Between two looks of the learner; an actor that may not go on makes a few a second."""
KIND_BITS = 4
WORDS_OF_A_RECORD = 2
EVENTS_BYTES = 2 * CACHE_LINE + RECORDS * WORDS_OF_A_RECORD * WORD_BYTES


class EventKind(IntEnum):
    """Numbers below OPENED are those of `ActorState`: a state has ended, and the value is when, in nanoseconds."""

    OPENED = 8
    """A process has become this actor; the value is its id."""
    TOOK_WEIGHTS = 9
    """The value is their version."""
    HANDED_OVER = 10
    """The value is how many parcels are in the ring now."""
    DROPPED = 11
    """The value is how many transitions."""


class Event(NamedTuple):
    """Of one actor."""

    kind: int
    at_ns: int
    """By `time.monotonic_ns`, which all processes share; of a state when it began."""
    value: int


class EventWriter:
    """The actor's side."""

    def __init__(self, memory: np.ndarray) -> None:
        """In EVENTS_BYTES of an actor's memory."""
        self._words, self._cells = _words(memory), _cells(memory)
        self._is_on = memory[CACHE_LINE:][:WORD_BYTES].view(np.int64)  # that word, looked at all the time
        self._next = self._words.written.load()

    def note(self, kind: int, value: int, at_ns: int | None = None) -> None:
        """Write an event of now, or of that time, if someone wants to know."""
        if self._is_on.item():
            self._write(kind, value, time.monotonic_ns() if at_ns is None else at_ns)

    def _write(self, kind: int, value: int, at_ns: int) -> None:
        if self._next - self._words.taken.load() >= RECORDS:
            self._words.lost.add(1)
            return
        first = self._next % RECORDS * WORDS_OF_A_RECORD
        self._cells[first] = at_ns << KIND_BITS | kind
        self._cells[first + 1] = value
        self._next += 1
        self._words.written.store(self._next)  # whoever sees this sees the event


class EventReader:
    """The learner's side."""

    def __init__(self, memory: np.ndarray) -> None:
        self._words, self._cells = _words(memory), _cells(memory)

    def want(self, is_wanted: bool) -> None:
        """Have the actor write events from now on, or no more; those that nobody has taken are forgotten."""
        if is_wanted:
            self.take()
        self._words.is_on.store(int(is_wanted))

    def take(self) -> list[Event]:
        """Those that came since the last time, in order."""
        first, end = self._words.taken.load(), self._words.written.load()
        places = np.arange(first, end) % RECORDS * WORDS_OF_A_RECORD
        heads, values = self._cells[places].tolist(), self._cells[places + 1].tolist()
        self._words.taken.store(end)  # all was copied before
        mask = (1 << KIND_BITS) - 1
        return [Event(head & mask, head >> KIND_BITS, value) for head, value in zip(heads, values, strict=True)]

    @property
    def lost(self) -> int:
        """How many found no room, ever."""
        return self._words.lost.load()


class _Words(NamedTuple):
    written: Word  # by the actor, as
    lost: Word
    is_on: Word  # by the learner, as
    taken: Word


def _words(memory: np.ndarray) -> _Words:
    of_actor, of_learner = memory[:CACHE_LINE], memory[CACHE_LINE : 2 * CACHE_LINE]
    return _Words(Word(of_actor, 0), Word(of_actor, 1), Word(of_learner, 0), Word(of_learner, 1))


def _cells(memory: np.ndarray) -> np.ndarray:
    return memory[2 * CACHE_LINE : EVENTS_BYTES].view(np.int64)
