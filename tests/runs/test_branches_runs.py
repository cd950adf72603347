"""Runs whose network has a branch for each part of the observation: on the host by both engines, and on the device."""

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import hotloop
from hotloop.assembly import Assembly
from hotloop.envs.device import ObsSpec
from hotloop.errors import SpecError
from hotloop.spec.reading import load_spec

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]
LENGTH = 5
TORSO = {
    "kind": "branches",
    "branches": {"day": {"hidden": [8]}, "offers": {"rows": [8], "hidden": [8]}},
    "attention": 4,
    "hidden": [16],
}
SPEC: dict[str, Any] = {
    "name": "market",
    "env": {"num_envs": 8},
    "network": {"torso": TORSO},
    "replay": {"capacity": 1024, "start": 64, "batch_size": 32},
    "optimizer": {"learning_rate": 3e-3},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 1000}},
    "evaluation": {"every": 0},
    "stop": {"steps": 3000},
    "discount": 0.0,
}


class Market(gym.Env[dict[str, Any], int]):
    """Take the best of three offers; on odd days the worst. Each offer is a row: its price, and a number to ignore."""

    observation_space = spaces.Dict(
        offers=spaces.Box(-2, 2, (3, 2), np.float32), day=spaces.Discrete(2), note=spaces.Box(0, 1, (2,), np.float32)
    )
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.best)
        self.t += 1
        return self._see(), reward, self.t == LENGTH, False, {}

    def _see(self) -> dict[str, Any]:
        offers, day = self.np_random.uniform(-1, 1, (3, 2)).astype(np.float32), int(self.np_random.integers(2))
        self.best = best_of(offers, day)
        return {"offers": offers, "day": day, "note": np.zeros(2, np.float32)}


def best_of(offers: np.ndarray, day: int) -> int:
    return int((offers[:, 0] * (1 - 2 * day)).argmax())


def sees(count: int) -> tuple[dict[str, Any], list[int]]:
    random = np.random.default_rng(0)
    offers, day = random.uniform(-1, 1, (count, 3, 2)).astype(np.float32), random.integers(2, size=count)
    return {"offers": offers, "day": day}, [best_of(o, d) for o, d in zip(offers, day, strict=True)]


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_on_the_host_it_learns_saves_loads_and_plays_in_either_engine(engine: str, tmp_path: Any) -> None:
    spec = {**SPEC, "env": {**SPEC["env"], "observe": ["offers", "day"]}, "engine": engine}
    run = hotloop.train(spec, env=Market, out=tmp_path / "run")
    other = {"jax": "torch", "torch": "jax"}[engine]
    here, there = (hotloop.load(run, which="last", env=Market, engine=name) for name in (engine, other))
    assert here.evaluate(40)["return_mean"] > 0.75 * LENGTH, "a third by chance"
    many, best = sees(64)
    assert np.mean(here.predict(many) == np.array(best)) > 0.75
    one = {name: part[0] for name, part in many.items()}
    assert here.predict(one) == here.predict(many)[0]
    np.testing.assert_allclose(here.q_values(many), there.q_values(many), rtol=1e-4, atol=1e-5)
    with pytest.warns(RuntimeWarning, match="running episodes"):
        assert hotloop.resume(run, env=Market, steps=3200).env_steps >= 3200


def test_a_key_that_has_no_branch_is_refused_with_what_to_choose() -> None:
    with pytest.raises(SpecError, match=r"^network: torso branches: there is no branch for note; .*\[day,offers\]"):
        hotloop.train(SPEC, env=Market, out=None)


class State(NamedTuple):
    best: jax.Array
    t: jax.Array


class OnDevice:
    """The same market as a device env, without what nobody reads."""

    num_actions = 3
    obs_spec = {  # noqa: RUF012
        "offers": ObsSpec((3, 2), np.float32, -1.0, 1.0),
        "day": ObsSpec((2,), np.uint8, 0, 1),
    }

    def _see(self, key: Any, t: Any) -> Any:
        of_offers, of_day = jax.random.split(key)
        offers, day = jax.random.uniform(of_offers, (3, 2), minval=-1), jax.random.randint(of_day, (), 0, 2)
        best = jnp.argmax(offers[:, 0] * (1 - 2 * day))
        return State(best, t), {"offers": offers, "day": jax.nn.one_hot(day, 2, dtype=jnp.uint8)}

    def reset(self, key: Any) -> Any:
        return self._see(key, jnp.int32(0))

    def step(self, state: Any, action: Any, key: Any) -> Any:
        reward = (action == state.best).astype(jnp.float32)
        state, obs = self._see(key, state.t + 1)
        return state, obs, reward, state.t == LENGTH, jnp.bool_(False), {}


def test_on_the_device_it_learns_saves_loads_and_plays(tmp_path: Any) -> None:
    run = hotloop.train(SPEC, device_env=OnDevice(), out=tmp_path / "run")
    agent = hotloop.load(run, which="last", device_env=OnDevice())
    assert agent.evaluate(64)["return_mean"] > 0.75 * LENGTH
    many, best = sees(64)
    seen = {"offers": many["offers"], "day": np.eye(2, dtype=np.uint8)[many["day"]]}
    assert np.mean(agent.predict(seen) == np.array(best)) > 0.75
    assert "torso/branches/offers/rows/dense_0/kernel" in agent.engine.to_named(agent.weights)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_the_example_is_what_it_says(engine: str) -> None:
    example = Path(__file__).parents[2] / "examples" / "branches.yaml"
    spec = load_spec(example, {"engine": engine, "env.num_envs": 2})
    with Assembly(spec) as assembly:
        by_hand = 3 * (12 * 64 + 64) + (64 * 32 + 32) + (32 * 1 + 1) + (4 * 64 * 128 + 128) + (128 * 12 + 12)
        assert assembly.engine.num_weights == by_hand
