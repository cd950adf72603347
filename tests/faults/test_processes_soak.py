"""Hundreds of chunks with actors, some of which are killed: memory and open files of all processes stay as they are."""

import os
import random
import signal
import statistics
import time

import psutil
import pytest
from process_sessions import SMALL

import hotloop
from hotloop.progress import Silent
from process_tree import actors_of

MiB = 1 << 20


class _Watching(Silent):
    """Measures this process and its actors after every chunk; now and then it kills one of these."""

    def __init__(self, seconds, kills):
        self.began, self.seconds, self.kills = time.monotonic(), seconds, kills
        self.process, self.chance, self.killed = psutil.Process(), random.Random(1), 0
        self.memory, self.files, self.threads, self.of_actors = [], [], [], []

    def show(self, env_steps, total, figures):
        self.memory.append(self.process.memory_info().rss / MiB)
        self.files.append(len(os.listdir("/proc/self/fd")))
        self.threads.append(self.process.num_threads())
        actors = actors_of()
        self.of_actors += [(actor.pid, size) for actor in actors if (size := _size(actor)) is not None]
        passed = time.monotonic() - self.began
        if actors and self.killed < self.kills * passed / self.seconds:
            self.killed += 1
            os.kill(self.chance.choice(actors).pid, signal.SIGKILL)

    def warn(self, text):
        """Of the kills, which are the test's own."""

    def is_over(self, _):
        return hotloop.STOP if time.monotonic() - self.began > self.seconds else None


def _size(process):
    try:
        return process.memory_info().rss / MiB
    except psutil.Error:
        return None


@pytest.mark.parametrize(
    ("seconds", "kills"),
    [pytest.param(25, 4, marks=pytest.mark.heavy), pytest.param(600, 60, marks=pytest.mark.slow)],
    ids=["short", "ten minutes"],
)
def test_a_long_run_with_actors_keeps_its_memory_and_files(seconds, kills, tmp_path):
    watching = _Watching(seconds, kills)
    more = {"evaluation": {"every": 20_000, "episodes": 2}, "log": {"every": 500, "checkpoint_every": 10_000}}
    hotloop.train(
        {**SMALL, **more, "pipeline": "processes", "actors": {"count": 2, "tries": 20}},
        out=tmp_path / "run",
        reporter=watching,
        on_log=watching.is_over,
        **{"stop.steps": 2_000_000_000},
    )
    chunks = len(watching.memory)
    assert chunks >= 12
    warm = chunks // 4
    early = statistics.median(watching.memory[warm : warm + chunks // 8])
    late = statistics.median(watching.memory[-chunks // 8 :])
    assert late - early < 10, f"memory grew from {early:.1f} to {late:.1f} MiB in {chunks - warm} chunks"
    usual = statistics.median(watching.files[warm : warm + chunks // 8])
    assert abs(statistics.median(watching.files[-chunks // 8 :]) - usual) <= 2  # one actor may just be replaced
    assert statistics.median(watching.threads[-chunks // 8 :]) <= statistics.median(watching.threads[warm:]) + 1
    assert watching.killed >= kills - 1
    by_actor = {pid: [size for one, size in watching.of_actors if one == pid] for pid, _ in watching.of_actors}
    for sizes in by_actor.values():
        settled = sizes[len(sizes) // 4 :]
        assert settled[-1] - settled[0] < 10, f"an actor grew from {settled[0]:.1f} to {settled[-1]:.1f} MiB"
