"""The device CartPole against Gymnasium's, which computes in float64, and the vector step that resets it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.envs.cartpole import CartPole, CartPoleState
from hotloop.envs.device import reset_all, step_all

pytestmark = pytest.mark.less_optimised

X_LIMIT, ANGLE_LIMIT = 2.4, math.radians(12)
NEAR = 1e-5
"""How close to a limit float32 and float64 may disagree about being beyond it."""


@pytest.fixture(scope="module")
def theirs() -> Iterator[gymnasium.Env]:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture(scope="module")
def step() -> Callable[..., Any]:
    """Step one device env: (physics, t, action) -> what `CartPole.step` returns."""
    env = CartPole()
    return jax.jit(lambda physics, t, action: env.step(CartPoleState(physics, t), action, jax.random.key(0)))


@pytest.fixture(scope="module")
def step_many() -> Callable[..., Any]:
    """The same for a batch of states."""
    env = CartPole()
    keys = jax.random.key(0)
    return jax.jit(jax.vmap(lambda physics, action: env.step(CartPoleState(physics, jnp.int32(0)), action, keys)))


def test_one_step_from_any_state_gives_gymnasiums_numbers(theirs: gymnasium.Env, step_many: Any) -> None:
    states, actions = _many_states(), np.arange(6000) % 2
    expected = [_their_step(theirs, state, int(action)) for state, action in zip(states, actions, strict=True)]
    physics, reward, terminated = (np.array(part) for part in zip(*expected, strict=True))

    state, obs, our_reward, our_terminated, truncated, _ = step_many(states, actions)

    np.testing.assert_allclose(obs, physics, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(obs, state.physics)
    np.testing.assert_array_equal(our_reward, reward)
    assert obs.dtype == our_reward.dtype == np.float32
    assert not truncated.any()
    is_clear = (np.abs(np.abs(physics[:, 0]) - X_LIMIT) > NEAR) & (np.abs(np.abs(physics[:, 2]) - ANGLE_LIMIT) > NEAR)
    assert is_clear.mean() > 0.95
    np.testing.assert_array_equal(np.asarray(our_terminated)[is_clear], terminated[is_clear])
    assert 1000 < terminated.sum() < 5000, "the states should lie on both sides of the limits"


def test_the_limits_are_gymnasiums(theirs: gymnasium.Env) -> None:
    inner: Any = theirs.unwrapped
    assert (inner.x_threshold, inner.theta_threshold_radians) == pytest.approx((X_LIMIT, ANGLE_LIMIT))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize(("number", "limit"), [(0, X_LIMIT), (2, ANGLE_LIMIT)], ids=["position", "angle"])
def test_an_episode_ends_just_beyond_each_limit_and_not_just_before(
    step: Any, number: int, limit: float, sign: float
) -> None:
    for beyond in (False, True):
        physics = np.zeros(4, np.float32)  # at rest, so that position and angle are those of the next state
        physics[number] = sign * (limit + (NEAR if beyond else -NEAR))
        assert bool(step(physics, 0, 1)[3]) is beyond


def test_a_balanced_pole_is_truncated_at_exactly_500_steps_and_not_terminated(theirs: gymnasium.Env, step: Any) -> None:
    for end in (_our_balanced_episode(step), _their_balanced_episode(theirs)):
        assert end == {"length": 500, "return": 500.0, "terminated": False, "truncated": True}


def test_a_pole_that_falls_in_the_last_step_is_both_terminated_and_truncated(theirs: gymnasium.Env, step: Any) -> None:
    falling = np.array([0.0, 0.0, ANGLE_LIMIT - 1e-3, 1.0], np.float32)
    for t, truncates in ((498, False), (499, True)):
        theirs.reset(seed=0)
        theirs.set_wrapper_attr("state", falling.astype(np.float64))
        theirs.set_wrapper_attr("_elapsed_steps", t)
        _, _, *their_flags, _ = theirs.step(0)
        _, _, _, *our_flags, _ = step(falling, t, 0)
        assert [bool(flag) for flag in our_flags] == their_flags == [True, truncates]


def test_whole_random_episodes_agree_step_for_step(theirs: gymnasium.Env, step: Any) -> None:
    lengths = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        obs, _ = theirs.reset(seed=seed)
        state, over = CartPoleState(jnp.asarray(obs), jnp.int32(0)), False
        while not over:
            action = int(random.integers(2))
            obs, reward, *their_flags, _ = theirs.step(action)
            state, our_obs, our_reward, *our_flags, _ = step(*state, action)
            np.testing.assert_allclose(our_obs, obs, rtol=1e-4, atol=1e-4)
            assert float(our_reward) == reward
            assert [bool(flag) for flag in our_flags] == their_flags
            over = any(their_flags)
        lengths.append(int(state.t))
    assert len(set(lengths)) > 5, "random episodes should differ in length"


def test_a_reset_starts_near_the_upright_like_gymnasiums() -> None:
    _, obs = jax.jit(reset_all, static_argnums=(0, 2))(CartPole(), jax.random.key(1), 4000)
    assert np.abs(obs).max() <= 0.05
    np.testing.assert_allclose(np.mean(obs, axis=0), 0.0, atol=0.002)
    np.testing.assert_allclose(np.std(obs, axis=0), 0.1 / 12**0.5, rtol=0.05)


def test_positions_are_the_same_cartpole_seen_without_its_speeds() -> None:
    every, positions = CartPole(), CartPole(observe="positions")
    state, obs = every.reset(jax.random.key(2))
    same, seen = positions.reset(jax.random.key(2))
    for action in (1, 1, 0, 1):
        np.testing.assert_array_equal(same.physics, state.physics)
        np.testing.assert_array_equal(seen, [obs[0], obs[2]])
        state, obs, *_ = every.step(state, action, jax.random.key(0))
        same, seen, *_ = positions.step(same, action, jax.random.key(0))
    low, high = positions.obs_spec.low, positions.obs_spec.high
    assert (positions.obs_spec.shape, seen.dtype) == ((2,), np.float32)
    np.testing.assert_allclose([low, high], [[-2 * X_LIMIT, -2 * ANGLE_LIMIT], [2 * X_LIMIT, 2 * ANGLE_LIMIT]])
    with pytest.raises(TypeError, match="observe is 'speeds', expected all or positions"):
        CartPole(observe="speeds")


# -- the vector step ----------------------------------------------------------------------------------

FALLEN, TIMED_OUT, GOING_ON = 0, 1, 2
PHYSICS = np.array([[0, 0, 0.2094, 1.0], [0.1, 0.1, 0.01, 0.0], [0.3, -0.2, 0.02, 0.1]], np.float32)
TIMES = np.array([7, 499, 33], np.int32)
ACTIONS = np.array([1, 0, 1], np.int32)


@pytest.fixture(scope="module")
def vector_step() -> Callable[..., Any]:
    return jax.jit(lambda state, key: step_all(CartPole(), state, ACTIONS, key))


def test_only_ended_episodes_are_reset_and_in_the_same_step(vector_step: Any, step: Any) -> None:
    state, t = vector_step(CartPoleState(PHYSICS, TIMES), jax.random.key(3))

    assert t.terminated.tolist() == [True, False, False]
    assert t.truncated.tolist() == [False, True, False]
    assert t.reward.tolist() == [1.0, 1.0, 1.0]
    unreset = np.stack([step(*each)[1] for each in zip(PHYSICS, TIMES, ACTIONS, strict=True)])
    np.testing.assert_allclose(t.final_obs, unreset, rtol=1e-6, atol=1e-7)
    for ended in (FALLEN, TIMED_OUT):
        assert np.abs(t.obs[ended]).max() <= 0.05
        assert not np.array_equal(t.obs[ended], t.final_obs[ended])
    assert not np.array_equal(t.obs[FALLEN], t.obs[TIMED_OUT]), "each env has a reset of its own"
    np.testing.assert_array_equal(t.obs[GOING_ON], t.final_obs[GOING_ON])
    np.testing.assert_array_equal(state.physics, t.obs)
    assert state.t.tolist() == [0, 0, 34]


def test_nothing_is_reset_while_all_episodes_go_on(vector_step: Any) -> None:
    upright = CartPoleState(np.zeros((3, 4), np.float32), np.array([5, 6, 7], np.int32))
    state, t = vector_step(upright, jax.random.key(3))
    np.testing.assert_array_equal(t.obs, t.final_obs)
    np.testing.assert_array_equal(state.physics, t.final_obs)
    assert state.t.tolist() == [6, 7, 8]


def test_the_next_episode_depends_on_the_key_and_the_ended_one_does_not(vector_step: Any) -> None:
    first, second = (vector_step(CartPoleState(PHYSICS, TIMES), jax.random.key(seed))[1] for seed in (3, 4))
    np.testing.assert_array_equal(first.final_obs, second.final_obs)
    assert not np.array_equal(first.obs[FALLEN], second.obs[FALLEN])
    np.testing.assert_array_equal(first.obs[GOING_ON], second.obs[GOING_ON])


# -- helpers ------------------------------------------------------------------------------------------


def _many_states() -> np.ndarray:
    """6000 states: a third anywhere, a third near the limit of the track, a third near that of the angle."""
    random = np.random.default_rng(0)
    states = random.uniform(-1, 1, (6000, 4)) * [2 * X_LIMIT, 4.0, 2 * ANGLE_LIMIT, 4.0]
    sign = random.choice([-1.0, 1.0], 6000)
    states[2000:, [0, 2]] *= 0.3
    states[2000:4000, 0] = (sign * random.normal(X_LIMIT, 0.03, 6000))[2000:4000]
    states[4000:, 2] = (sign * random.normal(ANGLE_LIMIT, 0.03, 6000))[4000:]
    return states.astype(np.float32)


def _their_step(env: gymnasium.Env, state: np.ndarray, action: int) -> tuple[np.ndarray, float, bool]:
    inner: Any = env.unwrapped
    inner.state, inner.steps_beyond_terminated = state.astype(np.float64), None
    _, reward, terminated, _, _ = inner.step(action)
    return inner.state, reward, terminated


def _balance(obs: Any) -> int:
    return int(0.1 * obs[0] + 0.3 * obs[1] + 2.0 * obs[2] + obs[3] > 0)


def _our_balanced_episode(step: Any) -> dict[str, Any]:
    state, total, over = CartPoleState(jnp.full(4, 0.02), jnp.int32(0)), 0.0, False
    while not over:
        state, _, reward, terminated, truncated, _ = step(*state, _balance(np.asarray(state.physics)))
        total, over = total + float(reward), bool(terminated) or bool(truncated)
    return {"length": int(state.t), "return": total, "terminated": bool(terminated), "truncated": bool(truncated)}


def _their_balanced_episode(env: gymnasium.Env) -> dict[str, Any]:
    obs, _ = env.reset(seed=0)
    inner: Any = env.unwrapped
    inner.state = obs = np.full(4, 0.02)
    length, total, over = 0, 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(_balance(obs))
        length, total, over = length + 1, total + float(reward), terminated or truncated
    return {"length": length, "return": total, "terminated": terminated, "truncated": truncated}
