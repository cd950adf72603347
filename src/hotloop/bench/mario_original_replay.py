"""The replay of the pixel pipeline: both stacks of each transition whole, in uint8; drawn by priority."""

from typing import NamedTuple

import numpy as np

ALPHA, BETA, KEPT_POSSIBLE = 0.6, 0.4, 1e-6


class Experience(NamedTuple):
    """One transition, as it travels."""

    state: np.ndarray
    """uint8 (stack, size, size)"""
    action: int
    reward: float
    next_state: np.ndarray
    terminated: bool
    ended: bool
    """The episode did, by its own rules or cut off; a cut one is bootstrapped from."""


class Drawn(NamedTuple):
    """B transitions, where they lie and what each counts."""

    places: np.ndarray
    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray
    terminated: np.ndarray
    weight: np.ndarray
    """(N P)^-β, the largest of the batch 1."""


class Priorities:
    """(|TD error| + ε)^α of each place; draws are by their cumulative sum."""

    def __init__(self, capacity: int) -> None:
        self.values, self.largest = np.zeros(capacity), 1.0

    def draw(self, count: int, held: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Places in proportion to their priorities, and what a sample of each counts."""
        up_to = np.cumsum(self.values[:held])
        places = np.minimum(np.searchsorted(up_to, random.random(count) * up_to[-1], side="right"), held - 1)
        weight = (held * self.values[places] / up_to[-1]) ** -BETA
        return places, (weight / weight.max()).astype(np.float32)

    def set_new(self, place: int) -> None:
        """As large as any so far."""
        self.values[place] = self.largest

    def update(self, places: np.ndarray, errors: np.ndarray) -> None:
        """By the TD errors that were found."""
        self.values[places] = (np.abs(errors) + KEPT_POSSIBLE) ** ALPHA
        self.largest = max(self.largest, float(self.values[places].max()))


class StackedReplay:
    """The newest `capacity` transitions."""

    def __init__(self, capacity: int, shape: tuple[int, int, int]) -> None:
        self.capacity, self.written = capacity, 0
        self.state, self.next_state = np.zeros((capacity, *shape), np.uint8), np.zeros((capacity, *shape), np.uint8)
        self.action, self.reward = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.terminated, self.priorities = np.zeros(capacity, np.float32), Priorities(capacity)
        self._room: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return min(self.written, self.capacity)

    def add(self, experience: Experience) -> None:
        """Over the oldest one, if it is full."""
        place = self.written % self.capacity
        self.state[place], self.next_state[place] = experience.state, experience.next_state
        self.action[place], self.reward[place] = experience.action, experience.reward
        self.terminated[place] = experience.terminated
        self.priorities.set_new(place)
        self.written += 1

    def sample(self, count: int, random: np.random.Generator, *, preallocated: bool = False) -> Drawn:
        """So many, by priority; with `preallocated` the pictures are valid until the next draw."""
        places, weight = self.priorities.draw(count, len(self), random)
        if preallocated:
            if count not in self._room:
                shape = (count, *self.state.shape[1:])
                self._room[count] = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
            state, next_state = self._room[count]
            np.take(self.state, places, axis=0, out=state, mode="clip")
            np.take(self.next_state, places, axis=0, out=next_state, mode="clip")
        else:
            state, next_state = self.state[places], self.next_state[places]
        return Drawn(
            places, state, self.action[places], self.reward[places], next_state, self.terminated[places], weight
        )


def bytes_of(capacity: int, stack: int, size: int) -> int:
    """Of all pictures: two stacks for each transition."""
    return 2 * capacity * stack * size**2


def bytes_of_frames(capacity: int, size: int) -> int:
    """Of the same where each frame is stored once, but for the first stacks of episodes."""
    return capacity * size**2
