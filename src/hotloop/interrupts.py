"""Ctrl-C: the first signal asks for an orderly end, the second one is immediate."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

Handler = Callable[[int, FrameType | None], object] | int | None


class Interrupted(Exception):
    """Someone does not want to wait for the end of an evaluation."""


class Interrupts:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one is immediate."""

    def __init__(self) -> None:
        self.seen: str | None = None
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def raise_if_seen(self) -> None:
        """Give up what takes long."""
        if self.seen:
            raise Interrupted

    def _note(self, number: int, _: FrameType | None) -> None:
        self.seen = f"stopped by {signal.Signals(number).name}"
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
