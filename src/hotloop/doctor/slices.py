"""How much faster a session is with something changed for a while: slices of both in turn, until it is known well.

    as it is | changed one way | as it is | changed another way | as it is | …

A slice is compared with those beside it, so what else the machine does meanwhile happens to both. Slices are short, and
many: an interval comes from how their ratios differ.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from hotloop.errors import SpecError
from hotloop.pipelines.session import Session
from hotloop.progress import Reporter

SECONDS_OF_SLICE = 0.15
FEWEST_ROUNDS, MOST_ROUNDS = 5, 60
NARROW = 0.02
"""An interval of a ratio is narrow enough at this share of it, to each side."""
STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83, 15: 1.76, 20: 1.73}
"""By how many values there are: half the width, in standard errors, of an interval that holds in 90 of 100 cases."""
Changed = Callable[[], AbstractContextManager[None]]


class Ratio(NamedTuple):
    """Of two speeds, with an interval that holds it in 90 of 100 cases."""

    value: float
    low: float
    high: float
    """Infinite where one slice was all there was."""

    @property
    def interval(self) -> list[float] | None:
        """As JSON has it; None where nothing is known."""
        return [round(self.low, 3), round(self.high, 3)] if self.high < math.inf else None

    def __str__(self) -> str:
        known = f" ({self.low:.2f}–{self.high:.2f})" if self.interval else ""
        return f"{self.value:.2f}x{known}"


class Comparison(NamedTuple):
    """What slices showed."""

    env_steps_per_s: float
    """As it is."""
    stage_seconds: dict[str, float]
    """Of an env step as it is, by stage: those that a session on the host has."""
    times_as_fast: dict[str, Ratio]
    rounds: int


def compare(session: Session, ways: Mapping[str, Changed], until: float, reporter: Reporter) -> Comparison:
    """Run slices until every ratio is known well, or until `until`, as `time.monotonic` counts."""
    slices = _Slices(session)
    slices.find_length()
    for change in ways.values():
        with change():
            slices.run(blocks=1)  # in which it may compile or record
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    rounds = 0
    before = slices.as_it_is()
    while rounds < MOST_ROUNDS and (rounds < FEWEST_ROUNDS or not _are_known(ratios)):
        if rounds and time.monotonic() > until:
            break
        for name, change in ways.items():
            with change():
                speed = slices.run()
            after = slices.as_it_is()
            ratios[name].append(speed / math.sqrt(before * after))
            before = after
        rounds += 1
        reporter.show(rounds, MOST_ROUNDS, {"rounds of": " | ".join(ways)})
    return Comparison(
        slices.env_steps / slices.seconds,
        {name: seconds / slices.env_steps for name, seconds in slices.stage_seconds.items()},
        {name: interval_of(each) for name, each in ratios.items()},
        rounds,
    )


def interval_of(ratios: list[float]) -> Ratio:
    """Their geometric mean, and where it lies in 90 of 100 cases."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), 0.0, math.inf)
    wide = max(number for number in STUDENT if number <= len(logs))
    half = STUDENT[wide] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _are_known(ratios: Mapping[str, list[float]]) -> bool:
    intervals = [interval_of(each) for each in ratios.values()]
    return all(found.high / found.value - 1 <= NARROW for found in intervals)


class _Slices:
    """Pieces of a run, of about the same length while it is as it is."""

    def __init__(self, session: Session) -> None:
        self._session, self._blocks = session, 1
        self.stage_seconds: dict[str, float] = {}
        self.env_steps, self.seconds = 0, 0.0

    def find_length(self) -> None:
        """Take slices twice as long until one is long enough."""
        while True:
            began = time.perf_counter()
            self.run()
            if (passed := time.perf_counter() - began) >= SECONDS_OF_SLICE / 2:
                break
            self._blocks *= 2
        self._blocks = max(1, round(self._blocks * SECONDS_OF_SLICE / passed))

    def as_it_is(self) -> float:
        """Env steps a second of a slice in which nothing is changed; its stages are counted."""
        stages, steps = self._session.spans.seconds(), self._steps()
        speed = self.run()
        made = self._steps() - steps
        self.env_steps, self.seconds = self.env_steps + made, self.seconds + made / speed
        for name, seconds in self._session.spans.seconds().items():
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + seconds - stages[name]
        return speed

    def run(self, blocks: int | None = None) -> float:
        """Env steps a second."""
        before, began = self._steps(), time.perf_counter()
        self._session.advance(blocks or self._blocks)
        made = self._steps() - before
        if not made:
            raise SpecError("a stop rule of the spec (stop, guard) ended the run that is looked at")
        return made / (time.perf_counter() - began)

    def _steps(self) -> int:
        return self._session.read().steps_of_envs
