"""Runs that are slow for a reason that is known: the doctor names it, and what it measures agrees with its model."""

import json
import math
import time

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from hotloop.assembly import Own
from hotloop.doctor.alternatives import Alternatives
from hotloop.doctor.causes import causes_of
from hotloop.doctor.diagnosis import Diagnosis, Tried
from hotloop.doctor.examination import Examined, examine
from hotloop.doctor.page import page_of
from hotloop.doctor.race import NO_TIME, race
from hotloop.doctor.remedies import same_result
from hotloop.doctor.report import figures_of, print_report
from hotloop.doctor.slices import Ratio
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
        if self.seconds:
            time.sleep(self.seconds)
        self.steps += 1
        return np.zeros(3, np.float32), 1.0, self.steps == 10, False, {}


class Quick(Sleeping):
    """Takes no time."""

    seconds = 0.0


def undisturbed(seen: Examined) -> Examined:
    """As if the machine had done nothing else: tests run beside others."""
    quiet = seen.watched._replace(others=0.0, top=(), waited=0.0, throttled=0.0, slower=1.0, swapped=0)
    return seen._replace(watched=quiet)


def reported(seen: Examined):
    return figures_of(Diagnosis(undisturbed(seen), []))


def of(report, name):
    return next(cause for cause in report["causes"] if cause["stage"] == name)


def test_an_env_that_sleeps_is_the_verdict_and_without_it_the_run_is_as_fast_as_predicted(tmp_path, monkeypatch):
    monkeypatch.setattr("hotloop.doctor.limits.usable_cores", lambda: 1)
    seen = undisturbed(examine(load_spec({}, SMALL), Own(env=Sleeping), 3.0, Silent()))
    report = reported(seen)
    verdict = inner(report, "verdict")
    assert verdict["cause"] == "env-step"
    assert number(verdict, "share") > 0.5
    stages = inner(report, "stages")
    assert number(stages, "step") >= SLEEP, "an env step takes at least what it sleeps"
    cause = of(report, "step")
    assert cause["predicted_speedup"] > 1.5
    assert cause["measured_speedup"] > 1.5
    assert cause["where"].startswith("test_examination.py:")
    assert cause["where"].endswith(" step")
    assert cause["where"] in cause["remedy"]
    assert cause["lines"][0]["text"] == "time.sleep(self.seconds)"
    assert not cause["changes_algorithm"]
    json.dumps(report)
    assert seen.limits is not None
    assert SLEEP <= seen.limits.bare_step < 2 * SLEEP
    assert cause["at_limit"] > 0.2, "much of it is the env itself, even where a busy machine wakes it late"
    side_by_side = seen._replace(limits=seen.limits._replace(cores=2))
    assert of(reported(side_by_side), "step")["cause"] == "env-one-at-a-time"
    remedies = same_result(seen._replace(alternatives=Alternatives({"async": 0.6})), cores=2)
    assert "--set pipeline=processes" in remedies[0].options, "envs that sleep are best elsewhere, or side by side"
    assert {"--set env.vectorization=async", "--set pipeline=concurrent"} <= {each.options for each in remedies}
    assert all(each.predicted > 1 for each in remedies)
    assert not [each for each in same_result(seen, cores=1) if "concurrent" in each.options]
    tried = [Tried(each, Ratio(1.5, 1.2, math.inf) if each.can_be_raced else None, "<why>") for each in remedies]
    print_report(Diagnosis(seen, tried), Console(quiet=True))
    (tmp_path / "doctor.html").write_text(page_of(Diagnosis(seen, tried)))
    page = (tmp_path / "doctor.html").read_text()
    assert "env-step" in page
    assert "&lt;why&gt;" in page
    assert "http" not in page, "it needs nothing else"


def test_evaluations_that_take_longer_than_the_training_are_the_verdict():
    spec = load_spec({}, {**SMALL, "evaluation": {"every": 40, "episodes": 64, "max_share": 40.0}})
    seen = examine(spec, Own(env=Quick), 1.0, Silent())
    report = reported(seen)
    slow = {cause["cause"]: cause["share"] for cause in report["causes"]}
    assert slow["evaluation"] > slow["logging"]
    rarer = [each for each in same_result(seen, cores=1) if not each.can_be_raced]
    assert [each.options for each in rarer] == ["--set evaluation.every=400"]
    gained = seen.seconds / (seen.seconds - 0.9 * seen.occasions["evaluate"].per_env_step)
    assert rarer[0].predicted == pytest.approx(gained)


def test_a_program_on_the_device_is_looked_into():
    spec = load_spec({}, {**SMALL, "env.id": "cartpole", "replay.batch_size": 128})
    report = reported(examine(spec, Own(), 2.0, Silent()))
    assert inner(report, "verdict")["cause"] in ("update-arithmetic", "update-dispatch", "nothing-wrong")
    assert of(report, "update")["at_limit"] > 0
    assert number(inner(inner(report, "limits"), "products"), "number") == 2 * 2 + 2 + 1, "of two layers"
    assert {"step", "select", "insert", "sample", "update"} <= set(inner(report, "stages"))
    assert report["pipeline"] == "fused"


def test_a_small_network_is_bound_by_overhead_in_torch_and_a_wide_one_by_arithmetic():
    wide = {"network.torso.hidden": [512, 512], "replay.batch_size": 256}
    for changes, cause in (({"engine": "torch"}, "update-dispatch"), (wide, "update-arithmetic")):
        for _ in range(3):  # products and steps are timed one after the other, on a machine that may be busy
            seen = examine(load_spec({}, {**SMALL, **changes}), Own(env=Quick), 0.5, Silent())
            [found] = [each for each in causes_of(seen) if each.where == "update"]
            if found.cause == cause:
                break
        assert found.cause == cause
        assert found.at_limit is not None
    assert seen.limits is not None
    assert {"insert", "sample", "step", "update"} <= set(seen.limits.least)


def test_turns_that_come_rarely_and_a_small_ring_are_looked_into():
    in_turns = {**SMALL, "env.num_envs": 1, "turns": {"every": 8, "updates": 1}}
    del in_turns["updates_per_step"]
    seen = examine(load_spec({}, in_turns), Own(env=Quick), 0.5, Silent())
    assert not [each for each in same_result(seen, cores=2) if "pipeline" in each.changes], "turns are for sync"
    causes = {cause.stage: cause for cause in causes_of(seen)}
    assert "turns.updates" in causes["update"].remedy


@pytest.mark.heavy
def test_settings_are_tried_in_processes_of_their_own_and_one_that_cannot_run_is_told():
    spec = load_spec({}, {**SMALL, "env.id": "CartPole-v1"})
    until = time.monotonic() + 120
    works, fails = {"pipeline": "concurrent"}, {"env.options": {"nonsense": 1}}
    found = race(spec, [works, fails, works], until, {}, Silent())
    assert isinstance(found[0], Ratio)
    assert 0.1 < found[0].value < 10
    assert isinstance(found[1], str)
    assert "nonsense" in found[1]
    assert isinstance(found[2], Ratio)
    assert race(spec, [works], time.monotonic(), {}, Silent()) == [NO_TIME]
    assert "nonsense" in race(load_spec(spec, fails), [works], time.monotonic() + 60, {}, Silent())[0]
