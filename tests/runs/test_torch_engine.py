"""Runs with engine torch: they learn, resume to the same bits, take a module of the user's own, refuse what is not."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import hotloop
from hotloop.engines.torch import setup
from hotloop.engines.torch.engine import TorchEngine
from hotloop.errors import SpecError
from hotloop.runs.folder import RunFolder
from hotloop.spec.reading import load_spec, parse_spec
from hotloop.trees import tree_map

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL: dict[str, Any] = {
    "network": {"torso": {"hidden": [16]}},
    "replay": {"capacity": 2_000, "start": 64, "batch_size": 16},
    "evaluation": {"every": 0},
    "stop": {"steps": 480},
    "env": {"id": "CartPole-v1", "num_envs": 4},
}


class Corridor(gym.Env[np.ndarray, int]):
    """Walk right to the end of five cells."""

    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell, self.steps = 0, 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.cell, self.steps = max(0, self.cell + (1 if action else -1)), self.steps + 1
        is_there = self.cell == 4
        return self._seen(), float(is_there) - 0.01, is_there, self.steps >= 40, {}

    def _seen(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self.cell]


class Tiny(nn.Module):
    def __init__(self, width: int = 2, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(4, 8), nn.Linear(8, width), scale

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return self.scale * self.last(torch.relu(self.first(obs_B)))


def weights_of(run: Any, **more: Any) -> dict[str, np.ndarray]:
    agent = hotloop.load(run, which="last", **more)
    return agent.engine.to_named(agent.weights)


def assert_same_bits(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> None:
    assert list(first) == list(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.mark.parametrize("head", ["scalar", pytest.param("iqn", marks=pytest.mark.heavy)])
def test_it_learns_to_walk_to_the_end(head: str) -> None:
    spec = {**SMALL, "network": {"torso": {"hidden": [16]}, "head": {"kind": head}}, "stop": {"steps": 2_400}}
    spec |= {"target": {"every": 64}, "discount": 0.9, "optimizer": {"learning_rate": 3e-3}}
    spec |= {"exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.1, "steps": 1_000}}}
    run = hotloop.train(spec, engine="torch", env=Corridor, out=None, **{"env.num_envs": 4})
    assert hotloop.load(run, which="last").evaluate(episodes=4)["length_mean"] == 4


@pytest.mark.parametrize("pipeline", ["sync", pytest.param("concurrent", marks=pytest.mark.heavy)])
def test_a_run_that_was_resumed_has_the_bits_of_one_that_was_not(pipeline: str, tmp_path: Path) -> None:
    spec = {**SMALL, "engine": "torch", "pipeline": pipeline, "env": {"id": "cartpole", "num_envs": 4}}
    whole = hotloop.train(spec, out=tmp_path / "whole")
    half = hotloop.train(spec, out=tmp_path / "half", **{"stop.steps": 240})
    assert half.env_steps == 240
    resumed = hotloop.resume(half.path, steps=480)
    assert whole.updates == resumed.updates > 50
    assert_same_bits(weights_of(whole), weights_of(resumed))


@pytest.mark.parametrize("env", ["CartPole-v1", pytest.param("cartpole", marks=pytest.mark.heavy)])
def test_a_run_of_one_engine_plays_in_the_other(env: str, tmp_path: Path) -> None:
    obs = np.linspace(-0.5, 0.5, 12, dtype=np.float32).reshape(3, 4)
    network = {"torso": {"hidden": [16]}, "head": {"kind": "qr", "quantiles": 5, "dueling": True}}
    for engine, other in (("jax", "torch"), ("torch", "jax")):
        spec = {**SMALL, "engine": engine, "network": network, "env": {"id": env, "num_envs": 4}}
        run = hotloop.train(spec, out=tmp_path / engine)
        here, there = (hotloop.load(run, which="last", engine=name) for name in (engine, other))
        np.testing.assert_allclose(here.q_values(obs), there.q_values(obs), rtol=1e-5, atol=1e-6)
        assert_same_bits(here.engine.to_named(here.weights), there.engine.to_named(there.weights))


@pytest.mark.parametrize("vectorization", ["auto", pytest.param("sync", marks=pytest.mark.heavy)])
def test_a_device_env_of_the_users_own_is_stepped_from_the_host(vectorization: str) -> None:
    from hotloop.envs.cartpole import CartPole

    of_env = {"num_envs": 4, "vectorization": vectorization}
    run = hotloop.train({**SMALL, "env": of_env}, engine="torch", env=lambda: CartPole(), out=None)
    agent = hotloop.load(run, which="last")
    assert agent.evaluate(episodes=2)["length_mean"] > 5
    assert agent.can_record


@pytest.mark.parametrize("as_class", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_a_module_of_the_users_own_is_trained_saved_and_loaded(as_class: bool, tmp_path: Path) -> None:
    torch.manual_seed(5)
    given = Tiny if as_class else Tiny()
    before = None if as_class else tree_map(torch.clone, dict(given.state_dict()))  # type: ignore[attr-defined]
    run = hotloop.train(SMALL, engine="torch", network=given, out=tmp_path / "run")
    named = weights_of(run, network=Tiny())
    assert sorted(named) == ["first/bias", "first/weight", "last/bias", "last/weight"]
    if before is not None:
        assert all(torch.equal(before[name], leaf) for name, leaf in given.state_dict().items())  # type: ignore[attr-defined]
        assert not np.array_equal(named["first/weight"], before["first.weight"].numpy()), "it was trained"
    agent, module = hotloop.load(run, which="last", network=given), Tiny()
    module.load_state_dict(agent.params)  # type: ignore[arg-type]
    obs = np.full((2, 4), 0.1, np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(agent.q_values(obs), expected, rtol=1e-6)


def test_weights_that_are_frozen_stay_as_they_are() -> None:
    given = Tiny()
    given.first.requires_grad_(False)
    spec = {**SMALL, "optimizer": {"kind": "adamw", "weight_decay": 0.1}}
    run = hotloop.train(spec, engine="torch", network=given, out=None)
    named = weights_of(run)
    np.testing.assert_array_equal(named["first/weight"], given.first.weight.numpy())
    assert not np.array_equal(named["last/weight"], given.last.weight.detach().numpy())


class Slow(Tiny):
    """Lets another thread in between its layers."""

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(obs_B))
        time.sleep(0.001)
        return self.last(hidden)


def test_a_module_that_acts_while_it_learns_gives_the_same_bits_each_time() -> None:
    runs = [hotloop.train(SMALL, engine="torch", network=Slow, pipeline="concurrent", out=None) for _ in range(2)]
    assert_same_bits(*(weights_of(run) for run in runs))


def with_nan() -> nn.Module:
    module = Tiny()
    module.last.bias.data[0] = torch.nan
    return module


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (lambda: Tiny(width=3), r"returns shape \(1, 3\) for 1 observation\(s\), expected \(1, 2\)"),
        (with_nan, "expected finite Q-values"),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), "use LayerNorm or GroupNorm"),
        (lambda: nn.Linear(5, 2), r"the network raised RuntimeError: .*, for observations float32\(1, 4\)"),
        (lambda: nn.Linear, "give an instance"),
        (lambda: Tiny().double(), "has weights of torch.float64, expected torch.float32"),
        (lambda: object(), "expected a torch.nn.Module"),
    ],
)
def test_a_module_that_gives_something_else_is_refused(network: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        hotloop.train(SMALL, engine="torch", network=network(), out=None)


def test_a_module_of_torch_is_refused_by_the_other_engine() -> None:
    with pytest.raises(SpecError, match=r"a torch\.nn\.Module is for engine torch"):
        hotloop.train(SMALL, network=Tiny(), out=None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"on_policy": {}}, "on_policy with engine torch: "),
        ({"network": {"core": {}}, "replay": {"sequence": {}}}, "network.core with engine torch: "),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_spec({**fields, "engine": "torch"})


def test_a_mode_chosen_for_a_short_run_is_chosen_again_for_a_longer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    prepare = TorchEngine.prepare

    def noted(engine: TorchEngine, *inputs: Any) -> Any:
        asked.append(engine.spec.torch.mode)
        return prepare(engine, *inputs)

    monkeypatch.setattr(TorchEngine, "prepare", noted)
    spec = {**SMALL, "engine": "torch"}
    run = hotloop.train(spec, out=tmp_path / "auto", **{"stop.steps": 120})
    assert RunFolder.open(tmp_path / "auto").read_spec().torch.mode == "eager"
    for steps in (240, None):
        with pytest.warns(RuntimeWarning, match="running episodes"):
            hotloop.resume(run, steps=steps)
    given = hotloop.train(spec, out=tmp_path / "given", **{"stop.steps": 120, "torch.mode": "eager"})
    with pytest.warns(RuntimeWarning, match="running episodes"):
        hotloop.resume(given, steps=240)
    assert asked == ["auto", "auto", "eager", "eager", "eager"]


def test_a_mode_is_for_its_engine_and_goes_with_it() -> None:
    with pytest.raises(SpecError, match=r"torch\.mode is compiled, but the engine is jax"):
        load_spec("cartpole", {"torch.mode": "compiled"})
    compiled = load_spec("cartpole", {"engine": "torch", "torch.mode": "compiled"})
    assert load_spec(compiled, {"engine": "jax"}).torch.mode == "auto"
    assert load_spec(compiled, {"engine": "torch"}).torch.mode == "compiled"


def test_devices_and_pipelines_that_it_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for fields, said in (
        ({"devices": 2, "torch": {"mode": "compiled"}}, "torch.mode is compiled, but devices is 2"),
        ({"devices": 2, "network": {"torso": {"normalization": "batch"}}}, "normalization: batch with devices: 2"),
        ({"pipeline": "fused"}, "pipeline fused does not serve cartpole, which is a device env, which engine torch"),
    ):
        with pytest.raises(SpecError, match=said):
            hotloop.train({**SMALL, "env": {"id": "cartpole"}, **fields}, engine="torch", out=None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, said in (
        ("cuda", "torch sees no GPU here"),
        ("abacus", "expected cpu, cuda"),
        ("meta", "expected cpu"),
    ):
        monkeypatch.setenv(setup.DEVICE, device)
        with pytest.raises(SpecError, match=said):
            hotloop.train(SMALL, engine="torch", out=None)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"pip install 'hotloop\[torch\]'"):
        hotloop.train(SMALL, engine="torch", out=None)


def test_each_engine_starts_without_the_other() -> None:
    for engine, other in (("jax", "torch"), ("torch", "jax")):
        program = (
            "import sys, hotloop\n"
            "from hotloop import registry\n"
            f"record = registry.ENGINES['{engine}']\n"
            "registry.imported(record.make), registry.imported(record.start)\n"
            f"print('{other}' in sys.modules)"
        )
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == "False"


def test_a_run_on_the_host_never_starts_jax() -> None:
    program = f"import sys, hotloop\nhotloop.train({SMALL!r}, engine='torch', out=None)\nprint('jax' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
