"""Several seeds in one program: each is the run it would be alone, bit for bit, on one device or on several."""

import json
import shutil

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, finish, manifest, metrics, start
from safetensors.numpy import load_file
from scipy.stats import trim_mean

from hotloop.runs.statistics import estimate

STEPS, FIRST = 1000, 7


def _arrays(run):
    return load_file(run / "checkpoints" / f"{checkpoints(run)[-1]:012d}" / "arrays.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of seeds 7 … 10: alone, and side by side on two devices."""
    import yaml

    folder = tmp_path_factory.mktemp("seeds")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    for seed in (FIRST, FIRST + 3):  # one after the other: the second finds the program that the first has compiled
        alone = ("train", "tiny.yaml", "--seed", str(seed), "--out", f"alone-{seed}", "--json")
        assert finish(start(*alone, cwd=folder)).code == 0
    _side_by_side(folder, "two-devices", 2)
    return folder


def _side_by_side(folder, out, devices):
    """Train seeds 7 … 10 in one program on so many devices."""
    args = ("train", "tiny.yaml", "--seed", str(FIRST), "--seeds", "4", "--out", out, "--json")
    env = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    ran = finish(start(*args, cwd=folder, env=env))
    assert ran.code == 0, ran.err
    assert f"on {devices} device(s)" in ran.err
    (folder / f"{out}.json").write_text(json.dumps({**ran.json, "said": ran.err}))


@pytest.mark.parametrize("run", ["two-devices", pytest.param("one-device", marks=pytest.mark.heavy)])
def test_each_seed_is_the_run_it_would_be_alone_bit_for_bit(folder, run):
    if run == "one-device":
        _side_by_side(folder, run, 1)
    arrays = _arrays(folder / run)
    for index in (0, 3):
        alone = _arrays(folder / f"alone-{FIRST + index}")
        assert set(arrays) == set(alone)
        for name, array in alone.items():
            np.testing.assert_array_equal(arrays[name][index], array, err_msg=name)
    differ = [name for name, array in arrays.items() if len(array) == 4 and (array[0] != array[1]).any()]
    assert {"learner/params", "replay/ring/rows/s_t", "key"} <= set(differ), "the seeds are different runs"


def test_the_figures_of_each_seed_are_those_of_the_run_alone(folder):
    together = metrics(folder / "two-devices")
    for index in (0, 3):
        alone = metrics(folder / f"alone-{FIRST + index}")
        for both, one in zip(together, alone, strict=True):
            assert (both["kind"], both["env_steps"]) == (one["kind"], one["env_steps"])
            shared = set(both["by_seed"]) & set(one) - {"seconds"}
            assert shared >= ({"loss", "episodes"} if both["kind"] == "train" else {"return_mean", "length_mean"})
            assert {name: both["by_seed"][name][index] for name in shared} == {name: one[name] for name in shared}


def test_the_summary_is_the_interquartile_mean_with_an_interval_around_it(folder):
    for row in metrics(folder / "two-devices", "eval"):
        returns = row["by_seed"]["return_mean"]
        low, high = row["return_interval"]
        assert row["return_iqm"] == pytest.approx(np.mean(sorted(returns)[1:3]))
        assert row["return_mean"] == pytest.approx(np.mean(returns))
        assert min(returns) <= low <= row["return_iqm"] <= high <= max(returns)


def test_the_result_counts_one_seed_and_says_which_seeds(folder):
    result = json.loads((folder / "two-devices.json").read_text())
    assert (result["env_steps"], result["seeds"]) == (STEPS, [7, 8, 9, 10])
    assert result["updates_per_step"] == 0.25
    assert "on 2 device(s)" in result["said"]
    assert "4 seeds" in result["said"]
    assert (folder / "two-devices" / "curve.png").stat().st_size > 10_000


def test_every_seeds_weights_are_kept_and_the_best_says_whose_it_is(folder):
    run = folder / "two-devices"
    params = _arrays(run)["learner/params"]
    for index in range(4):
        named = load_file(run / f"seed-{FIRST + index}" / "arrays.safetensors")
        weights = np.concatenate([array.reshape(-1) for array in named.values()])
        np.testing.assert_array_equal(np.sort(weights), np.sort(params[index]), err_msg="in another order, but its own")
        kept = json.loads((run / f"seed-{FIRST + index}" / "manifest.json").read_text())
        assert kept["seed"] == FIRST + index
    best = json.loads((run / "best" / "manifest.json").read_text())
    rows = {row["env_steps"]: row for row in metrics(run, "eval")}
    returns = rows[best["env_steps"]]["by_seed"]["return_mean"]
    assert returns[best["seed"] - FIRST] == max(max(row["by_seed"]["return_mean"]) for row in rows.values())
    assert finish(start("eval", run, "--which", "seed-8", "--episodes", "2", cwd=folder)).code == 0
    assert "seed-N" in finish(start("eval", run, "--which", "seed-x", cwd=folder)).refusal


@pytest.mark.heavy
def test_resumed_seeds_end_in_the_same_bits(folder):
    made_by = ("train", "tiny.yaml", "--seed", str(FIRST), "--seeds", "4", "--out", "resumed")
    for args in ((*made_by, "--steps", "600"), ("resume", "resumed", "--steps", str(STEPS))):
        ran = finish(start(*args, cwd=folder))
        assert ran.code == 0, ran.err
    assert manifest(folder / "resumed")["digests"] == manifest(folder / "two-devices")["digests"]


def test_the_memory_plan_counts_the_seeds(folder):
    one, four = (
        finish(start("train", "tiny.yaml", "--seeds", str(count), "--plan", "--json", cwd=folder)).json
        for count in (1, 4)
    )
    replay, *_ = one["parts"].values()
    assert [part for part in four["parts"].values() if part == 4 * replay]
    assert four["total"] > 4 * replay + 4 * list(one["parts"].values())[1]
    env = {"HOTLOOP_MEMORY_LIMIT": str(2 * one["total"])}
    assert "or the number of seeds" in finish(start("train", "tiny.yaml", "--seeds", "4", cwd=folder, env=env)).refusal


@pytest.mark.heavy
def test_three_seeds_on_two_devices_are_kept_as_three(folder):
    """The idle fourth, which fills the second device's row, is in no file; a resume elsewhere needs it not."""
    made_by = ("train", "tiny.yaml", "--seed", str(FIRST), "--seeds", "3", "--out", "three")
    one = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    for args, env in (((*made_by, "--steps", "600"), two), (("resume", "three", "--steps", str(STEPS)), one)):
        ran = finish(start(*args, cwd=folder, env=env))
        assert ran.code == 0, ran.err
    kept, four = _arrays(folder / "three"), _arrays(folder / "two-devices")
    for name, array in four.items():
        np.testing.assert_array_equal(kept[name], array[:3], err_msg=name)
    rows = metrics(folder / "three", "eval")
    assert [len(row["by_seed"]["return_mean"]) for row in rows] == [3] * len(rows)


@pytest.mark.heavy
def test_seeds_that_stop_at_their_own_episodes_are_counted_as_they_are(folder):
    args = ("train", "tiny.yaml", "--seeds", "3", "--set", "stop.episodes=30", "--steps", "100000", "--out", "episodes")
    result = finish(start(*args, "--json", cwd=folder)).json
    arrays = _arrays(folder / "episodes")
    assert (arrays["episodes"] >= 30).all()
    assert len(set(arrays["env_steps"].tolist())) > 1, "the seeds needed different numbers of steps"
    assert result["env_steps"] == pytest.approx(arrays["env_steps"].mean())
    assert result["updates_per_step"] == 0.25
    assert result["steps_per_episode"] == pytest.approx(arrays["env_steps"].sum() / arrays["episodes"].sum(), abs=0.01)
    for index in range(3):
        kept = json.loads((folder / "episodes" / f"seed-{index}" / "manifest.json").read_text())
        assert kept["env_steps"] == arrays["env_steps"][index]


def test_a_forged_evaluation_without_seeds_is_refused(folder):
    run = shutil.copytree(folder / "two-devices", folder / "forged")
    newest = run / "checkpoints" / f"{checkpoints(run)[-1]:012d}" / "manifest.json"
    facts = json.loads(newest.read_text())
    del facts["evaluation"]["by_seed"]
    newest.write_text(json.dumps(facts))
    assert "evaluation" in finish(start("resume", run, cwd=folder)).refusal


def test_an_estimate_is_the_trimmed_mean_and_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        values = random.normal(3.0, 1.0, 12)
        found = estimate(values)
        assert found.iqm == pytest.approx(trim_mean(values, 0.25))
        covered += found.low <= 3.0 <= found.high
    assert 165 <= covered <= 199
    assert estimate(values) == estimate(values)
    assert estimate(np.array([2.0])) == (2.0, 2.0, 2.0)
    assert np.isnan(estimate(np.array([1.0, 2.0, 3.0, np.nan])).iqm), "a seed that is lost is not trimmed away"
    assert estimate(np.array([2.0, 2.0])) == (2.0, 2.0, 2.0)
