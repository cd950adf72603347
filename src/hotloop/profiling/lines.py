"""Which lines of a function take its time: Python's tracing, of the few functions that are asked for.

    while stepping:  line of an asked function | call of another one whose time is its own | line | …

A line's time is with all that it calls, but for calls whose time is somebody else's. Tracing makes every line slower,
so seconds mean nothing by themselves: a line's share of its function is what counts.
"""

import linecache
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

from hotloop.profiling.figures import Line

SHOWN, SMALLEST = 8, 0.01
"""Lines that are shown at most, and the share of the whole from which on one is."""
Key = tuple[str, int, str]
"""A function as Python's profiler names it: file, first line, name."""


class Trace(Protocol):
    """Is told what happens in a call; who is to be told of the next is what it returns."""

    def __call__(self, frame: FrameType, event: str, arg: object, /) -> "Trace | None":
        """`event`: call, line, return, exception."""


def lines_of(
    functions: Mapping[Key, float], has_own_time: Callable[[str, str], bool], work: Callable[[], object]
) -> list[Line]:
    """The lines of these functions that take most of the time of `work`, which calls them; the first takes most.

    `functions` have shares of the whole, which their lines share out. `has_own_time(file, name)`: whether a function's
    time is not that of the line that calls it. Nothing if someone else is tracing, as debuggers do.
    """
    if not functions or sys.gettrace() is not None:
        return []
    tracer = _Tracer(functions, has_own_time)
    sys.settrace(tracer.on_call)
    try:
        work()
    finally:
        sys.settrace(None)
    found: list[Line] = []
    for key, share in functions.items():
        file, _, name = key
        seconds = tracer.seconds[key]
        whole = sum(seconds.values())
        for number, each in seconds.items():
            if whole and (of_all := share * each / whole) >= SMALLEST:
                text = linecache.getline(file, number).strip()
                found.append(
                    {"file": Path(file).name, "line": number, "function": name, "share": round(of_all, 4), "text": text}
                )
    return sorted(found, key=lambda line: -line["share"])[:SHOWN]


class _Running:
    """A call that has not returned: of which function, at which line, and since when it is at work itself."""

    __slots__ = ("frame", "line", "seconds", "since")

    def __init__(self, frame: FrameType, seconds: dict[int, float] | None) -> None:
        self.frame, self.line, self.seconds, self.since = frame, frame.f_lineno, seconds, 0.0


class _Tracer:
    """Sums up seconds by line; of calls whose lines nobody asked for, it only sees that they are someone else's."""

    def __init__(self, functions: Mapping[Key, float], has_own_time: Callable[[str, str], bool]) -> None:
        self.seconds: dict[Key, dict[int, float]] = {key: {} for key in functions}
        self._has_own_time = has_own_time
        self._known: dict[CodeType, tuple[bool, dict[int, float] | None]] = {}
        self._running: list[_Running] = []

    def on_call(self, frame: FrameType, event: str, given: object) -> Trace | None:
        """Of every function; returns who is told of what happens within."""
        del event, given
        code = frame.f_code
        known = self._known.get(code)
        if known is None:
            seconds = self.seconds.get((code.co_filename, code.co_firstlineno, code.co_name))
            known = (seconds is not None or self._has_own_time(code.co_filename, code.co_name), seconds)
            self._known[code] = known
        has_own_time, seconds = known
        if not has_own_time:
            return None
        self._count()
        frame.f_trace_lines = seconds is not None
        self._running.append(_Running(frame, seconds))
        self._go_on()
        return self._within

    def _within(self, frame: FrameType, event: str, given: object) -> Trace:
        del given
        self._count()
        if event == "return":
            while self._running and self._running.pop().frame is not frame:
                pass
        elif event == "line" and self._running:
            self._running[-1].line = frame.f_lineno
        self._go_on()
        return self._within

    def _count(self) -> None:
        """What has passed is the line's that ran last."""
        if not self._running:
            return
        last = self._running[-1]
        if last.seconds is not None:
            passed = time.perf_counter() - last.since
            last.seconds[last.line] = last.seconds.get(last.line, 0.0) + passed

    def _go_on(self) -> None:
        if self._running:
            self._running[-1].since = time.perf_counter()
