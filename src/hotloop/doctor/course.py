"""Whether a run's steps or its episodes take longer as it goes on: its first slices against its last."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FEWEST_PIECES = 6
SAME, SLOWER = 1.15, 1.3
"""Times as long that a step may take at the end to count as the same; from which on it is said to be slower."""
LONGER, FEWEST_EPISODES = 1.5, 3
"""Times as many steps of an episode that count as more, and episodes of each end that must have been seen."""
WIDE = 1.645
"""Standard errors by which more must be more: it is by chance in one of twenty cases."""


class Piece(NamedTuple):
    """A slice of the run as it is."""

    env_steps: int
    seconds: float
    episodes: int
    """That ended in it."""
    stages: Mapping[str, float]
    """Seconds of each; nothing for a program on the device."""
    collecting: float
    """Seconds of garbage collection."""
    grown: int | None
    """Bytes that the process took beyond what was stored in the replay."""


class Third(NamedTuple):
    """Of a run that was looked at."""

    of_step: float
    """Seconds of an env step."""
    env_steps: int
    episodes: int
    stages: dict[str, float]
    """Seconds of an env step."""


class Course(NamedTuple):
    """The first third and the last one."""

    first: Third
    last: Third
    envs: int = 1
    """That step together: where their episodes end at once, a third may have those of all envs more, or fewer."""

    @property
    def slower(self) -> float:
        """Times as long that a step takes at the end."""
        return self.last.of_step / self.first.of_step

    @property
    def longer(self) -> float | None:
        """Times as many steps that an episode has at the end; None where too few have ended.

        Steps made for each episode that ended: a slice begins and ends within episodes.
        """
        first, last = self.first, self.last
        if min(first.episodes, last.episodes) < FEWEST_EPISODES:
            return None
        return self.steps_per_episode[1] / self.steps_per_episode[0]

    @property
    def steps_per_episode(self) -> tuple[float, float]:
        """First and last."""
        first, last = self.first, self.last
        return first.env_steps / max(1, first.episodes), last.env_steps / max(1, last.episodes)

    @property
    def has_longer_episodes(self) -> bool:
        """Whether episodes last longer, clearly, and steps do not."""
        if self.longer is None or self.longer < LONGER or self.slower > SAME:
            return False
        error = math.sqrt(1 / self.first.episodes + 1 / self.last.episodes)
        return math.log(self.longer) > WIDE * error and self._longer_at_least >= LONGER

    @property
    def _longer_at_least(self) -> float:
        """As `longer`, if the first third had episodes of all envs too many, and the last one too few."""
        first, last = self.first, self.last
        at_first = first.env_steps / max(1, first.episodes - self.envs)
        return last.env_steps / (last.episodes + self.envs) / max(at_first, 1e-12)

    @property
    def grew(self) -> str | None:
        """The stage that has become slower by most, where steps have; None where they have not."""
        if self.slower < SLOWER:
            return None
        more = {name: each - self.first.stages.get(name, 0.0) for name, each in self.last.stages.items()}
        return max(more, key=lambda name: more[name], default=None)


def course_of(pieces: Sequence[Piece], envs: int = 1) -> Course | None:
    """None where there are too few; so many envs step together."""
    if len(pieces) < FEWEST_PIECES:
        return None
    third = len(pieces) // 3
    return Course(_third(pieces[:third]), _third(pieces[-third:]), envs)


def growth_of(pieces: Sequence[Piece]) -> float | None:
    """Bytes of an env step by which the process grows; None where that is not known.

    Of both halves the one in which it grew less: what is taken once, for a cache or a buffer, is no growth.
    """
    half = len(pieces) // 2
    if half == 0 or any(piece.grown is None for piece in pieces):
        return None
    halves = (pieces[:half], pieces[-half:])
    return max(0.0, min(sum(each.grown or 0 for each in part) / _steps(part) for part in halves))


def collecting_of(pieces: Sequence[Piece]) -> float:
    """Share of the time that went into garbage collection."""
    return sum(piece.collecting for piece in pieces) / max(sum(piece.seconds for piece in pieces), 1e-12)


def _third(pieces: Sequence[Piece]) -> Third:
    steps, names = _steps(pieces), pieces[0].stages
    return Third(
        of_step=sum(piece.seconds for piece in pieces) / steps,
        env_steps=steps,
        episodes=sum(piece.episodes for piece in pieces),
        stages={name: sum(piece.stages[name] for piece in pieces) / steps for name in names},
    )


def _steps(pieces: Sequence[Piece]) -> int:
    return max(1, sum(piece.env_steps for piece in pieces))
