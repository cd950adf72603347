"""Modules of the user's own that are more than layers: buffers, lazy layers, chance, errors in mid-run."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import hotloop
from hotloop.errors import NetworkFailed, SpecError

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL: dict[str, Any] = {
    "engine": "torch",
    "replay": {"capacity": 2_000, "start": 64, "batch_size": 16},
    "evaluation": {"every": 0},
    "stop": {"steps": 240},
    "env": {"id": "CartPole-v1", "num_envs": 4},
}
OBS = np.linspace(-0.5, 0.5, 12, dtype=np.float32).reshape(3, 4)


class Fourier(nn.Module):
    """Sees through random frequencies in a random order that are not learned, and counts its calls in all ways."""

    frequencies: torch.Tensor
    order: torch.Tensor
    is_kept: torch.Tensor
    calls: torch.Tensor
    seen: torch.Tensor
    drift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(4, 8))
        self.register_buffer("order", torch.randperm(4))
        self.register_buffer("is_kept", torch.rand(8) > 0.2)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("drift", torch.zeros(()), persistent=False)
        self.layer = nn.Linear(8, 2)

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        self.calls += 1
        self.drift += 0.1
        return self.layer(torch.cos(obs_B[:, self.order] @ self.frequencies + self.drift) * self.is_kept)


@pytest.mark.parametrize("mode", ["eager", pytest.param("compiled", marks=pytest.mark.heavy)])
def test_buffers_are_saved_with_the_weights_and_no_forward_pass_changes_them(mode: str, tmp_path: Path) -> None:
    spec = {**SMALL, "torch": {"mode": mode}, "optimizer": {"kind": "adamw", "weight_decay": 0.1}}
    given = Fourier()
    run = hotloop.train(spec, out=tmp_path / "run", network=given)
    agent = hotloop.load(tmp_path / "run", which="last", network=Fourier())  # whose frequencies are others
    module = Fourier()
    module.load_state_dict(agent.params)  # type: ignore[arg-type]
    for name, buffer in given.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer), name
        assert module.get_buffer(name).dtype == buffer.dtype
    assert module.seen == module.calls == given.drift == 0
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


class Forgetful(nn.Linear):
    """The usual mistake with dropout: of zeros nothing is seen."""

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.dropout(obs_B, 0.5))


class Stuck(nn.Linear):
    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().forward(obs_B)


class Large(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("number", torch.tensor(2**40 + 1))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: Noisy(4, 2), "draws random numbers in its forward pass"),
        (lambda: Forgetful(4, 2), "draws random numbers in its forward pass"),
        (lambda: Stuck(4, 2), "the way back through the network raised RuntimeError: element 0"),
        (lambda: nn.Linear(4, 2).requires_grad_(False), "no weights that require a gradient"),
        (lambda: nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 2)), "InstanceNorm1d"),
        (Large, r"has a buffer, number, that float32 cannot hold \(torch.int64\)"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "eager"])
def test_a_module_that_could_not_be_learned_or_repeated_is_refused(network: Any, said: str, mode: str) -> None:
    with pytest.raises(SpecError, match=said):
        hotloop.train({**SMALL, "torch": {"mode": mode}}, out=None, network=network())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight
        self.running_mean = nn.Parameter(torch.zeros(4))  # a name that means something in networks of ours

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(obs_B - self.running_mean)))))


def test_tied_weights_stay_tied_and_names_of_ours_mean_nothing() -> None:
    agent = hotloop.load(hotloop.train(SMALL, out=None, network=Tied), which="last")
    module = Tied()
    module.load_state_dict(agent.params)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = module(torch.from_numpy(OBS)).numpy()
    np.testing.assert_allclose(agent.q_values(OBS), expected, rtol=1e-5)
    still = hotloop.train({**SMALL, "optimizer": {"learning_rate": 0.0}}, out=None, network=Tied)
    moved = hotloop.load(still, which="last").params
    assert not moved["running_mean"].any(), "without a learning rate nothing moves"  # type: ignore[index]


class FailsBack(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, q_BA: torch.Tensor) -> torch.Tensor:
        return q_BA.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        FailsBack.calls += 1
        if FailsBack.calls > 30:
            raise ArithmeticError("no way back")
        return gradient


class Precipice(nn.Linear):
    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return FailsBack.apply(super().forward(obs_B))


def test_a_way_back_that_raises_in_mid_run_ends_it_saved(tmp_path: Path) -> None:
    FailsBack.calls = 0
    spec = {**SMALL, "torch": {"mode": "eager"}}
    with pytest.raises(NetworkFailed, match=r"the way back .* raised .*no way back.*the run is saved"):
        hotloop.train(spec, out=tmp_path / "run", network=Precipice(4, 2))
    assert list((tmp_path / "run" / "checkpoints").iterdir())


class InPlace(nn.Linear):
    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        obs_B *= 2
        return super().forward(obs_B)


class Apart(nn.Linear):
    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return super().forward(obs_B * 2)


def test_a_module_that_writes_into_its_observations_harms_neither_replay_nor_itself() -> None:
    learned = []
    for kind in (InPlace, Apart):
        torch.manual_seed(3)
        spec = {**SMALL, "replay": {**SMALL["replay"], "updates_per_batch": 2}, "updates_per_step": 0.5}
        run = hotloop.train(spec, out=None, network=kind(4, 2))
        learned.append(hotloop.load(run, which="last").params)
    for name, leaf in learned[0].items():  # type: ignore[attr-defined]
        assert torch.equal(leaf, learned[1][name]), name  # type: ignore[index]


class Shapeless(nn.Linear):
    """One Q-value for all actions once its pole stands askew."""

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        q_BA = super().forward(obs_B)
        return q_BA[:, :1] if bool((obs_B[:, 2].abs() > 0.1).any()) else q_BA


def test_an_output_of_another_shape_in_mid_run_ends_it_saved(tmp_path: Path) -> None:
    with pytest.raises(NetworkFailed, match=r"returns shape \(\d+, 1\) for .*expected .*, 2\).*the run is saved"):
        hotloop.train(SMALL, out=tmp_path / "run", network=Shapeless(4, 2))


def test_agent_params_are_copies() -> None:
    agent = hotloop.load(hotloop.train(SMALL, out=None, network=Fourier), which="last")
    before = agent.q_values(OBS)
    for tensor in agent.params.values():  # type: ignore[attr-defined]
        tensor.zero_()
    np.testing.assert_array_equal(agent.q_values(OBS), before)
    assert agent.params["order"].any()  # type: ignore[index]


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
