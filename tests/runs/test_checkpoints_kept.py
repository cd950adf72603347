"""Which checkpoints a run keeps, and what is in the best."""

import json

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, manifest, metrics
from safetensors.numpy import load_file

import hotloop

pytestmark = pytest.mark.less_optimised

OFTEN = {"log.every": 100, "log.checkpoint_every": 100, "evaluation.every": 100}


@pytest.mark.parametrize("keep", [1, 3])
def test_only_the_newest_checkpoints_are_kept(tmp_path, keep):
    run = hotloop.train(TINY, out=tmp_path / "run", **OFTEN, **{"stop.steps": 500, "log.checkpoints": keep})
    assert checkpoints(run.path) == [100, 200, 300, 400, 500][-keep:]
    assert {p.name for p in (run.path / "checkpoints").iterdir()} == {f"{n:012d}" for n in checkpoints(run.path)}


def test_a_stop_between_two_checkpoints_leaves_one_at_the_stop(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **OFTEN, **{"stop.steps": 252, "log.checkpoints": 9})
    assert checkpoints(run.path) == [100, 200, 252]


def test_best_holds_the_weights_of_the_best_evaluation(tmp_path):
    # Learning so fast that the evaluations differ, and checkpoints at each so that its weights are known.
    wild = {"seed": 5, "stop.steps": 1000, "log.checkpoints": 99}
    run = hotloop.train(TINY, out=tmp_path / "run", **OFTEN, **wild)
    returns = {row["env_steps"]: row["return_mean"] for row in metrics(run.path, "eval")}
    best_step = max(returns, key=lambda step: (returns[step], -step))  # the first of equals
    assert best_step != 1000, "the last would be the best anyway: choose another seed"
    assert len(set(returns.values())) > 1
    kept = json.loads((run.path / "best" / "manifest.json").read_text())
    assert kept["env_steps"] == best_step
    assert kept["evaluation"]["return_mean"] == returns[best_step]
    at_best = load_file(run.path / "checkpoints" / f"{best_step:012d}" / "arrays.safetensors")["learner/params"]
    assert np.array_equal(hotloop.load(run).weights, at_best)
    assert not np.array_equal(hotloop.load(run, which="last").weights, at_best)
    assert manifest(run.path)["best_return"] == returns[best_step]


@pytest.mark.heavy
def test_the_best_stays_the_best_after_a_resume(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **OFTEN, **{"seed": 5, "stop.steps": 500})
    hotloop.resume(run, steps=1000)
    returns = {row["env_steps"]: row["return_mean"] for row in metrics(run.path, "eval")}
    kept = json.loads((run.path / "best" / "manifest.json").read_text())
    assert kept["evaluation"]["return_mean"] == max(returns.values())


def test_without_evaluations_there_are_last_weights_only(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 100, "evaluation.every": 0})
    assert not (run.path / "best").exists()
    assert hotloop.load(run, which="last").predict([0, 0, 0, 0]) in (0, 1)
    with pytest.raises(ValueError, match="no best weights: no evaluation was whole; ask for the last ones"):
        hotloop.load(run, which="best")
    with pytest.warns(RuntimeWarning, match="no best weights: no evaluation was whole; using the last"):
        agent = hotloop.load(run)
    assert np.array_equal(agent.weights, hotloop.load(run, which="last").weights)
