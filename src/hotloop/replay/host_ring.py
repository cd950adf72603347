"""The host ring: transitions in NumPy arrays, written a vector step at a time and sampled K batches at once."""

from typing import Any

import jax
import numpy as np

from hotloop.replay.ring import Item


class HostRing:
    """The newest `capacity` rows; `row` gives shapes and dtypes of one."""

    def __init__(self, capacity: int, row: Item) -> None:
        self.capacity, self.size, self.position = capacity, 0, 0
        # Not zeros: memory that is never written is never touched, so a large ring costs what is in it.
        self.rows: Item = jax.tree.map(lambda leaf: np.empty((capacity, *leaf.shape), leaf.dtype), row)

    def insert(self, items: Item, valid: np.ndarray) -> None:
        """Copy the valid ones of M rows in, over the oldest."""
        chosen = np.flatnonzero(valid)
        places = (self.position + np.arange(len(chosen))) % self.capacity
        if len(chosen) == len(valid):
            jax.tree.map(lambda stored, new: stored.__setitem__(places, new), self.rows, items)
        else:
            jax.tree.map(lambda stored, new: stored.__setitem__(places, new[chosen]), self.rows, items)
        self.position = int((self.position + len(chosen)) % self.capacity)
        self.size = int(min(self.size + len(chosen), self.capacity))

    def sample(self, random: np.random.Generator, shape: tuple[int, ...]) -> Item:
        """Draw rows uniformly with replacement, as arrays of leading `shape`."""
        index = random.integers(self.size, size=shape)
        rows: Item = jax.tree.map(lambda stored: stored.take(index, axis=0), self.rows)
        return rows

    def arrays(self) -> dict[str, Any]:
        """What is in it, for a checkpoint: only rows that are valid."""
        return {
            "rows": jax.tree.map(lambda stored: stored[: self.size], self.rows),
            "position": np.int64(self.position),
            "size": np.int64(self.size),
        }

    def restore(self, arrays: dict[str, Any]) -> None:
        """Take back what `arrays` gave, or raise ValueError."""
        size, position = int(arrays["size"]), int(arrays["position"])
        if not 0 <= size <= self.capacity or not 0 <= position < self.capacity:
            raise ValueError(f"the checkpoint's ring has size {size} and position {position} of {self.capacity} rows")
        jax.tree.map(lambda stored, kept: stored.__setitem__(slice(0, size), kept), self.rows, arrays["rows"])
        self.size, self.position = size, position
