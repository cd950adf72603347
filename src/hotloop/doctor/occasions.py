"""What a run does now and then, and what that costs of an env step: lines of metrics, evaluations, checkpoints.

Slices of a run are too short to see them, so each is done here by itself, and counted as often as the spec says.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hotloop import figures
from hotloop.clock import Rates
from hotloop.evaluate import Tell
from hotloop.pipelines.learning_run import LearningRun
from hotloop.pipelines.session import Session
from hotloop.runs import checkpoint
from hotloop.runs.metrics import Metrics
from hotloop.runs.state import digests
from hotloop.spec import Spec

LINES = 20
LONGEST_EVALUATION = 15.0
"""Seconds after which one is given up, and known to take at least that."""
ROOM = 4
"""Times the size of a checkpoint that a disk must have free for one to be tried."""


class Occasion(NamedTuple):
    """Seconds that one takes, and env steps from one to the next."""

    seconds: float
    every: int
    field: str
    """Of the spec, that says how often."""
    note: str = ""
    can_be_rarer: bool = True
    """Whether one takes as long where they are rarer: an evaluation that was cut would not."""

    @property
    def per_env_step(self) -> float:
        """Seconds of an env step."""
        return self.seconds / self.every


class _TookLong(Exception):
    """An evaluation was given up."""


def occasions_of(session: Session, spec: Spec) -> dict[str, Occasion]:
    """By stage: `log`, `evaluate`, `checkpoint`, as far as the spec has them."""
    found: dict[str, Occasion] = {}
    with tempfile.TemporaryDirectory(prefix="hotloop-doctor-") as folder:
        if spec.log.every:
            found["log"] = Occasion(_seconds_of_line(session, spec, Path(folder)), spec.log.every, "log.every")
        if spec.log.checkpoint_every and (seconds := _seconds_of_checkpoint(session, Path(folder))) is not None:
            note = "with the replay as full as it was here" if spec.log.save_replay else ""
            found["checkpoint"] = Occasion(seconds, spec.log.checkpoint_every, "log.checkpoint_every", note)
    if spec.evaluation.every:
        found["evaluate"] = _evaluation(session, spec)
    return found


def _seconds_of_line(session: Session, spec: Spec, folder: Path) -> float:
    metrics = Metrics(folder)
    try:

        def write() -> None:
            host = session.read()
            line = figures.line_of(spec, host, 0.0, Rates())
            metrics.write("train", host.env_steps, {**line, **session.own_figures()})

        write()  # which opens the files
        return statistics.median(_seconds(write) for _ in range(LINES))
    finally:
        metrics.close()


def _seconds_of_checkpoint(session: Session, folder: Path) -> float | None:
    """None where there is no room to try."""
    state = session.arrays()
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    if free < ROOM * sum(array.nbytes for array in state.values()):
        return None
    del state

    def save() -> None:
        arrays = session.arrays()
        checkpoint.save(folder / "state", arrays, {"digests": digests(arrays)})

    return _seconds(save)


def _evaluation(session: Session, spec: Spec) -> Occasion:
    """One as long as those of the run are, but for a policy that has hardly learned yet: the second, if there is time
    for two, as the first may have something to compile."""
    note, can_be_rarer, seconds = "by a policy that has hardly learned", True, 0.0
    for _ in range(2):
        began = time.perf_counter()
        try:
            with _as_if_late(session, spec):
                played = session.evaluate(_giving_up(began))
        except _TookLong:
            return _timed(spec, time.perf_counter() - began, f"{note}, given up", can_be_rarer=False)
        seconds = time.perf_counter() - began
        if any(episodes.cut for episodes in played):
            note, can_be_rarer = "cut short by evaluation.max_share", False
        if seconds > LONGEST_EVALUATION / 3:
            break
    return _timed(spec, seconds, note, can_be_rarer=can_be_rarer)


def _timed(spec: Spec, seconds: float, note: str, *, can_be_rarer: bool) -> Occasion:
    return Occasion(seconds, spec.evaluation.every, "evaluation.every", note, can_be_rarer)


def _giving_up(began: float) -> Tell:
    """Raises when an evaluation has taken long enough."""

    def tell(done: int, wanted: int) -> None:
        del done, wanted
        if time.perf_counter() - began > LONGEST_EVALUATION:
            raise _TookLong

    return tell


@contextmanager
def _as_if_late(session: Session, spec: Spec) -> Iterator[None]:
    """Within, so many env steps have been made as when an evaluation is due: early ones are short."""
    if not isinstance(session, LearningRun):
        yield
        return
    made = session.env_steps
    session.env_steps = max(made, spec.evaluation.every)
    try:
        yield
    finally:
        session.env_steps = made


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
