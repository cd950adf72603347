"""A loss that is not finite: the update is skipped, and after some in a row the run stops with a dump."""

import json
import sys

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, metrics, strict_json
from safetensors.numpy import load_file

import hotloop as package
from hotloop import registry
from hotloop.cli import main
from hotloop.errors import Diverged
from hotloop.evaluate import Episodes
from hotloop.runs import checkpoint

pytestmark = pytest.mark.less_optimised

# One update per vector step, from a replay that holds only that step's transitions: from the first poisoned step on,
# every batch is poisoned, and none before.
EXPOSED = {
    **TINY,
    "env": {"id": "poisoned", "num_envs": 4},
    "replay": {"capacity": 4, "start": 4, "batch_size": 4},
    "evaluation": {"every": 0},
    "stop": {"steps": 400},
    "log": {"every": 40, "exact": True, "checkpoint_every": 400},
}


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    monkeypatch.setitem(registry.ENVS, "poisoned", registry.Entry("poisoned_env:Poisoned", "not finite for a while"))


@pytest.mark.parametrize(
    ("poison", "loss", "in_a_row"),
    [
        ("nan", "huber", 10),
        pytest.param("inf", "huber", 4, marks=pytest.mark.heavy),
        pytest.param("1e30", "mse", 4, marks=pytest.mark.heavy),
    ],
)
def test_rewards_that_stay_poisoned_stop_the_run_with_the_weights_of_before(tmp_path, poison, loss, in_a_row):
    chosen = {"env.options.poison": poison, "loss.kind": loss, "guard.skips_in_a_row": in_a_row}
    spec = package.load_spec(EXPOSED, chosen)
    healthy = package.train(spec, out=tmp_path / "healthy", **{"stop.steps": 49 * 4})
    assert healthy.skipped == 0
    with pytest.raises(Diverged) as stopped:
        package.train(spec, out=tmp_path / "run")
    dump = tmp_path / "run" / "dump"
    assert f"the last {in_a_row} updates" in str(stopped.value)
    assert str(dump) in str(stopped.value)
    arrays, facts = checkpoint.load(dump)
    assert facts["env_steps"] == arrays["env_steps"] == (49 + in_a_row) * 4, "not one update more"
    assert arrays["learner/skipped"] == in_a_row
    before = load_file(healthy.path / "checkpoints" / f"{49 * 4:012d}" / "arrays.safetensors")
    learned = [name for name in before if name.startswith(("learner/params", "learner/target", "learner/optimizer"))]
    assert len(learned) >= 3
    for name in learned:
        assert np.all(np.isfinite(before[name]))
        assert np.array_equal(arrays[name], before[name]), f"{name} was touched by a poisoned update"
    assert arrays["learner/updates"] == before["learner/updates"] == 49
    assert not checkpoints(tmp_path / "run")
    last = metrics(tmp_path / "run", "train")[-1]
    assert last["env_steps"] == (49 + in_a_row) * 4
    assert last["skipped"] == in_a_row
    assert last["loss"] is None or np.isfinite(last["loss"])


def test_a_short_poisoning_is_skipped_and_counted_and_the_run_goes_on(tmp_path, recwarn):
    run = package.train(EXPOSED, out=tmp_path / "run", **{"env.options": {"first": 50, "end": 53}})
    assert run.env_steps == 400
    assert not [str(warning.message) for warning in recwarn if "legend" in str(warning.message)], "no episode has ended"
    assert run.skipped == 3
    assert run.updates == 100 - 3
    assert run.updates_per_step == 0.25, "attempts count"
    arrays = load_file(run.path / "checkpoints" / f"{400:012d}" / "arrays.safetensors")
    assert np.all(np.isfinite(arrays["learner/params"]))
    assert arrays["learner/skipped_in_a_row"] == 0
    skipped = {row["env_steps"]: row["skipped"] for row in metrics(run.path, "train")}
    assert (skipped[160], skipped[200], skipped[240], skipped[400]) == (0, 1, 3, 3)


@pytest.mark.filterwarnings("ignore:invalid value")  # the spread of infinities
def test_an_evaluation_that_is_not_finite_is_never_the_best(tmp_path, monkeypatch):
    outcomes = [np.nan, 3.0, np.inf, 5.0, 4.0]

    def to_host(_):
        return Episodes(np.full(4, outcomes.pop(0)), np.full(4, 10), {})

    monkeypatch.setattr("hotloop.pipelines.device_session.to_host", to_host)
    run = package.train(TINY, out=tmp_path / "run", **{"stop.steps": 1000, "evaluation.every": 200})
    assert outcomes == []
    best = json.loads((run.path / "best" / "manifest.json").read_text())
    assert best["evaluation"]["return_mean"] == 5.0
    assert best["env_steps"] == 800


def test_a_return_that_is_not_finite_is_null_in_the_json(tmp_path, monkeypatch, capfd):
    spec = {
        **EXPOSED,
        "env": {"id": "poisoned", "num_envs": 4, "options": {"first": 50, "end": 53}},
        "evaluation": {"every": 200, "episodes": 4, "max_steps": 60},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hotloop", "train", "spec.json", "--out", "run", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert strict_json(capfd.readouterr().out)["return_mean"] is None
    assert metrics(tmp_path / "run", "eval")[-1]["return_mean"] is None


@pytest.mark.heavy
def test_a_learning_rate_far_too_high_ends_the_command_with_exit_code_1(hotloop, tmp_path):
    ran = hotloop(
        *("train", "tiny.yaml", "--out", "run", "--json", "--set", "loss.kind=mse"),
        *("--set", "optimizer={kind: sgd, learning_rate: 1e30, clip: null}"),
    )
    assert ran.code == 1
    assert ran.out == ""
    assert "Traceback" not in ran.err
    [line] = [line for line in ran.err.splitlines() if line.startswith("hotloop: ")]
    assert "not finite" in line
    assert "run/dump" in line
    assert "optimizer.learning_rate" in line
    arrays, _ = checkpoint.load(tmp_path / "run" / "dump")
    assert np.all(np.isfinite(arrays["learner/params"]))
