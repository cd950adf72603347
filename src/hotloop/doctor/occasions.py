"""What a run does now and then, and what that costs of an env step: lines of metrics, evaluations, checkpoints.

Slices of a run are too short to see them, so each is done here by itself, and counted as often as the spec says.
"""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hotloop import figures
from hotloop.clock import Rates
from hotloop.errors import EnvFailed, said
from hotloop.evaluate import Tell
from hotloop.pace import SECONDS_PER_CHUNK
from hotloop.pipelines.learning_run import LearningRun
from hotloop.pipelines.session import Session
from hotloop.pipelines.team_run import TeamRun
from hotloop.runs import checkpoint
from hotloop.runs.metrics import Metrics
from hotloop.runs.state import digests
from hotloop.spec import Spec

LINES, LONGEST_BLOCKS = 20, 1.0
"""Lines that are written, and seconds of blocks between them."""
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


def occasions_of(session: Session, spec: Spec, env_steps_per_s: float) -> tuple[dict[str, Occasion], list[str]]:
    """By stage (`log`, `evaluate`, `checkpoint`), as far as the spec has them; and what could not be done, in words."""
    found, notices = dict[str, Occasion](), list[str]()
    ways: dict[str, Callable[[], Occasion | str]] = {
        "log": lambda: _line(session, spec, env_steps_per_s),
        "checkpoint": lambda: _checkpoint(session, spec),
    }
    if spec.evaluation.every:
        ways["evaluate"] = lambda: _evaluation(session, spec)
    for name, do in ways.items():
        try:
            done = do()
        except (OSError, EnvFailed) as error:  # a full disk, an env that raises
            done = said(error)
        if isinstance(done, str):
            notices.append(f"{name} could not be timed: {done}")
        else:
            found[name] = done
    return found, notices


def _line(session: Session, spec: Spec, env_steps_per_s: float) -> Occasion:
    """Lines are no more frequent than the host looks in, unless the spec is exact: then training stops for each."""
    with tempfile.TemporaryDirectory(prefix="hotloop-doctor-") as folder:
        block, line = _seconds_of_block_and_line(session, spec, Path(folder))
    if not spec.log.exact:
        return Occasion(line, max(spec.log.every, round(env_steps_per_s * SECONDS_PER_CHUNK)), "log.every")
    stopped = max(0.0, block - spec.block_plan.env_steps / env_steps_per_s)
    return Occasion(line + stopped, max(spec.log.every, spec.block_plan.env_steps), "log.every")


def _checkpoint(session: Session, spec: Spec) -> Occasion | str:
    with tempfile.TemporaryDirectory(prefix="hotloop-doctor-") as folder:
        seconds = _seconds_of_checkpoint(session, Path(folder))
    if seconds is None:
        return "the disk has not room enough to try"
    note = "with the replay as full as it was here" if spec.log.save_replay else ""
    return Occasion(seconds, spec.log.checkpoint_every, "log.checkpoint_every", note)


def _seconds_of_block_and_line(session: Session, spec: Spec, folder: Path) -> tuple[float, float]:
    """Of a block by itself, and of the line of metrics after it: neither finds the caches as it left them."""
    metrics = Metrics(folder)
    blocks, lines = list[float](), list[float]()

    def write() -> None:
        host = session.read()
        line = figures.line_of(spec, host, 0.0, Rates())
        metrics.write("train", host.env_steps, {**line, **session.own_figures()})
        session.forget_totals()

    def advance() -> None:
        session.advance(1)
        session.read()  # sync

    try:
        write()  # which opens the files
        for _ in range(LINES):
            if spec.log.exact and sum(blocks) < LONGEST_BLOCKS:
                blocks.append(_seconds(advance))
            lines.append(_seconds(write))
    finally:
        metrics.close()
    return statistics.median(blocks or [0.0]), statistics.median(lines)


def _seconds_of_checkpoint(session: Session, folder: Path) -> float | None:
    """None where there is no room to try."""
    state = session.arrays()
    if shutil.disk_usage(folder).free < ROOM * sum(array.nbytes for array in state.values()):
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
        else:
            length = float(np.mean([np.mean(episodes.length) for episodes in played]))
            note = f"{length:,.0f} steps an episode, by a policy that has hardly learned: longer ones take longer"
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
    runs = [session] if isinstance(session, LearningRun) else session.runs if isinstance(session, TeamRun) else []
    made = [run.env_steps for run in runs]
    for run in runs:
        run.env_steps = max(run.env_steps, spec.evaluation.every)
    try:
        yield
    finally:
        for run, steps in zip(runs, made, strict=True):
            run.env_steps = steps


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
