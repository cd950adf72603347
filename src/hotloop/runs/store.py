"""Where a run is kept: in a folder, or in memory only."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from hotloop.errors import SpecError
from hotloop.listeners import End, Evaluation, Listener, Log, Start
from hotloop.plain import Figures
from hotloop.runs import checkpoint
from hotloop.runs.folder import RunFolder
from hotloop.runs.metrics import Metrics
from hotloop.runs.state import digests
from hotloop.spec import Spec

Arrays = dict[str, np.ndarray]
Facts = Figures


class Store(Protocol):
    """What the driver asks of the place where a run is kept; a disk that is full ends no run."""

    @property
    def path(self) -> Path | None:
        """Its folder, if it has one."""

    disk_error: str | None
    """What could not be written, the last time something could not."""

    def listeners(self) -> list[Listener]:
        """Those who write down what happens."""

    def begin(self, spec: Spec, facts: Facts) -> None:
        """Keep what is known before training."""

    def change_spec(self, spec: Spec) -> None:
        """Keep a spec with another end."""

    def save_state(self, env_steps: int, arrays: Callable[[], Arrays], facts: Facts) -> Path | None:
        """Keep all of the state, to go on from; returns where, if it could be done."""

    def dump_state(self, arrays: Callable[[], Arrays], facts: Facts) -> Path | None:
        """Keep a state that is not to be gone on from; returns where, if it could be done."""

    def save_weights(self, which: str, named: Arrays, facts: Facts) -> None:
        """Keep an agent: `best`, `last`, or a member's name."""

    def note(self, env_steps: int, notice: str) -> None:
        """Keep what a person was told, tracebacks and all."""

    def what_was_kept(self, saved: Path | None) -> str:
        """The outcome of `save_state` in words, for the line about what ended the run."""


class InFolder:
    """A run in its folder; `warn` hears of a full or read-only disk, and training goes on."""

    def __init__(self, folder: RunFolder, warn: Callable[[str], None], checkpoints: int) -> None:
        """`checkpoints`: how many of the newest are kept."""
        self.folder, self._warn, self._checkpoints = folder, warn, checkpoints
        self.disk_error: str | None = None

    @property
    def path(self) -> Path:
        """Its folder, which is chosen when the run begins."""
        return self.folder.path

    def listeners(self) -> list[Listener]:
        """The metrics files."""
        return [_MetricsFiles(self)]

    def begin(self, spec: Spec, facts: Facts) -> None:
        """Create the folder."""
        if unsigned := self.folder.create(spec, facts):
            self._warn(f"the run is not signed as yours ({unsigned}); loading it may need --trust")

    def change_spec(self, spec: Spec) -> None:
        """Write spec.yaml anew."""
        self.attempt("spec.yaml", lambda: self.folder.rewrite_spec(spec))

    def save_state(self, env_steps: int, arrays: Callable[[], Arrays], facts: Facts) -> Path | None:
        """Write a checkpoint and remove the oldest."""
        state, where = arrays(), self.folder.checkpoints / f"{env_steps:012d}"
        whole: Facts = {**facts, "digests": digests(state)}
        if not self.attempt("checkpoint", lambda: checkpoint.save(where, state, whole)):
            return None
        checkpoint.prune(self.folder.checkpoints, self._checkpoints)
        return where

    def dump_state(self, arrays: Callable[[], Arrays], facts: Facts) -> Path | None:
        """Write it to `dump`."""
        is_saved = self.attempt("dump", lambda: checkpoint.save(self.folder.dump, arrays(), facts))
        return self.folder.dump if is_saved else None

    def save_weights(self, which: str, named: Arrays, facts: Facts) -> None:
        """Write them to a folder of that name."""
        self.attempt(f"{which} weights", lambda: checkpoint.save(self.folder.path / which, named, facts))

    def note(self, env_steps: int, notice: str) -> None:
        """Append it to notices.log, with the time and the env step."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self.attempt("notices.log", lambda: self._append(f"{when}  env step {env_steps:,}  {notice.rstrip()}\n"))

    def _append(self, text: str) -> None:
        with self.folder.notices_file.open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)

    def what_was_kept(self, saved: Path | None) -> str:
        """Where it is, or that it is nowhere."""
        return f"the run is saved in {self.path}" if saved else "the run could not be saved"

    def attempt(self, what: str, write: Callable[[], object]) -> bool:
        """Do something with the disk; a full or read-only one is said, and training goes on."""
        try:
            write()
        except OSError as error:
            self.disk_error = f"{what} could not be written: {error}"
            self._warn(f"{self.disk_error}; training goes on, nothing older was removed")
            return False
        return True


class InMemory:
    """A run of which nothing is written; its agents are kept."""

    path: Path | None = None
    disk_error: str | None = None

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Arrays, Facts]] = {}

    def listeners(self) -> list[Listener]:
        """Nobody writes anything down."""
        return []

    def begin(self, spec: Spec, facts: Facts) -> None:
        """Nothing to be done."""

    def change_spec(self, spec: Spec) -> None:
        """Nothing to be done."""

    def save_state(self, env_steps: int, arrays: Callable[[], Arrays], facts: Facts) -> None:
        """Nothing to be done: the state is not even read."""

    def dump_state(self, arrays: Callable[[], Arrays], facts: Facts) -> None:
        """Nothing to be done."""

    def save_weights(self, which: str, named: Arrays, facts: Facts) -> None:
        """Keep a copy: the program that trains reuses the memory of its weights."""
        self._kept[which] = {name: np.array(array) for name, array in named.items()}, facts

    def note(self, env_steps: int, notice: str) -> None:
        """Nothing to be done: it was told."""

    def what_was_kept(self, saved: Path | None) -> str:
        """Nothing was."""
        return "the run is not saved: it has no folder (out=None)"

    def has_weights(self, which: str) -> bool:
        """Whether there are such weights."""
        return which in self._kept

    def weights(self, which: str) -> tuple[Arrays, Facts]:
        """Named weights and facts: those of the `best` evaluation, the `last`, or a member's (`seed-3`)."""
        if which not in self._kept:
            raise SpecError(f"there are no '{which[:40]}' weights; this run has {', '.join(self._kept) or 'none'}")
        return self._kept[which]


class _MetricsFiles(Listener):
    """Writes metrics.jsonl and TensorBoard's events."""

    _files: Metrics | None = None

    def __init__(self, store: InFolder) -> None:
        self._store = store

    def on_start(self, start: Start) -> None:
        """Open them."""
        self._files = Metrics(self._store.path, start.resumed_at)

    def on_log(self, log: Log) -> None:
        """Write a line."""
        self._write("train", log.env_steps, log.figures)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Write a line."""
        self._write("eval", evaluation.env_steps, evaluation.summary)

    def on_end(self, end: End) -> None:
        """Close them."""
        if self._files is not None:
            self._store.attempt("metrics", self._files.close)

    def _write(self, kind: str, env_steps: int, values: Figures) -> None:
        files = self._files
        if files is not None:
            self._store.attempt("metrics", lambda: files.write(kind, env_steps, values))
