"""Every registered env keeps the device env contract, alone, as a vector, and behind Gymnasium's interface."""

from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hotloop.envs import device
from hotloop.envs.cartpole import CartPole, CartPoleState
from hotloop.envs.device import DeviceEnv, DeviceStep, ObsSpec, ObsTree, make_env, map_obs, reset_all, step_all
from hotloop.envs.gymnasium import IDS, GymnasiumEnv, GymnasiumVectorEnv
from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.errors import SpecError
from hotloop.registry import ENVS

pytestmark = pytest.mark.less_optimised


class Case(NamedTuple):
    """An env and its options."""

    env_id: str
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.env_id, *(f"{name}={value}" for name, value in self.options)])


# Envs of several agents have a contract and tests of their own: test_multi_agent_envs.py.
OF_ONE_AGENT = [name for name in ENVS if ":" in name or not isinstance(make_env(name, {}), MultiAgentEnv)]
# One of each registered env; of a family of envs, or of one that shows itself in several ways, a few that differ.
CASES = [
    *(Case(name) for name in OF_ONE_AGENT if ":" not in name),
    Case("snake", (("obs", "grid"),)),  # an image
    Case("gymnax:CartPole-v1"),
]
SECOND_CASES = [
    Case("snake", (("obs", "enhanced"),)),  # the costliest features
    Case("gymnax:FourRooms-misc"),  # integers
    Case("gymnax:Breakout-MinAtar"),  # an image
]
NUM_ENVS, STEPS = 5, 120


class Played(NamedTuple):
    """An env, its compiled functions on one env, and what random actions did in five of them."""

    env: DeviceEnv
    reset: Any
    step: Any
    first_obs: Any
    actions: np.ndarray
    transitions: DeviceStep  # leading axes STEPS, NUM_ENVS


@cache
def played_by(case: Case) -> Played:
    env = make_env(case.env_id, dict(case.options))

    def play(key: jax.Array) -> Any:
        def one(state: Any, t: jax.Array) -> Any:
            step_key, action_key = jax.random.split(jax.random.fold_in(key, t))
            action = jax.random.randint(action_key, (NUM_ENVS,), 0, env.num_actions)
            state, transition = step_all(env, state, action, step_key)
            return state, (action, transition)

        state, obs = reset_all(env, key, NUM_ENVS)
        return obs, jax.lax.scan(one, state, jnp.arange(STEPS))[1]

    first_obs, (actions, transitions) = jax.device_get(jax.jit(play)(jax.random.key(0)))
    return Played(env, jax.jit(env.reset), jax.jit(env.step), first_obs, actions, transitions)


@pytest.fixture(params=[*CASES, *(pytest.param(case, marks=pytest.mark.heavy) for case in SECOND_CASES)], ids=str)
def played(request: pytest.FixtureRequest) -> Played:
    return played_by(request.param)


def test_every_registered_env_or_family_is_under_test() -> None:
    for name in OF_ONE_AGENT:
        family = name.partition(":")[0]
        assert any(case.env_id.partition(":")[0] == family for case in CASES), name


def test_reset_and_step_return_what_the_contract_says(played: Played) -> None:
    env, key = played.env, jax.random.key(0)
    state, obs = jax.eval_shape(env.reset, key)
    after = jax.eval_shape(env.step, state, jax.ShapeDtypeStruct((), np.int32), key)
    assert len(after) == 6
    stepped, next_obs, reward, terminated, truncated, info = after
    for seen in (obs, next_obs):
        assert map_obs(_kind, env.obs_spec) == jax.tree.map(_kind, seen)
    assert (reward.shape, reward.dtype) == ((), np.float32)
    for flag in (terminated, truncated):
        assert (flag.shape, flag.dtype) == ((), bool)
    assert isinstance(info, dict)
    assert all(leaf.shape == () for leaf in info.values()), "figures of one step are scalars"
    assert jax.tree.map(_kind, stepped) == jax.tree.map(_kind, state), "a state keeps its structure"


def test_an_env_has_actions_and_bounds_of_its_observations_shape(played: Played) -> None:
    env = played.env
    assert isinstance(env.num_actions, int)
    assert env.num_actions >= 2
    for spec, _ in _parts(env.obs_spec, env.obs_spec):
        for bound in (spec.low, spec.high):
            assert np.broadcast_shapes(np.shape(bound), spec.shape) == spec.shape


def test_the_same_key_and_state_give_the_same_result(played: Played) -> None:
    keys = jax.random.split(jax.random.key(1))
    first, again = (played.reset(keys[0]) for _ in range(2))
    _assert_same(first, again)
    for action in range(played.env.num_actions):
        before = jax.device_get(first[0])
        once, twice = (played.step(first[0], jnp.int32(action), keys[1]) for _ in range(2))
        _assert_same(once, twice)
        _assert_same(first[0], before)


def test_a_vector_of_envs_does_what_each_would_alone(played: Played) -> None:
    env, keys = played.env, jax.random.split(jax.random.key(2), NUM_ENVS)
    actions = jnp.arange(NUM_ENVS, dtype=jnp.int32) % env.num_actions
    states, _ = jax.jit(jax.vmap(env.reset))(keys)
    together = jax.jit(jax.vmap(env.step))(states, actions, keys)
    for i in range(NUM_ENVS):
        alone = played.step(*jax.tree.map(lambda leaf: leaf[i], (states, actions, keys)))  # noqa: B023
        for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(_plain(ours), _plain(theirs[i]), rtol=1e-6, atol=1e-6)


def test_observations_are_finite_and_within_their_bounds(played: Played) -> None:
    t = played.transitions
    for whole in (played.first_obs, t.obs, t.final_obs):
        for spec, obs in _parts(played.env.obs_spec, whole):
            assert obs.dtype == spec.dtype
            assert np.isfinite(obs).all()
            assert (obs >= spec.low).all()
            assert (obs <= spec.high).all()
    assert np.isfinite(t.reward).all()


def test_observations_change_from_step_to_step_and_from_env_to_env(played: Played) -> None:
    for _, obs in _parts(played.env.obs_spec, played.transitions.obs):
        flat = obs.reshape(STEPS, NUM_ENVS, -1)
        assert (flat[1:] != flat[:-1]).any()
        assert (flat[:, 1:] != flat[:, :-1]).any()


def test_an_episode_goes_on_exactly_when_it_has_not_ended(played: Played) -> None:
    t = played.transitions
    done = t.terminated | t.truncated
    for obs, final_obs in zip(jax.tree.leaves(t.obs), jax.tree.leaves(t.final_obs), strict=True):
        np.testing.assert_array_equal(obs[~done], final_obs[~done])
        if done.any():
            assert (obs[done] != final_obs[done]).any()


def test_unknown_options_are_refused(played: Played, request: pytest.FixtureRequest) -> None:
    case = request.node.callspec.params["played"]
    with pytest.raises(SpecError, match=r"^env.options: .*wobble"):
        make_env(case.env_id, {**dict(case.options), "wobble": 1})


# -- particular envs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "complaint"),
    [
        ("cartpol", "env.id: unknown device env 'cartpol'; did you mean 'cartpole'?"),
        ("gymnax:CartPole", "env.id: unknown gymnax env 'CartPole'; did you mean 'CartPole-v1'?"),
        ("gymnax:Pendulum-v1", "gymnax:Pendulum-v1 has Box actions; hotloop needs Discrete ones"),
        ("gymnax:FrozenLake-misc", "gymnax:FrozenLake-misc has Discrete observations; hotloop needs a Box"),
    ],
)
def test_an_env_that_cannot_be_had_is_refused_with_what_to_do(env_id: str, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_env(env_id, {})
    assert str(caught.value) == complaint


def test_a_time_limit_truncates_and_does_not_terminate() -> None:
    for env_id, option in (("cartpole", "max_steps"), ("gymnax:MountainCar-v0", "max_steps_in_episode")):
        env = make_env(env_id, {option: 3})
        step = jax.jit(env.step)
        state, _ = env.reset(jax.random.key(0))
        flags = []
        for _ in range(3):
            state, _, _, terminated, truncated, _ = step(state, jnp.int32(0), jax.random.key(0))
            flags.append((bool(terminated), bool(truncated)))
        assert flags == [(False, False), (False, False), (False, True)]


def test_gymnaxs_cartpole_through_the_adapter_is_ours() -> None:
    ours, theirs = played_by(Case("cartpole")), played_by(Case("gymnax:CartPole-v1"))
    _, obs = ours.reset(jax.random.key(5))
    our_state, their_state = CartPoleState(obs, jnp.int32(0)), theirs.reset(jax.random.key(0))[0]
    their_state = their_state.replace(**dict(zip(("x", "x_dot", "theta", "theta_dot"), obs, strict=True)), time=0)
    over, length = False, 0
    while not over:
        action = jnp.int32(length % 3 == 0)
        our_state, *our_step, _ = ours.step(our_state, action, jax.random.key(0))
        their_state, *their_step, _ = theirs.step(their_state, action, jax.random.key(0))
        for mine, yours in zip(our_step, their_step, strict=True):
            np.testing.assert_allclose(mine, yours, rtol=1e-5, atol=1e-5)
        over, length = bool(our_step[2]), length + 1
    assert length > 5


# -- behind Gymnasium's interface ---------------------------------------------------------------------

COMPILED_ABOVE = ("hotloop/CartPole-v1", "hotloop/Snake-v1", "hotloop/SnakeGrid-v1", "hotloop/SFC-v1")


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*")  # speeds have no bound
def test_gymnasiums_own_checker_passes(played: Played) -> None:
    check_env(GymnasiumEnv(played.env), skip_render_check=True)


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*")
@pytest.mark.parametrize(
    "name",
    [name if name in COMPILED_ABOVE else pytest.param(name, marks=pytest.mark.heavy) for name in IDS],
)
def test_each_name_registered_with_gymnasium_makes_an_env_and_a_vector_of_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "make_env", _compiled_before)
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    envs = gymnasium.make_vec(name, num_envs=3)
    assert isinstance(envs, GymnasiumVectorEnv)
    assert envs.single_observation_space == env.observation_space
    assert envs.single_action_space == env.action_space
    obs, _ = envs.reset(seed=1)
    assert envs.observation_space.contains(obs)


def test_gymnasium_passes_an_envs_own_options_on() -> None:
    env = gymnasium.make("hotloop/SnakeGrid-v1", grid=7, actions="absolute")
    assert (env.observation_space.shape, env.action_space.n) == ((7, 7, 3), 4)
    envs = gymnasium.make_vec("hotloop/SnakeBasic-v1", num_envs=2, grid=7, actions="absolute")
    assert (envs.observation_space.shape, envs.single_action_space.n) == ((2, 10), 4)


def test_cartpole_can_be_made_by_gymnasium() -> None:
    env = gymnasium.make("hotloop.envs.gymnasium:hotloop/CartPole-v1", render_mode="rgb_array")
    obs, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs, again)
    assert env.observation_space.contains(obs)
    assert np.asarray(env.render()).shape[-1] == 3
    env.close()


def test_the_vector_env_resets_in_the_same_step_and_keeps_the_final_observation() -> None:
    envs = GymnasiumVectorEnv(CartPole(max_steps=4), 3)
    first, _ = envs.reset(seed=1)
    for t in range(1, 9):
        obs, reward, terminated, truncated, infos = envs.step(np.array([0, 1, 0]))
        assert reward.tolist() == [1.0, 1.0, 1.0]
        assert not terminated.any()
        assert truncated.tolist() == [t % 4 == 0] * 3
        assert ("final_obs" in infos) == (t % 4 == 0)
        if t % 4 == 0:
            assert infos["_final_obs"].tolist() == [True] * 3
            assert np.abs(obs).max() <= 0.05 < np.abs(infos["final_obs"]).max()
    again, _ = envs.reset(seed=1)
    np.testing.assert_array_equal(first, again)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP


@pytest.mark.parametrize("actions", [[0, 2, 0], [0, -1, 0], [0, 1]])
def test_actions_that_do_not_exist_are_refused(actions: list[int]) -> None:
    envs = GymnasiumVectorEnv(CartPole(), 3)
    envs.reset(seed=1)
    with pytest.raises(ValueError, match="expected"):
        envs.step(np.array(actions))


# -- helpers ------------------------------------------------------------------------------------------


def _compiled_before(env_id: str, options: dict[str, Any]) -> DeviceEnv:
    """What `make_env` makes; of equal envs the one under test above, whose functions are compiled already."""
    env = make_env(env_id, options)
    return next((same for case in (*CASES, *SECOND_CASES) if (same := played_by(case).env) == env), env)


def _parts(spec: ObsTree, whole: Any) -> list[tuple[ObsSpec, Any]]:
    """Each array of an observation with what is said of it."""
    parts: list[tuple[ObsSpec, Any]] = []
    map_obs(lambda *part: parts.append(part), spec, whole)
    return parts


def _kind(leaf: Any) -> tuple[Any, Any]:
    return leaf.shape, leaf.dtype


def _plain(leaf: Any) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _assert_same(left: Any, right: Any) -> None:
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(_plain(a), _plain(b))
