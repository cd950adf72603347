"""Who is trained in one run: seeds, each with envs of its own, or the agents of one env.

A run has at least one member. Readings, metrics, evaluations, weights and pictures have an entry for each.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

AGENT = "agent"


@dataclass(frozen=True)
class Members:
    """The members of a run, in the order of every array that has an entry for each."""

    kind: str
    """What each of them is, in one word: `seed`, `agent`."""
    numbers: tuple[int, ...]
    """The number each goes by: a seed is its own, agents are counted from 0."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.numbers)

    @property
    def are_many(self) -> bool:
        """Whether there is more than one, so that what is said of the run is not what is said of its only member."""
        return len(self.numbers) > 1

    @property
    def are_a_team(self) -> bool:
        """Whether they are parts of one whole; else each is a repetition of the same, and statistics are over them."""
        return self.kind == AGENT

    @property
    def by(self) -> str:
        """Where a line of metrics has the figures of each: `by_seed`."""
        return f"by_{self.kind}"

    @property
    def names(self) -> list[str]:
        """The folder of each one's weights: `seed-3`."""
        return [f"{self.kind}-{number}" for number in self.numbers]

    def named(self, index: int) -> str:
        """One of them, in a sentence: `seed 3`."""
        return f"{self.kind} {self.numbers[index]}"

    def __str__(self) -> str:
        """All of them, in a sentence: `5 seeds from 3`, `5 agents`."""
        if not self.are_many:
            return self.named(0)
        return f"{len(self)} {self.kind}s" + ("" if self.are_a_team else f" from {self.numbers[0]}")


def is_member_name(name: str) -> bool:
    """Whether a member of some run may have its weights under this name."""
    return re.fullmatch(r"[a-z]{1,16}-\d{1,10}", name) is not None


def seeds(numbers: Iterable[int]) -> Members:
    """Runs that differ in nothing but their seed."""
    return Members("seed", tuple(numbers))


def agents(count: int) -> Members:
    """Agents of one env, which learn side by side."""
    return Members(AGENT, tuple(range(count)))
