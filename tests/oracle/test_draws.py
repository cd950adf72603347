"""What chance gives to a network comes in as arrays: the same numbers as drawn by key, and nothing beside them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.engines.draws import PASSES, Draw, draw
from hotloop.engines.jax.engine import JaxEngine
from hotloop.experience import Item
from hotloop.spec.reading import parse_spec
from hotloop.trees import leaves

pytestmark = pytest.mark.less_optimised
UPDATES, BATCH, ACTIONS = 3, 4, 2
KEY = jax.random.key(5)
OBS = jax.ShapeDtypeStruct((3,), np.float32)


def engine_of(head: dict[str, Any], **more: Any) -> JaxEngine:
    return JaxEngine(parse_spec({"network": {"torso": {"hidden": [8]}, "head": head}, **more}), OBS, ACTIONS)


def batches() -> Item:
    random = np.random.default_rng(0)
    seen = random.normal(size=(2, UPDATES, BATCH, 3)).astype(np.float32)
    reward = random.normal(size=(UPDATES, BATCH)).astype(np.float32)
    action = random.integers(0, ACTIONS, (UPDATES, BATCH)).astype(np.int32)
    return Item(seen[0], action, reward, np.full_like(reward, 0.9), seen[1])


def test_noise_given_is_noise_drawn_by_key() -> None:
    engine = engine_of({"kind": "c51", "noise": 0.5, "dueling": True}, target={"rule": "double"})
    state, drawn = engine.init(KEY), engine.draws(KEY, UPDATES)
    given = drawn._replace(key=None, given={role: {} for role in PASSES})
    by_key = jax.jit(engine.update)(state, batches(), jnp.float32(1e-2), None, KEY)
    by_array = jax.jit(engine.update)(state, batches(), jnp.float32(1e-2), None, None, given)
    np.testing.assert_allclose(by_array[0].params, by_key[0].params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_array[1], by_key[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("rule", ["target", "double"])
def test_fractions_are_asked_for_by_pass_and_used_as_they_are(rule: str, accumulate: int) -> None:
    head = {"kind": "iqn", "taus": 5, "target_taus": 6, "choice_taus": 7}
    engine = engine_of(head, target={"rule": rule}, optimizer={"accumulate": accumulate}, replay={"batch_size": BATCH})
    wanted = engine.wanted_to_learn(UPDATES, BATCH)
    assert wanted is not None
    asked = {role: [one.shape for one in leaves(wanted.given[role])] for role in PASSES}  # type: ignore[index]
    assert asked == {"target": [(UPDATES, BATCH, 6)], "choose": [(UPDATES, BATCH, 7)], "learn": [(UPDATES, BATCH, 5)]}
    given = draw(wanted, np.random.default_rng(1))
    learn = jax.jit(lambda draws: engine.update(engine.init(KEY), batches(), jnp.float32(1e-2), None, None, draws)[1])
    np.testing.assert_array_equal(learn(given), learn(given))
    for role in PASSES:
        moved = given._replace(given={**given.given, role: {path: 0.5 * x for path, x in given.given[role].items()}})
        assert not np.allclose(learn(moved), learn(given)), f"the fractions of pass {role} are used"


def test_each_env_that_acts_has_noise_of_its_own() -> None:
    engine = engine_of({"noise": 0.5, "hidden": [4]})
    host, wanted = engine.on_host(), engine.on_host().wanted_to_act(2)
    assert all(one == Draw("factors", (2, one.shape[1])) for one in leaves(wanted))
    policy = host.freeze(engine.init(KEY).params)
    same_N = np.ones((2, 3), np.float32)
    mean_NA, noisy_NA = policy(same_N), policy(same_N, draw(wanted, np.random.default_rng(0)))
    np.testing.assert_array_equal(mean_NA[0], mean_NA[1])
    assert not np.allclose(noisy_NA[0], noisy_NA[1])
    still = {path: np.zeros(one.shape, np.float32) for path, one in wanted.items()}
    np.testing.assert_allclose(policy(same_N, still), mean_NA, rtol=1e-6)


def test_a_network_without_chance_asks_for_nothing() -> None:
    engine = engine_of({})
    assert engine.wanted_to_learn(UPDATES, BATCH) is None
    assert engine.on_host().wanted_to_act(2) is None


def test_in_float64_the_gradient_is_that_of_finite_differences() -> None:
    with jax.enable_x64(True):
        spec = parse_spec({"network": {"torso": {"hidden": [8], "activation": "tanh"}}, "loss": {"kind": "mse"}})
        engine = JaxEngine(spec, OBS, ACTIONS, numbers=jnp.float64)
        state = engine.init(jax.random.key(5))
        assert state.params.dtype == state.target.dtype == np.float64
        batch = jax.tree.map(
            lambda leaf: leaf[0].astype(np.float64) if leaf.dtype == np.float32 else leaf[0], batches()
        )
        outputs = engine.target_outputs(state.target, batch)
        gradient = np.asarray(jax.jit(engine.gradient)(state.params, batch, outputs)[0])
        assert gradient.dtype == np.float64

        loss = jax.jit(lambda params: engine.loss(engine.layout.unflatten(params), batch, outputs)[0])
        step, params = 1e-6, np.asarray(state.params)
        for i in range(0, len(params), 7):
            ahead, behind = params.copy(), params.copy()
            ahead[i], behind[i] = params[i] + step, params[i] - step
            slope = (float(loss(ahead)) - float(loss(behind))) / (2 * step)
            assert gradient[i] == pytest.approx(slope, rel=1e-7, abs=1e-9)
