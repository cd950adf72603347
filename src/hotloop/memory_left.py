"""How many bytes can still be had: of the machine, and of the control groups that this process is in.

Files that the kernel keeps in memory only because nobody else has asked for it count as free, as they do in
`MemAvailable`: a group that has read or written much would otherwise seem to be full.
"""

from pathlib import Path
from typing import NamedTuple

GROUPS, OF_PROCESS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


class _Files(NamedTuple):
    """Where a version of control groups says what."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]
    """Lines of memory.stat, of the group and those below it: files in memory. What is in a tmpfs is not among them."""


VERSION_1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
VERSION_2 = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))


def left_by_groups() -> dict[str, int]:
    """Bytes left by each group that has a limit, on every level, in version 1 and in version 2; none off Linux."""
    left: dict[str, int] = {}
    for line in OF_PROCESS.read_text().splitlines() if OF_PROCESS.exists() else []:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, files = GROUPS, VERSION_2
        elif "memory" in controllers.split(","):
            root, files = GROUPS / "memory", VERSION_1
        else:
            continue
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            limit, usage = _number(group / files.limit), _number(group / files.usage)
            if limit is not None and usage is not None:
                left[f"control group {group}"] = min(limit, limit - usage + _reclaimable(group, files))
    return left


def _reclaimable(group: Path, files: _Files) -> int:
    try:
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        return sum(int(value) for name, value in lines if name in files.reclaimable)
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
