"""`env.observe`: an agent sees chosen parts of a Dict observation, and only those."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import hotloop
from hotloop.assembly import Assembly
from hotloop.envs.check import check_env
from hotloop.envs.host import HostEnvs, make_vector_env
from hotloop.envs.host_spaces import observations
from hotloop.errors import SpecError
from hotloop.spec.reading import load_spec

pytestmark = pytest.mark.less_optimised

LENGTH = 5
KEYS = ("image", "direction")


class Mission(gym.Env):
    """An image, a direction and words; the right action is the direction's parity. Every fifth step ends an episode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = spaces.Dict(
        image=spaces.Box(0, 255, (6, 6, 1), np.uint8), direction=spaces.Discrete(4), mission=spaces.Text(30)
    )
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def _see(self):
        image = np.full((6, 6, 1), 10 * self.t, np.uint8)
        return {"image": image, "direction": np.int64(self.t % 4), "mission": "gototheredoor"[: 3 + self.t]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action):
        reward = float(action == self.t % 2)
        self.t += 1
        return self._see(), reward, self.t == LENGTH, False, {}

    def render(self):
        return np.full((16, 16, 3), 40 * self.t, np.uint8)


class Words(gym.Space):
    """A space that Gymnasium cannot lay out in memory."""

    def contains(self, x):
        return isinstance(x, str)


class Wordy(Mission):
    observation_space = spaces.Dict({**Mission.observation_space.spaces, "mission": Words()})


if "Mission-v0" not in gym.registry:  # processes of an async vector env import this file
    gym.register("Mission-v0", entry_point=Mission)
    gym.register("Wordy-v0", entry_point=Wordy)
SMALL = {
    "name": "mission",
    "env": {"id": "Mission-v0", "num_envs": 2, "observe": list(KEYS)},
    "network": {"torso": {"kind": "mlp", "hidden": [8]}},
    "replay": {"capacity": 256, "start": 16, "batch_size": 8},
    "evaluation": {"every": 100, "episodes": 2},
    "log": {"every": 100, "checkpoint_every": 100},
    "stop": {"steps": 200},
}
OBS = {"image": np.full((6, 6, 1), 10, np.uint8), "direction": 1, "mission": "go to"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hotloop.train(SMALL, out=tmp_path_factory.mktemp("observe") / "run")


@pytest.fixture(scope="module")
def agent(run):
    return hotloop.load(run)


def test_a_part_that_no_network_can_see_is_refused_with_those_that_can_be_chosen():
    for observe in ((), ("image", "mission")):
        with pytest.raises(SpecError, match=r"\['mission'\] is a Text space.*--set env.observe=\[image,direction\]"):
            observations(Mission.observation_space, observe)
    with pytest.raises(SpecError) as refusal:
        observations(spaces.Dict(words=spaces.Text(3)))
    assert "env.observe" not in str(refusal.value), "nothing is left to choose"


def test_a_key_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SpecError, match=r"env.observe names 'imge', but the keys .* image, direction, mission"):
        observations(Mission.observation_space, ("imge",))
    with pytest.raises(SpecError, match="which has none; leave it out"):
        observations(spaces.Box(0, 1, (3,)), ("image",))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"env": {"observe": ["image", "image"]}}, "names 'image' twice"),
        ({"env": {"observe": "image"}}, "env.observe"),
        (
            {"env": {"observe": ["observation", "desired_goal"]}, "replay": {"hindsight": {}}},
            "replay.hindsight needs the keys .* leaves out achieved_goal; add",
        ),
    ],
)
def test_choices_that_contradict_each_other_are_refused(spec, said):
    with pytest.raises(SpecError, match=said):
        load_spec(spec)


def test_the_three_keys_of_hindsight_may_be_chosen():
    goals = {"env": {"observe": ["desired_goal", "observation", "achieved_goal"]}, "replay": {"hindsight": {}}}
    assert load_spec(goals).replay.hindsight


def test_device_envs_have_no_keys_to_choose():
    with pytest.raises(SpecError, match=r"env.observe is not for device envs"):
        Assembly(load_spec("cartpole", {"env.observe": ["image"]}))


def _vector(how, observe):
    if isinstance(how, AutoresetMode):
        return SyncVectorEnv([Mission, Mission], autoreset_mode=how)
    return make_vector_env("Wordy-v0", 2, {}, how, observe=observe)


@pytest.mark.parametrize(
    ("observe", "how"),
    [
        *((observe, how) for observe in (KEYS, ("direction",)) for how in (*AutoresetMode, "sync")),
        *(pytest.param(observe, "async", marks=pytest.mark.heavy) for observe in (KEYS, ("direction",))),
    ],
    ids=str,
)
def test_every_kind_of_vector_env_shows_the_chosen_parts_and_their_last_ones(how, observe):
    envs = HostEnvs(_vector(how, observe), observe=observe)
    obs = envs.reset(0)
    try:
        for t in [0, 1, 2, 3, 4] * 2:
            assert _directions(obs, observe) == [t % 4] * 2
            step = envs.step(np.zeros(2, np.int32))
            assert _directions(step.final_obs, observe) == [(t + 1) % 4] * 2
            assert step.terminated.tolist() == [t == LENGTH - 1] * 2
            obs = step.obs
            if t == LENGTH - 1 and how == AutoresetMode.NEXT_STEP:  # a step in which nothing but the reset happens
                obs = envs.step(np.zeros(2, np.int32)).obs
    finally:
        envs.close()


def _directions(obs, observe):
    if len(observe) == 1:
        return obs.argmax(axis=-1).tolist()
    assert set(obs) == set(observe)
    return obs["direction"].argmax(axis=-1).tolist()


def test_an_agent_is_trained_evaluated_recorded_and_resumed_on_them(run, agent, tmp_path):
    assert 200 <= run.env_steps < 210
    assert agent.evaluate(3)["length_mean"] == LENGTH
    assert (run.path / "recording.gif").is_file()
    assert agent.record(tmp_path / "agent.gif").stat().st_size > 0
    with pytest.warns(RuntimeWarning, match="running episodes cannot be restored"):
        assert hotloop.resume(run, steps=260).env_steps >= 260


def test_predict_takes_the_whole_observation_or_the_chosen_parts_one_or_many(agent):
    chosen = {key: OBS[key] for key in KEYS}
    assert agent.predict(OBS) == agent.predict(chosen) == int(agent.q_values(OBS).argmax())
    many = {"image": np.stack([OBS["image"]] * 3), "direction": np.array([0, 1, 2]), "mission": ("a", "b", "c")}
    assert agent.predict(many).shape == (3,)
    assert agent.predict(many)[1] == agent.predict(OBS)


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ({"image": OBS["image"]}, "has the parts image, expected direction, image"),
        ({**OBS, "image": np.zeros((2, 6, 6, 1), np.uint8)}, "do not agree"),
        ({**OBS, "image": np.zeros((5, 6, 1), np.uint8)}, r"\['image'\] has shape \(5, 6, 1\), expected \(6, 6, 1\)"),
        (np.zeros(4), "expected Dict"),
    ],
    ids=["a part is missing", "one and many", "another shape", "no dict"],
)
def test_predict_says_what_is_wrong_with_an_observation(agent, obs, said):
    with pytest.raises(ValueError, match=said):
        agent.predict(obs)


@pytest.mark.heavy
def test_one_key_alone_is_seen_without_its_name_so_that_an_image_goes_to_a_cnn(tmp_path):
    torso = {"kind": "cnn", "channels": [2], "kernels": [3], "strides": [2], "hidden": [8]}
    overrides = {"network.torso": torso, "stop.steps": 60, "evaluation.every": 0}
    with pytest.raises(SpecError, match=r"one image, but the observation has parts \(direction, image\)"):
        Assembly(load_spec(SMALL, overrides))
    run = hotloop.train(SMALL, out=tmp_path / "run", **{**overrides, "env.observe": ["image"]})
    agent = hotloop.load(run, which="last")
    ways = [OBS, {"image": OBS["image"]}, OBS["image"], OBS["image"].tolist()]
    assert len({agent.predict(way) for way in ways}) == 1
    assert agent.predict(np.stack([OBS["image"]] * 2)).shape == (2,)
    assert agent.evaluate(2)["episodes"] == 2


def test_the_check_of_an_env_looks_at_the_chosen_parts():
    refused = check_env("Mission-v0", {})
    assert any("--set env.observe=[image,direction]" in text for _, text in refused.findings)
    assert not refused.is_sound
    report = check_env("Mission-v0", {}, KEYS)
    assert report.is_sound, report
    assert any(text.endswith("(seen: image, direction)") for _, text in report.findings)


class Careless(Mission):
    """What it says of two of its parts is wrong, and one of them is another each time."""

    observation_space = spaces.Dict({**Mission.observation_space.spaces, "clock": spaces.Box(0, 1, (2,))})

    def _see(self):
        clock = np.array([np.nan, np.random.default_rng().random()], np.float32)
        return {**super()._see(), "mission": None, "clock": clock}


def test_the_check_of_an_env_does_not_judge_what_is_left_out():
    if "Careless-v0" not in gym.registry:
        gym.register("Careless-v0", entry_point=Careless)
    report = check_env("Careless-v0", {}, KEYS)
    assert report.is_sound, report
    assert ("ok", "the same seed and actions give the same episode") in report.findings
    assert any("NaN" in text for _, text in check_env("Careless-v0", {}, (*KEYS, "clock")).findings)


@pytest.mark.heavy
def test_the_command_that_checks_an_env_takes_it_too(hotloop, tmp_path):
    (tmp_path / "mission.py").write_text(Path(__file__).read_text())
    found = hotloop("check-env", "mission:Mission-v0", "--set", "env.observe=[direction]", "--json")
    assert found.json["is_sound"]
    assert (
        "env.observe names 'x'"
        in json.loads(hotloop("check-env", "mission:Mission-v0", "--set", "env.observe=[x]", "--json").out)["findings"][
            0
        ]["text"]
    )
    assert "has no meaning here" in hotloop("check-env", "mission:Mission-v0", "--set", "env.info=[x]").refusal
