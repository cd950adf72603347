"""A device env whose observation has parts trains as one with an array does."""

from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hotloop_process import manifest

import hotloop
from hotloop.envs.device import ObsSpec
from hotloop.envs.gymnasium import GymnasiumEnv, GymnasiumVectorEnv


class State(NamedTuple):
    goal: jax.Array
    t: jax.Array


class Choose:
    """Shows which of three doors pays, as one part of two, for five steps."""

    num_actions = 3
    obs_spec = {  # noqa: RUF012
        "door": ObsSpec((3,), np.float32, 0.0, 1.0),
        "time": (ObsSpec((1,), np.uint8, 0, 5),),
    }

    def _seen(self, state):
        return {"door": jax.nn.one_hot(state.goal, 3), "time": (state.t.astype(jnp.uint8)[None],)}

    def reset(self, key):
        state = State(jax.random.randint(key, (), 0, 3), jnp.int32(0))
        return state, self._seen(state)

    def step(self, state, action, key):
        reward = (action == state.goal).astype(jnp.float32)
        state = State(jax.random.randint(key, (), 0, 3), state.t + 1)
        return state, self._seen(state), reward, state.t == 5, jnp.bool_(False), {}


SPEC = {
    "name": "doors",
    "env": {"num_envs": 8},
    "network": {"torso": {"hidden": [16]}},
    "replay": {"capacity": 1024, "start": 64, "batch_size": 32},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 500}},
    "evaluation": {"every": 2000, "episodes": 20},
    "stop": {"steps": 2000},
    "discount": 0.0,
}


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    return hotloop.train(SPEC, device_env=Choose(), out=tmp_path_factory.mktemp("doors") / "run")


def test_it_learns_and_plays(fused):
    assert fused.return_mean > 4.5, "of five doors"
    agent = hotloop.load(fused, device_env=Choose())
    one = {"door": [0, 1, 0], "time": ([2],)}
    assert agent.predict(one) == 1
    many = {"door": np.eye(3), "time": (np.ones((3, 1)),)}
    assert agent.predict(many).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="lacks its part 'time'"):
        agent.predict({"door": [0, 1, 0]})
    with pytest.raises(ValueError, match="expected"):
        agent.predict({"door": [0, 1], "time": ([2],)})


def test_stage_by_stage_it_ends_in_the_same_bits(fused, tmp_path):
    sync = hotloop.train(SPEC, device_env=Choose(), pipeline="sync", out=tmp_path / "run")
    digests = [manifest(run.path)["digests"]["all"] for run in (fused, sync)]
    assert digests[0] == digests[1]


def test_as_a_gymnasium_env_its_space_has_the_parts():
    one, many = GymnasiumEnv(Choose()), GymnasiumVectorEnv(Choose(), 4)
    assert isinstance(one.observation_space, gym.spaces.Dict)
    obs, _ = one.reset(seed=0)
    assert one.observation_space.contains(obs)
    obs, _ = many.reset(seed=0)
    assert many.observation_space.contains(obs)
    obs, *_ = many.step(np.zeros(4, np.int64))
    assert many.observation_space.contains(obs)
