"""Two engines, the same weights, batches and draws: the same numbers, for every head, torso, target and optimiser."""

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
from hotloop.experience import METRICS, Item
from hotloop.registry import HEADS, TORSOS
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec, leaves, named_leaves, tree_map

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]
BATCH, ACTIONS, RATE = 4, 3, 2.0**-6
SIZES: dict[str, dict[str, Any]] = {
    "scalar": {},
    "c51": {"atoms": 5, "low": -2.0, "high": 3.0},
    "qr": {"quantiles": 4},
    "iqn": {"cosines": 5, "taus": 3, "target_taus": 4, "acting_taus": 6},
}
"""A small section of each head; a new head without one fails below."""
TORSO_SIZES: dict[str, tuple[dict[str, Any], Any]] = {
    "mlp": ({"hidden": [6]}, ArraySpec((3,), np.float32)),
    "cnn": (
        {"channels": [3, 2], "kernels": [3, 2], "strides": [2, 1], "padding": "same", "hidden": [5]},
        ArraySpec((6, 5, 2), np.float32),
    ),
    "impala": ({"channels": [2, 3], "blocks": 1, "hidden": [5], "layout": "CHW"}, ArraySpec((2, 6, 5), np.float32)),
    "branches": (
        {
            "branches": {"far": {"rows": [4, 3], "hidden": [5]}, "near": {"hidden": [4, 5]}},
            "attention": 3,
            "hidden": [6],
        },
        {"near": ArraySpec((3,), np.float32), "far": ArraySpec((4, 2), np.float32)},
    ),
}


def network(head: str, torso: str = "mlp", **fields: Any) -> dict[str, Any]:
    of_torso = {name: fields.pop(name) for name in ("normalization", "activation") if name in fields}
    return {
        "head": {"kind": head, **SIZES[head], **fields},
        "torso": {"kind": torso, **TORSO_SIZES[torso][0], **of_torso},
    }


CASES: dict[str, dict[str, Any]] = {}
for _head in HEADS:
    _hidden = {"hidden": [5]}
    CASES |= {
        f"{_head}": {"network": network(_head)},
        f"{_head} dueling": {"network": network(_head, dueling=True, **_hidden)},
        f"{_head} noisy dueling double": {
            "network": network(_head, dueling=True, noise=0.5, **_hidden),
            "target": {"rule": "double", "tau": 0.3},
        },
        f"{_head} layer vanilla": {
            "network": network(_head, normalization="layer", activation="tanh"),
            "target": {"rule": "vanilla"},
        },
        f"{_head} batch double": {"network": network(_head, normalization="batch"), "target": {"rule": "double"}},
        f"{_head} trunk": {"network": network(_head, trunk=[4, 5])},
        f"{_head} trunk noisy dueling": {
            "network": network(_head, dueling=True, noise=0.5, trunk=[4], **_hidden),
            "target": {"rule": "double"},
        },
        f"{_head} masked accumulated": {
            "network": network(_head, noise=0.4),
            "optimizer": {"accumulate": 2},
            "env": {"action_mask": True},
        },
    }
    if "target.munchausen" not in HEADS[_head].refuses:
        CASES[f"{_head} munchausen"] = {"network": network(_head), "target": {"munchausen": {}}}
CASES |= {
    **{f"torso {kind}": {"network": network("scalar", kind)} for kind in TORSOS},
    **{f"torso {kind} batch": {"network": network("scalar", kind, normalization="batch")} for kind in TORSOS},
    **{
        f"activation {name}": {"network": network("scalar", activation=name)}
        for name in ("relu", "selu", "tanh", "gelu", "silu")
    },
    "torso branches without attention": {
        "network": {"torso": {"kind": "branches", **TORSO_SIZES["branches"][0], "attention": None}}
    },
    "torso branches layer": {"network": network("scalar", "branches", normalization="layer", activation="tanh")},
    "torso branches noisy iqn": {"network": network("iqn", "branches", noise=0.5, trunk=[4], dueling=True)},
    "iqn choice taus": {"network": network("iqn", choice_taus=5)},
    "iqn choice taus double": {"network": network("iqn", choice_taus=5), "target": {"rule": "double"}},
    "mse weights": {"loss": {"kind": "mse"}, "replay": {"sampling": {"kind": "prioritized"}}},
    "huber": {"loss": {"kind": "huber", "delta": 0.3}},
    "adamw": {"optimizer": {"kind": "adamw", "weight_decay": 0.1}},
    "adamw batch": {
        "network": network("scalar", normalization="batch"),
        "optimizer": {"kind": "adamw", "weight_decay": 0.1},
    },
    "rmsprop": {"optimizer": {"kind": "rmsprop"}},
    "rmsprop momentum": {"optimizer": {"kind": "rmsprop", "momentum": 0.7}},
    "sgd": {"optimizer": {"kind": "sgd"}},
    "sgd momentum": {"optimizer": {"kind": "sgd", "momentum": 0.7}},
    "clipped": {"optimizer": {"clip": 0.05}},
    "not clipped": {"optimizer": {"clip": None}},
    "polyak": {"target": {"tau": 0.1}},
}


LIGHT = {*HEADS, *(f"{head} noisy dueling double" for head in HEADS)}
LIGHT |= {
    "torso cnn",
    "torso branches",
    "scalar trunk",
    "iqn trunk noisy dueling",
    "mse weights",
    "sgd momentum",
    "polyak",
}
EACH = [name if name in LIGHT else pytest.param(name, marks=pytest.mark.heavy) for name in CASES]


def test_every_head_and_torso_has_a_small_section_here() -> None:
    assert set(SIZES) == set(HEADS)
    assert set(TORSO_SIZES) == set(TORSOS)


def spec_of(case: dict[str, Any], engine: str = "jax") -> Any:
    data = {"network": network("scalar"), **case, "engine": engine}
    data["replay"] = {"batch_size": BATCH, **data.get("replay", {})}
    return parse_spec(data)


def obs_of(spec: Any) -> Any:
    return TORSO_SIZES[spec.network.torso.kind][1]


def batches(spec: Any, obs: Any, updates: int, dtype: Any) -> tuple[Any, Any]:
    random, lead = np.random.default_rng(0), (updates, BATCH)

    def drawn(leaf: ArraySpec) -> np.ndarray:
        seen = random.normal(size=(2, *lead, *leaf.shape))
        return (40 * seen + 128).astype(np.uint8) if leaf.dtype == np.uint8 else seen.astype(np.float32)

    seen = tree_map(drawn, obs)
    before, after = (tree_map(lambda leaf, i=i: leaf[i], seen) for i in (0, 1))
    reward = random.normal(size=lead)
    discount = np.where(random.random(lead) < 0.2, 0.0, 0.9)
    legal = random.random((*lead, ACTIONS)) < 0.6 if spec.env.action_mask else None
    weight = random.uniform(0.2, 1.0, lead).astype(dtype) if spec.beta_schedule else None
    action = random.integers(0, ACTIONS, lead).astype(np.int32)
    return Item(before, action, reward.astype(dtype), discount.astype(dtype), after, legal), weight


class Pair:
    """The same spec, weights and moments in both engines."""

    def __init__(self, case: dict[str, Any], dtype: Any, obs: Any = None) -> None:
        self.spec, self.dtype = spec_of(case), np.dtype(dtype)
        self.obs = obs = obs or obs_of(self.spec)
        numbers = {"float32": torch.float32, "float64": torch.float64}[self.dtype.name]
        self.jax = JaxOnHost(JaxEngine(self.spec, obs, ACTIONS, numbers=jnp.dtype(self.dtype)))
        self.torch = TorchEngine(spec_of(case, "torch"), obs, ACTIONS, numbers=numbers)
        self.start = tree_map(lambda leaf: leaf.numpy().copy(), self.torch.init(3))
        random = np.random.default_rng(1)
        if self.start.target.size:  # a target net of its own
            moved = self.start.target + 0.1 * random.normal(size=self.start.target.shape).astype(dtype)
            self.start = self.start._replace(target=moved)

    def learn(self, updates: int, moves: int = 1) -> tuple[Any, Any]:
        items, weight = batches(self.spec, self.obs, updates, self.dtype)
        wanted = self.jax.wanted_to_learn(updates, BATCH)
        assert str(wanted) == str(self.torch.wanted_to_learn(updates, BATCH))
        draws = draw(wanted, np.random.default_rng(2), self.dtype) if wanted else None
        by_name = {name: np.array(leaf) for name, leaf in named_leaves(self.start).items()}
        template = self.jax.template()
        in_jax = jax.tree.unflatten(jax.tree.structure(template), [by_name[name] for name in named_leaves(template)])
        of_jax = self.jax.update(self.jax.take(in_jax), items, weight, RATE, moves, draws)
        of_torch = self.torch.update(self.torch.take(self.start), items, weight, RATE, moves, draws)
        return of_jax, of_torch


def assert_close(of_jax: Any, of_torch: Any, rtol: float, atol: float) -> None:
    jax_leaves, torch_leaves = named_leaves(of_jax.state), named_leaves(of_torch.state)
    assert list(jax_leaves) == list(torch_leaves), "checkpoints have the same names"
    for name, leaf in jax_leaves.items():
        ours = np.asarray(torch_leaves[name])
        assert ours.dtype == leaf.dtype
        assert ours.shape == leaf.shape
        np.testing.assert_allclose(ours, np.asarray(leaf), rtol=rtol, atol=atol, err_msg=name)
    np.testing.assert_allclose(of_torch.td_KB, np.asarray(of_jax.td_KB), rtol=rtol, atol=10 * atol, err_msg="td")
    np.testing.assert_allclose(of_torch.sums, of_jax.sums, rtol=10 * rtol, atol=10 * atol, err_msg=str(METRICS))


@pytest.mark.parametrize("updates", [pytest.param(1, marks=pytest.mark.heavy), 8])
@pytest.mark.parametrize("name", EACH)
def test_in_float64_weights_and_moments_are_the_same(name: str, updates: int) -> None:
    with jax.enable_x64(True):
        of_jax, of_torch = Pair(CASES[name], np.float64).learn(updates)
        assert not np.allclose(np.asarray(of_torch.state.params), Pair(CASES[name], np.float64).start.params)
        assert_close(of_jax, of_torch, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "name", [*HEADS, *(f"{head} noisy dueling double" for head in HEADS), "torso cnn", "torso branches"]
)
def test_in_float32_weights_are_nearly_the_same(name: str) -> None:
    of_jax, of_torch = Pair(CASES[name], np.float32).learn(8)
    np.testing.assert_allclose(of_torch.state.params, np.asarray(of_jax.state.params), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("torso", "normalization"), [("cnn", "batch"), ("impala", "none")])
def test_images_of_bytes_are_divided_alike(torso: str, normalization: str) -> None:
    case = {"network": network("scalar", torso, normalization=normalization), "optimizer": {"kind": "sgd"}}
    of_jax, of_torch = Pair(case, np.float32, ArraySpec((6, 7, 8), np.uint8)).learn(8)
    np.testing.assert_allclose(of_torch.state.params, np.asarray(of_jax.state.params), rtol=1e-5, atol=1e-6)


def test_a_tree_of_observations_is_flattened_in_the_same_order() -> None:
    obs: Any = {"b": ArraySpec((2,), np.float32), "a": (ArraySpec((3,), np.uint8), ArraySpec((), np.float32))}
    jax_engine, torch_engine = JaxOnHost(JaxEngine(spec_of({}), obs, ACTIONS)), TorchEngine(spec_of({}), obs, ACTIONS)
    named, random = torch_engine.to_named(torch_engine.init(0).params), np.random.default_rng(0)
    seen = {
        "b": random.normal(size=(4, 2)).astype(np.float32),
        "a": (random.integers(0, 9, (4, 3)).astype(np.uint8), random.normal(size=4).astype(np.float32)),
    }
    of_jax, of_torch = (engine.freeze(engine.from_named(named)) for engine in (jax_engine, torch_engine))
    np.testing.assert_allclose(of_torch(seen), of_jax(seen), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EACH)
def test_q_values_are_the_same_and_so_is_what_acting_asks_of_chance(name: str) -> None:
    pair = Pair(CASES[name], np.float32)
    named = pair.torch.to_named(torch.from_numpy(pair.start.params))
    of_jax, of_torch = (engine.freeze(engine.from_named(named)) for engine in (pair.jax, pair.torch))
    assert {n: a.tobytes() for n, a in pair.jax.to_named(pair.jax.from_named(named)).items()} == {
        n: a.tobytes() for n, a in named.items()
    }
    items, _ = batches(pair.spec, pair.obs, 1, np.float32)
    obs_N: Any = tree_map(lambda leaf: leaf[0], items.s_tm1)
    np.testing.assert_allclose(of_torch(obs_N), of_jax(obs_N), rtol=1e-5, atol=1e-6)
    wanted = pair.jax.wanted_to_act(BATCH)
    assert wanted == pair.torch.wanted_to_act(BATCH)
    if wanted:
        draws = draw(wanted, np.random.default_rng(0))
        np.testing.assert_allclose(of_torch(obs_N, draws), of_jax(obs_N, draws), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "sgd"])
def test_updates_that_are_not_finite_leave_no_trace_and_are_counted_alike(kind: str) -> None:
    pair = Pair({"optimizer": {"kind": kind}}, np.float32)
    items, _ = batches(pair.spec, pair.obs, 4, np.float32)
    reward = items.r_t.copy()
    reward[[0, 2, 3]] = np.nan
    alone = items._replace(**{name: getattr(items, name)[1:2] for name in items._fields if name != "legal_t"})
    of_jax, of_torch = pair.jax, pair.torch
    learned = of_torch.update(of_torch.init(3), items._replace(r_t=reward), None, RATE, 0, None)
    expected = of_torch.update(of_torch.init(3), alone, None, RATE, 0, None)
    np.testing.assert_array_equal(np.asarray(learned.state.params), np.asarray(expected.state.params))
    for ours, theirs in zip(leaves(learned.state.optimizer), leaves(expected.state.optimizer), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    also = of_jax.update(of_jax.init(3), items._replace(r_t=reward), None, RATE, 0, None)
    assert tuple(of_torch.counts(learned.state)) == tuple(of_jax.counts(also.state)) == (1, 3, 2)
    again = of_torch.update(learned.state, items._replace(r_t=np.full_like(reward, np.nan)), None, RATE, 0, None)
    assert tuple(of_torch.counts(again.state)) == (1, 7, 6)


def test_a_state_that_was_learned_from_is_still_what_it_was() -> None:
    pair = Pair({}, np.float32)
    engine = pair.torch
    state = engine.init(0)
    before = tree_map(lambda leaf: leaf.numpy().copy(), state)
    engine.update(state, batches(pair.spec, pair.obs, 2, np.float32)[0], None, RATE, 1, None)
    for old, now in zip(leaves(before), leaves(state), strict=True):
        np.testing.assert_array_equal(old, np.asarray(now))
