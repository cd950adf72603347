"""Branches of a Dict observation with additive attention: NumPy loops written from the wiring, and both engines."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hotloop.assembly import Assembly
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.host import JaxOnHost
from hotloop.engines.policies import choose_policy
from hotloop.engines.torch.engine import TorchEngine
from hotloop.errors import SpecError
from hotloop.spec.reading import load_spec, parse_spec
from hotloop.trees import ArraySpec, tree_map

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]
ACTIONS, BATCH = 13, 3
CHAINS: dict[str, Any] = {
    "kind": "branches",
    "branches": {
        "dc": {"hidden": [128, 64]},
        "dc_services": {"rows": [64], "hidden": [64]},
        "pending": {"rows": [64], "hidden": [64]},
    },
    "attention": 128,
    "hidden": [256, 128, 64],
}
"""The network for service function chains."""
SHAPES = {"dc": (14,), "dc_services": (6, 13), "pending": (6, 10)}
Engines = dict[str, Any]


def obs_specs(shapes: dict[str, Any], dtype: Any = np.float32) -> Any:
    return {name: ArraySpec(shape, dtype) for name, shape in shapes.items()}


def observations(shapes: dict[str, Any], count: int = BATCH) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.normal(size=(count, *shape)).astype(np.float32) for name, shape in shapes.items()}


def spec_of(torso: dict[str, Any], engine: str = "jax", **network: Any) -> Any:
    return parse_spec({"network": {"torso": torso, **network}, "engine": engine})


def both(torso: dict[str, Any], obs: Any, wide: bool = False, **network: Any) -> Engines:
    numbers = (jnp.float64, torch.float64) if wide else (jnp.float32, torch.float32)
    return {
        "jax": JaxOnHost(JaxEngine(spec_of(torso, **network), obs, ACTIONS, numbers=numbers[0])),
        "torch": TorchEngine(spec_of(torso, "torch", **network), obs, ACTIONS, numbers=numbers[1]),
    }


def drawn(engine: Any, scale: float = 0.3) -> dict[str, np.ndarray]:
    """Weights by name: no bias of zero, so that leaving one out is seen."""
    random = np.random.default_rng(1)
    shapes = engine.to_named(engine.weights(engine.init(0)))
    return {name: scale * random.normal(size=array.shape) for name, array in shapes.items()}


# -- the network, one observation and one neuron after the other ------------------------------------------------------


class Wiring:
    """Q-values of one observation by the wiring of the workload, for weights by name."""

    def __init__(self, weights: dict[str, np.ndarray], nonlinear: Callable[[float], float]) -> None:
        self.weights, self.nonlinear = weights, nonlinear

    def dense(self, name: str, x: list[float]) -> list[float]:
        kernel, bias = self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"]
        return [
            sum(float(x[i]) * float(kernel[i, o]) for i in range(len(x))) + float(bias[o]) for o in range(len(bias))
        ]

    def active(self, name: str, x: list[float]) -> list[float]:
        return [self.nonlinear(y) for y in self.dense(name, x)]

    def row_by_row(self, key: str, table: np.ndarray) -> list[float]:
        path = f"torso/branches/{key}"
        flat = [y for row in table for y in self.active(f"{path}/rows/dense_0", list(row))]
        return self.active(f"{path}/hidden/dense_0", flat)

    def q(self, obs: dict[str, np.ndarray]) -> list[float]:
        now = self.active("torso/branches/dc/hidden/dense_0", list(obs["dc"]))
        now = self.active("torso/branches/dc/hidden/dense_1", now)
        three = [now, self.row_by_row("dc_services", obs["dc_services"]), self.row_by_row("pending", obs["pending"])]
        scores = []
        for x in three:
            inner = [math.tanh(y) for y in self.dense("torso/attention/dense_0", x)]
            scores.append(self.dense("torso/attention/dense_1", inner)[0])
        total = sum(math.exp(score) for score in scores)
        shares = [math.exp(score) / total for score in scores]
        context = [sum(share * x[f] for share, x in zip(shares, three, strict=True)) for f in range(len(now))]
        x = [*three[0], *three[1], *three[2], *context]
        for i in range(3):
            x = self.active(f"torso/layers/dense_{i}", x)
        return self.dense("head/dense_0", x)


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_the_network_for_chains_has_the_parameters_that_it_should(engine: str) -> None:
    by_hand = (14 * 128 + 128) + (128 * 64 + 64)
    by_hand += (13 * 64 + 64) + (6 * 64 * 64 + 64) + (10 * 64 + 64) + (6 * 64 * 64 + 64)
    by_hand += (64 * 128 + 128) + (128 * 1 + 1)
    by_hand += (256 * 256 + 256) + (256 * 128 + 128) + (128 * 64 + 64) + (64 * 13 + 13)
    assert both(CHAINS, obs_specs(SHAPES))[engine].num_weights == by_hand == 177_294


SMALL = {
    **CHAINS,
    "branches": {
        "dc": {"hidden": [6, 4]},
        "dc_services": {"rows": [5], "hidden": [4]},
        "pending": {"rows": [3], "hidden": [4]},
    },
    "attention": 7,
    "hidden": [8, 6, 5],
}


@pytest.mark.parametrize(("torso", "scale"), [(CHAINS, 0.1), (SMALL, 0.5)], ids=["whole", "small"])
def test_q_values_are_those_of_the_wiring(torso: dict[str, Any], scale: float) -> None:
    obs = observations(SHAPES)
    with jax.enable_x64(True):
        for engine in both(torso, obs_specs(SHAPES), wide=True).values():
            weights = drawn(engine, scale)
            net = Wiring(weights, lambda x: max(x, 0.0))
            expected = [net.q({name: part[b] for name, part in obs.items()}) for b in range(BATCH)]
            found = engine.freeze(engine.from_named(weights))(obs)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
            assert np.ptp(found, axis=0).min() > 1e-6, "the observation matters"


def test_its_slope_is_that_of_finite_differences() -> None:
    torso, obs = {**SMALL, "activation": "tanh"}, observations(SHAPES, 1)
    with jax.enable_x64(True):
        engine = JaxEngine(spec_of(torso), obs_specs(SHAPES), ACTIONS, numbers=jnp.float64)
        weights = drawn(JaxOnHost(engine))
        mixed = np.random.default_rng(2).normal(size=ACTIONS)
        vector = engine.layout.from_named(weights)
        slope = jax.jit(jax.grad(lambda v: jnp.sum(engine.q_values(v, obs)[0] * mixed)))(vector)
        found = engine.layout.to_named(slope)

    def value(name: str, at: tuple[int, ...], by: float) -> float:
        moved = {**weights, name: weights[name].copy()}
        moved[name][at] += by
        return float(np.dot(Wiring(moved, math.tanh).q({key: part[0] for key, part in obs.items()}), mixed))

    random = np.random.default_rng(3)
    for name, array in weights.items():
        for _ in range(3):
            at = tuple(int(random.integers(size)) for size in array.shape)
            expected = (value(name, at, 1e-5) - value(name, at, -1e-5)) / 2e-5
            np.testing.assert_allclose(found[name][at], expected, rtol=1e-5, atol=1e-8, err_msg=f"{name}{at}")
    assert found["torso/attention/dense_1/bias"] == 0.0, "a softmax does not see it"
    assert sum(np.abs(found[name]).max() > 1e-5 for name in found) == len(found) - 1


def test_the_order_in_which_branches_are_written_changes_nothing() -> None:
    other = {**SMALL, "branches": dict(reversed(SMALL["branches"].items()))}
    obs = observations(SHAPES)
    for name, engine in both(SMALL, obs_specs(SHAPES)).items():
        again = both(other, obs_specs(dict(reversed(SHAPES.items()))))[name]
        weights = drawn(engine)
        found = [one.freeze(one.from_named(weights))(obs) for one in (engine, again)]
        np.testing.assert_array_equal(found[0], found[1])


def test_bytes_are_taken_as_the_numbers_they_are() -> None:
    bytes_ = tree_map(lambda part: (abs(part) * 3).astype(np.uint8), observations(SHAPES))
    for name, engine in both(SMALL, obs_specs(SHAPES, np.uint8)).items():
        floats = both(SMALL, obs_specs(SHAPES))[name]
        weights = drawn(engine)
        found = engine.freeze(engine.from_named(weights))(bytes_)
        as_floats = tree_map(lambda part: part.astype(np.float32), bytes_)
        np.testing.assert_allclose(found, floats.freeze(floats.from_named(weights))(as_floats), rtol=1e-6, atol=1e-6)


def test_a_branch_may_have_no_layer_at_all_and_be_the_only_one() -> None:
    torso = {"kind": "branches", "branches": {"dc": {"hidden": []}}, "hidden": []}
    obs = observations({"dc": (2, 3)})
    for engine in both(torso, obs_specs({"dc": (2, 3)})).values():
        weights = drawn(engine)
        assert {name: array.shape for name, array in weights.items()} == {
            "head/dense_0/bias": (13,),
            "head/dense_0/kernel": (6, 13),
        }
        expected = obs["dc"].reshape(BATCH, 6) @ weights["head/dense_0/kernel"] + weights["head/dense_0/bias"]
        found = engine.freeze(engine.from_named(weights))(obs)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_the_engine_acts_however_small_it_is() -> None:
    engine: Any = JaxEngine(spec_of(SMALL), obs_specs(SHAPES), ACTIONS)
    assert choose_policy(engine.spec, engine.on_host(), 1)[1] == "the engine"


# -- what does not fit is refused in one line -------------------------------------------------------------------------


WRONG: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no dict": ({"dc": {}}, ArraySpec((4,), np.float32), r"Dict observation by its keys, but .* of shape \(4,\)"),
    "a tuple": ({"dc": {}}, (ArraySpec((4,), np.float32),), "Dict observation by its keys, but .* without keys"),
    "unknown key": (
        {"dc": {}, "dc_service": {}, "pending": {}},
        obs_specs(SHAPES),
        "'dc_service' is no key of the observation; did you mean 'dc_services'?",
    ),
    "keys without a branch": (
        {"dc_services": {}},
        obs_specs(SHAPES),
        r"no branch for dc, pending; add .* env.observe=\[dc_services\]",
    ),
    "rows of a vector": (
        {"dc": {"rows": [3]}, "dc_services": {}, "pending": {}},
        obs_specs(SHAPES),
        r"'dc' has layers over rows, which need 2 axes \(rows, numbers\), but its shape is \(14,\)",
    ),
    "a tree below a key": (
        {"a": {}, "b": {}},
        {"a": {"c": ArraySpec((2,), np.float32)}, "b": ArraySpec((2,), np.float32)},
        "the observation's 'a' has parts of its own",
    ),
    "unequal widths": (
        {"dc": {"hidden": [9, 8]}, "dc_services": {"rows": [2], "hidden": []}, "pending": {"hidden": []}},
        obs_specs(SHAPES),
        "equal width, but theirs are dc 8, dc_services 12, pending 60; .*attention: null",
    ),
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("engine", [JaxEngine, TorchEngine])
def test_what_does_not_fit_the_observation_is_refused_in_one_line(engine: Any, what: str) -> None:
    branches, obs, said = WRONG[what]
    torso = {"kind": "branches", "branches": branches, "attention": 4}
    with pytest.raises(ValueError, match=said) as refusal:
        engine(spec_of(torso, "jax" if engine is JaxEngine else "torch"), obs, ACTIONS)
    assert "\n" not in str(refusal.value)


def test_without_attention_branches_may_be_as_wide_as_they_like() -> None:
    torso = {"kind": "branches", "branches": WRONG["unequal widths"][0], "hidden": [5]}
    for engine in both(torso, obs_specs(SHAPES)).values():
        assert drawn(engine)["torso/layers/dense_0/kernel"].shape == (8 + 6 * 2 + 60, 5)


def test_a_run_is_refused_as_a_mistake_of_the_spec() -> None:
    torso = {"kind": "branches", "branches": {"position": {}}}
    with pytest.raises(SpecError, match=r"^network: the branches torso sees a Dict"):
        Assembly(load_spec("cartpole", {"network.torso": torso}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"branches": {"dc": {"hiden": [3]}}}, r"^network\.torso\.branches\.dc\.hiden: unknown key; .*'hidden'"),
        ({"branches": {"dc": {"rows": 3}}}, r"^network\.torso\.branches\.dc\.rows: got 3, expected a list"),
        ({"branches": {"dc": 3}}, r"^network\.torso\.branches\.dc: got 3, expected a section"),
        ({"branches": {}}, r"^network\.torso\.branches: got \{\}"),
        ({}, r"^network\.torso\.branches: missing"),
        ({"branches": {"dc": {}}, "atention": 3}, r"^network\.torso\.atention: unknown key; .*'attention'"),
    ],
)
def test_a_spec_that_says_it_wrongly_is_told_where(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        spec_of({"kind": "branches", **fields})
