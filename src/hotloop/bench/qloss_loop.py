"""The whole training loop of `dqn_cartpole`, in a process of its own, where its time and memory go.

`python -m hotloop.bench.qloss_loop TASK` prints one line of JSON; `in_child` is the other side.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import gymnasium
import numpy as np
import torch

from hotloop.bench.qloss_hotloop import (
    EPSILON_END,
    EPSILON_FRAMES,
    EPSILON_START,
    START,
    TARGET_EVERY,
    TRAIN_EVERY,
    EngineCase,
    spec_of,
)
from hotloop.bench.qloss_original import QLearner, Setting, Switches
from hotloop.bench.qloss_replay import Transition
from hotloop.plain import Figures

if TYPE_CHECKING:
    from hotloop.envs.gym_types import Env


class Trains(Protocol):
    """What the loop asks of a learner."""

    def act(self, obs: np.ndarray) -> int:
        """The best known action."""

    def insert(self, transition: Transition) -> None:
        """Keep a transition."""

    def train_call(self) -> None:
        """Learn."""

    def move_target(self) -> None:
        """Mix the online net into the target net."""


class Loop:
    """One env, frame by frame; a train call every 4 frames from 36 on, a move of the target every 32."""

    def __init__(self, learner: Trains, env: "Env", num_actions: int, seed: int = 0) -> None:
        self.learner, self.env, self.num_actions, self.frame = learner, env, num_actions, 0
        self.returns: list[float] = []
        self.train_seconds = self._return = 0.0
        self._random = np.random.default_rng(seed)
        self._obs = env.reset(seed=seed)[0]

    def advance(self, frames: int) -> None:
        """So many frames, with all the learning that falls due."""
        for _ in range(frames):
            self._step()
            if self.frame > START and self.frame % TRAIN_EVERY == 0:
                started = time.perf_counter()
                self.learner.train_call()
                self.train_seconds += time.perf_counter() - started
            if self.frame % TARGET_EVERY == 0:
                self.learner.move_target()

    def _step(self) -> None:
        done = min(1.0, self.frame / EPSILON_FRAMES)
        explores = self._random.random() < EPSILON_START + done * (EPSILON_END - EPSILON_START)
        action = int(self._random.integers(self.num_actions)) if explores else self.learner.act(self._obs)
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self.learner.insert(Transition(self._obs, action, float(reward), obs, bool(terminated)))
        self._obs, self._return, self.frame = obs, self._return + float(reward), self.frame + 1
        if terminated or truncated:
            self.returns.append(self._return)
            self._obs, self._return = self.env.reset()[0], 0.0


@dataclass(frozen=True)
class Task:
    """What a child trains: the original with switches, or an engine of hotloop's; `whole` is a run from end to end."""

    setting: Setting
    frames: int
    switches: Switches | None = None
    engine: EngineCase | None = None
    whole: bool = False

    def as_json(self) -> str:
        """One argument of a command."""
        engine = None if self.engine is None else self.engine._asdict()
        return json.dumps({**asdict(self), "engine": engine})

    @staticmethod
    def from_json(text: str) -> "Task":
        """The task again."""
        data = json.loads(text)
        return Task(
            Setting(**data["setting"]),
            data["frames"],
            None if data["switches"] is None else Switches(**data["switches"]),
            None if data["engine"] is None else EngineCase(**data["engine"]),
            data["whole"],
        )


def in_child(task: Task) -> Figures:
    """Do a task in a process of its own; with `whole`, nothing that was compiled before is found there."""
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        fresh = {"HOTLOOP_CACHE": folder, "TORCHINDUCTOR_CACHE_DIR": folder} if task.whole else {}
        command = [sys.executable, "-m", "hotloop.bench.qloss_loop", task.as_json()]
        done = subprocess.run(command, env={**os.environ, **fresh}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ValueError(f"a trainer of this benchmark ended with code {done.returncode}; its error is above")
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def do(task: Task) -> Figures:
    """The figures of a task, in this process."""
    torch.set_num_threads(1)
    memory = MemoryAboveImports(task)
    if task.engine is None:
        figures = _original(task)
    else:
        figures = _whole_run(task, task.engine) if task.whole else _stretch(task, task.engine)
    return {**figures, "peak_mb": memory.peak_mb()}


def _original(task: Task) -> Figures:
    """The loop of the original; all but `seconds` is counted from the learning start on."""
    began = time.perf_counter()
    learner = QLearner(task.setting, task.switches)
    env = gymnasium.make(task.setting.env_id)
    loop = Loop(learner, env, task.setting.num_actions)
    loop.advance(START)
    started = time.perf_counter()
    loop.advance(task.frames - START)
    ended = time.perf_counter()
    env.close()
    return {
        "seconds": ended - began,
        "fps": (task.frames - START) / (ended - started),
        "learning_share": loop.train_seconds / (ended - started),
        "gradient_steps": learner.gradient_steps,
        "q_loss_calls": learner.q_loss_calls,
        "q_loss_ms": learner.q_loss_seconds / learner.q_loss_calls * 1e3,
        "q_loss_share": learner.q_loss_seconds / (ended - started),
    }


def _stretch(task: Task, engine: EngineCase) -> Figures:
    """So many frames of a run of hotloop's, after what is compiled has been compiled."""
    from hotloop.assembly import Assembly
    from hotloop.trial import begun

    spec = spec_of(task.setting, engine, task.frames)
    with Assembly(spec) as assembly:
        session = begun(assembly)
        session.advance(START // TRAIN_EVERY)
        started, before = time.perf_counter(), session.spans.seconds()
        session.advance((task.frames - START) // TRAIN_EVERY)
        host = session.read()  # sync
        seconds = time.perf_counter() - started
        spent = {name: total - before[name] for name, total in session.spans.seconds().items()}
    learning = sum(spent[name] for name in ("sample", "redraw", "transfer", "update"))
    return {
        "fps": (host.env_steps - START) / seconds,
        "learning_share": learning / seconds,
        "gradient_steps": host.attempts,
    }


def _whole_run(task: Task, engine: EngineCase) -> Figures:
    """A run by `hotloop.train` with all that it writes; its engine is imported before the clock starts."""
    import hotloop

    spec = spec_of(task.setting, engine, task.frames)
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        started = time.perf_counter()
        run = hotloop.train(spec, out=f"{folder}/run")
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "seconds_without_compile": seconds - run.compile_seconds,
        "compile_seconds": run.compile_seconds,
        "gradient_steps": run.updates + run.skipped,
    }


class MemoryAboveImports:
    """Resident memory at its highest, beyond what is there when all that a task imports has been imported."""

    def __init__(self, task: Task) -> None:
        _import_all(task)
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak so far is forgotten
        except OSError:
            pass  # then the peak is at least that of the imports
        self.before = _status("VmRSS")

    def peak_mb(self) -> float | None:
        """Megabytes; None where the system does not say."""
        peak = _status("VmHWM")
        return None if self.before is None or peak is None else max(0, peak - self.before) / 1024


def _import_all(task: Task) -> None:
    """Whatever would else be imported by the first step of an env, an optimiser or an engine."""
    modules = ["torch._dynamo"]
    if task.engine is not None:
        modules += ["hotloop.api", "hotloop.assembly", "hotloop.driver", "hotloop.pipelines.sync"]
        of_torch = ["hotloop.engines.torch.engine", "torch._inductor.compile_fx"]
        modules += ["hotloop.engines.jax.host"] if task.engine.engine == "jax" else of_torch
        modules += ["hotloop.runs.pictures", "matplotlib.figure"] if task.whole else []
    for module in modules:
        import_module(module)
    gymnasium.make(task.setting.env_id).close()


def _status(name: str) -> int | None:
    """A figure of this process in KiB, as Linux has it."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))
    except (OSError, StopIteration):
        return None


if __name__ == "__main__":
    print(json.dumps(do(Task.from_json(sys.argv[1]))), flush=True)
