"""A recording is a greedy episode, or its first twenty seconds."""

import gymnasium as gym
import numpy as np
import pytest
from hotloop_process import TINY
from PIL import Image

import hotloop
from hotloop.film import MOST_PER_SECOND, MOST_SECONDS, PAUSE_SECONDS, film_of
from hotloop.pipelines import device_play

pytestmark = pytest.mark.less_optimised


class Endless(gym.Env):
    """Never ends, and counts how often it was drawn."""

    observation_space = gym.spaces.Box(0, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    drawn = steps = 0

    def __init__(self, render_mode=None, fps=10, image=False):
        self.render_mode, self.metadata = render_mode, {**Endless.metadata, "render_fps": fps}
        if image:
            self.observation_space = gym.spaces.Box(0, 255, (8, 8, 1), np.uint8)
            self.metadata = {"render_modes": []}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action):
        Endless.steps += 1
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), 0.0, False, False, {}

    def render(self):
        Endless.drawn += 1
        if not self.metadata["render_modes"]:
            raise NotImplementedError
        return np.full((8, 8, 3), Endless.drawn % 256, np.uint8)


@pytest.fixture(scope="module", autouse=True)
def registered():
    gym.register("Endless-v0", entry_point=Endless, disable_env_checker=True)
    yield
    gym.registry.pop("Endless-v0")


def recorded(tmp_path, **options):
    spec = {
        **TINY,
        "env": {"id": "Endless-v0", "num_envs": 4, "options": options},
        "evaluation": {"every": 0, "max_steps": 100_000},
        "stop": {"steps": 16},
    }
    return hotloop.train(spec, out=tmp_path / "run").path / "recording.gif"


@pytest.mark.filterwarnings("ignore:.*render_mode")
@pytest.mark.parametrize(
    ("options", "steps", "fps"),
    [
        ({"fps": 10}, 189, 10),
        ({"fps": 50}, 948, 25),
        ({"fps": None}, 568, 15),
        pytest.param({"image": True}, 284, 15, marks=pytest.mark.heavy),
    ],
    ids=["as it is", "every second step", "without a speed", "of what it sees"],
)
def test_a_recording_of_an_endless_episode_is_twenty_seconds_long(tmp_path, options, steps, fps):
    Endless.steps = 0
    path = recorded(tmp_path, **options)
    # The first frame is that of the reset; the run itself takes 16 steps.
    assert Endless.steps - 16 == pytest.approx(steps, abs=1)
    with Image.open(path) as gif:
        seconds = 0.0
        for frame in range(gif.n_frames):
            gif.seek(frame)
            seconds += gif.info["duration"] / 1000
    assert film_of(options.get("fps", 15)).fps == fps
    assert MOST_SECONDS - 2.5 <= seconds <= MOST_SECONDS * 1.01, "GIFs know hundredths of a second"


@pytest.mark.heavy
def test_a_recording_on_the_device_is_as_short(tmp_path, monkeypatch):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 80, "evaluation.every": 0})
    asked = []

    genuine = device_play.record

    def record(env, engine, params, seed, max_steps, every, masked):
        asked.append((max_steps, every))
        return genuine(env, engine, params, seed, 2, every, masked)

    monkeypatch.setattr(device_play, "record", record)
    agent = hotloop.load(run, which="last", **{"evaluation.max_steps": 100_000})
    agent.record(tmp_path / "agent.gif")
    [(steps, every)] = asked
    film = film_of(agent.env.render_fps)
    assert (steps // every + 1, every) == (film.frames, film.every)


@pytest.mark.parametrize("render_fps", [0.5, 1, 10, 25, 26, 30, 37, 50, 60, 1000])
def test_no_film_is_too_long_or_too_fast(render_fps):
    film = film_of(render_fps)
    assert film.fps <= MOST_PER_SECOND
    assert film.fps * film.every == pytest.approx(render_fps)
    assert film.frames / film.fps + PAUSE_SECONDS <= MOST_SECONDS
    assert (film.frames + 1) / film.fps + PAUSE_SECONDS > MOST_SECONDS


@pytest.mark.parametrize("render_fps", [None, 0, -3, float("nan"), float("inf"), "30"])
def test_what_is_no_speed_is_shown_at_the_usual_one(render_fps):
    assert film_of(render_fps) == film_of(30)
