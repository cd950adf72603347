"""Pixels: Pong trained by each pipeline and by Stable-Baselines3; acting alone against the emulator.

Threads are a property of a process, so each way to train is a process of its own; they take turns.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hotloop.bench.measure import Result, Row, interleave, machine, paired_ratio
from hotloop.plain import Figures, Json
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

if TYPE_CHECKING:
    from hotloop.pipelines.host_run import HostRun

ROUNDS, SECONDS = 7, 5.0
ENVS = 8
ACTING_ROUNDS, ACTING_STEPS = 7, 20
NATURE = {"kind": "cnn", "layout": "CHW"}
TRAINERS = ("sync/1-thread", "sync/all-threads", "concurrent", "hotloop/sb3-settings", "sb3")


def run(reporter: Reporter) -> Result:
    """Measure env steps per second of all cases."""
    settings: Figures = {}
    rows = [*_acting(reporter), *_training(reporter, settings)]
    return Result("pixels", {**machine(), **settings}, rows)


# -- training ---------------------------------------------------------------------------------------------


def _training(reporter: Reporter, settings: Figures) -> list[Row]:
    with reporter.busy("finding the ratio at which envs and updates cost the same"):
        calibration = _Worker("calibrate", 1)
        costs = calibration.ask("costs")
        calibration.close()
    vector_steps = max(1, min(64, round(costs["update_ms"] / costs["vector_step_ms"])))
    settings["pong"] = (
        f"x{ENVS}, Nature CNN, batch 32, {vector_steps} vector steps ({costs['vector_step_ms']:.1f} ms each, acting "
        f"and storing included) per update ({costs['update_ms']:.1f} ms)"
    )
    settings["sb3 settings"] = "1 env, 4 steps per update, batch 32, Nature CNN; both with all threads"
    with reporter.busy("starting and warming up each trainer"):
        workers = {name: _Worker(name, vector_steps) for name in TRAINERS}
        for worker in workers.values():
            worker.ask(2 * SECONDS)
    speed: dict[str, list[float]] = {name: [] for name in TRAINERS}
    for number in range(ROUNDS):
        for name in TRAINERS if number % 2 == 0 else TRAINERS[::-1]:
            speed[name].append(workers[name].ask(SECONDS)["steps_per_s"])
        reporter.show(number + 1, ROUNDS, {"rounds of": " | ".join(TRAINERS)})
    for worker in workers.values():
        worker.close()
    against = {"concurrent": "sync/1-thread", "hotloop/sb3-settings": "sb3"}
    rows = []
    for name in TRAINERS:
        row = Row(f"pong/{name}", sorted(speed[name])[ROUNDS // 2], "env steps/s")
        if name in against:
            row.ratio, row.spread = paired_ratio(speed[name], speed[against[name]])
            row.against = f"pong/{against[name]}"
        if name == "concurrent":
            ratio, (low, high) = paired_ratio(speed[name], speed["sync/all-threads"])
            row.note = f"{ratio:.2f} ({low:.2f}–{high:.2f}) times as fast as sync/all-threads"
        rows.append(row)
    return rows


class _Worker:
    """A trainer in a process of its own that advances for so many seconds when asked."""

    def __init__(self, case: str, vector_steps: int) -> None:
        threads = 1 if case in ("sync/1-thread", "concurrent", "calibrate") else os.cpu_count() or 1
        multi = "true" if threads > 1 else "false"
        flags = f"--xla_cpu_multi_thread_eigen={multi} intra_op_parallelism_threads={threads}"
        # XLA's whole pool; concurrent needs one for the update beside the one that acts.
        pool = 1 if case == "sync/1-thread" else os.cpu_count() or 1
        env = {**os.environ, "XLA_FLAGS": flags, "PJRT_NPROC": str(pool), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "hotloop.bench.pixels", case, str(vector_steps), str(threads)]
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: Json) -> dict[str, float]:
        """Send one line, wait for one line."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(what), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise ValueError("a trainer of this benchmark ended early; its error is above")
        figures: dict[str, float] = json.loads(answer)
        return figures

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def _pong(pipeline: str, num_envs: int, updates_per_step: float, threads: int, start: int = 400) -> Spec:
    return load_spec(
        {},
        {
            "pipeline": pipeline,
            "updates_per_step": updates_per_step,
            "env.id": "ALE/Pong-v5",
            "env.num_envs": num_envs,
            "env.options": {"repeat_action_probability": 0.0, "num_threads": threads},
            "network.torso": NATURE,
            "target.rule": "target",
            "target.every": 1000,
            "optimizer.learning_rate": 1e-4,
            "exploration.epsilon": 0.05,
            "replay": {"capacity": 20_000, "start": start, "batch_size": 32, "stacked_frames": 4},
            "evaluation.every": 0,
        },
    )


def _session(spec: Spec) -> "HostRun":
    from hotloop.assembly import Assembly
    from hotloop.pipelines.host_run import HostRun
    from hotloop.trial import begun

    session = begun(Assembly(spec))
    assert isinstance(session, HostRun)
    return session


def _hotloop_trainer(case: str, vector_steps: int, threads: int) -> Callable[[], int]:
    """Return `advance() -> env steps` of one block."""
    if case == "hotloop/sb3-settings":
        spec = _pong("concurrent", 1, 0.25, 1)
    else:
        spec = _pong(case.partition("/")[0], ENVS, 1 / (ENVS * vector_steps), threads)
    session = _session(spec)

    def advance() -> int:
        before = session.env_steps
        session.advance(1)
        return int(session.env_steps - before)

    while not session.first_update_at:
        advance()
    return advance


def _sb3_trainer(threads: int) -> Callable[[], int]:
    import ale_py
    import gymnasium as gym
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gym.register_envs(ale_py)
    torch.set_num_threads(threads)
    envs = make_atari_env("ALE/Pong-v5", env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0}, seed=0)
    model = DQN(
        "CnnPolicy",
        VecFrameStack(envs, 4),
        learning_rate=1e-4,
        buffer_size=20_000,
        learning_starts=400,
        batch_size=32,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=1000,
        exploration_fraction=1e-6,
        exploration_final_eps=0.05,
        device="cpu",
    )
    model.learn(420)

    def advance() -> int:
        model.learn(40, reset_num_timesteps=False)
        return 40

    return advance


def _costs(session: "HostRun") -> dict[str, float]:
    """Milliseconds of one vector step with acting and storing, and of one update."""
    session.advance(20)
    before, blocks = session.spans.seconds(), 20
    session.advance(blocks)
    spent = {name: (total - before[name]) / blocks * 1e3 for name, total in session.spans.seconds().items()}
    host = spent["select"] + spent["step"] + spent["insert"]
    return {"vector_step_ms": host, "update_ms": spent["update"] + spent["transfer"] + spent["sample"]}


def _serve(case: str, vector_steps: int, threads: int) -> None:
    """The other side of a `_Worker`."""
    if case == "calibrate":
        costs = _costs(_session(_pong("sync", ENVS, 1 / ENVS, threads, start=64)))
        sys.stdin.readline()
        print(json.dumps(costs), flush=True)
        return
    advance = _sb3_trainer(threads) if case == "sb3" else _hotloop_trainer(case, vector_steps, threads)
    for line in sys.stdin:
        seconds, steps, started = json.loads(line), 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            steps += advance()
        print(json.dumps({"steps_per_s": steps / (time.perf_counter() - started)}), flush=True)


# -- acting -----------------------------------------------------------------------------------------------


def _acting(reporter: Reporter) -> list[Row]:
    from hotloop.engines.jax import setup

    spec = _pong("sync", ENVS, 1 / ENVS, 0, start=1_000_000_000)
    setup.start(spec)
    emulator, ours = "pong/emulator and forward pass", "pong/acting"
    session = _session(spec)
    rows = _compare(emulator, _pong_alone(spec, session), ours, session.collect, reporter)
    session.close()
    return rows


def _compare(name: str, alone: Callable[[], None], ours: str, act: Callable[[], None], reporter: Reporter) -> list[Row]:
    """Both by vector steps of all envs."""

    def times(one: Callable[[], None]) -> Callable[[], None]:
        def many() -> None:
            for _ in range(ACTING_STEPS):
                one()

        return many

    seconds = interleave({name: times(alone), ours: times(act)}, rounds=ACTING_ROUNDS, reporter=reporter)
    speed = {case: [ACTING_STEPS * ENVS / taken for taken in each] for case, each in seconds.items()}
    rows = [Row(case, sorted(each)[ACTING_ROUNDS // 2], "env steps/s") for case, each in speed.items()]
    rows[1].ratio, rows[1].spread = paired_ratio(speed[ours], speed[name])
    rows[1].against = name
    return rows


def _pong_alone(spec: Spec, session: "HostRun") -> Callable[[], None]:
    """The vector env with actions made beforehand, and a forward pass of what it shows."""
    import numpy as np

    from hotloop.envs.host import make_vector_env

    env = make_vector_env(spec.env.id, ENVS, spec.env.options)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 6, (1000, ENVS))
    turn = iter(range(10**9))

    def step() -> None:
        obs, *_ = env.step(actions[next(turn) % 1000])
        session.actor.policy(obs)

    return step


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
