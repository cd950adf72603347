"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from hotloop.plain import Figures, Json

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SECONDS_BETWEEN_COUNTS = 0.2
SECONDS_UNTIL_SAID = 2.0


class Reporter(Protocol):
    """Where a run's news goes."""

    def say(self, text: str) -> None:
        """Print one lasting line."""

    def warn(self, text: str) -> None:
        """Print one lasting line that needs attention."""

    def busy(self, what: str) -> AbstractContextManager[None]:
        """Show that something takes a while; a context manager."""

    def show(self, env_steps: int, total: int, figures: Figures) -> None:
        """Update the live line."""

    def counting(self, what: str) -> AbstractContextManager[Callable[[int, int], None]]:
        """Show how far something is; a context manager that gives `tell(done, total)`, to be called at any rate."""


class Silent:
    """Warnings only, as Python warnings: for use as a library."""

    def say(self, text: str) -> None:
        """Drop it."""

    def warn(self, text: str) -> None:
        """Raise a Python warning."""
        import warnings

        warnings.warn(text, RuntimeWarning, stacklevel=3)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Do nothing around the work."""
        yield

    def show(self, env_steps: int, total: int, figures: Figures) -> None:
        """Drop it."""

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Give something that drops the counts."""
        yield lambda done, total: None


class Terminal:
    """A progress bar on stderr; without a terminal, lasting lines only."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._live: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Print one lasting line."""
        self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print one lasting line in yellow."""
        self._console.print(f"warning: {' '.join(text.split())}", style="yellow", markup=False)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Spin while the work goes on; without a terminal say so after two seconds."""
        if self._console.is_terminal:
            with self._console.status(what) if self._live is None else nullcontext():
                yield
            return
        late = threading.Timer(SECONDS_UNTIL_SAID, self.say, [f"{what} …"])
        late.start()
        try:
            yield
        finally:
            late.cancel()

    def show(self, env_steps: int, total: int, figures: Figures) -> None:
        """Update the bar: steps, speeds, return, exploration, loss, time left."""
        if not self._console.is_terminal:
            return
        if self._live is None:
            self._live, self._task = self._bar(total)
        text = "  ".join(f"{name} {_short(value)}" for name, value in figures.items() if value is not None)
        self._live.update(self._task, completed=env_steps, total=total, figures=text)

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """In the bar, or as a bar of its own; without a terminal a line after two seconds, four, eight, …"""
        is_terminal, has_own_bar = self._console.is_terminal, self._live is None
        began = time.monotonic()
        told_at, say_at = -SECONDS_BETWEEN_COUNTS, began + SECONDS_UNTIL_SAID

        def tell(done: int, total: int) -> None:
            nonlocal told_at, say_at
            now = time.monotonic()
            if is_terminal and now - told_at >= SECONDS_BETWEEN_COUNTS:
                told_at = now
                if self._live is None:
                    self._live, self._task = self._bar(total)
                completed, of = (done, total) if has_own_bar else (None, None)  # else the bar stays as it is
                counted = f"{what} {done:,} of {total:,}"
                self._live.update(self._task, completed=completed, total=of, figures=counted)
            elif not is_terminal and now >= say_at:
                say_at = now + (now - began)
                self.say(f"{what}: {done:,} of {total:,}")

        try:
            yield tell
        finally:
            if has_own_bar and self._live is not None:
                self._live.stop()
                self._live = None

    def _bar(self, total: int) -> "tuple[Progress, TaskID]":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=18),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        live.start()
        return live, live.add_task("train", total=total, figures="")


def _short(value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}"
