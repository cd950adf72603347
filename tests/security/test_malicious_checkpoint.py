"""A checkpoint from a stranger: refused in one clear line, nothing executed, no more memory than its size."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from forgery import changed, forge, pickled, safetensors_file
from hotloop_process import contents

import hotloop as package
from hotloop.errors import SpecError
from hotloop.runs import checkpoint
from hotloop.runs.checkpoint import CheckpointError

FOUR_FLOATS = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def _header(**tensors):
    return safetensors_file(tensors, bytes(32))


def _zip_of_pickles(mark, folder):
    path = folder / "weights.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(mark))
    return path.read_bytes()


FILES = {
    "a pickle": lambda mark, _: pickled(mark),
    "a zip with a pickle": _zip_of_pickles,
    "a header of 2^60 bytes": lambda *_: safetensors_file({}, b"", header_length=1 << 60),
    "a header of 2^64 - 1 bytes": lambda *_: safetensors_file({}, b"", header_length=(1 << 64) - 1),
    "a header of 99 MB that is not there": lambda *_: safetensors_file({}, b"", header_length=99_000_000),
    "a header that is not JSON": lambda *_: b"\x08\0\0\0\0\0\0\0{{{{{{{{",
    "a header nested 100,000 deep": lambda *_: b"\xa0\x86\x01\0\0\0\0\0" + b"[" * 100_000,
    "overlapping tensors": lambda *_: _header(a=FOUR_FLOATS, b={**FOUR_FLOATS, "data_offsets": [8, 24]}),
    "the same bytes twice": lambda *_: _header(a=FOUR_FLOATS, b=FOUR_FLOATS),
    "a tensor beyond the file": lambda *_: _header(a={**FOUR_FLOATS, "data_offsets": [1 << 40, (1 << 40) + 16]}),
    "a tensor that begins before the file": lambda *_: _header(a={**FOUR_FLOATS, "data_offsets": [-16, 0]}),
    "offsets the wrong way round": lambda *_: _header(a={**FOUR_FLOATS, "data_offsets": [16, 0]}),
    "a shape larger than its bytes": lambda *_: _header(a={**FOUR_FLOATS, "shape": [1 << 40]}),
    "a shape that overflows": lambda *_: _header(a={**FOUR_FLOATS, "shape": [1 << 62, 1 << 62]}),
    "a negative shape": lambda *_: _header(a={**FOUR_FLOATS, "shape": [-4]}),
    "an unknown dtype": lambda *_: _header(a={**FOUR_FLOATS, "dtype": "object"}),
    "a hole between tensors": lambda *_: _header(a=FOUR_FLOATS, b={**FOUR_FLOATS, "data_offsets": [20, 36]}),
}


@pytest.fixture
def newest(finished):
    return finished / "checkpoints" / "000000001000"


@pytest.mark.parametrize("what", FILES)
def test_a_forged_file_is_refused_and_nothing_is_executed(newest, tmp_path, what):
    mark = tmp_path / "executed"
    forge(newest, FILES[what](mark, tmp_path))
    with pytest.raises(CheckpointError, match="000000001000") as refusal:
        checkpoint.load(newest)
    assert "differs from the manifest" not in str(refusal.value), "refused for another reason than the one tested"
    assert len(str(refusal.value)) < 600
    assert "\n" not in str(refusal.value)
    assert not mark.exists()


@pytest.mark.parametrize(("command", "folder"), [("resume", "checkpoints/000000001000"), ("eval", "best")])
def test_a_pickle_in_a_run_is_refused_and_not_executed(hotloop, finished, tmp_path, command, folder):
    for older in ("checkpoints/000000000800", folder):
        forge(finished / older, pickled(tmp_path / "executed"))
    ran = hotloop(command, "run")
    assert ran.refusal
    assert "not a safetensors file" in ran.err
    assert not (tmp_path / "executed").exists()


def test_forged_files_take_no_more_memory_than_their_size(newest, tmp_path):
    folders = []
    for number, make in enumerate(FILES.values()):
        folder = tmp_path / f"{number:012d}"
        folder.mkdir()
        (folder / "manifest.json").write_text("{}")
        forge(folder, make(tmp_path / "executed", tmp_path), format=1)
        folders.append(str(folder))
    script = """
import resource, sys
from pathlib import Path
from hotloop.runs.checkpoint import CheckpointError, load
import safetensors.numpy
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, refused = peak(), 0
for folder in sys.argv[1:]:
    try:
        load(Path(folder))
    except CheckpointError:
        refused += 1
print(refused, peak() - before)
"""
    answer = subprocess.run([sys.executable, "-c", script, *folders], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    refused, grown_kib = map(int, answer.stdout.split())
    assert refused == len(FILES)
    assert grown_kib < 32 * 1024


STATES = {
    "another dtype": ({"learner__params": np.zeros(114, np.float64)}, ["learner/params", "float64", "float32"]),
    "another shape": ({"learner__params": np.zeros(7, np.float32)}, ["learner/params", "(7,)", "(114,)"]),
    "a tensor too many": ({"extra": np.zeros(3, np.float32)}, ["unknown", "extra"]),
    "a tensor too few": ({"actor__obs": None}, ["lacks", "actor/obs"]),
    "a path for a name": ({"..__..__etc__passwd": np.zeros(3, np.float32)}, ["unknown", "../../etc/passwd"]),
}
# What is read and written at these numbers is not checked again inside the compiled program.
PLACES = {
    "more rows than the replay has": ("replay__ring__size", 2_000_000_000),
    "a negative number of rows": ("replay__ring__size", -4),
    "a write position beyond the replay": ("replay__ring__position", 1_000_000),
    "a write position between two blocks": ("replay__ring__position", 3),
}


@pytest.mark.parametrize("what", STATES)
def test_a_state_that_does_not_fit_the_run_is_refused(finished, newest, what):
    arrays, expected = STATES[what]
    forge(newest, changed(newest, **arrays))
    before = contents(finished)
    with pytest.raises(SpecError) as refusal:
        package.resume(finished, steps=1200)
    assert [part for part in expected if part not in str(refusal.value)] == [], refusal.value
    assert contents(finished) == before


@pytest.mark.parametrize("what", PLACES)
def test_a_state_that_points_outside_the_replay_is_refused(hotloop, finished, newest, what):
    name, number = PLACES[what]
    forge(newest, changed(newest, **{name: np.array(number, np.int32)}))
    before = contents(finished)
    refusal = hotloop("resume", "run", "--steps", "1200").refusal
    assert name.replace("__", "/") in refusal
    assert str(number) in refusal
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"extra": np.zeros(3, np.float32)}, "extra is (3,)"),
        ({"head__dense_0__kernel": np.zeros((1, 1), np.float32)}, "head/dense_0/kernel is (1, 1), expected (16, 2)"),
    ],
    ids=["one too many", "another shape"],
)
def test_weights_that_do_not_fit_the_network_are_refused(finished, arrays, expected):
    forge(finished / "best", changed(finished / "best", **arrays))
    with pytest.raises(SpecError, match="do not fit") as refusal:
        package.load(finished)
    assert expected in str(refusal.value)


MANIFESTS = {
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "text": b'"format"',
    "nothing known": b"{}",
    "500,000 lists in each other": b'{"format": 1, "x": ' + b"[" * 500_000,
    "150,000 mappings in each other": b'{"x":' * 150_000,
    "a number of 100,000 digits": b'{"format": ' + b"9" * 100_000 + b"}",
    "bytes that are not text": b"\xff\xfe\xfd",
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_forged_manifest_is_refused(newest, what):
    (newest / "manifest.json").write_bytes(MANIFESTS[what])
    with pytest.raises(CheckpointError, match="000000001000") as refusal:
        checkpoint.load(newest)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize(
    "facts",
    [
        *({"format": wrong} for wrong in ("1", None, 1.5, [1], 10**30)),
        *({"bytes": wrong} for wrong in ("1", None, [1])),
        *({"sha256": wrong} for wrong in (3, None, [])),
        {"padding": "x" * (1 << 20)},
    ],
    ids=lambda facts: str(facts)[:24],
)
def test_one_wrong_fact_in_a_manifest_is_enough_to_refuse_it(newest, facts):
    checkpoint.load(newest)
    forge(newest, **facts)
    with pytest.raises(CheckpointError, match="000000001000") as refusal:
        checkpoint.load(newest)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize("name", ["arrays", "file", "path", "arrays.safetensors"])
def test_a_manifest_cannot_name_a_file_elsewhere(newest, tmp_path, name):
    outside = tmp_path / "outside.safetensors"
    os.replace(newest / "arrays.safetensors", outside)
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest[name] = "../../../outside.safetensors"
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert (newest / manifest[name]).resolve() == outside
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(newest)


@pytest.mark.parametrize(
    "facts",
    [
        {"best_return": "high"},
        {"evaluation": "x" * 100_000},
        {"evaluation": {"env_steps": 1000}},
        {"evaluation": {"env_steps": 1000, "return_mean": "high"}},
    ],
    ids=lambda facts: str(facts)[:60],
)
def test_facts_of_the_wrong_kind_are_refused(hotloop, newest, facts):
    forge(newest, **facts)
    [name] = facts
    goal = (newest.parents[1] / "spec.yaml").read_text().replace("return_at_least: null", "return_at_least: 1000.0")
    (newest.parents[1] / "spec.yaml").write_text(goal)
    assert name in hotloop("resume", "run", "--steps", "1200").refusal


@pytest.mark.parametrize("name", ["arrays.safetensors", pytest.param("manifest.json", marks=pytest.mark.heavy)])
def test_a_pipe_in_place_of_a_file_does_not_hang(hotloop, newest, name):
    (newest / name).unlink()
    os.mkfifo(newest / name)
    ran = hotloop("resume", "run", "--steps", "800", timeout=60)
    assert ran.code == 0, ran.err
    assert "falling back" in ran.err
    assert "at env step 800" in ran.err
