"""Two replays with the same contents: a list of tuples filled env by env, and arrays filled a step at a time."""

from typing import NamedTuple, Protocol

import numpy as np
import torch


class Batch(NamedTuple):
    """B transitions as tensors (or N of them on the way in)."""

    s_tm1: torch.Tensor
    a_tm1: torch.Tensor
    r_t: torch.Tensor
    s_t: torch.Tensor
    terminated_t: torch.Tensor


class Replay(Protocol):
    """The newest `capacity` transitions."""

    def __len__(self) -> int:
        """Transitions held."""

    def push(self, step: Batch) -> None:
        """Keep one transition per env."""

    def sample(self, indices: np.ndarray) -> Batch:
        """Return the transitions at these places."""

    def contents(self) -> list[np.ndarray]:
        """All that is held, field by field, for comparison."""


class ListReplay:
    """A ring of Python tuples. `transfer` is how a step's tensors reach it: per item, or whole arrays first."""

    def __init__(self, capacity: int, transfer: str) -> None:
        self.capacity, self.transfer = capacity, transfer
        self.items: list[tuple[np.ndarray, int, float, np.ndarray, bool]] = []
        self.pushed = 0

    def __len__(self) -> int:
        return len(self.items)

    def push(self, step: Batch) -> None:
        """Keep one transition per env, one call each."""
        if self.transfer == "batched":
            rows = (array.numpy() if array.ndim > 1 else array.tolist() for array in step)
            for row in zip(*rows, strict=True):
                self._push_one(*row)
            return
        for i in range(len(step.a_tm1)):
            self._push_one(
                step.s_tm1[i].cpu().numpy(),
                step.a_tm1[i].item(),
                step.r_t[i].item(),
                step.s_t[i].cpu().numpy(),
                step.terminated_t[i].item(),
            )

    def sample(self, indices: np.ndarray) -> Batch:
        """Collect tuples, turn them round, stack them, make tensors of them."""
        s_tm1, a_tm1, r_t, s_t, terminated_t = zip(*(self.items[i] for i in indices.tolist()), strict=True)
        return Batch(
            torch.from_numpy(np.stack(s_tm1)),
            torch.tensor(a_tm1),
            torch.tensor(r_t),
            torch.from_numpy(np.stack(s_t)),
            torch.tensor(terminated_t),
        )

    def contents(self) -> list[np.ndarray]:
        """All that is held, in order of place."""
        return [array.numpy() for array in self.sample(np.arange(len(self)))]

    def _push_one(self, s_tm1: np.ndarray, a_tm1: int, r_t: float, s_t: np.ndarray, terminated_t: bool) -> None:
        item = (s_tm1, a_tm1, r_t, s_t, terminated_t)
        if len(self.items) < self.capacity:
            self.items.append(item)
        else:
            self.items[self.pushed % self.capacity] = item
        self.pushed += 1


class ArrayReplay:
    """A ring of preallocated NumPy arrays; a step is one assignment per field."""

    def __init__(self, capacity: int, obs_size: int) -> None:
        self.capacity, self.pushed = capacity, 0
        self.arrays = Batch(
            np.zeros((capacity, obs_size), np.float32),
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros((capacity, obs_size), np.float32),
            np.zeros(capacity, bool),
        )

    def __len__(self) -> int:
        return min(self.pushed, self.capacity)

    def push(self, step: Batch) -> None:
        """Keep one transition per env, all in one call."""
        places = (self.pushed + np.arange(len(step.a_tm1))) % self.capacity
        for array, new in zip(self.arrays, step, strict=True):
            array[places] = new.numpy()
        self.pushed += len(places)

    def sample(self, indices: np.ndarray) -> Batch:
        """Gather rows."""
        return Batch(*(torch.from_numpy(array[indices]) for array in self.arrays))

    def contents(self) -> list[np.ndarray]:
        """All that is held, in order of place."""
        return [array[: len(self)] for array in self.arrays]
