"""Where a host loop's time goes: sums per stage, always on, and every single span while a trace is wanted.

A span costs well under a microsecond: two readings of the clock and an addition.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from hotloop.plain import Figures

MOST_EVENTS = 200_000
"""A trace keeps so many spans, from its beginning on; the sums go on."""
Region = Callable[[str], AbstractContextManager[object]]
"""Makes a named region of a profiler's trace: to be entered once."""


class Kept(NamedTuple):
    """A span that is remembered."""

    name: str
    thread: int
    began_ns: int
    """By `time.perf_counter_ns`."""
    took_ns: int


class Span:
    """One stage; enter it again and again, but never from two threads at once."""

    __slots__ = ("_began", "_spans", "count", "name", "nanoseconds")

    def __init__(self, name: str, spans: "Spans") -> None:
        self.name, self.nanoseconds, self.count, self._spans = name, 0, 0, spans

    def __enter__(self) -> None:
        self._began = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        took = time.perf_counter_ns() - self._began
        self.nanoseconds += took
        self.count += 1
        events = self._spans.events
        if events is not None and len(events) < MOST_EVENTS:
            events.append(Kept(self.name, threading.get_ident(), self._began, took))


class MarkedSpan(Span):
    """A span that is a region of a profiler's trace as well."""

    __slots__ = ("_make", "_region")

    def __init__(self, name: str, spans: "Spans", make: Region) -> None:
        super().__init__(name, spans)
        self._make = make

    def __enter__(self) -> None:
        self._region = self._make(self.name)
        self._region.__enter__()
        super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._region.__exit__(None, None, None)


class Spans:
    """The stages of a session, by name."""

    def __init__(self, *names: str) -> None:
        self.stages: dict[str, Span] = {name: Span(name, self) for name in names}
        self.events: list[Kept] | None = None

    def __getitem__(self, name: str) -> Span:
        return self.stages[name]

    def seconds(self) -> dict[str, float]:
        """Seconds spent in each stage so far."""
        return {name: span.nanoseconds / 1e9 for name, span in self.stages.items()}

    def keep_events(self) -> None:
        """Also remember when each span began, for a trace."""
        self.events = []

    @contextmanager
    def marked(self, make: Region, *, keeps: bool = False) -> Iterator[None]:
        """Within, spans are regions of someone else's trace, and count for nothing here; remembered if it `keeps`."""
        with self._others({name: MarkedSpan(name, self, make) for name in self.stages}, self.events if keeps else None):
            yield

    @contextmanager
    def apart(self) -> Iterator[list[Kept]]:
        """Within, spans are remembered in a list of their own, and count for nothing here."""
        events: list[Kept] = []
        with self._others({name: Span(name, self) for name in self.stages}, events):
            yield events

    @contextmanager
    def _others(self, stages: dict[str, Span], events: list[Kept] | None) -> Iterator[None]:
        kept = self.stages, self.events
        self.stages, self.events = stages, events
        try:
            yield
        finally:
            self.stages, self.events = kept

    def write_trace(self, path: Path) -> None:
        """Write what was remembered in Chrome's format, which Perfetto and chrome://tracing open."""
        events = self.events or []
        start = min((began for _, _, began, _ in events), default=0)
        threads = {ident: number for number, ident in enumerate(dict.fromkeys(ident for _, ident, _, _ in events))}
        rows: list[Figures] = [
            {
                "ph": "M",
                "pid": 1,
                "tid": number,
                "name": "thread_name",
                "args": {"name": "host loop" if number == 0 else "learner"},
            }
            for number in threads.values()
        ]
        rows += [
            {
                "ph": "X",
                "pid": 1,
                "tid": threads[ident],
                "name": name,
                "ts": (began - start) / 1e3,
                "dur": took / 1e3,
            }
            for name, ident, began, took in events
        ]
        path.write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
