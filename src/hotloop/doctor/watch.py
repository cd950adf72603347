"""What else happens on the machine while slices of a run are timed: other processes, limits, swapping, its own speed.

Counters are read at the begin and at the end; between slices a small fixed piece of work is timed now and then. Within
a slice nothing is done but what Python's garbage collector tells of itself.
"""

import gc
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from hotloop.cores import usable_cores
from hotloop.doctor.counters import Counters, bound_to, read_counters
from hotloop.replay.plan import available_host_memory

SPIN, EVERY = 20_000, 0.5
"""Rounds of the fixed piece of work (about a millisecond), and seconds from one to the next."""
FEWEST_SPINS = 6
SHORTEST = 0.5
"""Seconds that must be watched: the machine counts in hundredths."""
NAMED, SMALLEST = 3, 0.02
"""Other processes that are named at most, and the share of the cores from which on one is."""
DEVICES = Path("/dev")


class Other(NamedTuple):
    """A process that is not of this run."""

    name: str
    pid: int
    share: float
    """Of the cores that this run may use."""


class Watched(NamedTuple):
    """What was seen; None is what could not be."""

    seconds: float
    cores: int
    """That this process may use."""
    others: float | None
    """Share of these cores that others used."""
    top: tuple[Other, ...]
    """Those of them that used most, as far as they can be seen from here."""
    waited: float | None
    """Share of the time that a thread of this process was ready and had no core: of the one that waited most."""
    throttled: float | None
    """Share of the time that a control group held this process back."""
    slower: float | None
    """Times as long that a fixed piece of work took at the end as at the begin, in time on a core."""
    spread: float | None
    """Of it: the slow ones to the fast ones, nine tenths to one tenth."""
    swapped: int | None
    """Bytes to and from the swap space, of all processes."""
    faults: int | None
    """Pages that this process had to wait for."""
    stalled: float | None
    """Share of the time that processes had to wait for memory."""
    left: int
    """Bytes of memory that can still be had."""
    has_gpu: bool
    missing: tuple[str, ...]
    """What could not be seen, in words."""


class Watch:
    """Watches from its begin to its end; call `look` between slices."""

    def __init__(self) -> None:
        self.collecting = 0.0
        """Seconds of garbage collection so far."""
        self._spins: list[float] = []
        self._last, self._collects_since = 0.0, 0.0

    def __enter__(self) -> Self:
        self._begin = self._end = read_counters()
        gc.callbacks.append(self._collected)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._collected)
        if error is None:
            self._end = read_counters()

    def look(self) -> None:
        """Time a piece of work, if it is time for one."""
        if (now := time.perf_counter()) - self._last >= EVERY:
            self._last = now
            self._spins.append(_spin())

    def watched(self) -> Watched:
        """What was seen between begin and end."""
        return seen_between(self._begin, self._end, self._spins, bound_to())

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        del info
        if phase == "start":
            self._collects_since = time.perf_counter()
        else:
            self.collecting += time.perf_counter() - self._collects_since


def seen_between(begin: Counters, end: Counters, spins: Sequence[float], cores: Sequence[int]) -> Watched:
    """What two readings of the counters say, and pieces of work between them."""
    seconds = end.at - begin.at
    is_long = seconds >= SHORTEST
    others = None
    if is_long and begin.busy is not None and end.busy is not None:
        others = _share(end.busy - begin.busy - (end.own - begin.own), seconds * len(cores))
    waited = None
    if is_long and begin.waited and end.waited:
        waited = _share(max(each - begin.waited.get(thread, 0.0) for thread, each in end.waited.items()), seconds)
    throttled = _throttled(begin, end) if is_long else None
    slower, spread = drift_of(spins)
    swapped = None if begin.swapped is None or end.swapped is None else end.swapped - begin.swapped
    faults = None if begin.faults is None or end.faults is None else end.faults - begin.faults
    stalled = None
    if is_long and begin.stalled is not None and end.stalled is not None:
        stalled = _share(end.stalled - begin.stalled, seconds)
    known = {
        "what other processes used": others,
        "how long threads waited for a core": waited,
        "whether a control group held the process back": throttled,
        "whether the machine's speed changed": slower,
        "swapping": swapped,
        "pages that had to be read": faults,
        "how long processes waited for memory": stalled,
    }
    return Watched(
        seconds=seconds,
        cores=usable_cores(),
        others=others,
        top=() if others is None else _top(begin, end, seconds, cores, others),
        waited=waited,
        throttled=throttled,
        slower=slower,
        spread=spread,
        swapped=swapped,
        faults=faults,
        stalled=stalled,
        left=available_host_memory(),
        has_gpu=_has_gpu(),
        missing=tuple(name for name, value in known.items() if value is None),
    )


def drift_of(spins: Sequence[float]) -> tuple[float | None, float | None]:
    """How many times as long the last third took as the first, and the slow ones as the fast ones; None for few."""
    if len(spins) < FEWEST_SPINS:
        return None, None
    third = len(spins) // 3
    first, last = statistics.median(spins[:third]), statistics.median(spins[-third:])
    tenths = statistics.quantiles(spins, n=10)
    return last / first, tenths[-1] / tenths[0]


def _throttled(begin: Counters, end: Counters) -> float | None:
    """Of the group that held back most; cores are held back one by one, so neither figure alone is the time's share."""
    shares: list[float] = []
    for name, now in end.throttled.items():
        if (before := begin.throttled.get(name)) is not None:
            of_periods = (now.throttled - before.throttled) / max(1, now.periods - before.periods)
            shares.append(min(of_periods, _share(now.seconds - before.seconds, end.at - begin.at)))
    return max(shares, default=None)


def _top(begin: Counters, end: Counters, seconds: float, cores: Sequence[int], others: float) -> tuple[Other, ...]:
    """None has used more of these cores than all together; which cores one was on is not counted."""
    before = {process: used.seconds for process, used in begin.others.items()}
    used = {process: now.seconds - before.get(process, 0.0) for process, now in end.others.items()}
    most = sorted(used, key=lambda process: -used[process])
    found = [
        Other(end.others[each].name, each.pid, min(others, _share(used[each], seconds * len(cores)))) for each in most
    ]
    large = [other for other in found[: 4 * NAMED] if other.share >= SMALLEST]
    return tuple([other for other in large if _shares_cores(other.pid, cores)][:NAMED])


def _shares_cores(pid: int, cores: Sequence[int]) -> bool:
    """Whether it may use one of these; taken for granted where it is not said."""
    try:
        return not set(psutil.Process(pid).cpu_affinity() or cores).isdisjoint(cores)
    except (psutil.Error, AttributeError, ValueError):
        return True


def _has_gpu() -> bool:
    return any(DEVICES.glob("nvidia[0-9]*")) or shutil.which("nvidia-smi") is not None


def _spin() -> float:
    """Seconds on a core: what others take is not among them, a slower processor is."""
    began, total = time.thread_time(), 0
    for number in range(SPIN):
        total += number & 3
    return time.thread_time() - began


def _share(seconds: float, whole: float) -> float:
    return min(1.0, max(0.0, seconds / whole)) if whole > 0 else 0.0
