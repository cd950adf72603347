"""`out=None`: a run that writes nothing, whose agent is in memory."""

import numpy as np
import pytest
from hotloop_process import TINY, contents, finish, start

import hotloop
from hotloop.errors import NotFinite, SpecError

OBS = np.linspace(-0.2, 0.2, 4 * 32, dtype=np.float32).reshape(32, 4)
OBEY_PERMISSIONS = """
import ctypes, os, sys
if os.geteuid() == 0 and "OBEYING" not in os.environ:
    os.environ["OBEYING"] = "1"
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    os.execv(sys.executable, sys.orig_argv)
"""


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """The current folder, to which nothing can be added."""
    folder = tmp_path / "here"
    folder.mkdir()
    folder.chmod(0o555)
    monkeypatch.chdir(folder)
    yield folder
    assert contents(folder) == {}
    folder.chmod(0o755)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The same run, in a folder and in memory."""
    folder = tmp_path_factory.mktemp("kept")
    return hotloop.train(TINY, out=folder / "run"), hotloop.train(TINY, out=None)


def test_nothing_is_written_and_the_agent_is_there(nowhere):
    run = hotloop.train(TINY, out=None)
    assert run.path is None
    assert (run.result["run"], run.env_steps, run.disk_error) == (None, 1000, None)
    assert run.agent.predict(OBS).shape == (32,)
    assert "None" in repr(run)


def test_a_folder_that_cannot_be_written_is_not_even_looked_at(tmp_path):
    """In a process that permissions hold for, whoever runs the tests."""
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    program = f"""{OBEY_PERMISSIONS}
import hotloop, json, os
assert not os.access(".", os.W_OK)
run = hotloop.train({TINY!r}, out=None)
print(json.dumps({{"env_steps": run.env_steps, "action": run.agent.predict([0.0, 0.0, 0.1, 0.0])}}))
raise SystemExit
"""
    ran = finish(start(cwd=folder, before=program))
    folder.chmod(0o755)
    assert ran.json["env_steps"] == 1000
    assert contents(folder) == {}


def test_it_is_the_run_it_would_be_in_a_folder(kept):
    in_folder, in_memory = kept
    for which in ("best", "last"):
        one, other = (hotloop.load(run, which=which) for run in kept)
        assert np.array_equal(one.weights, other.weights)
    assert np.array_equal(in_memory.agent.weights, hotloop.load(in_folder).weights)
    times = {name for name in in_folder.result if "second" in name or name.endswith("_per_s")} | {"run"}
    of = [{name: value for name, value in run.result.items() if name not in times} for run in kept]
    assert of[0] == of[1]
    assert set(in_folder.result) == set(in_memory.result)


def test_without_evaluations_the_agent_has_the_last_weights():
    run = hotloop.train(TINY, out=None, **{"evaluation.every": 0, "stop.steps": 200})
    with pytest.warns(RuntimeWarning, match="no best weights"):
        agent = hotloop.load(run)
    assert np.array_equal(agent.weights, hotloop.load(run, which="last").weights)
    with pytest.raises(SpecError, match="there are no 'best' weights; this run has last"):
        hotloop.load(run, which="best")


def test_it_can_be_seen_elsewhere(kept):
    agent = hotloop.load(kept[1], **{"env.options.max_steps": 7})
    assert agent.evaluate(episodes=4)["length_mean"] <= 7


def test_each_seed_is_there():
    run = hotloop.train(TINY, out=None, seeds=2, **{"stop.steps": 200})
    first, second = (hotloop.load(run, which=f"seed-{seed}").weights for seed in (0, 1))
    assert not np.array_equal(first, second)


def test_it_cannot_be_resumed_or_profiled(kept):
    with pytest.raises(SpecError, match="trained with out=None"):
        hotloop.resume(kept[1])
    with pytest.raises(SpecError, match="give out=FOLDER"):
        hotloop.profile(TINY, out=None)


def test_callbacks_hear_of_it_and_no_checkpoint_is_told():
    heard = []
    run = hotloop.train(TINY, out=None, on_log=heard.append, on_checkpoint=lambda _: pytest.fail("there is none"))
    assert [log.env_steps for log in heard] == [200, 400, 600, 800, 1000]
    assert run.env_steps == 1000


def test_an_env_that_fails_says_that_nothing_is_saved():
    import gymnasium as gym

    class Fails(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), np.nan, False, False, {}

    gym.register("Fails-v0", entry_point=Fails, disable_env_checker=True)
    try:
        with pytest.raises(NotFinite, match=r"the run is not saved: it has no folder \(out=None\)"):
            hotloop.train({"env": {"id": "Fails-v0"}, "network": TINY["network"], "replay": TINY["replay"]}, out=None)
    finally:
        gym.registry.pop("Fails-v0")


def test_by_default_a_run_goes_to_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = hotloop.train(TINY, **{"stop.steps": 80})
    assert run.path.parent == run.path.parent.parent / "runs"
    assert run.path.name.startswith("tiny-")
    assert np.array_equal(run.agent.weights, hotloop.load(run.path).weights)
