"""What is recorded of a Gymnasium env, and that one which cannot draw itself is not asked to."""

import os
import subprocess
import sys
import warnings
from importlib import import_module

import gymnasium as gym
import numpy as np
import pytest

from hotloop.envs import host_recording
from hotloop.envs.host import HostEnvs, make_vector_env
from hotloop.envs.naming import SUPPORTED_MODULES
from hotloop.spec.reading import load_spec


class Blind(gym.Env):
    """An env without pictures, which counts how often it is made."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    made = 0

    def __init__(self, render_mode=None):
        type(self).made += 1
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


class Unsaid(Blind):
    metadata = {"author": "someone"}  # noqa: RUF012


class Seeing(Blind):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def render(self):
        return np.zeros((8, 8, 3), np.uint8)


def blind_by_a_function(render_mode=None):
    return Blind(render_mode)


for _module in SUPPORTED_MODULES:  # they register their envs now, not in a copy of the registry
    import_module(_module)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    registry = dict(gym.registry)
    monkeypatch.setattr(gym.envs.registration, "registry", registry)
    monkeypatch.setattr(gym, "registry", registry)
    for kind in (Blind, Unsaid, Seeing):
        gym.register(f"{kind.__name__}-v0", entry_point=kind)
    gym.register("Function-v0", entry_point=blind_by_a_function)


def _envs(env_id, num_envs=1, vectorization="auto"):
    spec = load_spec({"env": {"id": env_id, "num_envs": num_envs, "vectorization": vectorization}})
    return spec, HostEnvs(make_vector_env(env_id, num_envs, {}, vectorization))


@pytest.mark.parametrize("name", ["Blind-v0", "Unsaid-v0", "Function-v0"])
def test_an_env_that_cannot_draw_itself_is_not_tried_and_nothing_warns(name):
    spec, envs = _envs(name)
    made = Blind.made, Unsaid.made
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert not host_recording.can_record(spec, envs.spaces)
    assert heard == []
    assert (Blind.made, Unsaid.made) == made


@pytest.mark.parametrize(
    ("env_id", "vectorization"),
    [
        ("Seeing-v0", "auto"),
        ("CliffWalking-v1", "auto"),
        ("LunarLander-v3", "auto"),
        ("CartPole-v1", "native"),
        ("CartPole-v1", "sync"),
        ("ALE/Pong-v5", "auto"),
        ("hotloop.envs.mario:hotloop/Mario-v0", "auto"),
        ("hotloop.envs.gymnasium:hotloop/CartPole-v1", "native"),
    ],
)
def test_one_that_can_is_recorded_and_nothing_warns(env_id, vectorization):
    spec, envs = _envs(env_id, vectorization=vectorization)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert host_recording.can_record(spec, envs.spaces)
        spec = load_spec(spec, {"evaluation.max_steps": 3})
        frames, _ = host_recording.record(spec, envs.spaces, lambda obs, legal: np.zeros(1, np.int64), 0)
    assert [str(warning.message) for warning in heard if issubclass(warning.category, UserWarning)] == []
    assert len(frames) > 1
    envs.close()


DRAW = """
import numpy as np
from hotloop.envs import host_recording
from hotloop.envs.host import HostEnvs, make_vector_env
from hotloop.spec.reading import load_spec
spec = load_spec({"env": {"id": "CliffWalking-v1"}})
envs = HostEnvs(make_vector_env("CliffWalking-v1", 1, {}))
assert host_recording.can_record(spec, envs.spaces)
import os, pygame
print(os.environ["SDL_AUDIODRIVER"])
"""


@pytest.mark.parametrize(("chosen", "used"), [(None, "dummy"), pytest.param("disk", "disk", marks=pytest.mark.heavy)])
def test_pygame_looks_for_no_sound_card_and_leaves_the_users_choice(chosen, used, tmp_path):
    theirs = ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR")
    others = {name: value for name, value in os.environ.items() if name not in theirs}
    env = others | ({"SDL_AUDIODRIVER": chosen} if chosen else {})
    ran = subprocess.run([sys.executable, "-c", DRAW], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{used}\n", "nothing else is printed"
    assert "ALSA" not in ran.stderr
    assert "XDG_RUNTIME_DIR" not in ran.stderr
