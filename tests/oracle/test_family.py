"""The DQN family against float64 NumPy written from the papers (naive_family.py), PyTorch and golden vectors.

Other libraries' own C51, QR-DQN and IQN are in test_peers.py.
"""

import json
import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import naive_family as naive
import numpy as np
import pytest
import torch

from hotloop.engines.jax.engine import JaxEngine, LearnerState, LossScale, mode_of
from hotloop.engines.jax.heads import cosines_of_pi
from hotloop.engines.jax.modules import Mode, dense_layers, factors, perturbed
from hotloop.engines.jax.torsos import cnn, impala, mlp
from hotloop.engines.networks import noise_size
from hotloop.experience import METRICS, Item
from hotloop.learning import targets
from hotloop.learning.estimates import Atoms, Means, Quantiles
from hotloop.learning.loss_scale import UPDATES_TO_DOUBLE_IT, rescaled
from hotloop.spec import Cnn, Impala, Mlp, Munchausen, Spec
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

OBS, ACTIONS, BATCH = 3, 3, 6
KEY = jax.random.key(11, impl="unsafe_rbg")  # a program with these draws compiles in half the time of the usual ones
DIRECTIONS = 4
GOLDEN = Path(__file__).parent / "golden"
HEADS: dict[str, dict[str, Any]] = {
    "scalar": {"kind": "scalar"},
    "c51": {"kind": "c51", "atoms": 5, "low": -1.5, "high": 2.5},
    "qr": {"kind": "qr", "quantiles": 4},
    "iqn": {"kind": "iqn", "cosines": 3, "taus": 4, "target_taus": 3, "acting_taus": 5},
}


def spec_of(head: dict[str, Any], torso: dict[str, Any] | None = None, **more: Any) -> Spec:
    """A tiny spec that learns by plain steps."""
    network = {"torso": torso or {"hidden": [4], "activation": "tanh"}, "head": head}
    optimizer = {"kind": "sgd", "clip": None, **more.pop("optimizer", {})}
    replay = {"batch_size": BATCH, **more.pop("replay", {})}
    loss = {"delta": 0.6, **more.pop("loss", {})}
    return parse_spec({"network": network, "optimizer": optimizer, "replay": replay, "loss": loss, **more})


def engine_of(spec: Spec, actions: int = ACTIONS) -> JaxEngine:
    return JaxEngine(spec, jax.ShapeDtypeStruct((OBS,), np.float32), actions)


def random_weights(engine: JaxEngine, seed: int) -> Any:
    return np.random.default_rng(seed).normal(0, 0.6, engine.layout.size).astype(np.float32)


def random_batch(seed: int = 0, *lead: int, actions: int = ACTIONS, with_legal: bool = False) -> Item:
    random, shape = np.random.default_rng(seed), (*lead, BATCH)
    legal = random.random((*shape, actions)) < 0.6
    legal[..., 0, :] = False  # a state without any
    return Item(
        s_tm1=random.normal(size=(*shape, OBS)).astype(np.float32),
        a_tm1=random.integers(0, actions, shape).astype(np.int32),
        r_t=random.normal(size=shape).astype(np.float32),
        discount_t=random.choice([0.0, 0.9, 0.9**3], shape).astype(np.float32),
        s_t=random.normal(size=(*shape, OBS)).astype(np.float32),
        legal_t=legal if with_legal else None,
    )


def weights_of(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(0.2, 1.0, shape).astype(np.float32)


# -- golden vectors -----------------------------------------------------------------------------------

Golden = dict[str, Any]
LOW, HIGH, ATOMS, DELTA = -1.0, 1.0, 5, 0.6


def make_golden(kind: str) -> Golden:
    """Inputs and what the oracle says of them: `z` and `z_t` are the estimates of the actions taken and chosen."""
    random = np.random.default_rng(2024)
    count = {"scalar": 1, "c51": ATOMS, "qr": 3, "iqn": 3}[kind]
    r = [0.0, 0.5, 0.25, 5.0, -5.0, 0.3, -0.7, 1.0]
    discount = [1.0, 0.0, 0.0, 0.9, 0.9, 0.9**3, 0.99, 0.5]  # on an atom, terminal, beyond both ends, n-step
    z, z_t = (random.normal(size=(len(r), count)).round(3) for _ in range(2))
    tau = np.array([[1 / 6, 1 / 2, 5 / 6]] * len(r)) if kind == "qr" else random.random((len(r), count)).round(3)
    head: dict[str, dict[str, Any]] = {
        "scalar": {},
        "c51": {"atoms": ATOMS, "low": LOW, "high": HIGH},
        "qr": {"quantiles": 3},
        "iqn": {"taus": 3},
    }
    spec = spec_of({"kind": kind, **head[kind]}, loss={"delta": DELTA})
    target, loss, td = [], [], []
    for b in range(len(r)):
        if kind == "c51":
            goal = naive.projected(r[b], discount[b], naive.softmax(z_t[b]), LOW, HIGH)
        else:
            goal = r[b] + discount[b] * z_t[b]
        sample = naive.sample_loss(spec, z[b], tau[b], goal)
        target.append(goal.tolist())
        loss.append(sample[0])
        td.append(sample[1])
    inputs = {"r_t": r, "discount_t": discount, "z": z.tolist(), "z_t": z_t.tolist(), "tau": tau.tolist()}
    return {"kind": kind, "inputs": inputs, "expected": {"target": target, "loss": loss, "td": td}}


def write_golden() -> None:
    """Write all golden vectors anew."""
    for kind in HEADS:
        (GOLDEN / f"{kind}.json").write_text(json.dumps(make_golden(kind), indent=1) + "\n")


def read_golden(kind: str) -> Golden:
    return json.loads((GOLDEN / f"{kind}.json").read_text())


@pytest.mark.parametrize(("xp", "dtype", "tolerance"), [(np, np.float64, 1e-12), (jnp, np.float32, 2e-6)])
@pytest.mark.parametrize("kind", HEADS)
def test_estimates_reproduce_the_golden_vectors(kind: str, xp: Any, dtype: Any, tolerance: float) -> None:
    """Regenerate with `cd tests/oracle && python -c 'import test_family; test_family.write_golden()'`."""
    golden = read_golden(kind)
    inputs = {name: xp.asarray(np.array(value, dtype)) for name, value in golden["inputs"].items()}
    z, z_t = inputs["z"], inputs["z_t"]
    constant: Any = jax.lax.stop_gradient if xp is jnp else np.asarray
    maths: Any = Quantiles(DELTA, xp=xp, constant=constant)
    if kind == "scalar":
        maths, z, z_t = Means("huber", DELTA, xp=xp), z[:, 0], z_t[:, 0]
    elif kind == "c51":
        maths = Atoms(LOW, HIGH, ATOMS, xp=xp)
    target = maths.target(inputs["r_t"], inputs["discount_t"], z_t)
    tau = inputs["tau"][0] if kind == "qr" else inputs["tau"]  # fixed fractions are one row for all
    loss, td = maths.loss(z, tau, target)
    expected = {name: np.array(value) for name, value in golden["expected"].items()}
    np.testing.assert_allclose(target, expected["target"].reshape(target.shape), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(loss, expected["loss"], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(td, expected["td"], rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", HEADS)
def test_the_golden_vectors_are_what_the_oracle_says_today(kind: str) -> None:
    golden, today = read_golden(kind), make_golden(kind)
    assert golden["inputs"] == today["inputs"]
    for name, value in today["expected"].items():
        np.testing.assert_allclose(golden["expected"][name], value, rtol=1e-12, atol=1e-14, err_msg=name)


# -- the maths by itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high", "count"), [(-10.0, 10.0, 51), (0.0, 1.0, 2), (-1.3, 4.1, 9)])
def test_the_projection_is_that_of_the_paper_and_loses_no_probability(low: float, high: float, count: int) -> None:
    random = np.random.default_rng(0)
    logits_BN = random.normal(size=(40, count))
    r_B, discount_B = random.normal(0, (high - low) / 3, 40), random.choice([0.0, 0.5, 0.99**5, 1.0], 40)
    r_B[:5] = [low, high, low - 3, high + 3, 0.5 * (low + high)]
    ours_BN = Atoms(low, high, count, xp=np).target(r_B, discount_B, logits_BN)
    for b in range(40):
        expected = naive.projected(r_B[b], discount_B[b], naive.softmax(logits_BN[b]), low, high)
        np.testing.assert_allclose(ours_BN[b], expected, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(ours_BN.sum(-1), 1.0, rtol=1e-12)


def test_a_terminal_return_on_an_atom_is_that_atom_alone() -> None:
    ours = Atoms(-2.0, 2.0, 5, xp=np).target(np.array([1.0, -7.0, 7.0]), np.zeros(3), np.ones((3, 5)))
    np.testing.assert_allclose(ours, np.eye(5)[[3, 0, 4]], atol=1e-12)


def test_the_error_of_c51_is_zero_where_it_says_what_it_should_and_its_loss_is_not() -> None:
    logits = np.array([[0.3, -1.0, 0.8, 0.1]])
    p = naive.softmax(logits[0])[None]
    loss, td = Atoms(0.0, 3.0, 4, xp=np).loss(logits, None, p)
    np.testing.assert_allclose(td, 0.0, atol=1e-12)
    np.testing.assert_allclose(loss, -np.sum(p * np.log(p)))
    certain = np.array([[0.0, 1.0, 0.0, 0.0]])  # 0 log 0 is 0
    loss, td = Atoms(0.0, 3.0, 4, xp=np).loss(logits, None, certain)
    np.testing.assert_allclose([loss, td], -np.log(p[:, 1]) * np.ones((2, 1)))


def test_far_logits_lose_nothing() -> None:
    loss, _ = Atoms(0.0, 1.0, 2, xp=jnp).loss(jnp.array([[500.0, -500.0]]), None, jnp.array([[0.25, 0.75]]))
    np.testing.assert_allclose(loss, [750.0], rtol=1e-6)


def test_a_policy_of_large_q_values_over_a_small_temperature_is_finite() -> None:
    q_BA = np.array([[100.0, 99.99, -100.0], [5.0, 5.0, 5.0]])
    ours = targets.log_policy(q_BA, 0.03, xp=np)
    with np.errstate(divide="ignore"):
        expected = np.stack([0.03 * naive.log_softmax(q_A, 0.03) for q_A in q_BA])
    np.testing.assert_allclose(ours[:, :2], expected[:, :2], rtol=1e-9)
    np.testing.assert_allclose(ours[0, 2], -200.0 - 0.03 * np.log(1 + np.exp(-0.01 / 0.03)), rtol=1e-9)


@pytest.mark.parametrize("atoms", [None, 4])
def test_the_soft_value_is_that_of_the_formula_without_illegal_actions(atoms: int | None) -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(5, 3) if atoms is None else (5, 3, atoms))
    q_BA = values if atoms is None else values.mean(-1)
    legal = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]], bool)
    ours = targets.soft_value(values, targets.legal_only(q_BA, legal, xp=np), 0.3, xp=np)
    for b in range(5):
        expected = naive.soft_value(values[b], q_BA[b], naive.may_be_taken(legal[b], 3), 0.3)
        np.testing.assert_allclose(ours[b], expected, rtol=1e-12)


def test_only_legal_actions_are_chosen_and_all_where_none_is_legal() -> None:
    q_BA = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [-5.0, -9.0, 0.0]])
    legal = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
    only = targets.legal_only(q_BA, legal, xp=np)
    np.testing.assert_array_equal(only, [[1, -np.inf, 2], [1, 3, 2], [-5, -9, -np.inf]])
    np.testing.assert_array_equal(targets.best_value(q_BA, only, xp=np), [2.0, 3.0, -5.0])
    assert targets.legal_only(q_BA, None, xp=np) is q_BA
    z_BAN = np.arange(18.0).reshape(3, 3, 2)
    np.testing.assert_array_equal(targets.best_value(z_BAN, only, xp=np), [[4, 5], [8, 9], [12, 13]])


# -- losses and gradients of whole networks -----------------------------------------------------------


class Case(NamedTuple):
    """One combination of the choices that meet in a gradient."""

    head: str
    dueling: bool
    rule: str
    noise: float | None = None
    soft: bool = False
    legal: bool = False
    choice: int | None = None

    def spec(self) -> Spec:
        own = {"choice_taus": self.choice} if self.choice else {}
        head = {
            **HEADS[self.head],
            **own,
            "dueling": self.dueling,
            "noise": self.noise,
            "hidden": [3] if self.dueling else [],
        }
        soft = {"alpha": 0.8, "temperature": 0.4, "clip": -0.5} if self.soft else None
        return spec_of(head, target={"rule": self.rule, "munchausen": soft})


CASES = [
    Case("scalar", False, "target", noise=0.5, legal=True),
    Case("scalar", True, "double", noise=0.5),
    Case("c51", False, "double", legal=True),
    Case("c51", True, "target", noise=0.5),
    Case("qr", False, "target", legal=True),
    Case("qr", True, "double", noise=0.5),
    Case("iqn", False, "double", legal=True),
    Case("iqn", True, "target", noise=0.5),
    Case("c51", False, "vanilla"),
    Case("scalar", False, "target", soft=True, legal=True),
    Case("qr", True, "target", soft=True),
    Case("iqn", False, "target", noise=0.5, soft=True),
    Case("iqn", True, "target", noise=0.5, choice=6),
    Case("iqn", False, "double", choice=6),
]


def test_every_pair_of_head_shape_and_rule_occurs_in_the_cases() -> None:
    for left, right in combinations(("head", "dueling", "rule"), 2):
        pairs = {(getattr(case, left), getattr(case, right)) for case in CASES if case.rule != "vanilla"}
        assert pairs == set(product({pair[0] for pair in pairs}, {pair[1] for pair in pairs}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(choice) for choice in case))
def test_loss_and_gradient_equal_the_float64_oracle(case: Case) -> None:
    spec = case.spec()
    engine = engine_of(spec)
    params, target = random_weights(engine, 1), random_weights(engine, 2)
    batch, weight_B = random_batch(3, with_legal=case.legal), weights_of(4, BATCH)
    is_random = engine.is_random

    @jax.jit
    def run(params: Any, target: Any) -> Any:
        """The gradient, and all that is drawn for it: noise, then fractions of the target net and of the online net."""
        with naive.recorded() as noise:
            draws = jax.tree.map(lambda leaf: leaf[0], engine.draws(KEY, 1)) if is_random else None
        with naive.recorded() as of_target:
            outputs = engine.target_outputs(target, batch, draws)
        with naive.recorded() as of_online:
            engine.loss(engine.layout.unflatten(params), batch, outputs, weight_B, draws)
        return engine.gradient(params, batch, outputs, weight_B, draws), noise, of_target, of_online

    (gradient, loss, td_B, q), noise, *fractions = run(params, target)
    layers = [sum(shape) for name, (_, _, shape) in engine.layout.spans().items() if name.endswith("kernel_noise")]
    has_taus = case.head == "iqn"
    chosen = ["choose", "learn"] if case.rule != "target" else ["learn"]
    of_target_net = [] if case.rule == "vanilla" else ["target"]
    of_target_net += ["choose"] * (case.choice is not None and case.rule == "target") + ["target"] * case.soft
    passes = (of_target_net, chosen)
    target_draws, draws = [], []
    for drawn, taus, roles in zip((target_draws, draws), fractions, passes, strict=True):
        assert len(taus) == has_taus * len(roles), "nothing is drawn beside the fractions of each pass"
        for i, role in enumerate(roles):
            drawn += [np.asarray(taus[i], np.float64)] if has_taus else []
            if layers:
                row_T = np.asarray(noise[0], np.float64)[0, ["target", "choose", "learn"].index(role)]
                assert row_T.size == sum(layers)
                drawn += [part_T[None] for part_T in np.split(row_T, np.cumsum(layers)[:-1])]

    def net(vector: Any) -> naive.Net:
        spans = engine.layout.spans().items()
        named = {name: np.asarray(vector, np.float64)[a:b].reshape(shape) for name, (a, b, shape) in spans}
        return naive.Net(spec, named, ACTIONS)

    goals = naive.batch_target(
        spec, net(params), net(target), batch, draws if is_random else None, target_draws if is_random else None
    )
    assert target_draws == [], "the oracle has used all that was drawn"
    rest = draws if is_random else None

    def expected_loss(vector: Any) -> tuple[float, Any, float]:
        return naive.batch_loss(spec, net(vector), batch, goals, weight_B, rest)

    expected, expected_td, expected_q = expected_loss(params)
    np.testing.assert_allclose(loss, expected, rtol=2e-5)
    np.testing.assert_allclose(td_B, expected_td, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q, expected_q, rtol=1e-4, atol=1e-5)
    # The slope along a few directions within each array of weights, on average as large as that by one weight.
    start, slopes, random = np.asarray(params, np.float64), [], np.random.default_rng(5)
    for name, (a, b, _) in engine.layout.spans().items():
        for _ in range(DIRECTIONS):
            nudge = np.zeros(params.size)
            nudge[a:b] = random.normal(size=b - a)
            step = 1e-6 * nudge
            slopes.append((expected_loss(start + step)[0] - expected_loss(start - step)[0]) / 2e-6)
            along = np.asarray(gradient, np.float64) @ nudge
            np.testing.assert_allclose(along, slopes[-1], rtol=5e-4, atol=5e-5, err_msg=name)
    assert np.abs(slopes).max() > 0.05, "far larger than the tolerance"
    assert np.mean(np.abs(slopes) > 1e-4) > 0.5


def test_munchausens_bonus_is_clipped_and_scaled() -> None:
    """Taken by name: the batch holds actions on both sides of the clip."""
    spec = Case("scalar", False, "target", soft=True).spec()
    engine = engine_of(spec)
    target, batch = 2 * random_weights(engine, 2), random_batch(3)
    bonus_B = np.asarray(engine.target_outputs(target, batch).bonus_B)
    q_BA = np.asarray(engine.q_values(target, batch.s_tm1), np.float64)
    expected = [naive.munchausen_bonus(q_BA[b], batch.a_tm1[b], 0.8, 0.4, -0.5) for b in range(BATCH)]
    np.testing.assert_allclose(bonus_B, expected, rtol=1e-4, atol=1e-6)
    assert min(expected) == pytest.approx(-0.4)
    assert -0.4 < max(expected) < 0
    assert Munchausen() == Munchausen(alpha=0.9, temperature=0.03, clip=-1.0), "the published numbers"


# -- Q-values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_q_values_without_a_key_are_those_of_the_mean_weights(kind: str, dueling: bool) -> None:
    head = {**HEADS[kind], "dueling": dueling, "noise": 0.5}
    engine = engine_of(spec_of(head))
    params, obs_B = random_weights(engine, 1), random_batch(3).s_tm1
    net = naive.Net(engine.spec, engine.layout.to_named(params), ACTIONS)
    values_BAN, _ = net.apply(obs_B, "act")  # no draws: neither noise nor drawn fractions
    expected = np.stack([naive.q_of(engine.spec, values_AN) for values_AN in values_BAN])
    said = np.asarray(engine.estimate(engine.layout.unflatten(params), obs_B, Mode("act")).values)
    np.testing.assert_allclose(said.reshape(values_BAN.shape), values_BAN, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.q_values(params, obs_B), expected, rtol=1e-4, atol=1e-5)
    assert engine.greedy(params, obs_B).tolist() == expected.argmax(-1).tolist()
    noisy = engine.q_values(params, obs_B, KEY)
    assert np.abs(noisy - expected).max() > 1e-2


def test_fractions_are_drawn_per_sample_and_as_many_as_the_role_asks_for() -> None:
    engine = engine_of(spec_of(HEADS["iqn"]))
    tree, obs_B = engine.layout.unflatten(random_weights(engine, 1)), random_batch(3).s_tm1
    for role, count in (("learn", 4), ("target", 3), ("act", 5), ("choose", 3)):
        values, tau = engine.estimate(tree, obs_B, Mode(role, KEY))
        assert values.shape == (BATCH, ACTIONS, count)
        assert tau is not None
        assert tau.shape == (BATCH, count)
        assert len(set(np.asarray(tau).ravel().tolist())) == BATCH * count
        assert 0 <= tau.min() < tau.max() < 1
        even: Any = engine.estimate(tree, obs_B, Mode(role)).tau
        np.testing.assert_allclose(even, [[(i + 0.5) / count for i in range(count)]] * BATCH, rtol=1e-6)


def test_cosines_of_the_fractions_are_those_of_the_formula() -> None:
    x = np.concatenate([np.arange(65) / 2, weights_of(1, 10_000) * 20, [-63.0]]).astype(np.float32)
    np.testing.assert_allclose(cosines_of_pi(x), np.cos(np.pi * x.astype(np.float64)), atol=1e-6)


# -- noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", HEADS)
def test_acting_draws_noise_for_each_env_and_a_batch_has_one_in_common(kind: str, dueling: bool) -> None:
    engine = engine_of(spec_of({**HEADS[kind], "dueling": dueling, "noise": 0.5, "hidden": [4]}))
    named = engine.layout.to_named(random_weights(engine, 1))
    if kind == "iqn":  # take the fractions out of the network, so that noise alone tells rows apart
        named["head/embedding/dense_0/kernel"][:] = 0.0
        named["head/embedding/dense_0/bias"][:] = 1.0
    tree = engine.layout.unflatten(engine.layout.from_named(named))
    same_B = np.repeat(random_batch(3).s_tm1[:1], BATCH, axis=0)
    draws, seen = jax.tree.map(lambda leaf: leaf[0], engine.draws(KEY, 1)), []
    for role in ("learn", "target", "choose"):
        values = np.asarray(engine.estimate(tree, same_B, mode_of(role, draws)).values)
        np.testing.assert_allclose(values, np.broadcast_to(values[:1], values.shape), rtol=1e-5, atol=1e-6)
        seen.append(values[0].ravel()[0])
    assert len({round(float(value), 4) for value in seen}) == 3, "each pass has noise of its own"
    values = np.asarray(engine.estimate(tree, same_B, Mode("act", KEY)).values).reshape(BATCH, ACTIONS, -1)
    for i, j in combinations(range(BATCH), 2):
        assert np.abs(values[i] - values[j]).min() > 1e-5, "each env has noise of its own"
    if kind == "iqn":
        np.testing.assert_allclose(
            values, values[:, :, :1] * np.ones(values.shape), rtol=1e-5, err_msg="one noise for all fractions of an env"
        )


def test_noise_per_row_equals_the_factorised_formula() -> None:
    module, x_BI = dense_layers([3], None, activate_last=False, noise=0.5), weights_of(1, 4, 2)
    shapes = jax.eval_shape(module.init, KEY, x_BI)["dense_0"]
    layer = {name: weights_of(i, *leaf.shape) for i, (name, leaf) in enumerate(sorted(shapes.items()))}
    params = {"dense_0": layer}
    assert noise_size(params) == 2 + 3
    for rows in (4, 1):
        with naive.recorded() as draws:
            if rows == 4:
                ours = module.apply(params, x_BI, Mode("act", KEY))
            else:
                ours = module.apply(perturbed(params, factors(KEY, (1, 2 + 3))[0]), x_BI, Mode("learn", KEY))
        assert [d.shape for d in draws] == [(rows, 2 + 3)]
        for b in range(4):
            f = naive.factorised(np.asarray(draws[0], np.float64)[b if rows > 1 else 0])
            for o in range(3):
                expected = layer["bias"][o] + layer["bias_noise"][o] * f[2 + o]
                for i in range(2):
                    expected += x_BI[b, i] * (layer["kernel"][i, o] + layer["kernel_noise"][i, o] * f[i] * f[2 + o])
                np.testing.assert_allclose(ours[b, o], expected, rtol=1e-5, atol=1e-6)


def test_noise_begins_at_sigma_over_the_root_of_the_inputs() -> None:
    params = dense_layers([16, 7], "relu", activate_last=False, noise=0.4).init(KEY, np.zeros((1, 25)))
    for name, fan_in in (("dense_0", 25), ("dense_1", 16)):
        for part in ("kernel_noise", "bias_noise"):
            np.testing.assert_allclose(params[name][part], 0.4 / fan_in**0.5, rtol=1e-6)
        assert np.abs(params[name]["kernel"]).max() <= fan_in**-0.5


def test_every_batch_of_a_call_and_both_nets_draw_noise_of_their_own() -> None:
    """With one action, s_t = s_tm1 and equal nets, a TD error is the difference of two draws."""
    engine = engine_of(spec_of({"kind": "scalar", "noise": 0.5}), actions=1)
    noisy = random_weights(engine, 1)
    named = engine.layout.to_named(noisy)
    quiet = engine.layout.from_named({name: leaf * (not name.endswith("noise")) for name, leaf in named.items()})
    one = random_batch(3, 1, actions=1)
    batch = one._replace(s_t=one.s_tm1, r_t=0 * one.r_t, discount_t=0 * one.discount_t + 1)
    batches = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), batch)
    update, fresh = jax.jit(engine.update), engine.init(KEY)

    def td(params: Any, target: Any, seed: int) -> Any:
        state = fresh._replace(params=params, target=target)
        return np.asarray(update(state, batches, jnp.float32(0), None, jax.random.fold_in(KEY, seed))[1])

    np.testing.assert_allclose(td(quiet, quiet, 1), 0.0, atol=1e-6)
    for params, target in ((noisy, noisy), (quiet, noisy), (noisy, quiet)):
        first, again, other = (td(params, target, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first).max() > 1e-2
        assert np.abs(first[0] - first[1]).max() > 1e-2, "each batch has a draw of its own"
        assert np.abs(first - other).max() > 1e-2


# -- acting among legal actions -----------------------------------------------------------------------


def shares(actions: Any) -> Any:
    return np.bincount(np.asarray(actions), minlength=5) / len(actions)


LEGAL: dict[tuple[int, ...], int] = {(1, 1, 1, 1, 1): 5, (0, 1, 0, 1, 1): 3, (0, 0, 1, 0, 0): 1, (0, 0, 0, 0, 0): 5}


@pytest.mark.parametrize("legal", LEGAL)
def test_chance_falls_on_legal_actions_alone_and_on_each_as_often(legal: tuple[int, ...]) -> None:
    engine, rows = engine_of(spec_of(HEADS["scalar"]), actions=5), 8000
    q_NA = np.tile(np.array([5.0, 1.0, 3.0, 2.0, 4.0], np.float32), (rows, 1))
    q_NA = targets.legal_only(q_NA, np.tile(np.array(legal, bool), (rows, 1)), xp=np).astype(np.float32)
    among = np.array(legal) if any(legal) else np.ones(5)
    drawn = shares(engine.explore(q_NA, jnp.ones(rows), KEY, is_masked=True))
    np.testing.assert_array_equal(drawn[among == 0], 0.0)
    np.testing.assert_allclose(drawn[among > 0], 1 / LEGAL[legal], atol=0.025)
    best = shares(engine.explore(q_NA, jnp.zeros(rows), KEY, is_masked=True))
    assert best[np.argmax(np.where(among > 0, [5, 1, 3, 2, 4], -1))] == 1


BOLTZMANN = {"kind": "boltzmann", "temperature": 0.5}


@pytest.mark.parametrize(
    ("kind", "exploration"), [*((kind, {"epsilon": 0.5}) for kind in HEADS), ("scalar", BOLTZMANN), ("c51", BOLTZMANN)]
)
def test_no_env_ever_takes_an_illegal_action(kind: str, exploration: dict[str, Any]) -> None:
    engine, rows = engine_of(spec_of(HEADS[kind], exploration=exploration)), 500
    params, random = random_weights(engine, 1), np.random.default_rng(0)
    obs_N = random.normal(size=(rows, OBS)).astype(np.float32)
    legal_NA: Any = random.random((rows, ACTIONS)) < 0.5
    legal_NA[~legal_NA.any(-1), 1] = True
    actions = np.asarray(engine.act(params, obs_N, jnp.full(rows, 0.5), KEY, legal_NA))
    assert legal_NA[np.arange(rows), actions].all()
    q_NA = np.where(legal_NA, engine.q_values(params, obs_N), -np.inf)
    np.testing.assert_array_equal(engine.greedy(params, obs_N, legal_NA), q_NA.argmax(-1))
    assert not legal_NA[np.arange(rows), np.asarray(engine.greedy(params, obs_N))].all()


# -- normalization ------------------------------------------------------------------------------------

NORMAL = {"layer": torch.nn.LayerNorm, "batch": torch.nn.BatchNorm1d}


def named_leaves(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(part.key for part in path): np.asarray(leaf) for path, leaf in leaves}


@pytest.mark.parametrize("role", ["learn", "act", "target"])
@pytest.mark.parametrize("kind", NORMAL)
def test_normalization_is_pytorchs_forwards_and_backwards(kind: str, role: str) -> None:
    module = mlp(Mlp(hidden=(5,), activation="tanh", normalization=kind))  # type: ignore[arg-type]
    x_BI, mix_BO = (
        np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in ((0, (7, 4)), (1, (7, 5)))
    )
    shapes = jax.eval_shape(module.init, KEY, x_BI)
    params = jax.tree.map(lambda leaf: weights_of(leaf.size, *leaf.shape), shapes)
    ours = named_leaves(params["layers"])
    assert "dense_0/bias" not in ours, "the offset is bias enough"

    def mixed(params: Any) -> Any:
        out = module.apply(params, x_BI, Mode(role))
        return jnp.sum(out * mix_BO), out

    slopes, out = jax.jit(jax.grad(mixed, has_aux=True))(params)
    slopes = named_leaves(slopes["layers"])

    norm: Any = NORMAL[kind](5)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(ours["norm_0/scale"]))
        norm.bias.copy_(torch.tensor(ours["norm_0/offset"]))
        if kind == "batch":
            norm.running_mean.copy_(torch.tensor(ours["norm_0/running_mean"]))
            norm.running_var.copy_(torch.tensor(ours["norm_0/running_variance"]))
    norm.train(role == "learn")
    kernel = torch.tensor(ours["dense_0/kernel"], requires_grad=True)
    theirs = torch.tanh(norm(torch.tensor(x_BI) @ kernel))
    (theirs * torch.tensor(mix_BO)).sum().backward()
    np.testing.assert_allclose(out, theirs.detach(), rtol=1e-4, atol=1e-5)
    for name, slope in {
        "dense_0/kernel": kernel.grad,
        "norm_0/scale": norm.weight.grad,
        "norm_0/offset": norm.bias.grad,
    }.items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-3, atol=2e-5, err_msg=name)
    if kind == "batch" and role == "learn":  # the "slope" of a running average is the step it takes
        for name, after in {"running_mean": norm.running_mean, "running_variance": norm.running_var}.items():
            np.testing.assert_allclose(ours[f"norm_0/{name}"] - slopes[f"norm_0/{name}"], after, rtol=1e-5)


def test_batch_norm_of_images_measures_each_channel() -> None:
    module = cnn(Cnn(kind="cnn", channels=(4,), kernels=(2,), strides=(1,), hidden=(), normalization="batch"))
    images = np.random.default_rng(0).normal(size=(3, 5, 4, 2)).astype(np.float32)
    params = module.init(KEY, images)
    assert set(params["conv"]["conv_0"]) == {"kernel"}
    norm = torch.nn.BatchNorm2d(4)
    kernel = torch.tensor(np.asarray(params["conv"]["conv_0"]["kernel"])).permute(3, 2, 0, 1)
    theirs = torch.relu(norm(torch.nn.functional.conv2d(torch.tensor(images).permute(0, 3, 1, 2), kernel)))
    ours = module.apply(params, images, Mode("learn"))
    np.testing.assert_allclose(ours, theirs.detach().permute(0, 2, 3, 1).flatten(1), rtol=1e-4, atol=1e-5)


class Normed(NamedTuple):
    """An engine with batch normalization, its compiled update and a state with nets and averages that differ."""

    engine: JaxEngine
    state: LearnerState
    update: Any
    is_running: Any


def normed(**more: Any) -> Normed:
    torso = {"hidden": [5], "activation": "tanh", "normalization": "batch"}
    engine = engine_of(spec_of(HEADS["scalar"], torso, **more))
    state = engine.init(KEY)
    is_running = np.zeros(engine.layout.size, bool)
    for name, (start, end, _) in engine.layout.spans().items():
        is_running[start:end] = "running_" in name
    assert is_running.sum() == 10
    start, other = (
        np.where(is_running, weights_of(seed, is_running.size), random_weights(engine, seed)) for seed in (1, 2)
    )
    return Normed(engine, state._replace(params=start, target=other), jax.jit(engine.update), is_running)


def forward(engine: JaxEngine, vector: Any, x_BI: Any, is_learning: bool) -> tuple[Any, dict[str, Any]]:
    """Q-values of the network with batch normalization in float64, and what the batch measures."""
    w = {
        name.rpartition("/")[2] + name.split("/")[0][0]: v.astype(np.float64)
        for name, v in engine.layout.to_named(vector).items()
    }
    z = x_BI @ w["kernelt"]
    seen = {"mean": z.mean(0), "variance": z.var(0, ddof=1)}
    mean, variance = (z.mean(0), z.var(0)) if is_learning else (w["running_meant"], w["running_variancet"])
    features = np.tanh((z - mean) / np.sqrt(variance + 1e-5) * w["scalet"] + w["offsett"])
    return features @ w["kernelh"] + w["biash"], seen


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd, clipped": {"kind": "sgd", "clip": 0.01},
    "adam": {"kind": "adam", "eps": 1e-3},
    "adamw, decayed": {"kind": "adamw", "weight_decay": 0.3, "clip": 0.01},
}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def batch_normed(request: pytest.FixtureRequest) -> Normed:
    return normed(optimizer=OPTIMIZERS[request.param], target={"rule": "double"})


def test_running_averages_follow_what_is_measured_whatever_the_optimiser(batch_normed: Normed) -> None:
    engine, state, update, is_running = batch_normed
    batches = random_batch(3, 1)
    after, td_KB, sums = update(state, batches, jnp.float32(0.02))
    batch = jax.tree.map(lambda leaf: leaf[0], batches)
    q_BA, seen = forward(engine, state.params, batch.s_tm1, is_learning=True)

    # The batch's own statistics while learning, the running ones of each net elsewhere.
    chosen = forward(engine, state.params, batch.s_t, is_learning=False)[0].argmax(-1)
    value_B = forward(engine, state.target, batch.s_t, is_learning=False)[0][np.arange(BATCH), chosen]
    expected_td = batch.r_t + batch.discount_t * value_B - q_BA[np.arange(BATCH), batch.a_tm1]
    np.testing.assert_allclose(td_KB[0], expected_td, rtol=1e-4, atol=1e-5)

    before, now = (engine.layout.to_named(vector) for vector in (state.params, after.params))
    for name, measured in seen.items():
        path = f"torso/layers/norm_0/running_{name}"
        np.testing.assert_allclose(now[path], 0.9 * before[path] + 0.1 * measured, rtol=1e-5, atol=1e-6)

    gradient, *_ = jax.jit(engine.gradient)(state.params, batch, engine.target_outputs(state.target, batch))
    norm = np.linalg.norm(np.asarray(gradient)[~is_running])
    assert np.linalg.norm(gradient) > 1.01 * norm, "the averages would count"
    np.testing.assert_allclose(sums[METRICS.index("grad_norm")], norm, rtol=1e-5)
    if engine.spec.optimizer.kind == "sgd":
        moved = (state.params - after.params)[~is_running]
        np.testing.assert_allclose(moved, 0.02 * 0.01 / norm * gradient[~is_running], rtol=1e-3, atol=1e-7)
    for moment in jax.tree.leaves(after.optimizer):
        if moment.shape:
            np.testing.assert_array_equal(np.asarray(moment)[is_running], 0.0)
            assert np.abs(moment).max() > 0


def test_a_bad_batch_leaves_running_averages_as_they_were(batch_normed: Normed) -> None:
    _, state, update, _ = batch_normed
    for field in ("r_t", "s_tm1"):
        batches = random_batch(3, 1)
        getattr(batches, field).reshape(-1)[0] = np.nan
        after, _, _ = update(state, batches, jnp.float32(0.02))
        np.testing.assert_array_equal(after.params, state.params)
        assert int(after.skipped) == 1


def test_the_target_net_takes_over_running_averages_with_the_weights(batch_normed: Normed) -> None:
    engine, state, _, _ = batch_normed
    np.testing.assert_array_equal(engine.move_target(state, jnp.int32(1)).target, state.params)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_running_averages_move_as_far_in_half_precision(precision: str) -> None:
    engine, state, update, _ = normed(precision=precision)
    batches = random_batch(3, 1)
    after, _, _ = update(state, batches, jnp.float32(0.02))
    _, seen = forward(engine, state.params, batches.s_tm1[0], is_learning=True)
    before, now = (engine.layout.to_named(vector) for vector in (state.params, after.params))
    for name, measured in seen.items():
        path = f"torso/layers/norm_0/running_{name}"
        np.testing.assert_allclose(now[path], 0.9 * before[path] + 0.1 * measured, rtol=1e-2, atol=2e-3)


# -- images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "width", "blocks"), [(7, 6, 2), (8, 9, 1)])
def test_the_impala_torso_is_its_pytorch_twin(height: int, width: int, blocks: int) -> None:
    module = impala(Impala(kind="impala", channels=(3, 4), blocks=blocks, hidden=(5,)))
    images = np.random.default_rng(0).normal(size=(2, height, width, 2)).astype(np.float32)
    shapes = jax.eval_shape(module.init, KEY, images)
    random = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: random.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    assert set(params["stages"]["stage_0"]) == {"conv", *(f"block_{b}_{h}" for b in range(blocks) for h in (0, 1))}

    def conv(x: Any, layer: Any) -> Any:
        kernel, bias = torch.tensor(layer["kernel"]).permute(3, 2, 0, 1), torch.tensor(layer["bias"])
        return torch.nn.functional.conv2d(x, kernel, bias, padding=1)

    def pool(x: Any) -> Any:
        pads: list[int] = []
        for size in (x.shape[3], x.shape[2]):
            missing = max((-(-size // 2) - 1) * 2 + 3 - size, 0)
            pads += [missing // 2, missing - missing // 2]
        return torch.nn.functional.max_pool2d(torch.nn.functional.pad(x, pads, value=-torch.inf), 3, 2)

    x = torch.tensor(images).permute(0, 3, 1, 2)
    for i in range(2):
        stage = params["stages"][f"stage_{i}"]
        x = pool(conv(x, stage["conv"]))
        for b in range(blocks):
            x = x + conv(torch.relu(conv(torch.relu(x), stage[f"block_{b}_0"])), stage[f"block_{b}_1"])
    flat = torch.relu(x).permute(0, 2, 3, 1).flatten(1)
    layer = params["layers"]["dense_0"]
    theirs = torch.relu(flat @ torch.tensor(layer["kernel"]) + torch.tensor(layer["bias"]))
    ours = jax.jit(module.apply)(params, images)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.mean(np.asarray(ours) > 0) > 0.2


# -- first weights ------------------------------------------------------------------------------------


def layers_of(scheme: str) -> dict[str, tuple[Any, float]]:
    """Layers by the scheme, as matrices (inputs, outputs) beside the gain they should have."""
    spec = spec_of({"kind": "scalar", "hidden": [60]}, {"hidden": [200]})
    spec = spec.model_copy(update={"network": spec.network.model_copy(update={"init": scheme})})
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((100,), np.float32), 50)
    weights = engine.layout.to_named(jax.jit(engine.init)(KEY).params)
    conv = cnn(Cnn(kind="cnn", channels=(40,), kernels=(3,), strides=(1,), hidden=()), scheme)
    conv_layer = jax.jit(conv.init)(KEY, np.zeros((1, 5, 5, 8), np.float32))["conv"]["conv_0"]
    named = {name: weights[f"{name}/kernel"] for name in ("torso/layers/dense_0", "head/dense_0", "head/dense_1")}
    for name in named:
        np.testing.assert_array_equal(weights[f"{name}/bias"], 0.0)
    np.testing.assert_array_equal(conv_layer["bias"], 0.0)
    named["conv"] = np.asarray(conv_layer["kernel"]).reshape(-1, 40)
    return {name: (kernel, 1.0 if name == "head/dense_1" else 2**0.5) for name, kernel in named.items()}


def test_he_weights_are_normal_with_a_variance_of_two_over_the_inputs() -> None:
    for name, (kernel, gain) in layers_of("he").items():
        assert kernel.var() * kernel.shape[0] == pytest.approx(gain**2, rel=0.1), name
        kurtosis = np.mean(kernel**4) / np.mean(kernel**2) ** 2
        assert kurtosis == pytest.approx(3.0, rel=0.15), "a normal, not a uniform (1.8)"


def test_orthogonal_weights_are_orthogonal_with_the_gain() -> None:
    for name, (kernel, gain) in layers_of("orthogonal").items():
        small = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.T
        np.testing.assert_allclose(small.T @ small, gain**2 * np.eye(small.shape[1]), atol=1e-5, err_msg=name)


# -- parts of a batch, precision ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["scalar", "c51", "qr"])
def test_a_batch_in_parts_makes_the_step_of_the_whole(kind: str) -> None:
    batches, weight_KB = random_batch(3, 1, with_legal=True), weights_of(4, 1, BATCH)
    results = []
    for accumulate in (1, 3):
        engine = engine_of(spec_of(HEADS[kind], optimizer={"accumulate": accumulate}))
        state = engine.init(KEY)._replace(params=random_weights(engine, 1), target=random_weights(engine, 2))
        results.append(jax.jit(engine.update)(state, batches, jnp.float32(0.5), weight_KB))
    (whole, whole_td, whole_sums), (parts, parts_td, parts_sums) = results
    np.testing.assert_allclose(parts.params, whole.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(parts_td, whole_td, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(parts_sums, whole_sums, rtol=1e-5)
    assert np.abs(whole.params - random_weights(engine, 1)).max() > 1e-2


@pytest.mark.parametrize("kind", ["scalar", "c51"])
def test_half_precision_makes_nearly_the_same_step_on_float32_weights(kind: str) -> None:
    """Tolerances are of the step's length: bfloat16 keeps 8 bits of a number, float16 11."""
    batches, steps = random_batch(3, 1), {}
    for precision in ("float32", "bfloat16", "float16"):
        engine = engine_of(spec_of(HEADS[kind], precision=precision))
        start = random_weights(engine, 1)
        state = engine.init(KEY)._replace(params=jnp.asarray(start), target=random_weights(engine, 2))
        after, td_KB, _ = jax.jit(engine.update)(state, batches, jnp.float32(1.0))
        assert {leaf.dtype for leaf in (after.params, after.target, td_KB)} == {np.dtype(np.float32)}
        assert int(after.updates) == 1
        steps[precision] = np.asarray(after.params) - start
    for precision, tolerance in (("bfloat16", 0.05), ("float16", 0.01)):
        error = np.linalg.norm(steps[precision] - steps["float32"]) / np.linalg.norm(steps["float32"])
        assert 1e-6 < error < tolerance, precision


@pytest.fixture(scope="module")
def half() -> tuple[LearnerState, Any]:
    engine = engine_of(spec_of(HEADS["scalar"], precision="float16", loss={"kind": "mse"}))
    state = engine.init(KEY)
    return state._replace(params=random_weights(engine, 1), target=random_weights(engine, 2)), jax.jit(engine.update)


def scaled(state: LearnerState, factor: float, held: int = 0) -> LearnerState:
    return state._replace(loss_scale=LossScale(jnp.float32(factor), jnp.int32(held)))


def test_an_overflow_halves_the_loss_scale_and_touches_nothing_else(half: Any) -> None:
    state, update = half
    batches = random_batch(3, 4)
    batches.r_t[:2] = 20.0  # a slope of 40 x 2^15 is beyond float16's 65504, one of 40 x 2^10 is not
    assert float(state.loss_scale.factor) == 2.0**15
    one, _, sums = update(state, jax.tree.map(lambda leaf: leaf[:1], batches), jnp.float32(0.01))
    np.testing.assert_array_equal(one.params, state.params)
    assert sums.tolist() == [0.0] * len(METRICS)
    assert (float(one.loss_scale.factor), int(one.loss_scale.held)) == (2.0**14, 0)
    assert (int(one.updates), int(one.skipped), int(one.skipped_in_a_row)) == (0, 1, 0), "no sign of divergence"
    for _ in range(6):
        one, _, _ = update(one, jax.tree.map(lambda leaf: leaf[:1], batches), jnp.float32(0.01))
    assert int(one.updates) >= 1, "the scale has come down to what this loss can bear"
    assert np.abs(one.params - state.params).max() > 0


def test_the_loss_scale_doubles_after_its_number_of_good_updates(half: Any) -> None:
    state, update = half
    good = random_batch(3, 1)
    due, _, _ = update(scaled(state, 4.0, UPDATES_TO_DOUBLE_IT - 1), good, jnp.float32(0.01))
    assert (float(due.loss_scale.factor), int(due.loss_scale.held)) == (8.0, 0)
    early, _, _ = update(scaled(state, 4.0, UPDATES_TO_DOUBLE_IT - 2), good, jnp.float32(0.01))
    assert (float(early.loss_scale.factor), int(early.loss_scale.held)) == (4.0, UPDATES_TO_DOUBLE_IT - 1)
    assert UPDATES_TO_DOUBLE_IT == 2000
    np.testing.assert_allclose(due.params, early.params, rtol=1e-6)


def test_the_loss_scale_does_not_grow_without_end() -> None:
    factor, held = 2.0**23, UPDATES_TO_DOUBLE_IT - 1
    for _ in range(5):  # as long as gradients are zero nothing overflows
        factor, _ = (float(each) for each in rescaled(np.float32(factor), np.int32(held), np.bool_(True), xp=np))
    assert factor == 2.0**24


def test_the_loss_scale_is_taken_out_of_the_gradient_again(half: Any) -> None:
    state, update = half
    good = random_batch(3, 1)
    results = [update(scaled(state, factor), good, jnp.float32(1.0)) for factor in (1.0, 256.0)]
    np.testing.assert_allclose(results[0][0].params, results[1][0].params, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(results[0][2], results[1][2], rtol=2e-3)


def test_only_an_overflow_at_scale_one_counts_towards_divergence(half: Any) -> None:
    state, update = half
    bad = random_batch(3, 1)
    bad.r_t[:] = np.nan
    state, seen = scaled(state, 4.0, 7), []
    for _ in range(4):
        state, _, _ = update(state, bad, jnp.float32(0.01))
        seen.append((float(state.loss_scale.factor), int(state.skipped), int(state.skipped_in_a_row)))
    assert seen == [(2.0, 1, 0), (1.0, 2, 0), (1.0, 3, 1), (1.0, 4, 2)]
    state, _, _ = update(state, random_batch(3, 1), jnp.float32(0.01))
    assert (int(state.skipped_in_a_row), int(state.loss_scale.held)) == (0, 1)


# -- several devices ----------------------------------------------------------------------------------

ON_TWO_DEVICES = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
sys.path.insert(0, sys.argv[1])
import test_family as family
assert len(jax.devices()) == 2
kind, torso, results = sys.argv[2], json.loads(sys.argv[3]), []
for devices in (1, 2):
    spec = family.spec_of(family.HEADS[kind], torso, devices=devices, optimizer={"kind": "adam", "eps": 1e-3})
    engine = family.engine_of(spec)
    params, target = (jnp.abs(family.random_weights(engine, seed)) for seed in (1, 2))
    state = engine.init(family.KEY)._replace(params=params, target=target)
    args = family.random_batch(3, 3, with_legal=True), jnp.float32(0.02), family.weights_of(4, 3, family.BATCH)
    compiled = jax.jit(engine.update).lower(state, *args).compile()
    results.append(compiled(state, *args))
after = results[1][0]
said = {
    "one": [np.asarray(x).tolist() for x in (results[0][0].params, *results[0][1:])],
    "two": [np.asarray(x).tolist() for x in (after.params, *results[1][1:])],
    "moved": float(jnp.abs(results[0][0].params - params).max()),
    "replicated": [bool(leaf.sharding.is_fully_replicated) for leaf in jax.tree.leaves(after)],
    "devices": [len(leaf.sharding.device_set) for leaf in jax.tree.leaves(after)],
    "sums over devices": "all-reduce" in compiled.as_text(),
}
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("kind", "torso"),
    [
        ("scalar", {"hidden": [4], "activation": "tanh", "normalization": "batch"}),
        pytest.param("c51", None, marks=pytest.mark.heavy),
    ],
    ids=["scalar, batch norm", "c51"],
)
def test_two_devices_make_the_step_of_one(kind: str, torso: dict[str, Any] | None) -> None:
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    env |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as this module does
    args = [sys.executable, "-c", ON_TWO_DEVICES, str(Path(__file__).parent), kind, json.dumps(torso)]
    answer = subprocess.run(args, capture_output=True, text=True, timeout=300, env=env)
    assert answer.returncode == 0, answer.stderr[-2000:]
    said = json.loads(answer.stdout.splitlines()[-1])
    for one, two in zip(said["one"], said["two"], strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=2e-6)
    assert said["moved"] > 1e-3
    assert all(said["replicated"]), "state is whole on each device"
    assert set(said["devices"]) == {2}
    assert said["sums over devices"], "the batch is split, not done twice"


def test_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match=r"devices is 2, but this machine has 1; use at most that many"):
        engine_of(spec_of(HEADS["scalar"], devices=2))
