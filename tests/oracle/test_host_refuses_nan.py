"""NaN from a Gymnasium env is refused wherever it comes from, names the env, and nothing of it is stored."""

import gymnasium as gym
import jax
import numpy as np
import pytest
from counting_env import Counting
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.host import HostEnvs
from hotloop.envs.serial import SerialEnvs
from hotloop.errors import NotFinite
from hotloop.evaluate import play
from hotloop.members import seeds
from hotloop.pipelines import sync
from hotloop.spec.reading import parse_spec

ENVS = 3
MODES = [*AutoresetMode, "serial"]


class Spoiled(Counting):
    """A counting env, in parts or not, whose observation holds a NaN at chosen (env, episode, step)."""

    def __init__(self, number, spoiled, in_parts=False):
        super().__init__(number, None, False)
        self.spoiled, self.in_parts = spoiled, in_parts
        if in_parts:
            self.observation_space = gym.spaces.Dict({"a": Counting.observation_space, "b": Counting.observation_space})

    def _observe(self):
        seen = super()._observe()
        parts = self.spoiled.get((self.number, self.episode, self.t), "")
        wrong = np.where(np.arange(3) == 1, np.nan, seen)
        if self.in_parts:
            return {name: wrong if name in parts else seen for name in "ab"}
        return wrong if parts else seen


def envs_of(mode, spoiled, in_parts=False):
    if mode == "serial":
        numbers = iter(range(ENVS))
        return HostEnvs(SerialEnvs(lambda: Spoiled(next(numbers), spoiled, in_parts), ENVS))
    make = [lambda i=i: Spoiled(i, spoiled, in_parts) for i in range(ENVS)]
    return HostEnvs(SyncVectorEnv(make, autoreset_mode=mode))


def stepped(envs, steps=30):
    envs.reset(0)
    for _ in range(steps):
        envs.step(np.zeros(ENVS, np.int64))


@pytest.mark.parametrize("mode", MODES)
def test_nan_in_the_very_first_observation_is_refused(mode):
    with pytest.raises(NotFinite, match="env 1 gave an observation in a reset that is not finite"):
        envs_of(mode, {(1, 0, 0): "a"}).reset(0)


@pytest.mark.parametrize("in_parts", [False, True], ids=["one array", "parts"])
@pytest.mark.parametrize("mode", MODES)
def test_nan_in_the_first_observation_of_a_later_episode_is_refused(mode, in_parts):
    with pytest.raises(NotFinite, match="env 2 gave an observation"):
        stepped(envs_of(mode, {(2, 3, 0): "a"}, in_parts))


@pytest.mark.parametrize("last", [1, 2], ids=["amid an episode", "at its end"])
@pytest.mark.parametrize("mode", MODES)
def test_nan_in_any_other_observation_is_refused(mode, last):
    with pytest.raises(NotFinite, match="env 2 gave an observation"):
        stepped(envs_of(mode, {(2, 0, last): "a"}))


def test_a_later_part_does_not_hide_an_earlier_one():
    """With NEXT_STEP env 0 is only being reset when env 1 gives its NaN."""
    spoiled = {(1, 0, 2): "a", (0, 1, 0): "b"}
    with pytest.raises(NotFinite, match="env 1 gave an observation"):
        stepped(envs_of(AutoresetMode.NEXT_STEP, spoiled, in_parts=True))


def test_an_env_built_anew_is_looked_at_too():
    class Broken(Spoiled):
        lives = 0

        def __init__(self, number):
            Broken.lives += 1
            super().__init__(number, {(number, 0, 0): "a"} if Broken.lives > ENVS else {})

        def step(self, action):
            if self.number == 1 and Broken.lives == ENVS:
                raise RuntimeError("it broke")
            return super().step(action)

    numbers = iter((0, 1, 2, 1))
    envs = HostEnvs(SerialEnvs(lambda: Broken(next(numbers)), ENVS))
    with pytest.raises(NotFinite, match="env 1 gave an observation"):
        stepped(envs)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_of_a_step_with_nan_is_stored_or_saved(mode):
    spec = parse_spec(
        {
            "env": {"id": "spoiled", "num_envs": ENVS},
            "updates_per_step": 1 / ENVS,
            "network": {"torso": {"hidden": [8]}},
            "replay": {"capacity": 100, "start": 10**6, "batch_size": 8},
        }
    )
    envs = envs_of(mode, {(0, 4, 0): "a"})
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((3,), np.float32), 3)
    session = sync.pipeline(spec, envs, engine.on_host()).session(seeds([3]))
    session.begin()
    with pytest.raises(NotFinite, match="env 0"):
        session.advance(100)
    arrays = session.arrays()
    assert session.learner.replay.size > 10
    assert all(np.isfinite(array).all() for name, array in arrays.items() if array.dtype.kind == "f")
    assert not any(name.startswith("envs/") for name in arrays), "what the envs did is not joined to what was stored"


@pytest.mark.parametrize("where", [(1, 0, 0), (1, 2, 0)], ids=["first", "later"])
@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_refuses_nan(mode, where):
    with pytest.raises(NotFinite, match="env 1 gave an observation"):
        play(envs_of(mode, {where: "a"}), lambda obs: np.zeros(ENVS), wanted=12, limit=100, seed=0)
