"""Planted slow runs are what they say, and what is compared of a report is right."""

import json

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from hotloop.bench.doctor import Outcome, best_first, errors, outcome_of
from hotloop.bench.planted import CASES
from hotloop.bench.planted_envs import PLANTED
from hotloop.bench.slow_baseline_env import SlowSnakes
from hotloop.bench.slow_baseline_flood import by_bfs
from hotloop.doctor.causes import WORDS
from hotloop.spec.reading import load_spec


def test_there_are_enough_and_each_has_a_truth_that_the_doctor_can_say():
    assert len({case.name for case in CASES}) == len(CASES) >= 24
    assert {case.half for case in CASES} == {"set", "asked"}
    assert sum(case.half == "asked" for case in CASES) >= 12
    assert {cause for case in CASES for cause in case.truth} <= set(WORDS)
    for case in CASES:
        load_spec({}, case.spec)
        json.dumps(case.spec)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_envs_keep_gymnasiums_rules(name):
    env = gym.make(
        f"hotloop.bench.planted_envs:planted/{name}-v0", **({"render_mode": None} if name == "Renders" else {})
    )
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_a_documents_snakes_are_its_games_in_gymnasiums_words():
    envs = gym.make_vec("hotloop.bench.planted_snakes:planted/DocumentSnakes-v0", 8)
    games, random, endings = SlowSnakes(8, by_bfs, seed=3), np.random.default_rng(0), 0
    obs, _ = envs.reset(seed=3)
    np.testing.assert_array_equal(obs, games.reset().numpy())
    for _ in range(60):
        actions = random.integers(0, 3, 8)
        obs, reward, terminated, truncated, infos = envs.step(actions)
        made = games.step(torch.from_numpy(actions))
        np.testing.assert_array_equal(obs, made.obs.numpy())
        np.testing.assert_array_equal(reward, made.reward.numpy())
        np.testing.assert_array_equal(terminated | truncated, infos.get("_final_obs", np.zeros(8, bool)))
        endings += int(terminated.sum())
        assert envs.observation_space.contains(obs)
    assert endings > 0
    envs.close()


def test_errors_and_the_best_setting():
    assert errors([(2.0, 1.0), (1.0, 1.0), (0.9, 1.0)]) == pytest.approx([0.0, 0.1, 1.0])
    assert best_first([(3.0, 2.0), (2.0, 1.9)])
    assert best_first([(3.0, 1.95), (2.0, 2.0)]), "about as good"
    assert not best_first([(3.0, 1.0), (2.0, 2.0)])


def test_what_is_compared_of_a_report():
    cause = {"cause": "env-step", "share": 0.6, "predicted_speedup": 2.5, "measured_speedup": 2.4}
    small = {"cause": "replay-insert", "share": 0.05, "predicted_speedup": 1.05, "measured_speedup": 1.0}
    untried = {"predicted_speedup": 2.0, "measured_speedup": None}
    report = {
        "verdict": {"cause": "env-step", "sentence": "why"},
        "causes": [cause, small],
        "remedies": [{"predicted_speedup": 1.8, "measured_speedup": 1.7}, untried],
    }
    outcome = outcome_of(CASES[0], report)
    assert (outcome.verdict, outcome.is_right) == ("env-step", True)
    assert outcome.stages == [(2.5, 2.4)]
    assert outcome.settings == [(1.8, 1.7)]
    assert not Outcome(CASES[0], "machine", []).is_right
