"""A checkpoint that is truncated or has flipped bits is detected; the one before it is used."""

import json
import shutil

import numpy as np
import pytest
from hotloop_process import checkpoints, manifest

from hotloop.errors import SpecError
from hotloop.runs import checkpoint
from hotloop.runs.checkpoint import CheckpointError
from hotloop.runs.folder import RunFolder


def _flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def _change(path, **facts):
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def _swap(folder):
    older = folder.parent / "000000000800" / "arrays.safetensors"
    shutil.copy(older, folder / "arrays.safetensors")


DAMAGE = {
    "first bit of the arrays": lambda folder: _flip(folder / "arrays.safetensors", 0),
    "a bit amid the arrays": lambda folder: _flip(folder / "arrays.safetensors", 13_000),
    "last bit of the arrays": lambda folder: _flip(folder / "arrays.safetensors", -1),
    "arrays cut short by one byte": lambda folder: _cut(folder / "arrays.safetensors", -1),
    "arrays cut to half": lambda folder: _cut(folder / "arrays.safetensors", 13_000),
    "arrays cut to nothing": lambda folder: _cut(folder / "arrays.safetensors", 0),
    "arrays with something behind them": lambda folder: (folder / "arrays.safetensors").open("ab").write(b"\0"),
    "no arrays": lambda folder: (folder / "arrays.safetensors").unlink(),
    "a folder for arrays": lambda folder: (
        (folder / "arrays.safetensors").unlink(),
        (folder / "arrays.safetensors").mkdir(),
    ),
    "arrays of another checkpoint": _swap,
    "manifest cut to half": lambda folder: _cut(folder / "manifest.json", 200),
    "manifest cut to nothing": lambda folder: _cut(folder / "manifest.json", 0),
    "manifest of zeros": lambda folder: (folder / "manifest.json").write_bytes(b"\0" * 500),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "manifest with another digest": lambda folder: _change(folder / "manifest.json", sha256="0" * 64),
    "manifest with another size": lambda folder: _change(folder / "manifest.json", bytes=3),
    "nothing in the folder": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_detected_and_the_checkpoint_before_is_used(finished, what):
    run, newest = RunFolder(finished), finished / "checkpoints" / "000000001000"
    expected, _ = checkpoint.load(finished / "checkpoints" / "000000000800")
    assert run.newest_checkpoint(pytest.fail)[1]["env_steps"] == 1000
    DAMAGE[what](newest)
    with pytest.raises(CheckpointError, match="000000001000"):
        checkpoint.load(newest)
    warnings = []
    arrays, facts = run.newest_checkpoint(warnings.append)
    assert facts["env_steps"] == 800
    assert checkpoint.digest(arrays) == checkpoint.digest(expected)
    assert len(warnings) == 1
    assert "000000001000" in warnings[0]
    assert "falling back" in warnings[0]


def test_no_flipped_bit_of_the_manifest_lets_other_arrays_in(finished):
    folder = finished / "checkpoints" / "000000001000"
    expected, _ = checkpoint.load(folder)
    whole = (folder / "manifest.json").read_bytes()
    refused = 0
    for position in range(len(whole)):
        for bit in (0, 3, 6):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            (folder / "manifest.json").write_bytes(damaged)
            try:
                arrays, _ = checkpoint.load(folder)
            except CheckpointError:
                refused += 1
            else:
                assert all(np.array_equal(arrays[name], expected[name]) for name in expected)
    assert refused > 3 * 64, "at least every bit of the digest matters"


def test_a_resume_over_a_damaged_checkpoint_ends_in_the_same_bits(hotloop, finished):
    before = manifest(finished)["digests"]
    _flip(finished / "checkpoints" / "000000001000" / "arrays.safetensors", 20_000)
    ran = hotloop("resume", "run")
    assert ran.code == 0, ran.err
    assert "warning: " in ran.err
    assert "is damaged" in ran.err
    assert "at env step 800" in ran.err
    assert checkpoints(finished) == [800, 1000]
    assert manifest(finished)["digests"] == before


def test_a_run_with_only_damaged_checkpoints_is_refused(hotloop, finished):
    for arrays in finished.glob("checkpoints/*/arrays.safetensors"):
        _flip(arrays, 9_000)
    ran = hotloop("resume", "run")
    assert "run has no whole checkpoint" in ran.refusal
    assert ran.err.count("is damaged") == 2


@pytest.mark.parametrize("which", ["best", "last"])
def test_damaged_weights_are_refused(hotloop, finished, which):
    _flip(finished / which / "arrays.safetensors", -1)
    ran = hotloop("eval", "run", "--which", which)
    assert "is damaged" in ran.refusal
    assert ran.err.splitlines() == [ran.refusal]


def test_a_damaged_spec_is_refused(hotloop, finished):
    _cut(finished / "spec.yaml", 100)
    assert hotloop("resume", "run").refusal


@pytest.mark.heavy
def test_torn_lines_of_metrics_do_not_stop_a_resume(hotloop, finished):
    with (finished / "metrics.jsonl").open("ab") as file:
        file.write(b"\0" * 64 + b'\n3\nnull\n\xff\xfe\n{"kind": "train", "env_st')
    ran = hotloop("resume", "run", "--steps", "1200")
    assert ran.code == 0, ran.err
    text = (finished / "metrics.jsonl").read_text()
    assert [json.loads(line)["env_steps"] for line in text.splitlines() if '"train"' in line] == [
        *range(200, 1201, 200)
    ]


def test_no_checkpoint_of_no_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(SpecError, match="no whole checkpoint"):
        RunFolder(tmp_path).newest_checkpoint(pytest.fail)
