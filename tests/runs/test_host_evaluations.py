"""Evaluations of runs on Gymnasium envs end: they are bounded in env steps, can be interrupted, and say both."""

import os
import signal
from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import pytest
from hotloop_process import TINY, manifest, metrics
from walk_env import Walk

import hotloop
from hotloop.errors import NotFinite
from hotloop.progress import Silent, Terminal

TIMES = {"seconds", "env_steps_per_s", "updates_per_s", "stage_seconds"}


SPEC = {
    "name": "walk",
    "updates_per_step": 0.25,
    "env": {"id": "Walk-v0", "num_envs": 4, "options": {"length": 7}},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 512, "start": 32, "batch_size": 8},
    "evaluation": {"every": 200, "episodes": 20, "max_steps": 10_000},
    "stop": {"steps": 500},
    "log": {"every": 100, "exact": True, "checkpoint_every": 400},
}


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A run whose episodes never end, which nearly any evaluation would call solved."""
    Walk.taken = 0
    own = {"env.options": {}, "evaluation.max_share": 2, "stop.return_at_least": 5}
    return hotloop.train(SPEC, out=tmp_path_factory.mktemp("endless") / "run", **own)


def test_an_evaluation_takes_no_more_than_its_share_of_env_steps(endless):
    evaluated = Walk.taken - endless.env_steps
    # 2 x 200 env steps each, 40 steps of each of 10 envs, which would play two episodes; at the end of the run as well.
    assert evaluated == 3 * 40 * 10
    assert [row["length_mean"] for row in metrics(endless.path, "eval")] == [40, 40, 40]


def test_the_first_evaluation_of_a_short_run_is_bounded_by_the_run(tmp_path):
    run = hotloop.train(SPEC, out=tmp_path / "run", **{"env.options": {}, "stop.steps": 80})
    assert metrics(run.path, "eval")[-1]["length_mean"] == 80 * 5 // 10


def test_a_cut_evaluation_is_named_and_neither_solves_a_run_nor_is_the_best(endless):
    assert endless.stopped == "500 env steps done"
    assert endless.episodes_cut == 20
    assert [row["cut"] for row in metrics(endless.path, "eval")] == [20, 20, 20]
    assert not (endless.path / "best").exists()
    assert manifest(endless.path)["best_return"] is None
    with pytest.warns(RuntimeWarning, match="no best weights: no evaluation was whole; using the last"):
        agent = hotloop.load(endless)
    assert np.array_equal(agent.weights, hotloop.load(endless, which="last").weights)


def test_an_evaluation_by_hand_ends_too_unless_it_is_told_how_many_episodes(endless):
    agent = hotloop.load(endless, which="last", **{"evaluation.max_steps": 200})
    figures = agent.evaluate()
    # 2 x 500 env steps, up to a vector step of the 15 envs that play seven rounds.
    assert (figures["cut"], figures["length_mean"]) == (100, -(-1000 // 15))
    whole = agent.evaluate(3)
    assert (whole["episodes"], whole["length_mean"]) == (3, 200)
    assert "cut" not in whole
    assert whole["endless"] == 3


def test_episodes_that_reach_the_limit_are_named_in_the_figures_of_a_run(tmp_path):
    run = hotloop.train(SPEC, out=tmp_path / "run", **{"env.options": {}, "evaluation.max_steps": 20})
    assert (run.episodes_cut, run.episodes_endless) == (0, 20)
    assert [row["endless"] for row in metrics(run.path, "eval")] == [20, 20, 20]


def test_whole_evaluations_are_as_before(tmp_path):
    run = hotloop.train(SPEC, out=tmp_path / "run", **{"stop.return_at_least": 7})
    assert run.stopped.startswith("solved: mean return 7.0")
    assert run.episodes_cut == 0
    assert "cut" not in metrics(run.path, "eval")[0]
    assert (run.path / "best").is_dir()
    assert 0 < run.seconds_evaluating < run.seconds


def test_the_seconds_of_evaluations_on_the_device_are_told_too(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 400})
    assert 0 < run.seconds_evaluating < run.seconds
    assert "stage_seconds" not in metrics(run.path, "train")[-1]


class Impatient(Silent):
    """Presses Ctrl-C in the second evaluation, at the third vector step."""

    def __init__(self):
        self.evaluations = 0

    @contextmanager
    def counting(self, what):
        self.evaluations += 1
        steps = 0

        def tell(done, total):
            nonlocal steps
            steps += 1
            if (self.evaluations, steps) == (2, 3):
                os.kill(os.getpid(), signal.SIGINT)

        yield tell


def outcome(run):
    rows = metrics(run.path)
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


@pytest.mark.parametrize("steps", [500, pytest.param(400, marks=pytest.mark.heavy)], ids=["amid the run", "at its end"])
def test_an_interrupted_evaluation_is_given_up_and_made_up_for(tmp_path, steps):
    whole = hotloop.train(SPEC, out=tmp_path / "whole", **{"stop.steps": steps})
    parts = hotloop.train(SPEC, out=tmp_path / "parts", reporter=Impatient(), **{"stop.steps": steps})
    assert parts.stopped == "stopped by SIGINT"
    assert parts.env_steps == 400
    assert [row["env_steps"] for row in metrics(parts.path, "eval")] == [200]
    assert manifest(parts.path)["evaluation_due"] is True
    resumed = hotloop.resume(parts)
    assert resumed.env_steps == steps
    assert outcome(resumed) == outcome(whole)
    assert manifest(parts.path)["digests"] == manifest(whole.path)["digests"]
    assert "evaluation_due" not in manifest(parts.path)


class Frail(gym.Wrapper):
    """Gives NaN in episodes that begin with certain seeds."""

    seeds: frozenset[int] = frozenset()

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return (np.full_like(obs, np.nan) if seed in Frail.seeds else obs), info


def test_an_evaluation_that_an_env_ended_is_made_up_for_with_other_episodes(tmp_path, monkeypatch):
    gym.register("Frail-v0", entry_point=lambda **options: Frail(Walk(**options)))
    own = {"env.id": "Frail-v0"}
    first = int(np.random.SeedSequence([0, 400, 1]).generate_state(1)[0]) % (2**31 - 16)
    monkeypatch.setattr(Frail, "seeds", frozenset({first}))
    with pytest.raises(NotFinite, match="the run is saved"):
        hotloop.train(SPEC, out=tmp_path / "run", **own)
    assert manifest(tmp_path / "run")["evaluations_failed"] == 1
    with pytest.warns(RuntimeWarning, match="running episodes cannot be restored"):
        resumed = hotloop.resume(tmp_path / "run", trust=True)
    assert resumed.env_steps == 500
    assert [row["env_steps"] for row in metrics(resumed.path, "eval")] == [200, 400, 500]
    assert "evaluations_failed" not in manifest(tmp_path / "run")
    gym.registry.pop("Frail-v0")


def test_a_resumed_run_cuts_its_evaluations_where_an_uninterrupted_one_does(tmp_path):
    own = {"env.options": {}, "evaluation.max_share": 2}
    whole = hotloop.train(SPEC, out=tmp_path / "whole", **own)
    parts = hotloop.train(SPEC, out=tmp_path / "parts", **own, **{"stop.steps": 300})
    resumed = hotloop.resume(parts, steps=500)
    seen = {row["env_steps"]: row for row in metrics(resumed.path, "eval")}
    assert [seen[row["env_steps"]] for row in metrics(whole.path, "eval")] == metrics(whole.path, "eval")


def test_without_a_terminal_a_count_is_a_line_after_two_seconds_four_eight(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("hotloop.progress.time.monotonic", lambda: now[0])
    with Terminal() as reporter, reporter.counting("greedy episodes") as tell:
        for second in range(18):
            now[0] = 100.0 + second
            tell(second, 20)
    assert capsys.readouterr().err.splitlines() == [f"greedy episodes: {n} of 20" for n in (2, 4, 8, 16)]
