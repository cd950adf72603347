"""Which transitions are still owed their gradient steps: the replay ratio, kept to the step.

A block's updates are due when a block's worth of transitions has been collected. A step in which an env was only
reset is no transition, so with such envs some blocks are followed by no updates. What is owed is part of a checkpoint,
and never more than one block beside the present one: a run that could not learn for a while does not catch up in a
burst.
"""

MOST_BLOCKS_OWED = 2


class Limiter:
    """`owed` counts transitions collected while learning whose gradient steps have not been taken."""

    def __init__(self, transitions_per_block: int) -> None:
        self.per_block, self.owed = transitions_per_block, 0

    def earn(self, transitions: int) -> None:
        """Count what was collected."""
        self.owed = min(self.owed + transitions, MOST_BLOCKS_OWED * self.per_block)

    def give_back(self) -> None:
        """The updates that were taken last were not made: they are due again."""
        self.owed += self.per_block

    def take(self) -> bool:
        """Whether a block's updates are due; if so they count as taken."""
        if self.owed < self.per_block:
            return False
        self.owed -= self.per_block
        return True
