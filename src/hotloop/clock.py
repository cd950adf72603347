"""How fast a run is: env steps and updates per second of its whole loop, evaluations apart.

The whole loop means what a user waits for: chunks, and the logging, saving and showing between them.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import psutil

from hotloop.pipelines.session import Reading
from hotloop.spans import Spans


class Rates(NamedTuple):
    """Per second, of all members together."""

    env_steps: float = 0.0
    updates: float = 0.0


class Clock:
    """Begins with the loop; `seconds_evaluating` says how long evaluations have taken so far, which does not count."""

    def __init__(self, seconds_evaluating: Callable[[], float], host: Reading, compile_seconds: float = 0.0) -> None:
        self.seconds_evaluating, self.compile_seconds = seconds_evaluating, compile_seconds
        self.recent = self.speed = Rates()
        self.seconds_to_first_update: float | None = None  # since the process began, as is the next
        self.seconds_to_stop: float | None = None
        self._began = self._lap = self._last = self._mark(host)
        self._first_update = self._began if host.attempts else None

    def note(self, host: Reading) -> None:
        """A chunk is over. The steady rate counts from the end of the chunk that made the first gradient step."""
        mark = self._mark(host)
        self.recent = mark.since(self._last) or self.recent
        self._last = mark
        if self._first_update is None and host.attempts:
            self._first_update = mark
        if self.seconds_to_first_update is None and host.attempts:
            self.seconds_to_first_update = since_process_start()

    def lap(self, host: Reading) -> Rates:
        """The rates since the last lap."""
        mark = self._mark(host)
        rates, self._lap = mark.since(self._lap) or self.recent, mark
        return rates

    def steady(self, host: Reading) -> Rates:
        """The rates from the first gradient step until now; of the whole loop where that was its last."""
        mark = self._mark(host)
        since_first = mark.since(self._first_update) if self._first_update else None
        return since_first or mark.since(self._began) or Rates()

    def stop(self, host: Reading) -> None:
        """The loop is over, and its speed is that until now."""
        self.speed, self.seconds_to_stop = self.steady(host), since_process_start()

    def _mark(self, host: Reading) -> "_Mark":
        return _Mark(time.perf_counter() - self.seconds_evaluating(), host.steps_of_envs, host.attempts)


class StageClock:
    """Seconds that each stage of a session took since the last lap."""

    def __init__(self, spans: Spans) -> None:
        self._spans, self._before = spans, dict.fromkeys(spans.seconds(), 0.0)

    def lap(self) -> dict[str, float]:
        """Begin the next lap; returns this one's seconds by stage."""
        now, before = self._spans.seconds(), self._before
        self._before = now
        return {name: round(total - before[name], 6) for name, total in now.items()}


def since_process_start() -> float:
    """Seconds since this process began, Python's own start included."""
    return round(time.time() - psutil.Process().create_time(), 3)


class _Mark(NamedTuple):
    """What had been done at a time."""

    seconds: float
    env_steps: int
    updates: int

    def since(self, earlier: "_Mark") -> Rates | None:
        """The rates between two marks; None if nothing was done."""
        steps, seconds = self.env_steps - earlier.env_steps, self.seconds - earlier.seconds
        if not steps or seconds <= 0:
            return None
        return Rates(steps / seconds, (self.updates - earlier.updates) / seconds)
