"""Shared memory without a name: it goes with the last process that has it, however that ends.

It is a `memfd`, not an object in /dev/shm: that one outlives processes that are killed together, and can only be as
large as /dev/shm is. All of it is allocated at once: memory that is missing when it is first touched kills with SIGBUS.
"""

import mmap
import os
import platform
import sys

import numpy as np

from hotloop.errors import SpecError
from hotloop.transport.descriptors import Descriptor
from hotloop.transport.limits import refuse_more_memory_than_there_is


def allocate(num_bytes: int) -> Descriptor:
    """So many zeros, whose size nobody can change any more."""
    refuse_other_platforms()
    import fcntl  # which other platforms need not have

    refuse_more_memory_than_there_is(num_bytes)
    number = os.memfd_create("hotloop-transport", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    memory = Descriptor(number)
    try:
        os.posix_fallocate(number, 0, num_bytes)
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        memory.close()
        raise _refusal(num_bytes, error) from None
    return memory


def mapped(memory: Descriptor, offset: int, num_bytes: int, *, writable: bool) -> np.ndarray:
    """Part of it as bytes, from a multiple of a page on; it is unmapped when the last view of it is gone."""
    access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    try:
        part = mmap.mmap(memory.number, num_bytes, mmap.MAP_SHARED, access, offset=offset)
    except OSError as error:
        raise _refusal(num_bytes, error) from None
    return np.frombuffer(part, np.uint8)


def refuse_other_platforms() -> None:
    """Raise where the order of loads and stores, or what this is made of, is another (`words.py`)."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise SpecError(
            f"actors in processes of their own need Linux on x86-64; this is {sys.platform} on {platform.machine()}"
        )


def _refusal(num_bytes: int, error: OSError) -> SpecError:
    return SpecError(f"{num_bytes:,} bytes of shared memory for actors and learner cannot be had: {error.strerror}")
