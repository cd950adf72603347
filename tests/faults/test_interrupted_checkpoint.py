"""SIGKILL at each step of a checkpoint's writing: it is whole or invisible, and the one before it survives."""

import inspect
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from hotloop_process import checkpoints, manifest

from hotloop.runs import checkpoint
from hotloop.runs.folder import RunFolder

STEPS = re.findall(r'reach\("([^"]+)"\)', inspect.getsource(checkpoint))
OLD, NEW = {"a": np.full(1000, 1.0), "b": np.int32(1)}, {"a": np.full(1000, 2.0), "b": np.int32(2)}
WRITE_NEW = """
import sys, numpy as np
from pathlib import Path
from hotloop.runs import checkpoint
checkpoint.save(Path(sys.argv[1]), {"a": np.full(1000, 2.0), "b": np.int32(2)}, {})
"""


@pytest.fixture
def killed_at(monkeypatch):
    """Write the new checkpoint at a folder in another process that is killed at a step; returns its exit code."""

    def write(folder, step):
        monkeypatch.setenv("HOTLOOP_FAILPOINT", f"{step}=kill")
        code = subprocess.run([sys.executable, "-c", WRITE_NEW, str(folder)], timeout=60).returncode
        monkeypatch.delenv("HOTLOOP_FAILPOINT")
        return code

    return write


def _same(seen, expected):
    return set(seen) == set(expected) and all(np.array_equal(seen[name], expected[name]) for name in expected)


def test_the_steps_of_a_write_are_known():
    assert {"checkpoint.begin", "checkpoint.arrays_written", "checkpoint.before_rename", "checkpoint.done"} <= {*STEPS}


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_write_leaves_the_checkpoint_before_it(tmp_path, killed_at, step):
    run = RunFolder(tmp_path)
    checkpoint.save(run.checkpoints / "000000000400", OLD, {"env_steps": 400})
    code = killed_at(run.checkpoints / "000000000800", step)
    assert code == (0 if step == "checkpoint.old_aside" else -signal.SIGKILL)  # nothing to move aside here
    warnings = []
    arrays, _ = run.newest_checkpoint(warnings.append)
    is_done = step in ("checkpoint.done", "checkpoint.old_aside")
    assert _same(arrays, NEW if is_done else OLD)
    leaves_remains = not is_done and step != "checkpoint.begin"
    assert len(warnings) == leaves_remains
    assert all("interrupted" in text and "000000000800" in text for text in warnings)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_rewrite_of_the_only_checkpoint_loses_nothing(tmp_path, killed_at, step):
    run = RunFolder(tmp_path)
    where = run.checkpoints / "000000000400"
    checkpoint.save(where, OLD, {"env_steps": 400})
    assert killed_at(where, step) == -signal.SIGKILL
    arrays, _ = run.newest_checkpoint(lambda _: None)
    assert _same(arrays, OLD) or _same(arrays, NEW)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_rewrite_of_the_best_weights_leaves_the_old_or_the_new(tmp_path, killed_at, step):
    run = RunFolder(tmp_path)
    checkpoint.save(run.best, OLD, {})
    assert killed_at(run.best, step) == -signal.SIGKILL
    arrays, _ = run.weights("best")
    assert _same(arrays, OLD) or _same(arrays, NEW)


@pytest.mark.parametrize("step", STEPS)
def test_the_next_write_removes_what_a_killed_one_left(tmp_path, killed_at, step):
    run = RunFolder(tmp_path)
    where = run.checkpoints / "000000000400"
    checkpoint.save(where, OLD, {})
    killed_at(where, step)
    checkpoint.save(where, OLD, {})
    checkpoint.save(run.checkpoints / "000000000800", NEW, {})
    checkpoint.prune(run.checkpoints, 2)
    assert {p.name for p in run.checkpoints.iterdir()} == {"000000000400", "000000000800"}
    assert _same(checkpoint.load(where)[0], OLD)


@pytest.mark.heavy
def test_a_run_killed_in_several_steps_of_a_checkpoint_ends_in_the_same_bits(hotloop, tmp_path, finished_once):
    quiet = ("--set", "evaluation.every=0")
    run = tmp_path / "run"
    assert hotloop("train", "tiny.yaml", *quiet, "--out", "run", "--steps", "400").code == 0
    # The first write of a resumed session is the checkpoint at 800: "done" comes last, it completes it.
    for step in ("checkpoint.arrays_written", "checkpoint.before_rename"):
        killed = hotloop("resume", "run", "--steps", "1000", env={"HOTLOOP_FAILPOINT": f"{step}=kill"})
        assert killed.code == -signal.SIGKILL, killed.err
        assert checkpoints(run) == [400]
    torn = len(list((run / "checkpoints").glob(".writing-*")))
    assert torn == 2
    killed = hotloop("resume", "run", "--steps", "1000", env={"HOTLOOP_FAILPOINT": "checkpoint.done=kill"})
    assert killed.code == -signal.SIGKILL
    assert killed.err.count("its writing was interrupted") == torn
    assert checkpoints(run) == [400, 800]
    last = hotloop("resume", "run", "--steps", "1000")
    assert last.code == 0, last.err
    assert "at env step 800" in last.err
    assert manifest(run)["digests"] == manifest(finished_once)["digests"]
    assert not list((run / "checkpoints").glob(".*"))
