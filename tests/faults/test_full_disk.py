"""A full or read-only disk is said, training goes on, and nothing older is removed."""

import numpy as np
import pytest
from hotloop_process import DAYS, checkpoints, contents, finish, metrics, start, wait_for
from test_interrupted_checkpoint import NEW, OLD, STEPS

from hotloop.runs import checkpoint

FULL = {"HOTLOOP_FAILPOINT": "checkpoint.arrays_written=enospc"}


@pytest.mark.parametrize("step", [step for step in STEPS if step != "checkpoint.done"])
def test_a_write_that_fails_leaves_the_old_checkpoint_in_place_and_no_remains(tmp_path, monkeypatch, step):
    where = tmp_path / "000000000400"
    checkpoint.save(where, OLD, {})
    monkeypatch.setenv("HOTLOOP_FAILPOINT", f"{step}=enospc")
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(where, NEW, {})
    assert [p.name for p in tmp_path.iterdir()] == ["000000000400"]
    assert np.array_equal(checkpoint.load(where)[0]["a"], OLD["a"])


def test_a_full_disk_is_said_and_training_goes_on_until_there_is_room_again(hotloop, finished):
    before = contents(finished)
    ran = hotloop("resume", "run", "--steps", "1400", "--json", env=FULL)
    assert ran.json["env_steps"] == 1400
    assert "No space left" in ran.json["disk_error"]
    assert "warning: checkpoint could not be written" in ran.err
    assert checkpoints(finished) == [800, 1000], "nothing was pruned for checkpoints that were not written"
    after = contents(finished)
    kept = [name for name in before if name.startswith(("checkpoints", "best", "last"))]
    assert kept
    assert [name for name in kept if after[name] != before[name]] == []
    assert not [name for name in after if ".writing" in name]

    ran = hotloop("resume", "run", "--steps", "1400", "--json")
    assert ran.json["disk_error"] is None
    assert "at env step 1,000" in ran.err
    assert checkpoints(finished) == [1200, 1400]
    steps = [row["env_steps"] for row in metrics(finished, "train")]
    assert steps == sorted(set(steps))


@pytest.mark.heavy
def test_a_disk_that_takes_no_large_file_is_said_and_training_goes_on(hotloop, tmp_path):
    # As a full disk does, this limit fails the writes themselves, whoever makes them.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, 6_000))"
    ran = hotloop("train", "tiny.yaml", "--out", "run", "--json", "--steps", "6000", before=limit)
    assert ran.json["env_steps"] == 6000
    assert "File too large" in ran.json["disk_error"]
    assert "warning: checkpoint could not be written" in ran.err
    assert "warning: metrics could not be written" in ran.err
    assert checkpoints(tmp_path / "run") == []
    assert not list((tmp_path / "run").rglob(".writing-*"))


# Root may read and write anywhere: give these two rights up, and start again without them.
OBEY_PERMISSIONS = """
import ctypes, os, sys
if os.geteuid() == 0 and "OBEYING" not in os.environ:
    os.environ["OBEYING"] = "1"
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    os.execv(sys.executable, sys.orig_argv)
"""


@pytest.fixture
def read_only():
    """Make folders read-only until the test is over."""
    changed = []

    def change(*folders):
        for folder in folders:
            changed.append(folder)
            folder.chmod(0o555)

    yield change
    for folder in changed:
        folder.chmod(0o755)


@pytest.mark.heavy
def test_a_folder_that_becomes_read_only_is_said_and_training_goes_on(tmp_path, spec_file, read_only):
    often = ("--set", "log={every: 5000, checkpoint_every: 20000}", "--set", "evaluation.every=20000")
    run = tmp_path / "run"
    process = start(
        *("train", "tiny.yaml", "--out", "run", "--steps", "160000", "--json", *often),
        cwd=tmp_path,
        before=OBEY_PERMISSIONS,
    )
    wait_for(lambda: len(checkpoints(run)) == 2 or None, process)
    read_only(run, run / "checkpoints")
    ran = finish(process)
    assert ran.json["env_steps"] == 160_000
    assert "Permission denied" in ran.json["disk_error"]
    assert "warning: checkpoint could not be written" in ran.err
    assert len(checkpoints(run)) >= 2
    assert max(checkpoints(run)) < 160_000


def test_a_new_run_in_a_read_only_folder_is_refused(hotloop, tmp_path, read_only):
    (tmp_path / "closed").mkdir()
    read_only(tmp_path / "closed")
    ran = hotloop("train", "tiny.yaml", "--out", "closed/run", before=OBEY_PERMISSIONS)
    assert "closed" in ran.refusal
    assert "writable" in ran.refusal


def test_a_run_without_a_name_in_a_read_only_folder_is_refused(tmp_path, spec_file, read_only):
    (tmp_path / "closed").mkdir()
    read_only(tmp_path / "closed")
    ran = finish(start("train", spec_file, cwd=tmp_path / "closed", before=OBEY_PERMISSIONS))
    assert "writable" in ran.refusal


def test_a_resume_in_a_read_only_folder_is_refused(hotloop, finished, read_only):
    read_only(finished, finished / "checkpoints")
    (finished / "metrics.jsonl").chmod(0o444)
    ran = hotloop("resume", "run", "--steps", str(DAYS), before=OBEY_PERMISSIONS, timeout=30)
    assert "run" in ran.refusal
    assert "writable" in ran.refusal


def test_an_agent_in_a_read_only_folder_can_still_be_evaluated(hotloop, finished, read_only):
    read_only(finished, finished / "best")
    ran = hotloop("eval", "run", "--episodes", "4", "--json", before=OBEY_PERMISSIONS)
    assert ran.json["episodes"] == 4
