"""A training in a process of its own that goes on for so many seconds whenever it is asked to, and else rests.

Threads are a property of a process, and each pipeline gets those that a run of it gets. A training that is not asked
uses no processor: its actors have made what they were allowed to make ahead, and wait.

    python -m hotloop.trainer_process ORDERS    # JSON; then seconds, a line each; figures, a line each
"""

import contextlib
import json
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict

import psutil

from hotloop.answers import answers_apart
from hotloop.assembly import Assembly, Own
from hotloop.engines.jax.setup import VARIABLES
from hotloop.envs.naming import look_in_current_folder
from hotloop.errors import HotloopError
from hotloop.interrupts import end_is_wanted, interrupts_held_back
from hotloop.pipelines.actor_figures import WORKS
from hotloop.pipelines.session import Session
from hotloop.pipelines.supply import InProcesses, Supply
from hotloop.plain import number
from hotloop.registry import imported
from hotloop.runs.metrics import Metrics
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.transport.protocol import ActorStatus
from hotloop.trial import begun, measured, warm_up

SHARES_A_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Trainings side by side take the memory of a GPU as they need it."""
PATIENCE, WAIT_FOR_WORDS, LOOKS_EVERY = 60.0, 5.0, 0.2


@dataclass(frozen=True)
class Orders:
    """What is trained: a preset with changes, or a whole spec; on its env, or on one that a class makes."""

    spec: Mapping[str, object]
    preset: str | None = None
    env: str | None = None
    """`module:Class`."""
    arguments: Mapping[str, float] = field(default_factory=dict)
    """Of that class."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment."""


class Figures(TypedDict):
    """What a turn measured."""

    env_steps_per_s: float
    env_steps: int
    updates: int
    samples_per_insert: float
    learner: dict[str, float]
    """Share of the time that each stage of this process took."""
    actors: dict[str, float]
    """Share of their time that actors were in each state; none without actors."""
    weights_lag: float | None
    """Versions that actors were behind at the end, on average."""
    here_us: float
    """Microseconds of a processor that this process used for each env step."""
    actors_us: float
    """And those that it has started: actors, or envs."""
    cores: float
    """Processors that all of them used, on average."""
    rest_seconds: float
    """Since the turn before, while others had theirs."""
    used_at_rest: float
    """Seconds of a processor in that time."""
    update_ms: float
    """Of a gradient step, drawing its batch included."""


class TrainingEnded(HotloopError):
    """A training has ended before it was asked to."""


class Trainer:
    """The other process, seen from here."""

    def __init__(self, orders: Orders) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        # -P: the current folder hides no module of Python's; `serve` looks there for the env alone.
        command = [sys.executable, "-P", "-m", "hotloop.trainer_process", json.dumps(asdict(orders))]
        self._was_asked = False
        self._errors = tempfile.TemporaryFile(prefix="hotloop-trainer-")  # noqa: SIM115  # closed with it
        with interrupts_held_back():  # it ends when it is told to
            self._process = subprocess.Popen(
                command,
                env={**SHARES_A_GPU, **kept, **orders.variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )

    def train(self, seconds: float, patience: float = math.inf) -> Figures:
        """Go on for so long, and say how fast that was; TrainingEnded if it cannot, or if that takes much longer."""
        assert self._process.stdin
        assert self._process.stdout
        self._was_asked = True
        try:
            print(json.dumps(seconds), file=self._process.stdin, flush=True)
            self._wait_for_answer(seconds + patience)
            answer = self._process.stdout.readline()
        except OSError:  # nobody is there to be asked
            answer = ""
        if not answer:
            raise TrainingEnded(f"a training ended early: {self._last_words()}")
        figures: Figures = json.loads(answer)
        return figures

    def _wait_for_answer(self, seconds: float) -> None:
        """Until there is one; after so long, or if a signal asks for the end, the process ends: TrainingEnded."""
        assert self._process.stdout
        until = time.monotonic() + seconds
        while not select.select([self._process.stdout], [], [], LOOKS_EVERY)[0]:
            if end_is_wanted() or time.monotonic() > until:
                self._process.kill()
                why = "a signal asked for the end" if end_is_wanted() else f"it said nothing for {seconds:.0f} s"
                raise TrainingEnded(f"a training was ended: {why}")

    def _last_words(self) -> str:
        """The last line that the process said of itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(WAIT_FOR_WORDS)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it said nothing (exit code {self._process.returncode})"

    def close(self) -> None:
        """End it, whatever it does."""
        assert self._process.stdin
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if not self._was_asked:  # it may still compile for someone who does not want to know any more
            self._process.kill()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()


class Turns:
    """The turns of one session, past its learning start."""

    def __init__(self, session: Session, spec: Spec, metrics: Metrics) -> None:
        self._session, self._spec, self._metrics = session, spec, metrics
        self._actors = session.supply if isinstance(session, InProcesses) else None
        warm_up(session, spec)
        self._come_to_rest()
        self._rested_at, self._used_by_then = time.perf_counter(), sum(_processor_seconds())

    def take(self, seconds: float) -> Figures:
        """Train for so long and come to rest."""
        rested, used = time.perf_counter() - self._rested_at, sum(_processor_seconds()) - self._used_by_then
        session, actors = self._session, self._actors
        self._use_up_what_was_made_ahead()
        before, started, by_then = _statuses(actors), time.perf_counter(), _processor_seconds()
        trial = measured(session, self._spec, seconds, self._metrics, [])
        passed = time.perf_counter() - started
        here, there = (now - then for now, then in zip(_processor_seconds(), by_then, strict=True))
        after = _statuses(actors)
        figures = session.own_figures()
        lag = number(figures, "weights_lag") if "weights_lag" in figures else None
        learning = sum(trial.stage_seconds.get(name, 0.0) for name in ("sample", "redraw", "transfer", "update"))
        self._come_to_rest()
        self._rested_at, self._used_by_then = time.perf_counter(), sum(_processor_seconds())
        return {
            "env_steps_per_s": trial.env_steps / trial.seconds,
            "env_steps": trial.env_steps,
            "updates": trial.updates,
            "samples_per_insert": trial.updates * self._spec.replay.batch_size / trial.env_steps,
            "learner": {name: spent / trial.seconds for name, spent in trial.stage_seconds.items()},
            "actors": _shares(before, after),
            "weights_lag": lag,
            "here_us": here / trial.env_steps * 1e6,
            "actors_us": there / trial.env_steps * 1e6,
            "cores": (here + there) / passed,
            "rest_seconds": rested,
            "used_at_rest": used,
            "update_ms": learning / max(1, trial.updates) * 1e3,
        }

    def _use_up_what_was_made_ahead(self) -> None:
        """Train on what lay ready, so that none of it is counted as made in this turn."""
        if self._actors is None:
            return
        made = sum(status.transitions for status in self._actors.statuses())
        while self._session.read().env_steps < made:
            self._session.advance(1)

    def _come_to_rest(self) -> None:
        """Until all actors wait for an allowance."""
        if self._actors is not None:
            self._actors.come_to_rest()


def _statuses(supply: Supply | None) -> list[ActorStatus]:
    return [] if supply is None else supply.statuses()


def _shares(before: list[ActorStatus], after: list[ActorStatus]) -> dict[str, float]:
    spent = {
        state: sum(now.nanoseconds[state] - then.nanoseconds[state] for now, then in zip(after, before, strict=True))
        for state in WORKS
    }
    total = sum(spent.values())
    return {state.name.lower().replace("_", " "): spent[state] / total for state in WORKS} if total else {}


def _processor_seconds() -> tuple[float, float]:
    """Of this process, and of those that it has started."""
    here = psutil.Process()
    others = 0.0
    for process in here.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            others += sum(process.cpu_times()[:2])
    return sum(here.cpu_times()[:2]), others


def serve(orders: Orders) -> None:
    """Train as asked on standard input until it ends."""
    answers = answers_apart()
    env = None if orders.env is None else partial(imported(orders.env), **orders.arguments)
    spec = load_spec(orders.preset or {}, dict(orders.spec), imports_plugins=True)
    look_in_current_folder(spec.env.id)
    with Assembly(spec, Own(env=env)) as assembly, tempfile.TemporaryDirectory(prefix="hotloop-trainer-") as folder:
        metrics = Metrics(Path(folder))
        turns = Turns(begun(assembly), assembly.spec, metrics)
        for line in sys.stdin:
            print(json.dumps(turns.take(float(line))), file=answers, flush=True)
        metrics.close()


if __name__ == "__main__":
    serve(Orders(**json.loads(sys.argv[1])))
