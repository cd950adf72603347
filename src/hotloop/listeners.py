"""What a run tells those who listen to it: the terminal, the metrics files, and callbacks of users."""

import copy
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from hotloop.errors import SpecError
from hotloop.plain import Figures
from hotloop.spec import Spec


class Start(NamedTuple):
    """A run begins, or goes on at the env step `resumed_at`."""

    spec: Spec
    path: Path | None  # its folder, if it has one
    resumed_at: int | None


class Chunk(NamedTuple):
    """About half a second of training is over; `figures` are the few that a live line shows."""

    env_steps: int
    steps_in_all: int
    figures: Figures


class Log(NamedTuple):
    """A log period is over; `figures` are those of a line in metrics.jsonl."""

    env_steps: int
    figures: Figures


class Evaluation(NamedTuple):
    """Greedy episodes were played; `summary` is what metrics.jsonl says of them."""

    env_steps: int
    summary: Figures
    is_best: bool


class Checkpoint(NamedTuple):
    """All of the state was saved."""

    env_steps: int
    path: Path


class End(NamedTuple):
    """A run is over: it has a result, or there is an error that ended it, or both if a listener raised it."""

    result: Figures | None
    error: BaseException | None


Event = Start | Chunk | Log | Evaluation | Checkpoint | End


class _Verdict(Enum):
    STOP = "stop"

    def __repr__(self) -> str:
        return "hotloop.STOP"


STOP: Final = _Verdict.STOP
"""What a listener returns to end the run: it is saved as at any other end, and can be resumed."""


class Listener(Protocol):
    """Hears what happens to a run, and may end it by returning STOP; inherit from it to hear some of it.

    Seeds that are trained one after the other are runs of their own, each with a start, which says its seed, and an
    end; STOP ends them all.
    """

    def on_start(self, start: Start) -> object:
        """Before the first chunk."""
        return None

    def on_chunk(self, chunk: Chunk) -> object:
        """About twice a second."""
        return None

    def on_log(self, log: Log) -> object:
        """Every `log.every` env steps."""
        return None

    def on_evaluation(self, evaluation: Evaluation) -> object:
        """Every `evaluation.every` env steps, and at the end."""
        return None

    def on_checkpoint(self, checkpoint: Checkpoint) -> object:
        """Every `log.checkpoint_every` env steps, and at the end; never without a folder."""
        return None

    def on_end(self, end: End) -> object:
        """Once, whatever has ended the run."""
        return None


METHODS: dict[type[Event], str] = {
    Start: "on_start",
    Chunk: "on_chunk",
    Log: "on_log",
    Evaluation: "on_evaluation",
    Checkpoint: "on_checkpoint",
    End: "on_end",
}


class Callbacks(Listener):
    """Single functions of a user as one listener."""

    def __init__(
        self,
        on_log: Callable[[Log], object] | None = None,
        on_evaluation: Callable[[Evaluation], object] | None = None,
        on_checkpoint: Callable[[Checkpoint], object] | None = None,
    ) -> None:
        given = {"on_log": on_log, "on_evaluation": on_evaluation, "on_checkpoint": on_checkpoint}
        for name, callback in given.items():
            if callback is not None:
                if not callable(callback):
                    raise SpecError(f"{name} is {callback!r}, expected a function that takes one event")
                setattr(self, name, callback)


def listeners_of(
    listeners: Sequence[Listener],
    on_log: Callable[[Log], object] | None,
    on_evaluation: Callable[[Evaluation], object] | None,
    on_checkpoint: Callable[[Checkpoint], object] | None,
) -> list[Listener]:
    """A user's listeners and callbacks, checked before anything is computed."""
    for index, listener in enumerate(listeners):
        lacking = [name for name in METHODS.values() if not callable(getattr(listener, name, None))]
        if lacking or isinstance(listener, type):
            what = f"is the class {listener.__name__}" if isinstance(listener, type) else f"has no {', '.join(lacking)}"
            raise SpecError(
                f"listeners[{index}] {what}; expected an object that inherits from hotloop.Listener, whose methods "
                "do nothing"
            )
    return [*listeners, Callbacks(on_log, on_evaluation, on_checkpoint)]


class Audience:
    """All listeners of a run: our own, who hear first and whose errors are the run's, then the user's.

    What a user's listener returns or raises is noted, not acted upon: the driver ends the run between two chunks, when
    everything that was due is done. After an error the user's listeners hear of nothing but the end.
    """

    def __init__(self, ours: Sequence[Listener], users: Sequence[Listener]) -> None:
        self._ours, self._users = list(ours), list(users)
        self.stopped_by: str | None = None  # the method that returned STOP or raised
        self.error: BaseException | None = None

    def tell(self, event: Event) -> None:
        """Tell everyone; each of the user's listeners gets a copy, to do with as it likes."""
        method = METHODS[type(event)]
        for listener in self._ours:
            getattr(listener, method)(event)
        for listener in self._users:
            if self.error is not None and not isinstance(event, End):
                return
            try:
                if getattr(listener, method)(_copied(event)) is STOP:
                    self.stopped_by = self.stopped_by or method
            except BaseException as error:  # whatever the user's own code raises: it is raised again, after saving
                self.stopped_by, self.error = method, self.error or error


def _copied(event: Event) -> Event:
    """The event with dictionaries of its own."""
    return type(event)._make(copy.deepcopy(value) if isinstance(value, dict) else value for value in event)
