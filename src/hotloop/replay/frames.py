"""Observations stored once: a transition then holds numbers of frames instead of two copies of what was seen.

An observation is a stack of k frames (k = 1: the observation itself). Each frame of an episode is written once; the
next observation is the stack moved on by one frame, and the last one of a transition is the first one of the next.
Frames are numbered in the order they came; number i lies in place i % capacity.
"""

from typing import TypedDict

import numpy as np

from hotloop.errors import SpecError
from hotloop.replay.host_ring import write_around
from hotloop.spec import Replay
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


SHARED_FROM = 1024
"""Bytes of an observation from which it is stored once instead of twice."""


def are_shared(spec: Replay, obs: Specs) -> bool:
    """Whether transitions hold numbers of frames, or observations of these shapes as they are."""
    is_large = spec.storage == "auto" and not spec.hindsight and num_bytes(obs) >= SHARED_FROM
    return spec.stacked_frames > 1 or spec.storage == "shared" or is_large


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
    """A ring of the newest `capacity` frames; an observation is a `stack` of them."""

    def __init__(self, obs: Specs, stack: int, capacity: int, slack: int = 0) -> None:
        """Between the writing of a transition's first frame and its insertion pass at most `slack` others."""
        parts = leaves(obs)
        if stack > 1 and (parts != [obs] or not parts[0].shape or parts[0].shape[0] != stack):
            seen = ", ".join(str(tuple(leaf.shape)) for leaf in parts)
            raise SpecError(
                f"replay.stacked_frames is {stack}, but an observation has shape {seen}; "
                "its first axis must be the stacked frames"
            )
        self.stack, self.capacity, self.slack = stack, capacity, slack
        self.frame: Specs = tree_map(lambda leaf: ArraySpec(leaf.shape[stack > 1 :], leaf.dtype), obs)
        self.frames: Arrays = None
        self.written = 0
        self.row = ArraySpec((stack,), np.int64)

    @classmethod
    def for_transitions(cls, obs: Specs, stack: int, num_envs: int, transitions: int, n_step: int) -> "Frames":
        """With room for the frames of so many transitions of N envs."""
        slack = (stack + n_step + 1) * num_envs * (stack + 1)
        return cls(obs, stack, transitions + transitions // HEADROOM + slack, slack)

    def append(self, frames_M: Arrays) -> int:
        """Write M frames; returns the number of the first."""
        if self.frames is None:  # never touched before it is written: a large store costs what is in it
            self.frames = empty_of(self.frame, (self.capacity,))
        first = self.written
        tree_map(lambda stored, new: write_around(stored, first, new), self.frames, frames_M)
        self.written += len(leaves(frames_M)[0])
        return first

    def _place(self, frames_M: Arrays) -> np.ndarray:
        """Write M frames; returns their numbers."""
        first = self.append(frames_M)
        return np.arange(first, self.written)

    def move_to(self, frames: Arrays, numbers: np.ndarray) -> None:
        """Go on in other memory, which begins with the frames of these numbers: they are numbered from 0 there."""
        if len(numbers):
            kept = tree_map(lambda stored: stored[numbers % self.capacity], self.frames)
            tree_map(lambda stored, new: write_around(stored, 0, new), frames, kept)
        self.frames, self.written = frames, len(numbers)

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
        moved = slice(None) if np.count_nonzero(valid_N) == len(valid_N) else np.flatnonzero(valid_N)
        newest = final_N
        if self.stack > 1:
            stacks_NK: np.ndarray = final_N  # type: ignore[assignment]  # of stacks there is one array
            self._check_stacks(seen, stacks_NK, valid_N)  # type: ignore[arg-type]
            newest = stacks_NK[:, -1]
        reached[moved, :-1] = numbers[moved, 1:]
        reached[moved, -1] = self._place(tree_map(lambda leaf: leaf[moved], newest))
        now = reached
        if np.count_nonzero(began_N):
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
        return observations(self.frames, numbers % self.capacity)

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


def observations(frames: Arrays, places: np.ndarray) -> Arrays:
    """Copies of the observations whose frames lie in these places (…, k)."""
    if places.shape[-1] == 1:
        places = places[..., 0]
    return tree_map(lambda stored: stored.take(places, axis=0), frames)
