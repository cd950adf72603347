"""Every registered env of several agents keeps its contract, alone, as a vector, and behind PettingZoo's interface."""

import warnings
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

from hotloop.envs.cartpole import CartPole
from hotloop.envs.device import Drawable, make_env, map_obs
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.envs.pettingzoo import PettingZooEnv, parallel_env
from hotloop.envs.snake import Snake
from hotloop.errors import SpecError
from hotloop.registry import ENVS

pytestmark = pytest.mark.less_optimised

NAMES = [name for name in ENVS if ":" not in name and isinstance(make_env(name, {}), MultiAgentEnv)]
NUM_ENVS, STEPS = 3, 60


class Compiled(NamedTuple):
    """An env, and its compiled functions."""

    name: str
    env: Any
    reset: Any
    step: Any


@cache
def compiled_of(name: str) -> Compiled:
    env = make_env(name, {})
    return Compiled(name, env, jax.jit(env.reset), jax.jit(env.step))


@pytest.fixture(params=NAMES)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    return compiled_of(request.param)


def test_envs_of_one_agent_are_no_envs_of_several() -> None:
    assert "treasure" in NAMES
    assert not isinstance(CartPole(), MultiAgentEnv)
    assert not isinstance(Snake(), MultiAgentEnv)


def test_agents_have_names_of_their_own_and_actions(compiled: Compiled) -> None:
    env = compiled.env
    assert isinstance(env.num_agents, int)
    assert isinstance(env.num_actions, int)
    assert env.num_actions >= 2
    assert isinstance(env.agent_names, tuple)
    assert len(set(env.agent_names)) == env.num_agents == len(env.agent_names)


def test_reset_and_step_return_what_the_contract_says(compiled: Compiled) -> None:
    env, key = compiled.env, jax.random.key(0)
    agents = env.num_agents
    state, obs = jax.eval_shape(env.reset, key)
    after = jax.eval_shape(env.step, state, jax.ShapeDtypeStruct((agents,), np.int32), key)
    stepped, next_obs, reward, terminated, truncated, info = after
    expected = map_obs(lambda spec: ((agents, *spec.shape), np.dtype(spec.dtype)), env.obs_spec)
    for seen in (obs, next_obs):
        assert map_obs(lambda spec, leaf: (leaf.shape, leaf.dtype), env.obs_spec, seen) == expected
    assert (reward.shape, reward.dtype) == ((agents,), np.float32)
    for flag in (terminated, truncated):
        assert (flag.shape, flag.dtype) == ((), bool)
    assert all(leaf.shape in ((), (agents,)) for leaf in info.values())
    assert jax.tree.map(_kind, stepped) == jax.tree.map(_kind, state), "a state keeps its structure"


def test_the_same_key_and_state_give_the_same_result_and_another_key_another(compiled: Compiled) -> None:
    keys, actions = jax.random.split(jax.random.key(1), 3), jnp.zeros(compiled.env.num_agents, jnp.int32)
    first, again, other = (compiled.reset(keys[i]) for i in (0, 0, 1))
    _assert_same(first, again)
    assert not _is_same(first, other)
    before = jax.device_get(first[0])
    once, twice = (compiled.step(first[0], actions, keys[2]) for _ in range(2))
    _assert_same(once, twice)
    _assert_same(first[0], before)


def test_a_vector_of_envs_does_what_each_would_alone(compiled: Compiled) -> None:
    env, keys = compiled.env, jax.random.split(jax.random.key(2), NUM_ENVS)
    actions = jax.random.randint(keys[0], (NUM_ENVS, env.num_agents), 0, env.num_actions)
    states, _ = jax.jit(jax.vmap(env.reset))(keys)
    together = jax.jit(jax.vmap(env.step))(states, actions, keys)
    for i in range(NUM_ENVS):
        alone = compiled.step(*jax.tree.map(lambda leaf: leaf[i], (states, actions, keys)))  # noqa: B023
        for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(ours, theirs[i], rtol=1e-6, atol=1e-6)


def test_observations_stay_within_their_bounds_and_differ_between_agents_and_steps(compiled: Compiled) -> None:
    env, random = compiled.env, np.random.default_rng(0)
    state, obs = compiled.reset(jax.random.key(0))
    seen = [jax.device_get(obs)]
    for t in range(STEPS):
        actions = random.integers(0, env.num_actions, env.num_agents).astype(np.int32)
        state, obs, reward, terminated, truncated, _ = compiled.step(state, actions, jax.random.key(t))
        assert np.isfinite(reward).all()
        seen.append(jax.device_get(obs))
        if terminated or truncated:
            break
    for obs_M in seen:
        assert all(
            jax.tree.leaves(
                map_obs(lambda spec, leaf: bool(((leaf >= spec.low) & (leaf <= spec.high)).all()), env.obs_spec, obs_M)
            )
        )
    leaves = [np.stack(leaf) for leaf in zip(*map(jax.tree.leaves, seen), strict=True)]
    assert any((leaf[1:] != leaf[:-1]).any() for leaf in leaves)
    assert any((leaf[:, 1:] != leaf[:, :-1]).any() for leaf in leaves)


# -- behind PettingZoo's interface --------------------------------------------------------------------


@pytest.fixture
def make_parallel(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`parallel_env` of the env under test, whose functions are compiled already."""
    monkeypatch.setattr("hotloop.envs.device.make_env", lambda env_id, options: compiled_of(env_id).env)
    return lambda **more: parallel_env(compiled.name, **more)


def test_pettingzoos_own_checks_pass(make_parallel: Any) -> None:
    env = make_parallel()
    assert isinstance(env, ParallelEnv)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        parallel_api_test(env, num_cycles=120)
        parallel_seed_test(make_parallel, num_cycles=20)


def test_a_seed_is_a_whole_episode(make_parallel: Any) -> None:
    """PettingZoo's own check stops after one step."""

    def episode(seed: int) -> list[Any]:
        env, random = make_parallel(), np.random.default_rng(0)
        seen = [env.reset(seed=seed)]
        while env.agents:
            seen.append(env.step({agent: random.integers(env.env.num_actions) for agent in env.agents}))
        return seen

    first, again, other = episode(3), episode(3), episode(4)
    assert len(first) == len(again)
    assert _is_same(first, again)
    assert not _is_same(first, other)


def test_what_the_agents_are_told_is_what_the_device_env_gives(compiled: Compiled, make_parallel: Any) -> None:
    env = make_parallel()
    obs, infos = env.reset(seed=1)
    assert infos == {agent: {} for agent in compiled.env.agent_names}
    for agent in env.agents:
        assert env.observation_space(agent).contains(obs[agent])
    before = env._state
    actions = {agent: i % compiled.env.num_actions for i, agent in enumerate(env.agents)}
    seen, reward, terminated, truncated, infos = env.step(actions)
    step_key = jax.random.split(_first_key(1))[1]
    _, obs_M, reward_M, *_, info = compiled.step(before, np.array([*actions.values()], np.int32), step_key)
    for i, agent in enumerate(compiled.env.agent_names):
        _assert_same(seen[agent], jax.tree.map(lambda leaf: leaf[i], obs_M))  # noqa: B023
        assert reward[agent] == float(reward_M[i])
        assert type(terminated[agent]) is type(truncated[agent]) is bool
        assert infos[agent] == {
            name: (value[i] if value.ndim else value).item() for name, value in jax.device_get(info).items()
        }


def test_it_draws_itself_when_asked_to(compiled: Compiled, make_parallel: Any) -> None:
    env = make_parallel(render_mode="rgb_array")
    env.reset(seed=0)
    assert isinstance(compiled.env, Drawable)
    assert env.metadata["render_fps"] == compiled.env.render_fps
    assert env.render().shape[-1] == 3
    assert make_parallel().render() is None


def test_what_cannot_be_had_is_refused_with_what_to_do() -> None:
    env = parallel_env("treasure", agents=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action of agent_1 is 4, expected one of 0 … 3"):
        env.step({"agent_0": 0, "agent_1": 4})
    with pytest.raises(ValueError, match="actions are for agent_0, expected one for agent_1, too"):
        env.step({"agent_0": 0})
    with pytest.raises(ValueError, match="render_mode is 'human', expected None or 'rgb_array'"):
        PettingZooEnv(env.env, "human")
    with pytest.raises(ValueError, match="env 'cartpole' has one agent, expected one of several"):
        parallel_env("cartpole")


# -- helpers ------------------------------------------------------------------------------------------


def _first_key(seed: int) -> jax.Array:
    """The key that an env keeps after a reset with this seed."""
    return jax.random.split(jax.random.key(int(np.random.default_rng(seed).integers(2**32))))[0]


def _kind(leaf: Any) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


def _is_same(left: Any, right: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _assert_same(left: Any, right: Any) -> None:
    assert _is_same(left, right)


@pytest.mark.parametrize(
    ("env_id", "options", "line"),
    [
        ("treasure", {"radus": 2}, "'radus' is none of its options; did you mean 'radius'"),
        ("sfc", {"dsc": 2}, "'dsc' is none of its options; did you mean 'dcs'"),
    ],
)
def test_an_option_that_an_env_does_not_have_names_the_nearest(env_id: str, options: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        make_env(env_id, options)
