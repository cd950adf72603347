"""Whatever a Gymnasium env does wrong once training has begun ends the run saved, in one line."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hotloop_process import checkpoints, manifest

import hotloop as package
from hotloop.errors import EnvFailed, NotFinite, SpecError

pytestmark = pytest.mark.less_optimised

LENGTH, WRONG_FROM = 5, 40
"""Steps of an episode; steps of an env after which it does what `wrong` says."""


class Wrong(gym.Env):
    """Sound at first; then wrong in the way it is told."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, wrong="", from_step=WRONG_FROM, goals=False):
        self.wrong, self.from_step, self.steps, self.t = wrong, from_step, 0, 0
        box = gym.spaces.Box(-1, 1, (2,))
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gym.spaces.Dict(dict.fromkeys(names, box)) if goals else box
        self.goals = goals

    def _is(self, wrong):
        return self.wrong == wrong and self.steps >= self.from_step

    def _seen(self, value):
        seen = np.full(2, value, np.float32)
        return dict.fromkeys(self.observation_space.spaces, seen) if self.goals else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        value = np.nan if self._is("nan in a reset") else 0.0
        return self._seen(value), {} if self._is("no mask in a reset") else {"action_mask": np.ones(2, np.int8)}

    def step(self, action):
        self.steps += 1
        self.t += 1
        info = {} if self._is("no mask") else {"action_mask": np.ones(2, np.int8)}
        info["depth"] = self.t
        if self._is("no info"):
            del info["depth"]
        if self._is("info is text"):
            info["depth"] = "deep"
        return self._seen(0.1 * self.t), 1.0, self.t == LENGTH, False, info

    def compute_reward(self, reached, wanted, info):
        if self.wrong == "judge":
            raise RuntimeError("the judge is ill")
        return np.zeros(len(reached))


class WrongVector(SyncVectorEnv):
    """Of Gymnasium's own; wrong from its 40th step on."""

    steps = 0

    def step(self, actions):
        self.steps += 1  # its own: another one may have been looked at before
        obs, reward, terminated, truncated, infos = super().step(actions)
        if self.steps >= WRONG_FROM:
            if self.wrong == "no final_obs":
                infos.pop("final_obs", None)
            if self.wrong == "shape":
                obs = obs[:, :1]
            if self.wrong == "last shape" and "final_obs" in infos:
                infos["final_obs"] = [None if last is None else last[:1] for last in infos["final_obs"]]
        return obs, reward, terminated, truncated, infos


def make_vector(num_envs, wrong="", goals=False):
    WrongVector.wrong = wrong
    return WrongVector([Wrong for _ in range(num_envs)], autoreset_mode=AutoresetMode.SAME_STEP)


SPEC = {
    "name": "wrong",
    "updates_per_step": 0.25,
    "env": {"id": "Wrong-v0", "num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 512, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
    "stop": {"steps": 2000},
    "log": {"every": 100, "checkpoint_every": 10_000},
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gym.register("Wrong-v0", entry_point=Wrong, disable_env_checker=True)
    gym.register("WrongVector-v0", entry_point=Wrong, vector_entry_point=make_vector, disable_env_checker=True)
    yield
    for name in ("Wrong-v0", "WrongVector-v0"):
        gym.registry.pop(name)


CASES = {
    "no info": ({"env.info": ["depth"]}, "env.info: the env gave no 'depth' at the end of an episode"),
    "info is text": ({"env.info": ["depth"]}, "could not convert string to float: 'deep'"),
    "no mask": ({"env.action_mask": True}, r"gave no info\['action_mask'\] in a step"),
    "no mask in a reset": ({"env.action_mask": True}, r"gave no info\['action_mask'\] in a reset"),
    "no final_obs": ({"env.id": "WrongVector-v0"}, r"gives no infos\['final_obs'\]"),
    "shape": ({"env.id": "WrongVector-v0"}, r"observations of shape \(1,\), its space says \(2,\)"),
    "last shape": ({"env.id": "WrongVector-v0"}, r"a last observation of shape \(1,\), its space says \(2,\)"),
    "judge": ({"env.options.goals": True, "replay.hindsight": {}}, "compute_reward raised RuntimeError: the judge is"),
}


@pytest.mark.parametrize("wrong", CASES)
def test_an_env_that_becomes_wrong_ends_the_run_saved(tmp_path, wrong):
    own, said = CASES[wrong]
    with pytest.raises(EnvFailed, match=f"{said}.*; nothing of it was stored, and the run is saved"):
        package.train(SPEC, out=tmp_path / "run", **{"env.options.wrong": wrong}, **own)
    [reached] = checkpoints(tmp_path / "run")
    assert manifest(tmp_path / "run")["updates"] > 10 or wrong == "judge", "it had trained, and that is kept"
    assert 0 < reached < SPEC["stop"]["steps"]


def test_nan_in_a_reset_amid_a_run_ends_it_saved(tmp_path):
    with pytest.raises(NotFinite, match=r"env 0 gave an observation in a reset that is not finite.*the run is saved"):
        package.train(SPEC, out=tmp_path / "run", **{"env.options.wrong": "nan in a reset"})
    assert checkpoints(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "own", "kind"),
    [("nan in a reset", {}, NotFinite), ("no mask in a reset", {"env.action_mask": True}, SpecError)],
)
def test_an_env_that_is_wrong_from_the_first_reset_on_leaves_nothing_behind(tmp_path, wrong, own, kind):
    with pytest.raises(kind):
        package.train(SPEC, out=tmp_path / "run", **{"env.options": {"wrong": wrong, "from_step": 0}}, **own)
    assert not (tmp_path / "run").exists()


def test_an_env_that_cannot_be_made_for_an_evaluation_ends_the_run_saved(tmp_path, monkeypatch):
    from hotloop import evaluate

    def refuse(*args):
        raise SpecError("env.id Wrong-v0: OSError: no more of these")

    monkeypatch.setattr(evaluate, "open_envs", refuse)
    with pytest.raises(EnvFailed, match=r"no more of these.*the run is saved"):
        package.train(SPEC, out=tmp_path / "run", **{"evaluation.every": 200})
    assert checkpoints(tmp_path / "run") == [200]


@pytest.mark.heavy
def test_the_command_line_says_so_in_one_line_and_exits_with_one(hotloop, tmp_path):
    args = ("train", "--env", "CartPole-v1", "--set", "env.info=[depth]", "--set", "evaluation.every=0")
    ran = hotloop(*args, "--set", "env.vectorization=sync", "--steps", "3000", "--out", "run")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    last = ran.err.splitlines()[-1]
    assert last.startswith("hotloop: env.info: the env gave no 'depth' at the end of an episode; it gave")
    assert last.endswith("nothing of it was stored, and the run is saved in run")
    assert checkpoints(tmp_path / "run")


def test_a_recording_in_which_the_env_raises_is_left_out_with_a_word(tmp_path):
    class Unpaintable(Wrong):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

        def __init__(self, render_mode=None):
            super().__init__()
            self.render_mode = render_mode

        def render(self):
            if self.steps > 3:
                raise RuntimeError("out of paint")
            return np.zeros((8, 8, 3), np.uint8)

    gym.register("Unpaintable-v0", entry_point=Unpaintable, disable_env_checker=True)
    try:
        with pytest.warns(RuntimeWarning, match="no recording: RuntimeError: out of paint"):
            run = package.train(SPEC, out=tmp_path / "run", **{"env.id": "Unpaintable-v0", "stop.steps": 100})
    finally:
        gym.registry.pop("Unpaintable-v0")
    assert run.env_steps == 100
    assert checkpoints(run.path) == [100]
