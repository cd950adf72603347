"""How much faster a session is with something changed for a while: slices of both in turn, until it is known well.

    as it is | changed one way | as it is | changed another way | as it is | …

A slice is compared with those beside it, so what else the machine does meanwhile happens to both. Slices are short, and
many: an interval comes from how their ratios differ.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import psutil

from hotloop.doctor.counters import resident
from hotloop.doctor.course import Piece
from hotloop.doctor.model import BETWEEN
from hotloop.doctor.watch import Watch, Watched
from hotloop.errors import SpecError
from hotloop.interrupts import end_is_wanted
from hotloop.pipelines.host_run import HostRun
from hotloop.pipelines.session import Reading
from hotloop.progress import Reporter

SECONDS_OF_SLICE = 0.15
FEWEST_ROUNDS, USUAL_ROUNDS, MOST_ROUNDS = 3, 5, 60
"""However little time there is; if there is time; at most."""
READINGS = 5
SOME_BLOCKS = 16
"""In which a run that goes on makes an env step: in a single one, all envs may begin new episodes instead."""
ROUNDS_ALONE = 5
"""In which stages are looked at alone, too."""
SPANS_OF = {"sample": ("sample", "redraw")}
"""Of stages that have several."""
NARROW = 0.02
"""An interval of a ratio is narrow enough at this share of it, to each side."""
STUDENT = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83, 15: 1.76, 20: 1.73}
"""By how many values there are: half the width, in standard errors, of an interval that holds in 90 of 100 cases."""
Changed = Callable[[], AbstractContextManager[None]]


class HasSeconds(Protocol):
    """What is asked of spans."""

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each stage so far."""


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
    cores: float
    """That this process and those it has started used as it is, on average."""
    pieces: list[Piece]
    """The slices as it is, in order."""
    watched: Watched
    """What else the machine did meanwhile."""
    overhead: float = 0.0
    """Share of a slice that reading its counters takes, as it is: nothing else is done within one."""
    alone: Mapping[str, float] = {}
    """Seconds of an env step that a stage takes while all others cost nothing, where that was asked for."""
    left_over: Mapping[str, float] = {}
    """And what is left of a stage itself while its stand-in is there: that, and what is done beside it."""


class Sliced(Protocol):
    """What is asked of a session."""

    @property
    def spans(self) -> HasSeconds:
        """Where its time goes."""

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""

    def read(self) -> Reading:
        """Bring over the numbers of the present state; waits for it."""


def compare(
    session: Sliced,
    ways: Mapping[str, Changed],
    until: float,
    reporter: Reporter,
    seconds_of_slice: float = SECONDS_OF_SLICE,
    alone: Mapping[str, Changed] | None = None,
) -> Comparison:
    """Run slices until every ratio is known well, or until `until`, as `time.monotonic` counts.

    `alone` has, by stage, what makes all others cost nothing, and for BETWEEN all of them: for sessions that do one
    stage after the other.
    """
    slices, alone = _Slices(session, seconds_of_slice), alone or {}
    slices.find_length()
    for change in ways.values():
        with change():
            session.advance(1)  # in which it may compile or record
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    shares: dict[str, list[float]] = {name: [] for name in alone}
    left_over: dict[str, list[float]] = {name: [] for name in ways}
    rounds = 0
    with slices.watch as watch, reporter.counting(f"rounds of {' | '.join(ways)}") as tell:
        before = slices.as_it_is()
        while rounds < MOST_ROUNDS and (rounds < USUAL_ROUNDS or not _are_known(ratios)):
            if (rounds and end_is_wanted()) or (rounds >= FEWEST_ROUNDS and time.monotonic() > until):
                break
            try:
                for name, change in ways.items():
                    with change():
                        stages, steps = session.spans.seconds(), slices.steps()
                        speed = slices.run()
                        if alone:
                            left_over[name].append(slices.taken_by(name, stages) / (slices.steps() - steps))
                    watch.look()
                    after = slices.as_it_is()
                    ratios[name].append(speed / math.sqrt(before * after))
                    before = after
                if alone and rounds < ROUNDS_ALONE and not (rounds and time.monotonic() > until):
                    seconds_alone = {}
                    for name, change in alone.items():
                        with change():
                            seconds_alone[name] = slices.run_alone(name)
                    after = slices.as_it_is()
                    for name, each in seconds_alone.items():
                        shares[name].append(each * math.sqrt(before * after))
                    before = after
            except _Stopped:
                break
            rounds += 1
            tell(rounds, MOST_ROUNDS)
    env_steps, seconds = (sum(each) for each in zip(*((p.env_steps, p.seconds) for p in slices.pieces), strict=True))
    return Comparison(
        env_steps / seconds,
        {name: sum(piece.stages[name] for piece in slices.pieces) / env_steps for name in session.spans.seconds()},
        {name: interval_of(each) for name, each in ratios.items() if each},
        rounds,
        slices.processor_seconds / seconds,
        slices.pieces,
        watch.watched(),
        slices.overhead(),
        {name: statistics.median(each) * seconds / env_steps for name, each in shares.items() if each},
        {name: statistics.median(each) for name, each in left_over.items() if each},
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


class _Stopped(Exception):
    """A signal has asked for the end, and something is known already."""


class _Slices:
    """Pieces of a run, of about the same length while it is as it is."""

    def __init__(self, session: Sliced, seconds: float) -> None:
        self._session, self._blocks, self._seconds = session, 1, seconds
        self.watch, self.pieces, self.processor_seconds = Watch(), list[Piece](), 0.0
        self._processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def find_length(self) -> None:
        """Take slices twice as long until one is long enough."""
        while True:
            before, began = self.steps(), time.perf_counter()
            self._session.advance(self._blocks)
            if self._blocks >= SOME_BLOCKS:
                self._require_steps(self.steps() - before)
            if (passed := time.perf_counter() - began) >= self._seconds / 2:
                break
            self._blocks *= 2
        self._blocks = max(1, round(self._blocks * self._seconds / passed))

    def as_it_is(self) -> float:
        """Env steps a second of a slice in which nothing is changed; it is a piece of the run."""
        spans, watch = self._session.spans, self.watch
        stages, steps, episodes = spans.seconds(), self.steps(), self._episodes()
        collected, held, used = watch.collecting, self._held(), self._processor_seconds()
        speed = self.run()
        self.processor_seconds += self._processor_seconds() - used
        made, now = self.steps() - steps, self._held()
        piece = Piece(
            env_steps=made,
            seconds=made / speed,
            episodes=self._episodes() - episodes,
            stages={name: seconds - stages[name] for name, seconds in spans.seconds().items()},
            collecting=watch.collecting - collected,
            grown=None if held is None or now is None else now - held,
        )
        self.pieces.append(piece)
        return speed

    def run(self) -> float:
        """Env steps a second."""
        before, began = self.steps(), time.perf_counter()
        self._session.advance(self._blocks)
        made = self.steps() - before
        if end_is_wanted() and self.pieces:
            raise _Stopped
        self._require_steps(made)
        return made / (time.perf_counter() - began)

    def _require_steps(self, made: int) -> None:
        if not made:
            raise SpecError("a stop rule of the spec (stop, guard) ended the run that is looked at")

    def run_alone(self, stage: str) -> float:
        """Seconds of an env step that a stage takes while stand-ins do all others."""
        self._session.advance(1)
        before, steps = self._session.spans.seconds(), self.steps()
        speed = self.run()
        made = self.steps() - steps
        if stage == BETWEEN:
            after = self._session.spans.seconds()
            return max(0.0, 1 / speed - (sum(after.values()) - sum(before.values())) / made)
        return self.taken_by(stage, before) / made

    def taken_by(self, stage: str, before: Mapping[str, float]) -> float:
        """Seconds of a stage since its spans were these."""
        now = self._session.spans.seconds()
        return sum(now[name] - before[name] for name in SPANS_OF.get(stage, (stage,)) if name in now)

    def overhead(self) -> float:
        """Share of a slice that reading its counters takes."""
        began = time.perf_counter()
        for _ in range(READINGS):
            self._session.read()
        each = (time.perf_counter() - began) / READINGS
        return each * len(self.pieces) / sum(piece.seconds for piece in self.pieces)

    def _processor_seconds(self) -> float:
        """Of this process and those that it had started when slices began."""
        used = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):  # gone meanwhile
                used += sum(process.cpu_times()[:2])
        return used

    def steps(self) -> int:
        """Env steps so far."""
        return self._session.read().steps_of_envs

    def _episodes(self) -> int:
        return int(self._session.read().episodes.sum())

    def _held(self) -> int | None:
        """Bytes that the process holds, without what is stored in its replay."""
        held, session = resident(), self._session
        if held is None or not isinstance(session, HostRun):  # replays of others fill up page by page
            return None
        replay = session.learner.replay
        return held - replay.size * replay.num_bytes() // replay.capacity
