"""Observations stored once: a transition then holds numbers of frames instead of two copies of what was seen.

An observation is a stack of k frames (k = 1: the observation itself). Each frame of an episode is written once; the
next observation is the stack moved on by one frame, and the last one of a transition is the first one of the next.
Frames are numbered in the order they came; number i lies in place i % capacity.
"""

from typing import TypedDict

import numpy as np

from hotloop.errors import SpecError
from hotloop.trees import (
    Arrays,
    ArraySpec,
    Number,
    Shapes,
    Specs,
    empty_of,
    leaves,
    num_bytes,
    specs_of,
    tree_map,
    zeros_of,
)

HEADROOM = 32
"""Frames beyond one per transition, as a share 1/32 of the capacity: each episode needs a few more than its steps.
Shorter episodes than that make the replay hold somewhat fewer transitions."""


class FrameArrays(TypedDict, total=False):
    """What a checkpoint keeps of the frames, if there are any."""

    frames: Arrays
    written: Number


class Whole:
    """No frames: a transition holds its observations themselves."""

    def __init__(self, obs: Specs) -> None:
        self.row = obs

    def begin(self, obs_N: Arrays) -> Arrays:
        """What a transition keeps of first observations."""
        return obs_N

    def move_on(
        self, before: Arrays, seen: Arrays, final_N: Arrays, obs_N: Arrays, valid_N: np.ndarray, began_N: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """What transitions keep of the states reached, and of those the next step starts from."""
        del before, seen, valid_N, began_N
        return final_N, obs_N

    def take(self, stored: Arrays) -> Arrays:
        """The observations."""
        return stored

    def num_bytes(self) -> int:
        """Memory beside the transitions."""
        return 0

    def arrays(self) -> FrameArrays:
        """Nothing to save."""
        return {}

    def template(self, written: int) -> dict[str, Shapes]:
        """Nothing to load."""
        del written
        return {}

    def restore(self, arrays: FrameArrays) -> None:
        """Nothing to load."""


class Frames:
    """A ring of frames, with room for those of so many `transitions`; an observation is a `stack` of them."""

    def __init__(self, obs: Specs, stack: int, num_envs: int, transitions: int, n_step: int) -> None:
        parts = leaves(obs)
        if stack > 1 and (parts != [obs] or not parts[0].shape or parts[0].shape[0] != stack):
            seen = ", ".join(str(tuple(leaf.shape)) for leaf in parts)
            raise SpecError(
                f"replay.stacked_frames is {stack}, but an observation has shape {seen}; "
                "its first axis must be the stacked frames"
            )
        self.stack = stack
        # Between the writing of a transition's first frame and its insertion pass at most so many others.
        self.slack = (stack + n_step + 1) * num_envs * (stack + 1)
        self.capacity = transitions + transitions // HEADROOM + self.slack
        self.frame: Specs = tree_map(lambda leaf: ArraySpec(leaf.shape[stack > 1 :], leaf.dtype), obs)
        self.frames: Arrays = None
        self.written = 0
        self.row = ArraySpec((stack,), np.int64)

    def _place(self, frames_M: Arrays) -> np.ndarray:
        """Write M frames; returns their numbers."""
        if self.frames is None:  # never touched before it is written: a large store costs what is in it
            self.frames = empty_of(self.frame, (self.capacity,))
        count = len(leaves(frames_M)[0])
        numbers = self.written + np.arange(count)
        places = numbers % self.capacity
        tree_map(lambda stored, new: stored.__setitem__(places, new), self.frames, frames_M)
        self.written += count
        return numbers

    def begin(self, obs_N: Arrays) -> np.ndarray:
        """Numbers (N, k) of first observations; a frame that repeats the one before it is not written again."""
        if self.stack == 1:
            return self._place(obs_N)[:, None]
        stacks_NK: np.ndarray = obs_N  # type: ignore[assignment]  # of stacks there is one array
        differs_NK = np.ones(stacks_NK.shape[:2], bool)
        pairs = stacks_NK.reshape(*stacks_NK.shape[:2], -1)
        differs_NK[:, 1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=-1)
        first = self.written
        self._place(stacks_NK[differs_NK])
        numbers: np.ndarray = first - 1 + np.cumsum(differs_NK.reshape(-1)).reshape(differs_NK.shape)
        return numbers

    def move_on(
        self, before: Arrays, seen: Arrays, final_N: Arrays, obs_N: Arrays, valid_N: np.ndarray, began_N: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the states reached and of those the next step starts from; `before` and `seen` are where it began.

        Where an episode began the next step starts from `obs_N`, else from the state reached.
        """
        numbers: np.ndarray = before  # type: ignore[assignment]  # as `begin` gave them
        reached = numbers.copy()
        moved = np.flatnonzero(valid_N)
        newest = final_N
        if self.stack > 1:
            stacks_NK: np.ndarray = final_N  # type: ignore[assignment]  # of stacks there is one array
            self._check_stacks(seen, stacks_NK, valid_N)  # type: ignore[arg-type]
            newest = stacks_NK[:, -1]
        reached[moved, :-1] = numbers[moved, 1:]
        reached[moved, -1] = self._place(
            newest if len(moved) == len(valid_N) else tree_map(lambda leaf: leaf[moved], newest)
        )
        now = reached
        if began_N.any():
            now = reached.copy()
            now[began_N] = self.begin(tree_map(lambda leaf: leaf[began_N], obs_N))
        return reached, now

    def _check_stacks(self, seen: np.ndarray, final_N: np.ndarray, valid_N: np.ndarray) -> None:
        moved_on = (seen[:, 1:] == final_N[:, :-1]).reshape(len(valid_N), -1).all(axis=1) | ~valid_N
        if not moved_on.all():
            raise SpecError(
                f"replay.stacked_frames is {self.stack}, but an observation of env {int(np.argmin(moved_on))} is not "
                "the one before it moved on by one frame; use stacked_frames: 1"
            )

    def take(self, stored: Arrays) -> Arrays:
        """The observations with these numbers (…, k)."""
        numbers: np.ndarray = stored  # type: ignore[assignment]  # as `begin` gave them
        places = numbers % self.capacity
        if self.stack == 1:
            places = places[..., 0]
        return tree_map(lambda frames: frames.take(places, axis=0), self.frames)

    @property
    def oldest(self) -> int:
        """Transitions inserted when fewer frames than this had been written may have lost one."""
        return self.written - self.capacity + self.slack

    def num_bytes(self) -> int:
        """Memory of the frames."""
        return self.capacity * num_bytes(self.frame)

    def arrays(self) -> FrameArrays:
        """The frames that were written."""
        used = min(self.written, self.capacity)
        frames = zeros_of(self.frame, (0,))
        if self.frames is not None:
            frames = tree_map(lambda stored: stored[:used], self.frames)
        return {"frames": frames, "written": np.int64(self.written)}

    def template(self, written: int) -> dict[str, Shapes]:
        """Shapes of what `arrays` gives when so many frames were ever written."""
        used = min(max(written, 0), self.capacity)
        return {"frames": specs_of(self.frame, (used,)), "written": np.int64(0)}

    def restore(self, arrays: FrameArrays) -> None:
        """Take back what `arrays` gave."""
        used = min(int(arrays["written"]), self.capacity)
        self._place(zeros_of(self.frame, (0,)))
        tree_map(lambda stored, saved: stored.__setitem__(slice(0, used), saved), self.frames, arrays["frames"])
        self.written = int(arrays["written"])
