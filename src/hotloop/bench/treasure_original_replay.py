"""A replay that keeps each frame once, in NumPy arrays: stacks and three-turn returns are put together when drawn.

Rows are numbered as they are written; row n lies at place n % capacity until n + capacity overwrites it. An epoch is a
row per turn, then one for what was seen at its end, in which nothing was done. Neither stacks nor returns leave
their epoch, and nothing is drawn whose frames or rewards are overwritten or not there yet.
"""

import numpy as np
import torch

from hotloop.bench.treasure_original_iqn import Batch

NOTHING_DONE = -1


class FrameReplay:
    """The newest `capacity` rows of one agent."""

    def __init__(self, capacity: int, frame_size: int, *, stack: int, steps: int, discount: float) -> None:
        self.capacity, self.stack, self.steps, self.discount = capacity, stack, steps, discount
        self.frames = np.zeros((capacity, frame_size), np.uint8)
        self.action = np.zeros(capacity, np.int64)
        self.reward = np.zeros(capacity, np.float32)
        self.turn = np.zeros(capacity, np.int64)
        self.written = 0

    def __len__(self) -> int:
        return min(self.written, self.capacity)

    def add(self, turn: int, frame: np.ndarray, action: int, reward: float) -> None:
        """What was seen at the start of a turn, what was done, and what it brought."""
        before = (self.written - 1) % self.capacity
        was_end = self.written == 0 or self.action[before] == NOTHING_DONE
        expected = 0 if was_end else int(self.turn[before]) + 1
        if turn != expected:
            raise ValueError(
                f"a row of turn {turn} was added, expected turn {expected}: rows of an epoch are consecutive"
            )
        self._write(turn, frame, action, reward)

    def end(self, turn: int, frame: np.ndarray) -> None:
        """What was seen at the end of an epoch."""
        self._write(turn, frame, NOTHING_DONE, 0.0)

    def sample(self, batch_size: int, random: np.random.Generator) -> Batch:
        """Transitions, each of those that are complete as likely as any other."""
        rows = np.empty(0, np.int64)
        while len(rows) < batch_size:
            drawn = random.integers(self.written - len(self), self.written, batch_size)
            rows = np.concatenate([rows, drawn[self.is_complete(drawn)]])
        return self.transitions(rows[:batch_size])

    def is_complete(self, rows: np.ndarray) -> np.ndarray:
        """Whether a transition starts in each of these rows, with all that belongs to it still and already there."""
        places = rows % self.capacity
        is_seen = rows - np.minimum(self.stack - 1, self.turn[places]) >= self.written - len(self)
        is_turn = self.action[places] != NOTHING_DONE
        complete: np.ndarray = is_turn & is_seen & (self._last_rows(rows)[0] < self.written)
        return complete

    def transitions(self, rows: np.ndarray) -> Batch:
        """The transitions that start in these rows."""
        last, r_t, discount_t = self._last_rows(rows)
        return Batch(
            torch.from_numpy(self._stacks(rows)),
            torch.from_numpy(self.action[rows % self.capacity]),
            torch.from_numpy(r_t),
            torch.from_numpy(self._stacks(last)),
            torch.from_numpy(discount_t),
        )

    def _write(self, turn: int, frame: np.ndarray, action: int, reward: float) -> None:
        place = self.written % self.capacity
        self.frames[place], self.turn[place], self.action[place], self.reward[place] = frame, turn, action, reward
        self.written += 1

    def _last_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where each transition ends, after `steps` turns or with its epoch; its rewards, and γ to their number.

        A row number that has not been written yet means that the transition is not complete.
        """
        last, r_t = rows.copy(), np.zeros(len(rows), np.float32)
        discount_t = np.ones(len(rows), np.float32)
        for _ in range(self.steps):
            places = last % self.capacity
            goes_on = (last < self.written) & (self.action[places] != NOTHING_DONE)
            r_t += np.where(goes_on, discount_t * self.reward[places], 0).astype(np.float32)
            discount_t *= np.where(goes_on, np.float32(self.discount), np.float32(1))
            last += goes_on
        return last, r_t, discount_t

    def _stacks(self, rows: np.ndarray) -> np.ndarray:
        """Frames up to each row, oldest first, (B, stack x numbers) float32; zeros before the epoch's start."""
        back = np.arange(self.stack - 1, -1, -1)
        frames = self.frames[(rows[:, None] - back) % self.capacity].astype(np.float32)
        frames *= (self.turn[rows % self.capacity][:, None] >= back)[:, :, None]
        return frames.reshape(len(rows), -1)
