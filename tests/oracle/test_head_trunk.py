"""`head.trunk`: layers in front of both streams. The network of the treasure hunt, and plain loops beside it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hotloop.engines.draws import draw
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.host import JaxOnHost
from hotloop.engines.torch.engine import TorchEngine
from hotloop.registry import HEADS
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]
ACTIONS, INPUTS, WIDTH, COSINES, TAUS = 4, 625, 250, 64, 256
TREASURE: dict[str, Any] = {
    "torso": {"kind": "mlp", "hidden": [250]},
    "head": {
        "kind": "iqn",
        "cosines": 64,
        "taus": 12,
        "target_taus": 12,
        "acting_taus": 256,
        "dueling": True,
        "noise": 0.5,
        "trunk": [250],
    },
}


def engines(network: dict[str, Any], inputs: int) -> list[Any]:
    """Both, with weights of float64."""
    obs, specs = ArraySpec((inputs,), np.float32), [parse_spec({"network": network, "engine": e}) for e in EACH]
    return [
        JaxOnHost(JaxEngine(specs[0], obs, ACTIONS, numbers=jnp.float64)),
        TorchEngine(specs[1], obs, ACTIONS, numbers=torch.float64),
    ]


EACH = ("jax", "torch")


def test_the_network_of_the_treasure_hunt_has_the_parameters_that_it_should() -> None:
    by_hand = (625 * 250 + 250) + (64 * 250 + 250)
    by_hand += 2 * (250 * 250 + 250)  # noisy: each weight and bias has its spread
    by_hand += 2 * (250 * 4 + 4) + 2 * (250 * 1 + 1)
    with jax.enable_x64(True):
        assert [engine.num_weights for engine in engines(TREASURE, INPUTS)] == [by_hand] * 2
    assert by_hand == 300_760


def noisy(weights: dict[str, np.ndarray], name: str, x: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """One noisy layer: outer products of factors, in the weights."""
    into, out = factors[: len(x)], factors[len(x) :]
    kernel, bias = weights[f"{name}/kernel"].copy(), weights[f"{name}/bias"] + weights[f"{name}/bias_noise"] * out
    for o in range(len(out)):
        kernel[:, o] += weights[f"{name}/kernel_noise"][:, o] * into * out[o]
    return x @ kernel + bias


def treasure_q(weights: dict[str, np.ndarray], seen: np.ndarray, tau_N: np.ndarray, f: dict[int, Any]) -> np.ndarray:
    """Q-values (A,) of one observation; `f` has the factors of each noisy layer, by how wide its output is."""
    features = np.maximum(seen @ weights["torso/layers/dense_0/kernel"] + weights["torso/layers/dense_0/bias"], 0.0)
    values = []
    for tau in tau_N:
        cosines = np.array([math.cos(math.pi * i * tau) for i in range(COSINES)])
        of_tau = cosines @ weights["head/embedding/dense_0/kernel"] + weights["head/embedding/dense_0/bias"]
        mixed = features * np.maximum(of_tau, 0.0)
        shared = np.maximum(noisy(weights, "head/streams/trunk/dense_0", mixed, f[WIDTH]), 0.0)
        advantage = noisy(weights, "head/streams/advantage/dense_0", shared, f[ACTIONS])
        value = noisy(weights, "head/streams/value/dense_0", shared, f[1])[0]
        values.append([value + a - sum(advantage) / ACTIONS for a in advantage])
    return np.mean(values, axis=0)


@pytest.mark.parametrize("is_noisy", [False, True], ids=["greedy", "noisy"])
def test_q_values_of_the_treasure_hunt_are_those_of_plain_loops(is_noisy: bool) -> None:
    count, random = 2, np.random.default_rng(0)
    obs = (random.random((count, INPUTS)) < 0.3).astype(np.float32)
    with jax.enable_x64(True):
        for engine in engines(TREASURE, INPUTS):
            fresh = engine.to_named(engine.weights(engine.init(0)))
            weights = {name: 0.1 * random.normal(size=array.shape) for name, array in fresh.items()}
            policy, wanted = engine.freeze(engine.from_named(weights)), engine.wanted_to_act(count)
            shapes = sorted(one.shape for one in wanted.values())
            assert shapes == [(count, WIDTH + 1), (count, WIDTH + ACTIONS), (count, TAUS), (count, 2 * WIDTH)]
            draws: Any = draw(wanted, np.random.default_rng(1), np.float64)
            tau = np.tile((np.arange(TAUS) + 0.5) / TAUS, (count, 1))
            factors = {width: np.zeros((count, WIDTH + width)) for width in (WIDTH, ACTIONS, 1)}
            if is_noisy:
                by_size = {array.shape[1]: array for array in draws.values()}
                tau, factors = by_size[TAUS], {width: by_size[WIDTH + width] for width in factors}
            expected = [
                treasure_q(weights, obs[b], tau[b], {width: f[b] for width, f in factors.items()}) for b in range(count)
            ]
            found = policy(obs, draws) if is_noisy else policy(obs)
            # Evenly spaced fractions are float32 in both engines, and so are their cosines.
            np.testing.assert_allclose(found, expected, rtol=1e-9 if is_noisy else 2e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [False, True], ids=["one stream", "dueling"])
def test_a_trunk_stands_before_the_streams_and_adds_nothing_else(head: str, dueling: bool) -> None:
    fields = {"kind": head, "dueling": dueling, "hidden": [5]}
    without, trunk = ({"torso": {"hidden": [6]}, "head": {**fields, **more}} for more in ({}, {"trunk": [7, 6]}))
    path = "head/streams/trunk" if head == "iqn" else "head/trunk"
    with jax.enable_x64(True):
        for plain, deep in zip(engines(without, 3), engines(trunk, 3), strict=True):
            names, more = (shapes_of(engine) for engine in (plain, deep))
            assert {name: shape for name, shape in more.items() if name not in names} == {
                f"{path}/dense_0/kernel": (6, 7),
                f"{path}/dense_0/bias": (7,),
                f"{path}/dense_1/kernel": (7, 6),
                f"{path}/dense_1/bias": (6,),
            }
            assert {name: more[name] for name in names} == names


def shapes_of(engine: Any) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in engine.to_named(engine.weights(engine.init(0))).items()}
