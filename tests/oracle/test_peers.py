"""C51, QR-DQN and IQN against other libraries' own code: PFRL's agents and sb3-contrib's QRDQN.

Each is given our weights, our batch and our draws; loss and gradient of whole networks must agree.
"""

from typing import Any

import gymnasium
import jax
import naive_family as naive
import numpy as np
import pfrl
import pytest
import torch
from pfrl.action_value import DistributionalDiscreteActionValue
from pfrl.agents.categorical_double_dqn import CategoricalDoubleDQN
from pfrl.agents.categorical_dqn import CategoricalDQN
from pfrl.agents.iqn import IQN, CosineBasisLinear, ImplicitQuantileQFunction
from sb3_contrib import QRDQN
from stable_baselines3.common.buffers import ReplayBufferSamples
from stable_baselines3.common.logger import Logger

from hotloop.engines.jax.engine import JaxEngine
from hotloop.experience import Item
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

OBS, ACTIONS, BATCH, HIDDEN, GAMMA = (
    4,
    2,
    8,
    5,
    0.9,
)  # CartPole's observations and actions, which QRDQN wants an env for
LOW, HIGH, ATOMS, QUANTILES, TAUS, COSINES = -1.5, 2.0, 7, 6, 5, 4
KEY = jax.random.key(11, impl="unsafe_rbg")
TORSO, EMBEDDING = "torso/layers/dense_0", "head/embedding/dense_0"
Named = dict[str, np.ndarray]


def engine_of(head: dict[str, Any], rule: str = "target") -> JaxEngine:
    spec = parse_spec(
        {
            "network": {"torso": {"hidden": [HIDDEN], "activation": "tanh"}, "head": head},
            "optimizer": {"kind": "sgd", "clip": None},
            "replay": {"batch_size": BATCH},
            "target": {"rule": rule},
        }
    )
    assert spec.loss.delta == 1.0, "the only one that the other libraries have"
    return JaxEngine(spec, jax.ShapeDtypeStruct((OBS,), np.float32), ACTIONS)


def weights_of(engine: JaxEngine) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.normal(0, 0.7, engine.layout.size).astype(np.float32) for _ in range(2)]


def batch_of(seed: int = 3) -> Item:
    """Terminal states, and rewards beyond the atoms at both ends, among the rest."""
    random = np.random.default_rng(seed)
    return Item(
        s_tm1=random.normal(size=(BATCH, OBS)).astype(np.float32),
        a_tm1=random.integers(0, ACTIONS, BATCH).astype(np.int32),
        r_t=np.concatenate([[LOW - 3, HIGH + 3, 0.5, -0.5], random.normal(size=BATCH - 4)]).astype(np.float32),
        discount_t=np.where(np.arange(BATCH) % 4 == 2, 0.0, GAMMA).astype(np.float32),
        s_t=random.normal(size=(BATCH, OBS)).astype(np.float32),
    )


IMPORTANCE = np.linspace(0.3, 1.0, BATCH).astype(np.float32)


def ours(engine: JaxEngine, batch: Item, weight_B: Any = None) -> tuple[float, Named, list[Any], list[Any]]:
    """Loss, gradient by name, and the fractions drawn for the target net and for the online net."""

    @jax.jit
    def run(params: Any, target: Any) -> Any:
        draws = jax.tree.map(lambda leaf: leaf[0], engine.draws(KEY, 1)) if engine.is_random else None
        with naive.recorded() as of_target:
            frozen = engine.target_outputs(target, batch, draws)
        with naive.recorded() as of_online:
            engine.loss(engine.layout.unflatten(params), batch, frozen, weight_B, draws)
        gradient, loss, _, _ = engine.gradient(params, batch, frozen, weight_B, draws)
        return gradient, loss, of_target, of_online

    gradient, loss, *fractions = run(*weights_of(engine))
    return float(loss), engine.layout.to_named(np.asarray(gradient)), *fractions


def linear(named: Named, name: str) -> torch.nn.Linear:
    """A layer of ours as one of PyTorch's, whose kernels are transposed."""
    kernel, bias = named[f"{name}/kernel"], named[f"{name}/bias"]
    layer = torch.nn.Linear(*kernel.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(kernel.T))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def gradient_of(layer: Any, name: str) -> Named:
    return {f"{name}/kernel": layer.weight.grad.numpy().T, f"{name}/bias": layer.bias.grad.numpy()}


def assert_same(loss: tuple[float, float], mine: Named, theirs: Named) -> None:
    assert loss[0] == pytest.approx(loss[1], rel=1e-5)
    assert set(mine) == set(theirs)
    for name, gradient in mine.items():
        assert np.abs(gradient).max() > 1e-3, f"{name}: far larger than the tolerance"
        np.testing.assert_allclose(gradient, theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


def pfrl_agent(kind: type[Any], nets: list[torch.nn.Module], **more: Any) -> Any:
    optimizer = torch.optim.SGD(nets[0].parameters(), 1.0)
    agent = kind(nets[0], optimizer, pfrl.replay_buffers.ReplayBuffer(), GAMMA, None, **more)
    agent.target_model = nets[1]
    return agent


def experiences(batch: Item) -> dict[str, torch.Tensor]:
    """The batch under PFRL's names."""
    over = batch.discount_t == 0
    arrays = {
        "state": batch.s_tm1,
        "action": batch.a_tm1.astype(np.int64),
        "reward": batch.r_t,
        "next_state": batch.s_t,
    }
    arrays |= {"is_state_terminal": over.astype(np.float32), "weights": IMPORTANCE}
    arrays |= {"discount": np.full(BATCH, GAMMA, np.float32)}
    return {name: torch.tensor(array) for name, array in arrays.items()}


@pytest.mark.parametrize(("rule", "peer"), [("target", CategoricalDQN), ("double", CategoricalDoubleDQN)])
def test_c51_has_the_loss_and_the_gradient_of_pfrls(rule: str, peer: type[Any]) -> None:
    engine = engine_of({"kind": "c51", "atoms": ATOMS, "low": LOW, "high": HIGH}, rule)
    returns_N = torch.linspace(LOW, HIGH, ATOMS)

    class Net(torch.nn.Module):
        def __init__(self, named: Named) -> None:
            super().__init__()
            self.torso, self.head = linear(named, TORSO), linear(named, "head/dense_0")

        def forward(self, obs_B: torch.Tensor) -> Any:
            logits = self.head(torch.tanh(self.torso(obs_B))).reshape(-1, ACTIONS, ATOMS)
            return DistributionalDiscreteActionValue(torch.softmax(logits, -1), returns_N)

    batch = batch_of()
    online, target = (Net(engine.layout.to_named(vector)) for vector in weights_of(engine))
    chosen = [net(torch.tensor(batch.s_t)).greedy_actions for net in (online, target)]
    assert (chosen[0] != chosen[1]).any(), "the nets choose differently, so the rules do"
    loss = pfrl_agent(peer, [online, target])._compute_loss(experiences(batch))
    loss.backward()
    mine, gradient, *_ = ours(engine, batch, IMPORTANCE)
    theirs = gradient_of(online.torso, TORSO) | gradient_of(online.head, "head/dense_0")
    assert_same((mine, loss.item()), gradient, theirs)


def test_iqn_has_the_loss_and_the_gradient_of_pfrls(monkeypatch: pytest.MonkeyPatch) -> None:
    """PFRL's cosines begin with cos(πτ), ours with cos(0) as published: a bias more."""
    taus = {"taus": TAUS, "target_taus": QUANTILES, "acting_taus": QUANTILES}
    engine = engine_of({"kind": "iqn", "cosines": COSINES, **taus})

    def net(named: Named) -> torch.nn.Module:
        first, *others = named[f"{EMBEDDING}/kernel"]
        embedding = {"e/kernel": np.stack(others), "e/bias": named[f"{EMBEDDING}/bias"] + first}
        basis = CosineBasisLinear(COSINES - 1, HIDDEN)
        basis.linear = linear(embedding, "e")
        psi = torch.nn.Sequential(linear(named, TORSO), torch.nn.Tanh())
        phi = torch.nn.Sequential(basis, torch.nn.ReLU())
        return ImplicitQuantileQFunction(psi, phi, linear(named, "head/streams/dense_0"))

    batch = batch_of()
    mine, gradient, of_target, of_online = ours(engine, batch, IMPORTANCE)
    online, target = (net(engine.layout.to_named(vector)) for vector in weights_of(engine))
    counts = {"quantile_thresholds_N": TAUS, "quantile_thresholds_N_prime": QUANTILES}
    agent = pfrl_agent(IQN, [online, target], quantile_thresholds_K=QUANTILES, **counts)
    # Its online net draws first; its target net draws fractions to choose by and others to value by, ours the same.
    drawn = [torch.tensor(np.asarray(tau)) for tau in (*of_online, *of_target, *of_target)]
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: _of_shape(drawn.pop(0), shape))
    loss = agent._compute_loss(experiences(batch))
    assert drawn == []
    loss.backward()
    basis = online.phi[0].linear
    theirs = gradient_of(online.psi[0], TORSO) | gradient_of(online.f, "head/streams/dense_0")
    theirs |= gradient_of(basis, EMBEDDING)
    kernel, bias = (f"{EMBEDDING}/{name}" for name in ("kernel", "bias"))
    theirs[kernel] = np.concatenate([theirs[bias][None], theirs[kernel]])
    assert_same((mine, loss.item()), gradient, theirs)


def test_qr_takes_the_step_of_sb3_contribs() -> None:
    """Its own `train`, with plain gradient steps of length one: what its weights have lost is its gradient."""
    engine, batch = engine_of({"kind": "qr", "quantiles": QUANTILES}), batch_of()
    plain = {"net_arch": [HIDDEN], "activation_fn": torch.nn.Tanh, "n_quantiles": QUANTILES}
    plain |= {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}
    env = gymnasium.make("CartPole-v1")
    model = QRDQN(
        "MlpPolicy", env, learning_rate=1.0, gamma=GAMMA, max_grad_norm=None, policy_kwargs=plain, device="cpu"
    )
    layers = [[layer for layer in net.quantile_net if isinstance(layer, torch.nn.Linear)] for net in _both_nets(model)]
    names = [TORSO, "head/dense_0"]
    for vector, net in zip(weights_of(engine), layers, strict=True):
        for layer, name in zip(net, names, strict=True):
            # Its outputs are (quantiles, actions), ours (actions, quantiles).
            order = _theirs if name == "head/dense_0" else np.asarray
            found = linear(
                {key: order(array) for key, array in engine.layout.to_named(vector).items() if name in key}, name
            )
            layer.load_state_dict(found.state_dict())
    before = [{key: value.clone() for key, value in layer.state_dict().items()} for layer in layers[0]]
    columns = (batch.s_tm1, batch.a_tm1[:, None].astype(np.int64), batch.s_t)
    over, reward = (batch.discount_t == 0).astype(np.float32)[:, None], batch.r_t[:, None]
    sample = ReplayBufferSamples(*map(torch.tensor, (*columns, over, reward)))
    model.replay_buffer.sample = lambda *_, **__: sample
    model.set_logger(Logger(folder=None, output_formats=[]))
    model.train(gradient_steps=1, batch_size=BATCH)
    theirs: Named = {}
    for layer, old, name in zip(layers[0], before, names, strict=True):
        order = _of_ours if name == "head/dense_0" else np.asarray
        step = {key: (old[key] - value).numpy() for key, value in layer.state_dict().items()}
        theirs |= {f"{name}/kernel": order(step["weight"].T), f"{name}/bias": order(step["bias"])}
    mine, gradient, *_ = ours(engine, batch)
    assert_same((mine, model.logger.name_to_value["train/loss"]), gradient, theirs)


def _both_nets(model: Any) -> list[Any]:
    return [model.quantile_net, model.quantile_net_target]


def _theirs(array: np.ndarray) -> np.ndarray:
    """The last axis from (actions, quantiles) to (quantiles, actions)."""
    return array.reshape(*array.shape[:-1], ACTIONS, QUANTILES).swapaxes(-1, -2).reshape(array.shape)


def _of_ours(array: np.ndarray) -> np.ndarray:
    """And back."""
    return array.reshape(*array.shape[:-1], QUANTILES, ACTIONS).swapaxes(-1, -2).reshape(array.shape)


def _of_shape(tau: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    assert tuple(tau.shape) == shape
    return tau
