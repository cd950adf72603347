"""Learning what can only be remembered: a network with a core does it, one without cannot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotloop
from hotloop.envs.device import ObsSpec
from hotloop.errors import SpecError

WAIT = 4


@dataclass(frozen=True)
class Cue:
    """The first observation shows a side, the others only the time; naming the side at the end earns 1.

    Whoever does not remember is right half of the time.
    """

    num_actions: int = 2

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, -1.0, 1.0)

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        side = jax.random.randint(key, (), 0, 2)
        return jnp.stack([side, 0]), jnp.stack([2.0 * side - 1.0, 0.0])

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        side, t = state[0], state[1] + 1
        over = t > WAIT
        reward = (over & (action == side)).astype(jnp.float32)
        return jnp.stack([side, t]), jnp.stack([0.0, t / WAIT]), reward, over, jnp.zeros((), bool), {}


MEMORY: dict[str, Any] = {
    "network": {"torso": {"hidden": [16]}, "core": {"kind": "lstm", "size": 16}},
    "replay": {"capacity": 4000, "start": 500, "batch_size": 16, "sequence": {"length": 8, "burn_in": 0}},
}
NO_MEMORY: dict[str, Any] = {
    "network": {"torso": {"hidden": [16, 16]}},
    "replay": {"capacity": 4000, "start": 500, "batch_size": 128},
}


def cue_spec(**more: Any) -> dict[str, Any]:
    return {
        "discount": 0.9,
        "target": {"rule": "double", "every": 200},
        "optimizer": {"learning_rate": 5e-3},
        "exploration": {"epsilon": 0.3},
        "evaluation": {"every": 8000, "episodes": 200},
        "stop": {"steps": 8000},
        **more,
    }


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_cue_is_remembered_until_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    core = {"core": {"kind": kind, "size": 16}}
    spec = cue_spec(**{**MEMORY, "network": {**MEMORY["network"], **core}})
    run = hotloop.train(spec, device_env=Cue(), out=tmp_path / "run")
    assert run.return_mean > 0.95
    agent = hotloop.load(run, device_env=Cue())
    assert agent.evaluate(episodes=100, seed=5)["return_mean"] > 0.95
    for side, sign in ((0, -1.0), (1, 1.0)):
        memory = None
        for t in range(WAIT + 1):
            action, memory = agent.remember(np.array([sign * (t == 0), t / WAIT], np.float32), memory)
        assert action == side
    for ask in (agent.predict, agent.q_values):
        with pytest.raises(SpecError, match=r"agent\.remember\(obs, memory\)"):
            ask(np.zeros(2, np.float32))


@pytest.mark.heavy
def test_without_memory_the_cue_is_lost(tmp_path: Path) -> None:
    run = hotloop.train(cue_spec(**NO_MEMORY), device_env=Cue(), out=tmp_path / "run")
    assert 0.35 < run.return_mean < 0.65


@pytest.mark.slow
def test_a_pole_is_balanced_longer_by_an_agent_that_remembers_its_speeds(tmp_path: Path) -> None:
    """Without speeds no reaction to the angle alone is right: a network of as many weights stays below 50."""
    steps = {"stop.steps": 20_000, "evaluation.every": 10_000}
    memoryless = {"network.core": None, "network.torso.hidden": [64, 128], "replay.sequence": None}
    remembers = hotloop.train("cartpole_memory", out=tmp_path / "memory", **steps)
    forgets = hotloop.train(
        "cartpole_memory", out=tmp_path / "plain", **steps, **memoryless, **{"replay.batch_size": 256}
    )
    assert forgets.return_mean < 55
    assert remembers.return_mean > 70


@pytest.mark.slow
def test_the_preset_gets_several_times_as_far_as_without_memory(tmp_path: Path) -> None:
    run = hotloop.train("cartpole_memory", out=tmp_path / "run")
    assert hotloop.load(run).evaluate(episodes=100, seed=1)["return_mean"] > 150
