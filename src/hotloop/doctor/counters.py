"""What the machine counts of its processes, read at a moment: two readings say what happened between them.

What cannot be read is None: it is not known, and not zero.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from hotloop.cores import Throttled, throttled_by_groups

THREADS, PRESSURE = Path("/proc/self/task"), Path("/proc/pressure/memory")


class Process(NamedTuple):
    """One that is not of this run; its name is no part of it, as some change theirs."""

    pid: int
    began: float


class Used(NamedTuple):
    """What a process is called now, and the seconds of a core that it has used."""

    name: str
    seconds: float


class Counters(NamedTuple):
    """Sums since the machine, or the process, began."""

    at: float
    """As `time.perf_counter` counts."""
    busy: float | None
    """Seconds that the cores this process may use were at work, for whomever; those a host took away among them."""
    own: float
    """Seconds of a core that this process and those it began have used."""
    waited: dict[int, float] | None
    """Seconds that each thread of this process was ready and had no core."""
    throttled: dict[str, Throttled]
    swapped: int | None
    """Bytes moved to and from the swap space, of all processes."""
    faults: int | None
    """Times this process had to wait for a page of memory to be read."""
    stalled: float | None
    """Seconds that processes had to wait for memory."""
    others: dict[Process, Used]
    """All other processes that can be seen from here."""


def read_counters() -> Counters:
    """As they are now; takes a few milliseconds."""
    here = psutil.Process()
    family = [here]
    with contextlib.suppress(psutil.Error):
        family += here.children(recursive=True)
    others = _others({process.pid for process in family})
    own = sum(_used(process, and_ended=True) for process in family)
    swapped, stalled = _swapped(), _stalled()
    return Counters(
        time.perf_counter(),
        _busy(),
        own,
        waited_by_thread(),
        throttled_by_groups(),
        swapped,
        _faults(),
        stalled,
        others,
    )


def bound_to() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def resident() -> int | None:
    """Bytes of memory that this process holds."""
    try:
        return int(psutil.Process().memory_info().rss)
    except (psutil.Error, OSError):
        return None


def _busy() -> float | None:
    try:
        each = psutil.cpu_times(percpu=True)
        return sum(_at_work(each[core]) for core in bound_to())
    except (OSError, IndexError, RuntimeError):
        return None


def _at_work(times: object) -> float:
    """What a guest uses is among `user` already."""
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _used(process: psutil.Process, *, and_ended: bool = False) -> float:
    """Seconds of a core; with those of children that have ended, if asked for."""
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has just ended
        return 0.0
    ended = times.children_user + times.children_system if and_ended else 0.0
    return float(times.user + times.system + ended)


def _others(family: set[int]) -> dict[Process, Used]:
    found: dict[Process, Used] = {}
    for process in psutil.process_iter():
        if process.pid in family:
            continue
        with contextlib.suppress(psutil.Error):  # it has just ended, or is nobody's business
            found[Process(process.pid, process.create_time())] = Used(process.name(), _used(process))
    return found


def waited_by_thread(threads: Path = THREADS) -> dict[int, float] | None:
    """Seconds that each thread of a process was ready and had no core; None where that is not said."""
    try:
        tasks = list(threads.iterdir())
    except OSError:
        return None
    found: dict[int, float] = {}
    for task in tasks:
        with contextlib.suppress(OSError, ValueError, IndexError):  # a thread that has just ended
            found[int(task.name)] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return found or None


def _swapped() -> int | None:
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):
        return None
    return int(swap.sin) + int(swap.sout)


def _faults() -> int | None:
    try:
        import resource
    except ImportError:  # off Unix
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _stalled() -> float | None:
    try:
        some = PRESSURE.read_text().splitlines()[0].split()
        return int(some[-1].removeprefix("total=")) / 1e6
    except (OSError, ValueError, IndexError):
        return None
