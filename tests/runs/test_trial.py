"""A trial measures a piece of a run, as it is or with a stage replaced, and leaves nothing behind."""

import gymnasium as gym
import numpy as np
import pytest
from hotloop_process import TINY, contents

from hotloop.errors import SpecError
from hotloop.trial import trial

HOST = {**TINY, "env": {"id": "CartPole-v1", "num_envs": 4}}


class Still(gym.Env):
    """Looks like CartPole and does nothing."""

    observation_space = gym.make("CartPole-v1").observation_space
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        Still.steps += 1
        return np.zeros(4, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("spec", [TINY, HOST], ids=["device", "host"])
def test_a_trial_says_how_fast_a_spec_is_after_its_learning_start(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    found = trial(spec, seconds=0.3)
    assert found.seconds >= 0.3
    assert found.updates == pytest.approx(found.env_steps / 4, abs=1)
    assert found.env_steps_per_s == pytest.approx(found.env_steps / found.seconds, rel=0.5)
    assert found.env_steps_per_s > 0 < found.updates_per_s
    assert ("step" in found.stage_seconds) == (spec is HOST)
    assert found.stage_seconds["log"] > 0
    assert found.notices == []
    assert contents(tmp_path) == {}


def test_the_env_can_be_replaced_and_lines_of_metrics_left_out():
    Still.steps = 0
    found = trial(HOST, replace={"env": Still, "log": False}, seconds=0.2)
    assert Still.steps >= found.env_steps > 0


@pytest.mark.parametrize(
    ("replace", "says"),
    [
        ({"replay": object()}, "the replay of a run cannot be replaced yet; env and log can"),
        ({"update": object()}, "the update of a run cannot be replaced yet"),
        ({"acting": None}, "there is no stage 'acting'; the stages are env, replay, update, log"),
    ],
)
def test_what_cannot_be_replaced_is_refused(replace, says):
    with pytest.raises(SpecError, match=says):
        trial(TINY, replace=replace)


def test_a_spec_that_ends_before_it_learns_is_refused():
    with pytest.raises(SpecError, match="a stop rule of the spec"):
        trial({**TINY, "stop": {"steps": 1000, "episodes": 1}, "replay": {**TINY["replay"], "start": 500}})
