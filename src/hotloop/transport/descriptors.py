"""Open files without names that go along when a process is spawned: by descriptor, through multiprocessing itself."""

import os
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import assert_spawning
from typing import Protocol


class Descriptor:
    """An open file that belongs to this object; pickled for a process that is being spawned, it is open there too."""

    def __init__(self, number: int) -> None:
        self._number: int | None = number

    def duplicate(self) -> int:
        """Another descriptor of the same file, which is the caller's to close."""
        return os.dup(self.number)

    @property
    def number(self) -> int:
        """For as long as this is open."""
        if self._number is None:
            raise ValueError("the transport was closed")
        return self._number

    def close(self) -> None:
        """Once is enough, twice does no harm."""
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def __reduce__(self) -> tuple[Callable[["_Sent"], "Descriptor"], tuple["_Sent"]]:
        assert_spawning(self)  # else multiprocessing would serve it from a thread and a socket
        return _arrived, (reduction.DupFd(self.number),)


class _Sent(Protocol):
    def detach(self) -> int: ...


def _arrived(sent: _Sent) -> Descriptor:
    number = sent.detach()
    os.set_inheritable(number, False)  # what the new process starts in turn has no use for it
    return Descriptor(number)
