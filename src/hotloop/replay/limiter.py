"""Which transitions are still owed their gradient steps: the replay ratio, kept to the step, or turns by place.

A block's updates are due when a block's worth of transitions has been collected. A step in which an env was only
reset is no transition, so with such envs some blocks are followed by no updates. What is owed is part of a checkpoint,
and never more than one block beside the present one: a run that could not learn for a while does not catch up in a
burst.
"""

from typing import Protocol

MOST_BLOCKS_OWED = 2


class Dues(Protocol):
    """When gradient steps are due; `owed` is what a checkpoint keeps of it."""

    owed: int

    def earn(self, transitions: int, until: int) -> None:
        """Count transitions that were collected while learning; `until` counts all of the run."""

    def take(self) -> bool:
        """Whether a block's updates are due; if so they count as taken."""

    def give_back(self) -> None:
        """The updates that were taken last were not made: they are due again."""

    def restore(self, owed: int) -> None:
        """Take back what was owed, within bounds."""


class Limiter:
    """`owed` counts transitions collected while learning whose gradient steps have not been taken."""

    def __init__(self, transitions_per_block: int) -> None:
        self.per_block, self.owed = transitions_per_block, 0

    def earn(self, transitions: int, until: int = 0) -> None:
        """Count what was collected."""
        del until
        self.restore(self.owed + transitions)

    def give_back(self) -> None:
        """The updates that were taken last were not made: they are due again."""
        self.owed += self.per_block

    def take(self) -> bool:
        """Whether a block's updates are due; if so they count as taken."""
        if self.owed < self.per_block:
            return False
        self.owed -= self.per_block
        return True

    def restore(self, owed: int) -> None:
        """Take back what was owed, within bounds."""
        self.owed = min(max(0, owed), MOST_BLOCKS_OWED * self.per_block)


class RingTurns:
    """A turn is owed once a transition lies at a multiple of `every` in a ring of `capacity` places."""

    def __init__(self, every: int, capacity: int) -> None:
        self.every, self.capacity, self.owed = every, capacity, 0

    def earn(self, transitions: int, until: int) -> None:
        """Look where the last transitions of `until` lie."""
        if any(number % self.capacity % self.every == 0 for number in range(until - transitions, until)):
            self.owed = 1

    def give_back(self) -> None:
        """The turn was not made: it is due again."""
        self.owed = 1

    def take(self) -> bool:
        """Whether a turn is due; if so it counts as taken."""
        is_due, self.owed = self.owed > 0, 0
        return is_due

    def restore(self, owed: int) -> None:
        """Take back what was owed."""
        self.owed = int(owed > 0)
