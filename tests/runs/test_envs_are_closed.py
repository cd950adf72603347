"""Every Gymnasium env that is opened is closed again: after a run, a plan, a load, a recording and any refusal."""

import multiprocessing
import threading

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

import hotloop
from hotloop.assembly import Assembly
from hotloop.cli import app
from hotloop.envs.check import check_env
from hotloop.errors import EnvFailed, NotFinite, SpecError
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

BOX = gym.spaces.Box(-1, 1, (2,))


class Counted(gym.Env):
    """Counts how many of it are open; wrong as its options say."""

    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    open_now = opened = 0

    def __init__(self, render_mode=None, most=None, goals=False, width=2, wrong="", actions=None):
        if most is not None and Counted.open_now >= most:
            raise OSError("no more of these")
        Counted.open_now += 1
        Counted.opened += 1
        self.is_open, self.render_mode, self.wrong, self.t, self.goals = True, render_mode, wrong, 0, goals
        one = gym.spaces.Box(-1, 1, (width,))
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gym.spaces.Dict(dict.fromkeys(names, one)) if goals else one
        if actions == "continuous":
            self.action_space = BOX

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        reward = np.nan if self.wrong == "nan" and self.np_random.random() < 0.02 else 1.0
        return self._seen(), reward, self.t == 9, False, {}

    def _seen(self):
        space = self.observation_space
        zeros = np.zeros((space["observation"] if self.goals else space).shape, np.float32)
        return dict.fromkeys(space.spaces, zeros) if self.goals else zeros

    def compute_reward(self, reached, wanted, info):
        return np.zeros(len(reached))

    def render(self):
        if self.wrong == "render":
            raise RuntimeError("out of paint")
        return np.zeros((8, 8, 3), np.uint8)

    def close(self):
        assert self.is_open, "closed twice"
        self.is_open = False
        Counted.open_now -= 1


SPEC = {
    "name": "counted",
    "updates_per_step": 0.25,
    "env": {"id": "Counted-v0", "num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 256, "start": 32, "batch_size": 8},
    "evaluation": {"every": 60, "episodes": 4},
    "stop": {"steps": 120},
    "log": {"every": 40},
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gym.register("Counted-v0", entry_point=Counted, disable_env_checker=True)
    yield
    gym.registry.pop("Counted-v0")


@pytest.fixture(autouse=True)
def all_are_closed():
    Counted.opened = Counted.open_now = 0
    yield
    assert Counted.opened > 0, "the test has opened nothing"
    assert Counted.open_now == 0
    assert multiprocessing.active_children() == []
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith(("learner", "envs"))] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hotloop.train(SPEC, out=tmp_path_factory.mktemp("closed") / "run")


@pytest.mark.parametrize(
    "own",
    [
        {"pipeline": "sync"},
        {"pipeline": "concurrent"},
        {"env.options.wrong": "render"},
        pytest.param({"env.vectorization": "threads"}, marks=pytest.mark.heavy),
        pytest.param({"env.options.goals": True, "replay.hindsight": {}}, marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_after_a_run(tmp_path, own):
    run = hotloop.train(SPEC, out=tmp_path / "run", **own)
    assert run.env_steps == 120
    assert (run.path / "recording.gif").is_file() == (own.get("env.options.wrong") != "render")


def test_after_a_resume(run):
    with pytest.warns(RuntimeWarning, match="begin new ones"):
        hotloop.resume(run, steps=200)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_agent_is_loaded_with_one_env_that_is_closed_at_once(run, vectorization):
    agent = hotloop.load(run, **{"env.vectorization": vectorization})
    assert (Counted.opened, Counted.open_now) == (1, 0)
    assert agent.predict(np.zeros(2, np.float32)) in (0, 1)


def test_an_agent_that_plays_and_records_closes_its_envs(run, tmp_path):
    agent = hotloop.load(run)
    agent.evaluate(3)
    assert Counted.open_now == 0
    assert agent.can_record
    agent.record(tmp_path / "agent.gif")


def test_an_agent_whose_env_fails_closes_it(run):
    agent = hotloop.load(run, **{"env.options.wrong": "nan"})
    with pytest.raises(NotFinite):
        agent.evaluate(100)


@pytest.mark.parametrize("vectorization", ["sync", "threads", pytest.param("async", marks=pytest.mark.heavy)])
def test_after_a_plan(vectorization):
    sets = ("--set", "env.num_envs=2", "--set", f"env.vectorization={vectorization}")
    ran = CliRunner().invoke(app, ["train", "--env", "Counted-v0", *sets, "--plan", "--json"])
    assert ran.exit_code == 0, ran.output
    Counted.opened += vectorization == "async"  # which opens them in processes


REFUSED = {
    "actions": ({"env.options.actions": "continuous"}, "needs Discrete ones"),
    "the third env": ({"env.options.most": 2}, "no more of these"),
    "hindsight": ({"replay.hindsight": {}}, "needs observations with"),
    "frames": ({"replay.stacked_frames": 3}, "observation has shape"),
    "evaluation": ({"evaluation.options": {"width": 3}}, "change what the agent sees"),
    "masks": ({"env.action_mask": True}, "gave no info"),
    "memory": ({"replay.capacity": 2**36}, "is available"),
    "hindsight without room": (
        {"env.options": {"goals": True}, "replay.hindsight": {}, "replay.capacity": 2**36},
        "is a",
    ),
    "concurrent": ({"pipeline": "concurrent", "replay.capacity": 2**36}, "is available"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_after_a_refusal(tmp_path, what):
    own, said = REFUSED[what]
    with pytest.raises(SpecError, match=said):
        hotloop.train(SPEC, out=tmp_path / "run", **own)
    assert not (tmp_path / "run").exists()


def test_after_a_network_that_does_not_fit(tmp_path):
    class Wrong:
        def init(self, key, obs):
            return {"w": np.zeros(1, np.float32)}

        def apply(self, params, obs):
            return obs

    with pytest.raises(SpecError, match="network: "):
        hotloop.train(SPEC, out=tmp_path / "run", network=Wrong(), **{"env.options.width": 3})


def test_after_a_profile_that_is_refused(tmp_path):
    with pytest.raises(SpecError, match="nothing to profile"):
        hotloop.profile(SPEC, out=tmp_path / "run", **{"stop.steps": 8})


def test_after_a_trace_which_needs_them_open_for_longer(tmp_path, monkeypatch):
    monkeypatch.setattr("hotloop.profiling.trace.SECONDS", 0.1)
    run = hotloop.profile(SPEC, out=tmp_path / "run", trace=True, pipeline="concurrent")
    assert run.trace is not None


@pytest.mark.filterwarnings("ignore:.*Calling `close` while waiting")
@pytest.mark.heavy
def test_after_envs_in_processes_were_refused_or_killed(tmp_path):
    small = {**SPEC, "env": {"id": "Counted-v0", "num_envs": 2, "vectorization": "async"}}
    Counted.opened = 1
    with pytest.raises(SpecError, match="is available"):
        hotloop.train(small, out=tmp_path / "run", **{"replay.capacity": 2**36})
    with Assembly(parse_spec(small)) as assembly:
        assert len(multiprocessing.active_children()) == 2
        assembly.envs.reset(0)
        victim = multiprocessing.active_children()[0]
        victim.kill()
        victim.join()
        with pytest.raises(EnvFailed):
            assembly.envs.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("wrong", ["", "nan"])
def test_after_a_check(wrong):
    assert check_env("Counted-v0", {"wrong": wrong}).is_sound == (wrong == "")


def test_an_assembly_may_be_closed_twice():
    with Assembly(parse_spec(SPEC)) as assembly:
        assert Counted.open_now == 4
        assembly.close()
