"""What a run leaves behind."""

import json
import math
import re
import sys

import jax
import pytest
from hotloop_process import TINY, checkpoints, finish, manifest, metrics, start
from PIL import Image
from safetensors.numpy import load_file

import hotloop as package
from hotloop.errors import SpecError
from hotloop.runs.folder import RunFolder
from hotloop.runs.state import digests


def test_the_written_spec_is_the_spec_that_was_trained(finished_once):
    assert package.load_spec(finished_once / "spec.yaml") == package.load_spec(TINY)


def test_the_written_spec_names_every_field_defaults_too(finished_once):
    written = (finished_once / "spec.yaml").read_text()
    for section in package.Spec().model_dump(mode="json"):
        assert (f"\n{section}:" in written) == (
            section not in ("version", "actors")
        )  # a pipeline that is not used here
    assert "weight_decay: 0.0" in written


def test_the_facts_say_with_what_and_how_the_run_was_made(finished_once):
    facts = json.loads((finished_once / "run.json").read_text())
    assert facts["versions"]["jax"] == jax.__version__
    assert facts["versions"]["hotloop"] == package.__version__
    assert facts["command"][1:] == ["train", "tiny.yaml", "--out", "run", "--json"]
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["machine"]["device"]
    assert facts["machine"]["threads"].startswith("1 ")  # a small network
    assert facts["cpus"] >= 1
    assert facts["pipeline"].startswith("fused")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", facts["started"])


def test_metrics_have_one_line_per_period_and_kind(finished_once):
    assert [row["env_steps"] for row in metrics(finished_once, "train")] == [200, 400, 600, 800, 1000]
    assert [row["env_steps"] for row in metrics(finished_once, "eval")] == [400, 800, 1000]


def test_metrics_go_forward_and_hold_finite_numbers_or_null(finished_once):
    rows = metrics(finished_once)
    steps = [row["env_steps"] for row in rows]
    assert steps == sorted(steps)
    for row in rows:
        for name, value in row.items():
            assert name == "kind" or value is None or math.isfinite(value), f"{name} is {value}"
    for before, after in zip(metrics(finished_once, "train"), metrics(finished_once, "train")[1:], strict=False):
        assert after["updates"] > before["updates"]
        assert after["episodes"] >= before["episodes"]
        assert after["seconds"] >= before["seconds"]


def test_metrics_of_a_line_belong_to_its_period(finished_once):
    last = metrics(finished_once, "train")[-1]
    assert last["updates"] == (1000 - 64) // 4 + 1
    assert last["epsilon"] == pytest.approx(0.05)
    assert last["learning_rate"] == pytest.approx(1e-3)
    first = metrics(finished_once, "train")[0]
    assert first["epsilon"] == pytest.approx(1.0 - 0.95 * 200 / 1000)
    assert first["ep_return_mean"] == first["ep_length_mean"]  # CartPole pays 1 per step


def test_the_result_is_that_of_the_last_evaluation(finished_once):
    result = json.loads((finished_once.parent / "result.json").read_text())
    evaluation = metrics(finished_once, "eval")[-1]
    assert result["return_mean"] == evaluation["return_mean"]
    assert manifest(finished_once)["evaluation"] == {k: v for k, v in evaluation.items() if k != "kind"}


def test_a_checkpoint_is_named_for_its_step_and_says_what_it_holds(finished_once):
    assert checkpoints(finished_once) == [800, 1000]
    for steps in (800, 1000):
        seen = manifest(finished_once, steps)
        arrays = load_file(finished_once / "checkpoints" / f"{steps:012d}" / "arrays.safetensors")
        assert seen["env_steps"] == steps == arrays["env_steps"]
        assert seen["updates"] == arrays["learner/updates"]
        assert seen["digests"] == digests(arrays)
        assert {"learner", "actor", "replay", "key", "all"} <= set(seen["digests"])


def test_the_curve_is_a_picture(finished_once):
    with Image.open(finished_once / "curve.png") as picture:
        picture.load()
        assert picture.width > 400
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 10, "an empty page"


def test_the_recording_is_a_film(finished_once):
    with Image.open(finished_once / "recording.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames > 5
        film.seek(0)
        first = film.convert("RGB").tobytes()
        film.seek(4)
        assert film.convert("RGB").tobytes() != first, "nothing moves"


def test_nothing_temporary_is_left_behind(finished_once):
    names = {p.name for p in finished_once.rglob("*")}
    assert not [name for name in names if name.startswith(".") or name.endswith((".old", ".tmp"))]


@pytest.mark.heavy
def test_two_runs_started_within_the_same_second_get_folders_of_their_own(tmp_path, spec_file):
    same_second = "import time; time.strftime = lambda *_: '20300101-000000'"
    both = [start("train", "tiny.yaml", "--steps", "200", "--json", cwd=tmp_path, before=same_second) for _ in "ab"]
    names = [finish(process).json["run"] for process in both]
    assert names[0] != names[1]
    for name in names:
        assert [row["env_steps"] for row in metrics(tmp_path / name, "train")] == [200]
        assert checkpoints(tmp_path / name) == [200]
        assert len(list((tmp_path / name).glob("events.out.tfevents.*"))) == 1


def test_weights_that_a_run_does_not_have_are_answered_with_those_it_has(finished_once):
    with pytest.raises(SpecError, match=r"has no seed-9 weights: it has best, last$"):
        RunFolder(finished_once).weights("seed-9")
