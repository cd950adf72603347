"""Modules of the user's own that are more than layers: buffers, lazy layers, chance, errors in mid-run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import hotloop
from hotloop.errors import NetworkFailed, SpecError

SMALL: dict[str, Any] = {
    "engine": "torch",
    "replay": {"capacity": 2_000, "start": 64, "batch_size": 16},
    "evaluation": {"every": 0},
    "stop": {"steps": 240},
    "env": {"id": "CartPole-v1", "num_envs": 4},
}
OBS = np.linspace(-0.5, 0.5, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Fourier(nn.Module):
    """Sees through random frequencies that are not learned, and counts its calls."""

    frequencies: torch.Tensor
    calls: torch.Tensor
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(4, 8))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(8, 2)

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        return self.layer(torch.cos(obs_B @ self.frequencies))


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.heavy)])
def test_buffers_are_saved_with_the_weights_and_no_forward_pass_changes_them(mode: str, tmp_path: Path) -> None:
    spec = {**SMALL, "torch": {"mode": mode}, "optimizer": {"kind": "adamw", "weight_decay": 0.1}}
    given = Fourier()
    run = hotloop.train(spec, out=tmp_path / "run", network=given)
    agent = hotloop.load(tmp_path / "run", which="last", network=Fourier())  # whose frequencies are others
    module = Fourier()
    module.load_state_dict(agent.params)  # type: ignore[arg-type]
    assert torch.equal(module.frequencies, given.frequencies)
    assert module.seen == 0
    assert not torch.equal(module.layer.weight, given.layer.weight)
    with torch.no_grad():
        expected = module(torch.from_numpy(OBS)).numpy()
    np.testing.assert_allclose(agent.q_values(OBS), expected, rtol=1e-6)
    with pytest.warns(RuntimeWarning, match="running episodes"):
        resumed = hotloop.resume(run, steps=300, network=Fourier())
    params = hotloop.load(resumed, which="last").params
    assert torch.equal(params["frequencies"], given.frequencies)  # type: ignore[index]


def test_layers_that_learn_their_size_from_what_they_see_get_it() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))

    run = hotloop.train(SMALL, out=None, network=lazy())
    agent, module = hotloop.load(run, which="last"), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module.load_state_dict(agent.params)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = module(torch.from_numpy(OBS)).numpy()
    np.testing.assert_allclose(agent.q_values(OBS), expected, rtol=1e-6)


class Table(nn.Module):
    """Looks Q-values up by the sign of an angle: takes no number that is neither 0 nor 1 for a row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, 2)

    def forward(self, row_B: torch.Tensor) -> torch.Tensor:
        return self.rows(row_B[:, 0].long())


class Sign(gym.ObservationWrapper[np.ndarray, int, np.ndarray]):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.float32([observation[2] > 0])


def test_a_module_that_takes_only_some_numbers_is_tried_with_none_other() -> None:
    env = {"num_envs": 2}
    run = hotloop.train({**SMALL, "env": env}, out=None, network=Table, env=lambda: Sign(gym.make("CartPole-v1")))
    assert run.env_steps >= 240


class Noisy(nn.Linear):
    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return super().forward(obs_B) + torch.randn(2)


def test_a_module_that_draws_random_numbers_is_refused() -> None:
    with pytest.raises(SpecError, match="returns other Q-values each time for the same observations"):
        hotloop.train(SMALL, out=None, network=Noisy(4, 2))


class Fragile(nn.Linear):
    """Fails once its pole stands askew."""

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        if bool((obs_B[:, 2].abs() > 0.1).any()):
            raise ArithmeticError("askew\nand more")
        return super().forward(obs_B)


@pytest.mark.parametrize("pipeline", ["sync", "concurrent"])
def test_a_module_that_raises_in_mid_run_ends_it_saved_in_a_line(pipeline: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkFailed, match=r"the network raised ArithmeticError: askew, for .*the run is saved") as at:
        hotloop.train({**SMALL, "pipeline": pipeline}, out=tmp_path / "run", network=Fragile(4, 2))
    assert "\n" not in str(at.value)
    with pytest.warns(RuntimeWarning, match="running episodes"):
        resumed = hotloop.resume(tmp_path / "run", steps=100, network=nn.Linear(4, 2))
    assert resumed.env_steps >= 100
