"""The host ring: rows in NumPy arrays, written a vector step at a time and drawn K batches at once.

Rows are numbered in the order they came; number i lies in place i % capacity. The newest `size` of them are valid.
"""

from typing import TypedDict

import numpy as np

from hotloop.experience import Item, Items, items_of
from hotloop.trees import ArraySpec, Number, Shapes, empty_of, leaves, specs_of, tree_map


class RingArrays(TypedDict):
    """What a checkpoint keeps of a ring."""

    rows: Items
    inserted: Number
    size: Number


class HostRing:
    """The newest `capacity` rows; `row` gives shapes and dtypes of one."""

    def __init__(self, capacity: int, row: Item[ArraySpec]) -> None:
        self.capacity, self.size, self.inserted = capacity, 0, 0
        self.row = row
        # Not zeros: memory that is never written is never touched, so a large ring costs what is in it.
        self.rows = items_of(row, (capacity,), empty_of)
        self._columns = leaves(self.rows)

    def insert(self, items: Items) -> np.ndarray:
        """Copy M rows in, over the oldest; returns their places."""
        columns = leaves(items)
        count = len(columns[0])
        if count > self.capacity:  # only the newest of them can stay
            columns = [column[count - self.capacity :] for column in columns]
            self.inserted += count - self.capacity
            count = self.capacity
        places = np.arange(self.inserted, self.inserted + count) % self.capacity
        for stored, new in zip(self._columns, columns, strict=True):
            write_around(stored, self.inserted, new)
        self.inserted += count
        self.size = min(self.size + count, self.capacity)
        return places

    def drop_oldest(self, count: int) -> np.ndarray:
        """Let the oldest rows go; returns their places."""
        first = self.inserted - self.size
        self.size -= count
        return np.arange(first, first + count) % self.capacity

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of rows, uniform with replacement."""
        return self.inserted - self.size + random.integers(self.size, size=shape)

    def take(self, numbers: np.ndarray) -> Items:
        """The rows with these numbers."""
        places = numbers % self.capacity
        return tree_map(lambda column: column.take(places, axis=0), self.rows)

    def arrays(self) -> RingArrays:
        """What is in it, for a checkpoint: every row that was ever written."""
        used = min(self.inserted, self.capacity)
        rows = tree_map(lambda stored: stored[:used], self.rows)
        return {"rows": rows, "inserted": np.int64(self.inserted), "size": np.int64(self.size)}

    def template(self, inserted: int) -> dict[str, Shapes]:
        """Shapes of what `arrays` gives when so many rows were ever inserted."""
        used = min(max(inserted, 0), self.capacity)
        return {"rows": specs_of(self.row, (used,)), "inserted": np.int64(0), "size": np.int64(0)}

    def restore(self, arrays: RingArrays) -> None:
        """Take back what `arrays` gave, or raise ValueError."""
        size, inserted = int(arrays["size"]), int(arrays["inserted"])
        if not 0 <= size <= min(inserted, self.capacity):
            raise ValueError(f"the checkpoint's ring has {size} valid rows of {inserted} in {self.capacity} places")
        used = min(inserted, self.capacity)
        tree_map(lambda stored, saved: stored.__setitem__(slice(0, used), saved), self.rows, arrays["rows"])
        self.size, self.inserted = size, inserted


def write_around(ring: np.ndarray, number: int, new: np.ndarray) -> None:
    """Copy entries, no more than the ring has places, the first as `number`: one slice, or two where they wrap."""
    place = number % len(ring)
    room = len(ring) - place
    ring[place : place + len(new)] = new[:room]
    if len(new) > room:
        ring[: len(new) - room] = new[room:]
