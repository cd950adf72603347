"""Runs that are slow for a reason that is known: the doctor names it, and what it measures agrees with its model."""

import json
import time

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from hotloop.assembly import Own
from hotloop.doctor.diagnosis import Diagnosis
from hotloop.doctor.examination import Examined, examine
from hotloop.doctor.report import figures_of, print_report
from hotloop.errors import SpecError
from hotloop.plain import inner, number
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec

SMALL = {
    "network.torso.hidden": [16],
    "replay.batch_size": 8,
    "replay.capacity": 2_000,
    "env.num_envs": 2,
    "updates_per_step": 0.5,
    "evaluation.every": 0,
}
SLEEP = 2e-3


class Sleeping(gym.Env):
    """Every step takes so long; an episode has ten."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    seconds = SLEEP

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps == 10, False, {}


class Quick(Sleeping):
    """Takes no time."""

    seconds = 0.0


def reported(seen: Examined):
    return figures_of(Diagnosis(seen, []))


def of(report, name):
    return next(cause for cause in report["causes"] if cause["where"] == name)


def test_an_env_that_sleeps_is_the_verdict_and_without_it_the_run_is_as_fast_as_predicted():
    seen = examine(load_spec({}, SMALL), Own(env=Sleeping), 3.0, Silent())
    report = reported(seen)
    verdict = inner(report, "verdict")
    assert verdict["cause"] == "env-step"
    assert number(verdict, "share") > 0.5
    stages = inner(report, "stages")
    assert number(stages, "step") >= SLEEP, "an env step takes at least what it sleeps"
    cause = of(report, "step")
    assert cause["predicted_speedup"] > 1.5
    assert cause["measured_speedup"] > 1.5
    assert "processes" in cause["remedy"]
    assert not cause["changes_algorithm"]
    json.dumps(report)
    print_report(Diagnosis(seen, []), Console(quiet=True))


def test_evaluations_that_take_longer_than_the_training_are_the_verdict():
    spec = load_spec({}, {**SMALL, "evaluation": {"every": 200, "episodes": 64, "max_share": 10.0}})
    report = reported(examine(spec, Own(env=Quick), 1.0, Silent()))
    slow = {cause["cause"]: cause["share"] for cause in report["causes"]}
    assert slow["evaluation"] > slow["logging"]
    assert of(report, "evaluation.every")["remedy"] == "--set evaluation.every=2000"


def test_a_program_on_the_device_is_looked_into():
    spec = load_spec({}, {**SMALL, "env.id": "cartpole", "replay.batch_size": 128})
    report = reported(examine(spec, Own(), 2.0, Silent()))
    assert inner(report, "verdict")["cause"] == "update-arithmetic"
    assert {"step", "select", "insert", "sample", "update"} <= set(inner(report, "stages"))
    assert report["pipeline"] == "fused"


def test_several_agents_are_refused_in_a_line():
    with pytest.raises(SpecError, match="one agent that learns from transitions"):
        examine(load_spec("treasure", {"env.num_envs": 2}), Own(), 1.0, Silent())
