"""A process that ends with the one that started it, whatever ends that: SIGKILL leaves nobody behind."""

import ctypes
import multiprocessing
import os
import signal
import sys

from hotloop.errors import SpecError

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this spawned process when its parent dies; the first thing its function does.

    The kernel means the *thread* that started it: one that starts processes lives as long as they are to.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        raise RuntimeError("end_with_parent is for a process that multiprocessing has started; this is none")
    end_with(parent.pid)


def end_with(parent: int) -> None:
    """The same for a process that has got its parent's id in another way."""
    if sys.platform != "linux":
        raise SpecError(f"a process can be tied to its parent's life on Linux, not on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os.kill(os.getpid(), signal.SIGKILL)
