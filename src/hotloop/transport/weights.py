"""Versions of the weights, from one writer to any number of readers, none of whom ever makes it wait.

Publication n (1, 2, …) goes to slot n modulo 2, so the newest whole one stays where it is while the next is written. A
slot's mark is 2n − 1 while publication n is written and 2n once it is whole; `newest` is n from then on. A reader
copies the newest and then looks at the mark again: if it is not 2n any more, the writer has come round to this slot
meanwhile, and the copy is thrown away. A writer that dies in mid-publication leaves the other slot as the newest.
"""

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np

from hotloop.transport.layout import CACHE_LINE, Layout, copy_into, refuse_misfits
from hotloop.transport.protocol import NO_VERSION, Weights
from hotloop.transport.words import Word, fence

SLOTS = 2
TRIES = 100
"""Copies that a reader makes before it keeps what it has: a writer that publishes without pause can outrun it."""


def weights_bytes(layout: Layout) -> int:
    """Memory that both slots take, and the words before each."""
    return (1 + SLOTS) * CACHE_LINE + SLOTS * layout.num_bytes


class WeightsWriter:
    """The learner's side."""

    def __init__(self, memory: np.ndarray, layout: Layout) -> None:
        self._newest, self._slots = _words(memory)
        self._places = [layout.arrays(data) for data in _data(memory, layout)]
        self._names = sorted(cast(Mapping[str, object], layout.specs))  # the order of `trees.leaves`

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Copy one version to the slot of the version before the newest."""
        newest = self._newest.load()
        before = self._slots[newest % SLOTS].version.load() if newest else NO_VERSION
        if version <= before:
            raise ValueError(f"weights of version {version} were published after version {before}: versions increase")
        if sorted(weights) != self._names:
            raise ValueError(f"weights are named {sorted(weights)}, expected {self._names}")
        arrays, number = [weights[name] for name in self._names], newest + 1
        slot, places = self._slots[number % SLOTS], self._places[number % SLOTS]
        refuse_misfits(places, arrays)
        slot.mark.store(2 * number - 1)
        fence()  # a large copy's stores might be seen before the mark otherwise
        copy_into(places, arrays)
        slot.version.store(version)
        slot.mark.store(2 * number)
        self._newest.store(number)


class WeightsReader:
    """An actor's side; it needs no right to write to this memory."""

    def __init__(self, memory: np.ndarray, layout: Layout) -> None:
        self._newest, self._slots = _words(memory)
        self._data = _data(memory, layout)
        self._layout = layout

    def newest(self, other_than: int) -> Weights | None:
        """A copy of the newest version, if it is another one than that."""
        if not self._newest.load() or self._version() == other_than:
            return None
        copy = np.empty(self._layout.num_bytes, np.uint8)
        for _ in range(TRIES):
            number = self._newest.load()
            slot = self._slots[number % SLOTS]
            if slot.mark.load() != 2 * number:
                continue
            version = slot.version.load()
            copy[...] = self._data[number % SLOTS]
            if slot.mark.load() == 2 * number:  # no store of another publication was before what was copied
                return Weights(version, cast(Mapping[str, np.ndarray], self._layout.tree(copy)))
        return None

    def _version(self) -> int:
        """Of the newest slot; it may be overtaken by the time it is looked at, and then is another one anyway."""
        return self._slots[self._newest.load() % SLOTS].version.load()


class _SlotWords(NamedTuple):
    mark: Word
    version: Word


def _words(memory: np.ndarray) -> tuple[Word, list[_SlotWords]]:
    lines = [memory[line * CACHE_LINE : (line + 1) * CACHE_LINE] for line in range(1 + SLOTS)]
    return Word(lines[0], 0), [_SlotWords(Word(line, 0), Word(line, 1)) for line in lines[1:]]


def _data(memory: np.ndarray, layout: Layout) -> list[np.ndarray]:
    first, size = (1 + SLOTS) * CACHE_LINE, layout.num_bytes
    return [memory[first + slot * size : first + (slot + 1) * size] for slot in range(SLOTS)]
