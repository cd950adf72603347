"""Whole runs with `env.action_mask`: no illegal action is taken, and an env without masks is refused in one line."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.toy_text.taxi import TaxiEnv

import hotloop
from hotloop.envs.check import check_env
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised

SMALL = {
    "network.torso.hidden": [16],
    "env.num_envs": 2,
    "env.action_mask": True,
    "exploration.epsilon": 0.5,
    "replay.capacity": 256,
    "replay.start": 64,
    "replay.batch_size": 16,
    "stop.steps": 400,
    "evaluation.every": 200,
    "evaluation.episodes": 2,
    "evaluation.max_steps": 20,
}


class StrictTaxi(TaxiEnv):
    """Counts the steps, and those that its last mask forbade."""

    taken = illegal = 0

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        self.mask = np.array(info["action_mask"])
        return obs, info

    def step(self, action):
        StrictTaxi.taken += 1
        StrictTaxi.illegal += not self.mask[action]
        *rest, info = super().step(action)
        self.mask = np.array(info["action_mask"])
        return *rest, info


@pytest.fixture(scope="module", autouse=True)
def registered():
    gym.register("StrictTaxi-v0", entry_point=StrictTaxi, max_episode_steps=30)
    yield
    gym.registry.pop("StrictTaxi-v0")


@pytest.mark.parametrize("pipeline", ["sync", pytest.param("concurrent", marks=pytest.mark.heavy)])
@pytest.mark.heavy
def test_a_masked_run_on_taxi_takes_legal_actions_only(pipeline, tmp_path):
    StrictTaxi.taken = StrictTaxi.illegal = 0
    own = {**SMALL, "pipeline": pipeline, "replay.n_step": 2 if pipeline == "sync" else 1}
    run = hotloop.train({"env": {"id": "StrictTaxi-v0"}}, out=tmp_path / "run", **own)
    assert run.updates > 50
    assert run.episodes > 5
    assert StrictTaxi.taken > 400 + 2 * 20
    assert StrictTaxi.illegal == 0

    agent = hotloop.load(run)
    before = StrictTaxi.taken
    agent.evaluate(episodes=3)
    assert StrictTaxi.taken > before + 3
    assert StrictTaxi.illegal == 0

    q = agent.q_values(np.int64(7))
    best = np.argsort(q)[::-1]
    mask = np.ones(6, np.int8)
    for action in best[:-1]:
        assert agent.predict(np.int64(7), action_mask=mask) == action
        assert mask[agent.predict(np.int64(7), deterministic=False, action_mask=mask)]
        mask[action] = 0
    batch = np.array([7, 7])
    assert agent.predict(batch, action_mask=np.stack([mask, np.ones(6)])).tolist() == [best[-1], best[0]]
    with pytest.raises(ValueError, match=r"action_mask has shape \(6,\), expected \(2, 6\)"):
        agent.predict(batch, action_mask=mask)


def test_without_masks_the_same_run_takes_illegal_actions(tmp_path):
    StrictTaxi.illegal = 0
    own = {**SMALL, "env.action_mask": False, "stop.steps": 100, "evaluation.every": 0}
    hotloop.train({"env": {"id": "StrictTaxi-v0"}}, out=tmp_path / "run", **own)
    assert StrictTaxi.illegal > 10


def test_an_env_that_names_no_legal_actions_is_refused_before_anything_is_written(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(SpecError, match=r"CartPole-v1 gave no info\['action_mask'\] in a reset"):
        hotloop.train({"env": {"id": "CartPole-v1"}}, out=out, **SMALL)
    assert not out.exists()


def test_a_check_of_an_env_takes_legal_actions_and_says_that_it_names_them():
    StrictTaxi.taken = StrictTaxi.illegal = 0
    report = check_env("StrictTaxi-v0", {})
    assert report.is_sound
    assert any("names its legal actions; env.action_mask: true" in finding.text for finding in report.findings)
    assert StrictTaxi.taken > 500
    assert StrictTaxi.illegal == 0
