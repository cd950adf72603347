"""How many cores this process may use: those it is bound to, and no more than its control groups' share of time."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores() -> int:
    """At least one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *(math.ceil(quota) for quota in _quotas())]))


class Throttled(NamedTuple):
    """What a control group counts of the times that its processes had used up their share."""

    group: str
    periods: int
    """In which it had something to do."""
    throttled: int
    """Periods in which it was held back."""
    seconds: float
    """That cores of it were held back for, all of them together."""


def throttled_by_groups() -> dict[str, Throttled]:
    """Of each control group that counts it, in version 1 and in version 2."""
    found: dict[str, Throttled] = {}
    for group, _ in _groups():
        try:
            counts = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            periods, throttled = int(counts["nr_periods"]), int(counts["nr_throttled"])
            seconds = int(counts.get("throttled_usec", 0)) / 1e6 + int(counts.get("throttled_time", 0)) / 1e9
        except (OSError, ValueError, KeyError):  # a group without a limit may not count
            continue
        found[str(group)] = Throttled(str(group), periods, throttled, seconds)
    return found


def _quotas() -> list[float]:
    """Cores that each control group with a limit lets its processes use at once."""
    return [quota for group, files in _groups() if (quota := _quota(group, files)) is not None]


def _groups() -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The control groups that this process is in, on every level, and their files of a limit: those of version 1, and
    of version 2."""
    for line in OF_PROCESS.read_text().splitlines() if OF_PROCESS.exists() else []:
        _, controllers, name = line.split(":", 2)
        if controllers != "" and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                yield group, files


def _quota(group: Path, files: tuple[str, ...]) -> float | None:
    """None where it has no such files, or no limit: they say -1, or `max`."""
    try:
        time, period = (int(word) for file in files for word in (group / file).read_text().split())
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None
