"""How many cores this process may use: those it is bound to, and no more than its control groups' share of time."""

import math
import os
from pathlib import Path

GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def usable_cores() -> int:
    """At least one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *(math.ceil(quota) for quota in _quotas())]))


def _quotas() -> list[float]:
    """Cores that each control group with a limit lets its processes use at once, in version 1 and in version 2."""
    found: list[float] = []
    for line in OF_PROCESS.read_text().splitlines() if OF_PROCESS.exists() else []:
        _, controllers, name = line.split(":", 2)
        if controllers != "" and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root) and (quota := _quota(group, files)) is not None:
                found.append(quota)
    return found


def _quota(group: Path, files: tuple[str, ...]) -> float | None:
    """None where it has no such files, or no limit: they say -1, or `max`."""
    try:
        time, period = (int(word) for file in files for word in (group / file).read_text().split())
    except (OSError, ValueError):
        return None
    return time / period if time > 0 and period > 0 else None
