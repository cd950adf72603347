"""Hundreds of chunks with lines, evaluations and checkpoints: memory and open files stay as they are."""

import os
import statistics

import psutil
import pytest
from hotloop_process import TINY

import hotloop
from hotloop.progress import Silent

MiB = 1 << 20


class _Watching(Silent):
    """Measures this process after every chunk."""

    def __init__(self):
        self.process = psutil.Process()
        self.memory, self.files, self.threads = [], [], []

    def show(self, env_steps, total, figures):
        self.memory.append(self.process.memory_info().rss / MiB)
        self.files.append(len(os.listdir("/proc/self/fd")))
        self.threads.append(self.process.num_threads())


SNAKES = {"env": {"id": "snake", "num_envs": 16, "options": {"grid": 6}}, "updates_per_step": 0.0625}


@pytest.mark.heavy
@pytest.mark.parametrize("more", [pytest.param({}, id="cartpole"), pytest.param(SNAKES, id="snake")])
def test_a_long_run_keeps_its_memory_and_files(tmp_path, more):
    watching = _Watching()
    hotloop.train(
        {**TINY, **more},
        out=tmp_path / "run",
        reporter=watching,
        **{"stop.steps": 450_000, "log.every": 2_000, "log.checkpoint_every": 10_000, "evaluation.every": 10_000},
    )
    chunks = len(watching.memory)
    assert chunks >= 225
    warm = chunks // 4
    early = statistics.median(watching.memory[warm : warm + chunks // 10])
    late = statistics.median(watching.memory[-chunks // 10 :])
    assert late - early < 10, f"memory grew from {early:.1f} to {late:.1f} MiB in {chunks - warm} chunks"
    assert watching.files[-1] == watching.files[warm]
    assert watching.threads[-1] == watching.threads[warm]
