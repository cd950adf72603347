"""One trial in a process of its own: whatever happens to it, its memory, a crash or a kill, never harms the search.

The process tells what each evaluation gave and waits to hear whether to go on; it ends with whoever started it.
"""

import contextlib
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from hotloop import registry
from hotloop.errors import HotloopError, SpecError, said
from hotloop.interrupts import interrupts_held_back
from hotloop.listeners import STOP, Evaluation
from hotloop.plain import Figures, Json
from hotloop.searching.subject import Subject
from hotloop.spec import Spec

GRACE_SECONDS = 10.0
"""How long a process that was asked to end may take to close its envs."""
GUARD = (
    "a script that calls hotloop.search does so below if __name__ == '__main__':, as each trial's process imports it"
)


class Task(NamedTuple):
    """What a trial's process is to do."""

    subject: Subject
    values: dict[str, object]
    out: Path
    output: Path  # what the run prints
    threads: int | None  # at most, if others run beside it


class Evaluated(NamedTuple):
    """Greedy episodes were played; whoever hears this answers whether the run is to end."""

    env_steps: int
    score: float


class Ended(NamedTuple):
    """The run is over: its score if it came to its end, else why not."""

    score: float | None
    stopped_by: str
    reason: str | None


class TrialProcess:
    """A running trial, as the search sees it."""

    def __init__(self, task: Task) -> None:
        """Start it; Ctrl-C never reaches it."""
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.began, self.has_begun = time.monotonic(), False
        # Not a daemon: those may start no processes, and envs may be in some.
        self._process = context.Process(target=_work, args=(there, task), name=f"hotloop-trial-{task.out.name}")
        with interrupts_held_back():
            self._process.start()
        there.close()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began

    def hear(self) -> Evaluated | Ended | None:
        """What it says; None says only that it has begun."""
        try:
            heard = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(GRACE_SECONDS)
            return Ended(None, "died", self._how_it_died())
        self.has_begun = True
        return heard if isinstance(heard, Evaluated | Ended) else None

    def answer(self, *, stops: bool) -> None:
        """Say whether it is to end."""
        with contextlib.suppress(OSError):  # it is gone, which is heard next
            self._pipe.send(stops)

    def ask_to_end(self) -> None:
        """Have it end without waiting for it."""
        self._pipe.close()
        if self._process.is_alive():
            self._process.terminate()

    def close(self, *, has_ended: bool = False) -> None:
        """Wait for its end, and see to it; `has_ended`: it has said that it is done and goes by itself."""
        if has_ended:
            self._process.join(GRACE_SECONDS)
        self.ask_to_end()
        self._process.join(GRACE_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _how_it_died(self) -> str:
        code = self._process.exitcode
        if code is None:
            return "its process no longer answers"
        if code < 0:
            return f"its process was killed by signal {-code}" + (" (out of memory?)" if code == -9 else "")
        when = "" if self.has_begun else f" before it began; {GUARD}"
        return f"its process ended with exit code {code}{when}"


def those_that_speak(processes: Sequence[TrialProcess], timeout: float) -> list[TrialProcess]:
    """Wait until some of them have something to say; none when the time is over."""
    by_pipe = {process._pipe: process for process in processes}
    speaking = wait(list(by_pipe), timeout)
    return [process for pipe, process in by_pipe.items() if pipe in speaking]


def refuse_in_a_starting_process() -> None:
    """Refuse to search while a trial's process imports the script that started the search."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SpecError(GUARD)


def score_of(figures: Figures) -> float | None:
    """The score of a run or an evaluation: its mean return, of several seeds the interquartile mean."""
    score: Json = figures.get("return_iqm", figures.get("return_mean"))
    return score if isinstance(score, int | float) and math.isfinite(score) else None


# -- within the process -----------------------------------------------------------------------------------


def _work(pipe: Connection, task: Task) -> None:
    threading.Thread(target=_end_with_the_search, daemon=True).start()
    with task.output.open("a") as output:
        sys.stdout.flush()
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    try:
        pipe.send(None)
        ended = _train(pipe, task)
    except HotloopError as error:
        ended = Ended(None, "error", " ".join(str(error).split()))
    except Exception as error:  # of any code that the spec names; the search goes on without this trial
        traceback.print_exc()
        ended = Ended(None, "error", said(error))
    with contextlib.suppress(OSError):  # nobody waits for it any more
        pipe.send(ended)


def _train(pipe: Connection, task: Task) -> Ended:
    from hotloop.api import train
    from hotloop.assembly import Own, trains_in_turn
    from hotloop.progress import Terminal

    spec = task.subject.with_values(task.values, imports_plugins=True)
    if task.threads is not None:
        _limit_threads(spec, task.threads)

    in_turn = trains_in_turn(spec, Own())

    def on_evaluation(evaluation: Evaluation) -> object:
        if in_turn:  # of one seed after the other: only all of them make the score
            return None
        score, goal = score_of(evaluation.summary), spec.stop.return_at_least
        if score is None:
            return None
        try:
            pipe.send(Evaluated(evaluation.env_steps, score))
            stops = pipe.recv()
        except (EOFError, OSError):  # the search is over
            return STOP
        is_at_its_end = evaluation.env_steps >= spec.stop.steps or (goal is not None and score >= goal)
        return STOP if stops and not is_at_its_end else None

    with Terminal() as reporter:
        run = train(spec, out=task.out, on_evaluation=on_evaluation, reporter=reporter)
    score, reason = score_of(run.result), None
    if run.stopped_by == "signal":
        reason = run.stopped
    elif score is None:
        reason = "it has no score: no evaluation was played, and no episode has ended"
    return Ended(score, run.stopped_by, reason)


def _end_with_the_search() -> None:
    """Wait until the process that started this one is gone, then be gone too."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _limit_threads(spec: Spec, threads: int) -> None:
    """Leave the other cores to other trials; threads that the user has set are kept."""
    wanted: int = registry.imported(registry.ENGINES[spec.engine].threads)(spec)
    if spec.engine == "torch":
        os.environ.setdefault("OMP_NUM_THREADS", str(min(threads, wanted)))
        return
    if spec.devices == 1 and (wanted > threads or spec.seeds > 1):
        os.environ.setdefault("PJRT_NPROC", str(min(wanted, threads)))
