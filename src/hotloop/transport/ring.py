"""A ring of parcels with one writer and one reader, in which a parcel is whole or not there.

Parcel n (0, 1, …) lies in slot n modulo the number of slots. A slot's word is n + 1 once parcel n is committed: it is
stored after the copy, so a reader that finds it finds the whole parcel (`words.py`). The reader says how many parcels
it has released, and that many plus the number of slots is how far the writer may go.

A writer that dies leaves nothing to tidy up. The slot it was writing to still has the word of a parcel that was
released long ago, and the largest word of all slots is where its successor goes on.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hotloop.transport.layout import CACHE_LINE, Layout, refuse_misfits
from hotloop.transport.words import Word
from hotloop.trees import Arrays, leaves

Reached = Callable[[str], None]
"""Told the name of each step of a write: a test ends the process there."""
BEFORE_COPY, DURING_COPY, BEFORE_COMMIT = "ring.before-copy", "ring.during-copy", "ring.before-commit"


def ring_bytes(parcel: Layout, slots: int) -> int:
    """Memory that a ring takes."""
    return slots * _slot_bytes(parcel)


class RingWriter:
    """An actor's side, of which there is one at a time: a successor begins when its predecessor is known to be gone."""

    def __init__(
        self, memory: np.ndarray, parcel: Layout, slots: int, released: Word, *, reached: Reached | None = None
    ) -> None:
        self._committed, parcels = _slots(memory, parcel, slots)
        self._places = [parcel.arrays(slot) for slot in parcels]
        self._released = released
        self._reached = reached
        self.next = max(word.load() for word in self._committed)
        """The number of the next parcel, which is how many have been committed."""

    @property
    def has_room(self) -> bool:
        """Whether the next parcel's slot has been released."""
        return self.num_waiting < len(self._places)

    @property
    def num_waiting(self) -> int:
        """Parcels that have not been released."""
        return self.next - self._released.load()

    def write(self, parcel: Arrays, rows: Sequence[int] | None = None) -> None:
        """Copy a parcel, or the leading rows of each of its arrays, then commit it; only where `has_room`."""
        slot = self.next % len(self._places)
        places, arrays, reached = self._places[slot], leaves(parcel), self._reached
        refuse_misfits(places, arrays)
        if rows is not None and min(rows, default=0) < 0:
            raise ValueError(f"rows is {list(rows)}, expected a count for each array, 0 or more")
        used = [slice(None)] * len(places) if rows is None else [slice(count) for count in rows]
        if reached is not None:
            reached(BEFORE_COPY)
        for place, array, part in zip(places, arrays, used, strict=True):
            place[part if place.ndim else ...] = array[part if place.ndim else ...]
            if reached is not None:
                reached(DURING_COPY)
        if reached is not None:
            reached(BEFORE_COMMIT)
        self._committed[slot].store(self.next + 1)  # whoever sees this sees what was copied
        self.next += 1


class RingReader:
    """The learner's side: takes parcels in order and releases them in order, at once or several later."""

    def __init__(self, memory: np.ndarray, parcel: Layout, slots: int, released: Word) -> None:
        self._committed, parcels = _slots(memory, parcel, slots)
        for slot in parcels:
            slot.flags.writeable = False
        self._views = [parcel.tree(slot) for slot in parcels]
        self._released = released
        self.next = released.load()
        """The number of the parcel that is taken next."""

    @property
    def committed(self) -> int:
        """How many parcels have been committed, ever."""
        return max(word.load() for word in self._committed)

    @property
    def has_more(self) -> bool:
        """Whether that parcel is committed."""
        return self._committed[self.next % len(self._views)].load() == self.next + 1

    def take(self) -> tuple[int, Arrays] | None:
        """The next parcel's number and views of it, valid until it is released; None if it is not there yet."""
        if not self.has_more:
            return None
        number, self.next = self.next, self.next + 1
        return number, self._views[number % len(self._views)]

    def release(self, number: int) -> None:
        """Let the writer write over a parcel that was taken, the oldest of those that are not released."""
        released = self._released.load()
        if number != released or number >= self.next:
            raise ValueError(
                f"parcel {number} was released, expected {released}, of those up to {self.next - 1} that were taken: "
                "parcels of an actor are released once each, in order"
            )
        self._released.store(number + 1)  # all that was read of it was read before


def _slots(memory: np.ndarray, parcel: Layout, slots: int) -> tuple[list[Word], list[np.ndarray]]:
    """Each slot's word and the bytes of its parcel; the word has a cache line for itself."""
    size = _slot_bytes(parcel)
    each = [memory[slot * size : (slot + 1) * size] for slot in range(slots)]
    return [Word(slot, 0) for slot in each], [slot[CACHE_LINE:] for slot in each]


def _slot_bytes(parcel: Layout) -> int:
    return CACHE_LINE + parcel.num_bytes
