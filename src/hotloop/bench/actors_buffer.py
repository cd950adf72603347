"""The shared buffer of an actor and a learner in two processes, as such systems have it, but for their mistakes.

A row is written before the index says that it is there; the row at the write head and those that are overwritten next
are never drawn; what follows the end of an epoch is not a next state. `Manner` says how it is locked.
"""

import ctypes
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.sharedctypes import Synchronized
from typing import NamedTuple

import numpy as np

AHEAD = 16
"""Rows before the write head that may be overwritten while a batch is drawn."""


class Batch(NamedTuple):
    """B transitions in NumPy."""

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray
    done: np.ndarray


@dataclass(frozen=True)
class Manner:
    """What of the buffer the advice is about."""

    index_lock: bool = True
    """Index and size change under a lock of theirs."""
    locked_size: bool = False
    """The size is read under that lock, too."""
    preallocated: bool = False
    """Batches are gathered into arrays that are there already."""


class SharedBuffer:
    """A ring of transitions with one writer."""

    def __init__(self, context: BaseContext, capacity: int, state_size: int, batch_size: int, manner: Manner) -> None:
        self.capacity, self.state_size, self.batch_size, self.manner = capacity, state_size, batch_size, manner
        self._index: Synchronized[int] = context.Value(ctypes.c_int64, 0)
        self._size: Synchronized[int] = context.Value(ctypes.c_int64, 0)
        self._memory = [
            context.RawArray(kind, capacity * width)
            for kind, width in (
                (ctypes.c_float, state_size),
                (ctypes.c_int64, 1),
                (ctypes.c_float, 1),
                (ctypes.c_float, 1),
            )
        ]
        self._look()

    def _look(self) -> None:
        """Views of the memory, in whichever process this is."""
        states, actions, rewards, dones = (memoryview(part).cast("B") for part in self._memory)
        self.states = np.frombuffer(states, np.float32).reshape(self.capacity, self.state_size)
        self.actions, self.rewards = np.frombuffer(actions, np.int64), np.frombuffer(rewards, np.float32)
        self.dones = np.frombuffer(dones, np.float32)
        shape = (self.batch_size, self.state_size)
        self._into = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def __getstate__(self) -> dict[str, object]:
        views = ("states", "actions", "rewards", "dones", "_into")
        return {name: value for name, value in self.__dict__.items() if name not in views}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._look()

    def add(self, state: np.ndarray, action: int, reward: float, done: bool) -> None:
        """Write a row, then say that it is there."""
        index = self._index.value
        place = index % self.capacity
        self.states[place], self.actions[place], self.rewards[place], self.dones[place] = state, action, reward, done
        if self.manner.index_lock:
            with self._index.get_lock():
                self._index.value = index + 1
                self._size.value = min(self._size.value + 1, self.capacity)
        else:  # one writer: a plain store each
            self._index.get_obj().value = index + 1
            self._size.get_obj().value = min(index + 1, self.capacity)

    @property
    def size(self) -> int:
        """Rows that are there, or were a moment ago."""
        if self.manner.locked_size:
            with self._index.get_lock():
                return self._size.value
        return self._size.get_obj().value

    def sample(self, random: np.random.Generator) -> Batch | None:
        """A batch of those whose next row is there; None if there are too few."""
        size, index = self.size, self._index.get_obj().value
        oldest = index - size + (AHEAD if size == self.capacity else 0)
        if index - 1 - oldest < self.batch_size:
            return None
        rows = random.integers(oldest, index - 1, self.batch_size)
        places, after = rows % self.capacity, (rows + 1) % self.capacity
        if self.manner.preallocated:
            state, next_state = self._into
            np.take(self.states, places, axis=0, out=state, mode="clip")
            np.take(self.states, after, axis=0, out=next_state, mode="clip")
        else:
            state = self.states[places].reshape(self.batch_size, -1)
            next_state = self.states[after].reshape(self.batch_size, -1)
        return Batch(state, self.actions[places], self.rewards[places], next_state, self.dones[places])
