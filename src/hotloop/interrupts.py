"""Ctrl-C: during a run the first signal asks for an orderly end and the second one is immediate; else it ends all."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self

Handler = Callable[[int, FrameType | None], object] | int | None

INTERRUPTED = 128 + signal.SIGINT
"""The exit code of what Ctrl-C has ended, as shells have it."""


class Interrupted(Exception):
    """Someone does not want to wait for the end of an evaluation."""


class Interrupts:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one is immediate.

    May be entered again within itself, where a run consists of runs; the outermost gives the handlers back.
    """

    going_on: "Interrupts | None" = None
    """Those of the run that is going on in this process, if one is."""
    _are_passed_on = False

    def __init__(self) -> None:
        self.seen: str | None = None
        self._number: int | None = None
        self._depth = 0
        self._outer: Interrupts | None = None
        self._before: dict[int, Handler] = {}

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1:
            self._outer, Interrupts.going_on = Interrupts.going_on, self
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            Interrupts.going_on = self._outer
            for number, handler in self._before.items():
                signal.signal(number, handler)
            if self._are_passed_on and self._number is not None:
                raise KeyboardInterrupt if self._number == signal.SIGINT else SystemExit(128 + self._number)

    @classmethod
    @contextlib.contextmanager
    def passed_on(cls) -> Iterator[None]:
        """Within, a signal that has ended a run also ends what has begun it: a benchmark trains one after another."""
        cls._are_passed_on = True
        try:
            yield
        finally:
            cls._are_passed_on = False

    def raise_if_seen(self) -> None:
        """Give up what takes long."""
        if self.seen:
            raise Interrupted

    def _note(self, number: int, _: FrameType | None) -> None:
        self.seen, self._number = f"stopped by {signal.Signals(number).name}", number
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)


def end_is_wanted() -> bool:
    """Whether a signal has asked the run that is going on to end: what waits for others waits no longer."""
    return Interrupts.going_on is not None and Interrupts.going_on.seen is not None


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes that are started within never see Ctrl-C, which is left to this one: it saves the run and ends them.

    They inherit what is blocked here meanwhile; an interrupt that comes in between is delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker  # a fiftieth of a second that `--help` need not wait

    resource_tracker.ensure_running()  # begun within, it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EndsTheCommand:
    """While no run is going on, SIGINT ends the whole command with one line and exit code 130.

    As a rule by KeyboardInterrupt, so that what is open is closed. Where that is raised while a module is imported, the
    module may swallow it or crash, and raised in a callback of C (JAX has one in the garbage collector) Python only
    prints it: there the process ends at once. So it does where the exception has ended nothing after two seconds,
    unless a run has begun by then, which is asked to end.
    """

    LINE = "hotloop: stopped by SIGINT, outside of a run"
    SECONDS = 2.0
    _late: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._is_ours = threading.current_thread() is threading.main_thread()
        self._is_ours &= signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have it ignored
        if self._is_ours:
            signal.signal(signal.SIGINT, self._end)
            self._hook, sys.unraisablehook = sys.unraisablehook, self._raised_in_vain
        return self

    def __exit__(self, *_: object) -> None:
        if self._late is not None:
            self._late.cancel()
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = self._hook

    def _end(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                self._end_at_once()
            frame = frame.f_back
        if self._late is None:
            self._late = threading.Timer(self.SECONDS, self._end_late)
            self._late.daemon = True
            self._late.start()
        raise KeyboardInterrupt

    def _raised_in_vain(self, said: "sys.UnraisableHookArgs", /) -> None:
        if issubclass(said.exc_type, KeyboardInterrupt):
            self._end_at_once()
        self._hook(said)

    def _end_late(self) -> None:
        self._late, handler = None, signal.getsignal(signal.SIGINT)
        if getattr(handler, "__func__", None) is Interrupts._note:  # a run has begun meanwhile: it saves and ends
            signal.raise_signal(signal.SIGINT)
        elif handler == self._end:
            self._end_at_once()
        # Else a run has been asked already, and is saving.

    def _end_at_once(self) -> None:
        for child in getattr(sys.modules.get("multiprocessing"), "active_children", list)():
            child.terminate()
        cursor = "\x1b[?25h" if os.isatty(2) else ""  # which a progress bar has hidden
        os.write(2, f"{cursor}{self.LINE}\n".encode())
        os._exit(INTERRUPTED)
