"""How one process wakes another that waits: an eventfd, which counts, so that a ring is never lost."""

import contextlib
import os
import select
import time
from collections.abc import Callable

LONGEST_POLL = 3600.0


class Bell:
    """Anyone may ring it; one waits for it.

    It is rung after every change, whether or not someone waits: half a microsecond, and no word about who waits that
    would have to be stored by one side and looked at by the other in the right order.
    """

    def __init__(self, descriptor: int) -> None:
        """Of a non-blocking eventfd, which is this bell's own from now on."""
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        os.eventfd_write(self._descriptor, 1)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait, without using the processor, until a ring has made the condition true; False after so many seconds.

        The bell is silenced before the condition is looked at. A change that comes after the look rings again.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._poll.poll(min(left, LONGEST_POLL) * 1000):  # rounded up to milliseconds
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._descriptor)
        return True

    def close(self) -> None:
        """Once."""
        os.close(self._descriptor)


def new_bell_descriptor() -> int:
    """An eventfd as a bell has it."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
