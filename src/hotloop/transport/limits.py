"""What the machine, the control group and the process's own limits leave: looked at before anything is allocated."""

import os
from pathlib import Path

from hotloop.errors import SpecError
from hotloop.memory_left import left_by_groups

MEMINFO = Path("/proc/meminfo")
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

    left = {"the machine": _of_the_machine(), **left_by_groups()}
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        pages = int(OWN_SIZE.read_text().split()[0])
        left["the limit of address space (ulimit -v)"] = limit - pages * resource.getpagesize()
    return left


def _of_the_machine() -> int:
    line = next(line for line in MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024
