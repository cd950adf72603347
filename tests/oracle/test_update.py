"""K gradient steps of the engine against a float64 reference with gradients by finite differences."""

from itertools import combinations, product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.engines.jax.optimizers import gradient_transform
from hotloop.experience import METRICS, Item
from hotloop.spec import Optimizer, Spec
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

OBS, ACTIONS, BATCH = 3, 3, 6
RATE = 0.02


class Case(NamedTuple):
    """One combination of the choices that meet in an update."""

    rule: str
    loss: str
    head: str
    optimizer: str
    clip: float | None

    def spec(self, **more: Any) -> Spec:
        is_dueling = self.head == "dueling"
        optimizer = {"kind": self.optimizer, "clip": self.clip, "eps": 1e-3}  # float32 cannot follow a tiny eps
        if self.optimizer == "adamw":
            optimizer["weight_decay"] = 0.3
        if self.optimizer in ("rmsprop", "sgd"):
            optimizer["momentum"] = 0.8
        return parse_spec(
            {
                "network": {
                    "torso": {"hidden": [5], "activation": "tanh"},
                    "head": {"dueling": True, "hidden": [4]} if is_dueling else {"kind": "scalar"},
                },
                "target": {"rule": self.rule},
                "loss": {"kind": self.loss, "delta": 0.7},
                "optimizer": optimizer,
                "replay": {"batch_size": BATCH},
                **more,
            }
        )


TIGHT, LOOSE = 0.1, 50.0  # a clip that is always at work here, and one that never is
CASES = [
    Case("vanilla", "mse", "scalar", "adam", None),
    Case("vanilla", "huber", "dueling", "rmsprop", TIGHT),
    Case("vanilla", "mse", "dueling", "sgd", LOOSE),
    Case("target", "huber", "dueling", "adamw", None),
    Case("target", "mse", "scalar", "adam", TIGHT),
    Case("target", "huber", "scalar", "rmsprop", LOOSE),
    Case("double", "mse", "dueling", "sgd", None),
    Case("double", "huber", "scalar", "adamw", TIGHT),
    Case("double", "mse", "scalar", "adam", LOOSE),
]


class Trained(NamedTuple):
    """An engine, a state whose target net differs from its online net, and its compiled update."""

    engine: JaxEngine
    state: LearnerState
    update: Any


def build(spec: Spec) -> Trained:
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((OBS,), np.float32), ACTIONS)
    state, other = engine.init(jax.random.key(1)), engine.init(jax.random.key(2))
    return Trained(engine, state._replace(target=other.target), jax.jit(engine.update))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(str(choice) for choice in case))
def case(request: pytest.FixtureRequest) -> tuple[Case, Trained]:
    return request.param, build(request.param.spec())


@pytest.fixture(scope="module")
def adam() -> Trained:
    """One ordinary engine for the tests that need no particular choices."""
    return build(Case("double", "huber", "dueling", "adam", 10.0).spec())


# -- the update ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 4])
def test_an_update_equals_the_float64_reference(case: tuple[Case, Trained], steps: int) -> None:
    choices, (engine, state, update) = case
    batches = random_batches(steps)

    new, td_KB, sums = update(state, batches, jnp.float32(RATE))

    expected = Reference(choices, engine, state).update(batches, RATE)
    np.testing.assert_allclose(td_KB, expected["td"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(new.params, expected["params"], rtol=1e-5, atol=2e-6)
    for name in ("loss", "grad_norm", "q"):
        np.testing.assert_allclose(sums[METRICS.index(name)], sum(expected[name]), rtol=1e-5, err_msg=name)
    assert sums[METRICS.index("applied")] == steps
    assert np.abs(new.params - state.params).max() > 1e-3, "the step is far larger than the tolerance"
    np.testing.assert_array_equal(new.target, state.target)
    assert (int(new.updates), int(new.skipped), int(new.skipped_in_a_row)) == (steps, 0, 0)
    assert 1.5 * TIGHT < min(expected["grad_norm"]) <= max(expected["grad_norm"]) < LOOSE


def test_every_pair_of_rule_loss_head_and_clip_occurs_in_the_cases() -> None:
    columns = [[getattr(case, name) for case in CASES] for name in ("rule", "loss", "head", "clip")]
    for left, right in combinations(columns, 2):
        assert set(zip(left, right, strict=True)) == set(product(left, right))


def test_four_updates_in_one_call_equal_four_calls(case: tuple[Case, Trained]) -> None:
    """So the targets of all batches, which one call computes first, equal those computed batch by batch."""
    _, (_, state, update) = case
    batches = random_batches(4)
    at_once, td_KB, sums = update(state, batches, jnp.float32(RATE))
    one_by_one, tds, totals = state, [], np.zeros(len(METRICS))
    for k in range(4):
        batch = jax.tree.map(lambda leaf: leaf[k : k + 1], batches)  # noqa: B023
        one_by_one, td, each = update(one_by_one, batch, jnp.float32(RATE))
        tds.append(td[0])
        totals += each
    np.testing.assert_allclose(td_KB, np.stack(tds), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(at_once.params, one_by_one.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, totals, rtol=1e-5)


def test_a_terminal_transition_is_pulled_towards_its_reward_alone(adam: Trained) -> None:
    batches = random_batches(1)._replace(discount_t=np.zeros((1, BATCH), np.float32))
    _, td_KB, _ = adam.update(adam.state, batches, jnp.float32(RATE))
    elsewhere = batches._replace(s_t=batches.s_t + 5.0)
    _, td_elsewhere_KB, _ = adam.update(adam.state, elsewhere, jnp.float32(RATE))
    np.testing.assert_array_equal(td_KB, td_elsewhere_KB)
    q_BA = np.asarray(adam.engine.q_values(adam.state.params, batches.s_tm1[0]))
    np.testing.assert_allclose(
        td_KB[0], batches.r_t[0] - q_BA[np.arange(BATCH), batches.a_tm1[0]], rtol=1e-5, atol=1e-6
    )


# -- optimisers ---------------------------------------------------------------------------------------

OPTIMIZERS = {
    "adam": ({"kind": "adam"}, torch.optim.Adam, {}),
    "adam with other betas": (
        {"kind": "adam", "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},
        torch.optim.Adam,
        {"betas": (0.5, 0.9), "eps": 1e-3},
    ),
    "adamw": ({"kind": "adamw", "weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw without decay": ({"kind": "adamw"}, torch.optim.AdamW, {"weight_decay": 0.0}),
    "rmsprop": ({"kind": "rmsprop"}, torch.optim.RMSprop, {}),
    "rmsprop with momentum": (
        {"kind": "rmsprop", "decay": 0.95, "eps": 0.01, "momentum": 0.9},
        torch.optim.RMSprop,
        {"alpha": 0.95, "eps": 0.01, "momentum": 0.9},
    ),
    "sgd": ({"kind": "sgd"}, torch.optim.SGD, {}),
    "sgd with momentum": ({"kind": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_takes_pytorchs_steps(name: str) -> None:
    fields, theirs, arguments = OPTIMIZERS[name]
    random = np.random.default_rng(0)
    start, slope = random.normal(size=30).astype(np.float32), random.uniform(0.1, 3.0, 30).astype(np.float32)
    noise = random.normal(size=(12, 30)).astype(np.float32)
    rates = [0.02] * 6 + [0.005] * 6  # a schedule that drops half-way

    weights = torch.nn.Parameter(torch.from_numpy(start.copy()))
    torch_optimizer = theirs([weights], lr=rates[0], **arguments)
    rule = gradient_transform(Optimizer.model_validate(fields))
    params, state = jnp.asarray(start), rule.init(jnp.asarray(start))
    for rate, disturbance in zip(rates, noise, strict=True):
        weights.grad = torch.from_numpy(slope) * weights.detach() + torch.from_numpy(disturbance)
        torch_optimizer.param_groups[0]["lr"] = rate
        torch_optimizer.step()
        step, state = rule.update(slope * params + disturbance, state, params)
        params = params - rate * step
        np.testing.assert_allclose(params, weights.detach().numpy(), rtol=1e-5, atol=2e-6)
    assert np.abs(params - start).min() > 1e-4


# -- the NaN guard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["r_t", "discount_t", "s_tm1"])
def test_a_batch_that_is_not_finite_leaves_no_trace_but_a_count(adam: Trained, field: str, bad: float) -> None:
    before, _, _ = adam.update(adam.state, random_batches(1), jnp.float32(RATE))
    batches = random_batches(1, seed=1)
    getattr(batches, field).reshape(-1)[0] = bad

    after, _, sums = adam.update(before, batches, jnp.float32(RATE))

    for part in ("params", "target", "optimizer"):
        assert_same_bits(getattr(after, part), getattr(before, part))
    assert (int(after.updates), int(after.skipped), int(after.skipped_in_a_row)) == (1, 1, 1)
    assert sums.tolist() == [0.0] * len(METRICS), "a skipped update is in no average"


def test_a_loss_that_overflows_is_skipped() -> None:
    _, state, update = build(Case("target", "mse", "scalar", "sgd", None).spec())
    batches = random_batches(1)
    batches.r_t[:] = 1e30  # finite, but its square is not
    after, _, _ = update(state, batches, jnp.float32(RATE))
    assert_same_bits(after.params, state.params)
    assert int(after.skipped) == 1


def test_bad_batches_in_a_row_are_counted_across_calls_until_a_good_one(adam: Trained) -> None:
    state, seen = adam.state, []
    for is_good in [False, False, True, False, False, False, True, True]:
        state, _, _ = adam.update(state, random_batches(1) if is_good else bad_batches(1), jnp.float32(RATE))
        seen.append((int(state.updates), int(state.skipped), int(state.skipped_in_a_row)))
    assert seen == [(0, 1, 1), (0, 2, 2), (1, 2, 0), (1, 3, 1), (1, 4, 2), (1, 5, 3), (2, 5, 0), (3, 5, 0)]


@pytest.mark.parametrize(
    ("goods", "in_a_row"), [((1, 0, 1, 1), 0), ((1, 1, 0, 0), 2), ((0, 0, 1, 0), 1), ((0, 0, 0, 0), 4)]
)
def test_only_the_bad_batches_of_a_call_are_skipped(adam: Trained, goods: tuple[int, ...], in_a_row: int) -> None:
    batches = random_batches(4)
    kept = [k for k in range(4) if goods[k]]
    batches.r_t[[k for k in range(4) if not goods[k]], 2] = np.nan
    after, td_KB, sums = adam.update(adam.state, batches, jnp.float32(RATE))

    expected = adam.state
    for k in kept:
        batch = jax.tree.map(lambda leaf: leaf[k : k + 1], batches)  # noqa: B023
        expected, _, _ = adam.update(expected, batch, jnp.float32(RATE))
    np.testing.assert_allclose(after.params, expected.params, rtol=1e-5, atol=1e-6)
    assert (int(after.updates), int(after.skipped), int(after.skipped_in_a_row)) == (len(kept), 4 - len(kept), in_a_row)
    assert sums[METRICS.index("applied")] == len(kept)
    assert np.isfinite(sums).all()
    assert [bool(np.isfinite(td_KB[k]).all()) for k in range(4)] == [bool(good) for good in goods]


# -- the target net -----------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [0, 1, 3])
@pytest.mark.parametrize("tau", [1.0, 0.25, 0.005])
def test_the_target_net_moves_as_often_as_asked(tau: float, times: int) -> None:
    engine, state, _ = build(
        Case("target", "huber", "scalar", "adam", None).spec(target={"rule": "target", "tau": tau})
    )
    moved = jax.jit(engine.move_target)(state, jnp.int32(times))

    online, expected = np.asarray(state.params, np.float64), np.asarray(state.target, np.float64)
    for _ in range(times):
        expected = (1 - tau) * expected + tau * online
    np.testing.assert_allclose(moved.target, expected, rtol=2e-6, atol=1e-7)
    if times == 0:
        assert_same_bits(moved.target, state.target)
    if times and tau == 1.0:
        assert_same_bits(moved.target, state.params)
    assert_same_bits(moved._replace(target=state.target), state)


def test_vanilla_dqn_has_no_target_net() -> None:
    engine, _, _ = build(Case("vanilla", "huber", "scalar", "adam", None).spec())
    state = engine.init(jax.random.key(0))
    assert state.target.size == 0
    assert engine.move_target(state, jnp.int32(1)).target.size == 0


def test_the_target_net_starts_as_a_copy_and_weights_depend_on_the_key(adam: Trained) -> None:
    first, again, other = (adam.engine.init(jax.random.key(seed)) for seed in (5, 5, 6))
    assert_same_bits(first, again)
    assert_same_bits(first.target, first.params)
    assert np.mean(first.params == other.params) < 0.01


# -- acting -------------------------------------------------------------------------------------------


def test_epsilon_is_the_share_of_uniform_actions_of_each_env(adam: Trained) -> None:
    engine, params = adam.engine, adam.state.params
    obs = np.random.default_rng(3).normal(size=(1, OBS)).astype(np.float32)
    best = int(engine.greedy(params, obs)[0])
    assert best == int(np.argmax(engine.q_values(params, obs)))
    eps = np.repeat(np.array([0.0, 0.3, 1.0], np.float32), 6000)
    actions = np.asarray(jax.jit(engine.act)(params, np.repeat(obs, eps.size, 0), eps, jax.random.key(0)))
    for chunk, chance in zip(actions.reshape(3, -1), (0.0, 0.3, 1.0), strict=True):
        share = np.bincount(chunk, minlength=ACTIONS) / chunk.size
        expected = np.full(ACTIONS, chance / ACTIONS)
        expected[best] += 1 - chance
        np.testing.assert_allclose(share, expected, atol=0.025 if chance else 0)


def test_boltzmann_draws_actions_by_softmax_of_q_over_temperature() -> None:
    spec = Case("target", "huber", "scalar", "adam", None).spec(exploration={"kind": "boltzmann"})
    engine, state, _ = build(spec)
    obs = np.random.default_rng(3).normal(size=(1, OBS)).astype(np.float32)
    q_A = np.asarray(engine.q_values(state.params, obs)[0], np.float64)
    for temperature in (0.1, 0.5):
        actions = jax.jit(engine.act)(
            state.params, np.repeat(obs, 8000, 0), np.full(8000, temperature, np.float32), jax.random.key(0)
        )
        softmax = np.exp(q_A / temperature) / np.exp(q_A / temperature).sum()
        np.testing.assert_allclose(np.bincount(actions, minlength=ACTIONS) / 8000, softmax, atol=0.02)


# -- the reference ------------------------------------------------------------------------------------


class Reference:
    """The update written down plainly: float64, one batch after the other, gradients by central differences."""

    def __init__(self, case: Case, engine: JaxEngine, state: LearnerState) -> None:
        self.case, self.names, self.shapes = case, engine.layout.names, engine.layout.shapes
        self.params, self.target = np.asarray(state.params, np.float64), np.asarray(state.target, np.float64)
        self.mean, self.square = np.zeros_like(self.params), np.zeros_like(self.params)

    def update(self, batches: Item, rate: float) -> dict[str, Any]:
        said: dict[str, Any] = {"td": [], "loss": [], "grad_norm": [], "q": []}
        for k in range(batches.r_t.shape[0]):
            batch = jax.tree.map(
                lambda leaf: leaf[k].astype(leaf.dtype if leaf.dtype == np.int32 else np.float64),  # noqa: B023
                batches,
            )
            target = batch.r_t + batch.discount_t * self.value(batch.s_t)
            td, loss, q = self.loss(self.params, batch, target)
            gradient = np.zeros_like(self.params)
            for i in range(gradient.size):
                nudge = np.zeros_like(self.params)
                nudge[i] = 1e-6
                above, below = (self.loss(self.params + sign * nudge, batch, target)[1] for sign in (1, -1))
                gradient[i] = (above - below) / 2e-6
            norm = np.linalg.norm(gradient)
            if self.case.clip is not None:
                gradient = gradient * min(1.0, self.case.clip / norm)
            self.step(gradient, rate, k + 1)
            for name, value in {"td": td, "loss": loss, "grad_norm": norm, "q": q}.items():
                said[name].append(value)
        return {**said, "params": self.params}

    def value(self, s_t: np.ndarray) -> np.ndarray:
        online = self.q(self.params, s_t)
        if self.case.rule == "vanilla":
            return online.max(-1)
        frozen = self.q(self.target, s_t)
        return frozen.max(-1) if self.case.rule == "target" else frozen[np.arange(BATCH), online.argmax(-1)]

    def loss(self, params: np.ndarray, batch: Item, target: np.ndarray) -> tuple[np.ndarray, float, float]:
        q = self.q(params, batch.s_tm1)[np.arange(BATCH), batch.a_tm1]
        td = target - q
        if self.case.loss == "mse":
            return td, np.mean(td**2), q.mean()
        return td, np.mean([0.5 * d**2 if abs(d) < 0.7 else 0.7 * (abs(d) - 0.35) for d in td]), q.mean()

    def q(self, params: np.ndarray, x: np.ndarray) -> np.ndarray:
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in self.shapes])
        pieces = np.split(params, ends[:-1])
        layer = {name: piece.reshape(shape) for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)}

        def dense(x: np.ndarray, name: str) -> np.ndarray:
            return x @ layer[f"{name}/kernel"] + layer[f"{name}/bias"]

        features = np.tanh(dense(x, "torso/layers/dense_0"))
        if self.case.head == "scalar":
            return dense(features, "head/dense_0")
        value, advantage = (
            dense(np.maximum(dense(features, f"head/{stream}/dense_0"), 0), f"head/{stream}/dense_1")
            for stream in ("value", "advantage")
        )
        return value + advantage - advantage.mean(-1, keepdims=True)

    def step(self, gradient: np.ndarray, rate: float, t: int) -> None:
        if self.case.optimizer == "sgd":
            self.mean = 0.8 * self.mean + gradient
            self.params = self.params - rate * self.mean
        elif self.case.optimizer == "rmsprop":
            self.square = 0.99 * self.square + 0.01 * gradient**2
            self.mean = 0.8 * self.mean + gradient / (np.sqrt(self.square) + 1e-3)
            self.params = self.params - rate * self.mean
        else:
            self.mean = 0.9 * self.mean + 0.1 * gradient
            self.square = 0.999 * self.square + 0.001 * gradient**2
            step = self.mean / (1 - 0.9**t) / (np.sqrt(self.square / (1 - 0.999**t)) + 1e-3)
            decayed = self.params * (1 - rate * 0.3) if self.case.optimizer == "adamw" else self.params
            self.params = decayed - rate * step


def random_batches(steps: int, seed: int = 0) -> Item:
    random = np.random.default_rng(seed)
    shape = (steps, BATCH)
    return Item(
        s_tm1=random.normal(size=(*shape, OBS)).astype(np.float32),
        a_tm1=random.integers(0, ACTIONS, shape).astype(np.int32),
        r_t=random.normal(size=shape).astype(np.float32),
        discount_t=(0.9 * random.integers(0, 2, shape)).astype(np.float32),
        s_t=random.normal(size=(*shape, OBS)).astype(np.float32),
    )


def bad_batches(steps: int) -> Item:
    batches = random_batches(steps)
    batches.r_t[:, 0] = np.nan
    return batches


def assert_same_bits(left: Any, right: Any) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
