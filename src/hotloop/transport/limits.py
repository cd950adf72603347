"""What the machine, the control group and the process's own limits leave: looked at before anything is allocated."""

import os
from pathlib import Path

from hotloop.errors import SpecError

MEMINFO, GROUPS, OF_PROCESS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
OWN_FILES, OWN_SIZE = Path("/proc/self/fd"), Path("/proc/self/statm")


def refuse_more_memory_than_there_is(needed: int) -> None:
    """Raise if so many bytes are not there: a control group's limit would kill the process where it touches them."""
    for what, available in memory_left().items():
        if needed > available:
            raise SpecError(
                f"the shared memory of actors and learner needs {needed:,} bytes but {what} leaves {available:,}; "
                "use fewer actors, shorter rings or smaller parcels"
            )


def refuse_more_descriptors_than_there_are(needed: int) -> None:
    """Raise if so many more files cannot be opened."""
    import resource  # which Windows has not, where this is never called

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available = limit - len(os.listdir(OWN_FILES))
    if limit != resource.RLIM_INFINITY and needed > available:
        raise SpecError(
            f"actors and learner need {needed} more file descriptors but {available} of {limit} are left; use fewer "
            "actors, or raise the limit (ulimit -n)"
        )


def memory_left() -> dict[str, int]:
    """Bytes that may still be used, by whoever sets the limit."""
    import resource

    left = {"the machine": _of_the_machine(), **_of_groups()}
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        pages = int(OWN_SIZE.read_text().split()[0])
        left["the limit of address space (ulimit -v)"] = limit - pages * resource.getpagesize()
    return left


def _of_the_machine() -> int:
    line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def _of_groups() -> dict[str, int]:
    """Of the groups that this process is in, on every level of them, in version 1 and in version 2."""
    left: dict[str, int] = {}
    for line in OF_PROCESS.read_text().splitlines() if OF_PROCESS.exists() else []:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, files = GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, files = GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = root / name.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(root):
                break
            limit, usage = _number(group / files[0]), _number(group / files[1])
            if limit is not None and usage is not None:
                left[f"control group {group}"] = limit - usage
    return left


def _number(file: Path) -> int | None:
    """None where there is no such file, or it says `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
