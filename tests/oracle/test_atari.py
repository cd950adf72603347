"""Atari through ale-py's own vector env: stacks, resets, clipping, determinism, and a run from the command line."""

import gymnasium as gym
import numpy as np
import pytest

from hotloop.assembly import Assembly
from hotloop.envs.host import HostEnvs, make_vector_env
from hotloop.errors import SpecError
from hotloop.members import seeds
from hotloop.runs.state import digests
from hotloop.spec.reading import load_spec

SMALL = {
    "env.num_envs": 2,
    "network.torso": {"kind": "cnn", "layout": "CHW", "channels": [4], "kernels": [8], "strides": [8], "hidden": [8]},
    "replay.capacity": 400,
    "replay.start": 32,
    "replay.batch_size": 4,
    "updates_per_step": 0.25,
}


def test_the_vector_env_of_ale_is_used_and_shows_stacked_frames():
    env = make_vector_env("ALE/Pong-v5", 3, {"stack_num": 4})
    envs = HostEnvs(env)
    assert type(env.unwrapped).__name__ == "AtariVectorEnv"
    before = envs.reset(2**32 - 1)
    assert before.shape == (3, 4, 84, 84)
    assert before.dtype == np.uint8
    for t in range(20):
        step = envs.step(np.full(3, 2 + t % 2))
        assert (step.final_obs[:, :-1] == before[:, 1:]).all()
        before = step.obs
    envs.close()


@pytest.mark.heavy
@pytest.mark.parametrize("pipeline", ["sync", "concurrent"])
def test_two_runs_of_pong_end_in_the_same_bits(pipeline):
    ends = []
    for _ in range(2):
        session = Assembly(load_spec("pong", {**SMALL, "pipeline": pipeline})).session(seeds([1]))
        session.compile()
        session.begin()
        session.advance(60)
        ends.append(digests(session.arrays()))
        session.actor.envs.close()
    assert ends[0] == ends[1]


@pytest.mark.less_optimised
@pytest.mark.heavy
def test_drawn_stacks_are_those_that_were_seen_through_episode_ends():
    """Breakout with one life per episode: ends come often; every drawn stack must be one that the agent saw."""
    given = {**SMALL, "env.id": "ALE/Breakout-v5", "env.options": {"episodic_life": True, "noop_max": 0}}
    session = Assembly(load_spec("pong", {**given, "pipeline": "sync", "replay.n_step": 1})).session(seeds([0]))
    session.compile()
    session.begin()
    seen = {}
    step_envs = session.actor.envs.step

    def watched(action):
        before = session.actor.obs
        step = step_envs(action)
        for i in np.flatnonzero(step.valid):
            seen[(before[i].tobytes(), step.final_obs[i].tobytes(), int(action[i]))] = True
        return step

    session.actor.envs.step = watched
    session.advance(500)
    assert session.episodes > 3
    ring = session.learner.replay.ring
    rows = ring.take(np.arange(ring.inserted - ring.size, ring.inserted))
    tm1, t = session.learner.replay.store.take(rows.s_tm1), session.learner.replay.store.take(rows.s_t)
    assert len(tm1) > 350
    for a, action, b in zip(tm1, rows.a_tm1, t, strict=True):
        assert (a.tobytes(), b.tobytes(), int(action)) in seen
    session.actor.envs.close()


def test_evaluations_have_options_of_their_own():
    spec = load_spec("pong")
    assert spec.env.options["reward_clipping"]
    assert spec.evaluation.options == {"reward_clipping": False}


def test_a_wrong_game_is_one_line():
    with pytest.raises(SpecError, match="did you mean 'ALE/Pong-v5'"):
        make_vector_env("ALE/Pongg-v5", 2, {})
    with pytest.raises(SpecError, match="no_such"):
        make_vector_env("ALE/Pong-v5", 2, {"no_such": 1})


def test_a_missing_package_names_the_extra(monkeypatch):
    import hotloop.envs.naming as naming

    def absent(name):
        raise ModuleNotFoundError("no ale_py", name="ale_py")

    monkeypatch.setattr(naming, "import_module", absent)
    with pytest.raises(SpecError, match=r"pip install 'hotloop\[atari\]'"):
        make_vector_env("ALE/Pong-v5", 1, {})
    assert "ALE/Pong-v5" in gym.registry
