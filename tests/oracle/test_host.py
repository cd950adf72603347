"""Gymnasium envs on the host: what is stored really happened, in all autoreset modes and kinds of spaces."""

import jax
import numpy as np
import pytest
from counting_env import LENGTHS, counting_envs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.policies import choose_policy
from hotloop.envs.host import HostEnvs
from hotloop.envs.host_spaces import actions, observations
from hotloop.errors import NotFinite, SpecError
from hotloop.evaluate import play
from hotloop.experience import Item
from hotloop.members import seeds
from hotloop.pipelines import concurrent, sync
from hotloop.replay.host_ring import HostRing
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

ENVS = 3


def session_of(mode, spoil=None, pipeline=sync, **more):
    """A begun run of a host pipeline on counting envs."""
    spec = parse_spec(
        {
            "env": {"id": "counting", "num_envs": ENVS},
            "updates_per_step": 1 / ENVS,
            "network": {"torso": {"hidden": [8]}},
            "exploration": {"epsilon": 0.5},
            "replay": {"capacity": 40, "start": 12, "batch_size": 8},
            **more,
        }
    )
    envs = HostEnvs(counting_envs(ENVS, mode, spoil))
    engine = JaxEngine(spec, envs.observations.shapes, envs.actions.size)
    session = pipeline.pipeline(spec, envs, engine.on_host()).session(seeds([3]))
    session.compile()
    session.begin()
    return session


def stored(session):
    """All transitions that can be drawn, oldest first."""
    ring = session.learner.replay.ring
    rows = ring.take(np.arange(ring.inserted - ring.size, ring.inserted))
    return rows._replace(
        s_tm1=session.learner.replay.store.take(rows.s_tm1), s_t=session.learner.replay.store.take(rows.s_t)
    )


@pytest.mark.parametrize("storage", ["whole", "shared"])
@pytest.mark.parametrize("pipeline", [sync, concurrent])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_stored_row_is_a_real_step_of_one_episode(mode, pipeline, storage):
    replay = {"capacity": 40, "start": 12, "batch_size": 8, "storage": storage}
    session = session_of(mode, pipeline=pipeline, replay=replay)
    seen = set()
    for _ in range(60):
        session.advance(1)
        rows = stored(session)
        for before, action, reward, discount, after in zip(*rows[:5], strict=True):
            (env, episode, t), (next_env, next_episode, next_t) = before, after
            length = LENGTHS[int(episode + env) % len(LENGTHS)]
            assert (next_env, next_episode, next_t) == (env, episode, t + 1), "one step of the same episode"
            assert next_t <= length
            assert reward == pytest.approx(100 * episode + next_t + 0.1 * action, rel=1e-6)
            is_end = next_t == length
            assert discount == pytest.approx(0.0 if is_end and episode % 2 == 0 else 0.99)
            seen.add((int(env), int(episode), int(t)))
    for env in range(ENVS):
        episodes = {episode for number, episode, _ in seen if number == env}
        steps = {(episode, t) for number, episode, t in seen if number == env}
        whole = sorted(episodes)[:-1]
        assert len(whole) > 8
        for episode in whole:
            length = LENGTHS[(episode + env) % len(LENGTHS)]
            assert {t for e, t in steps if e == episode} == set(range(length)), "no step is lost"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episodes_are_counted_once_with_their_own_length_and_return(mode):
    session = session_of(mode)
    taken = []
    step_envs = session.actor.envs.step
    session.actor.envs.step = lambda action_N: taken.append(action_N) or step_envs(action_N)
    session.advance(50)
    read = session.read()
    lengths, returns = zip(*episodes_by_hand(np.array(taken), mode), strict=True)
    assert len({action for vector in taken for action in vector}) == 3, "all actions were taken"
    assert read.episodes[0] == read.totals.episodes[0] == len(lengths) > 20
    assert read.totals.episode_length[0] == sum(lengths)
    assert read.totals.episode_return[0] == pytest.approx(sum(returns), rel=1e-6)


def episodes_by_hand(actions_TN, mode):
    """Length and return of every episode that ended, env by env, by the counting env's rule."""
    for env in range(ENVS):
        actions, episode = list(actions_TN[:, env]), 0
        while len(actions) >= (length := LENGTHS[(episode + env) % len(LENGTHS)]):
            yield length, sum(100 * episode + t + 1 + 0.1 * actions[t] for t in range(length))
            # With NEXT_STEP the action after an end is only a reset.
            del actions[: length + (mode == AutoresetMode.NEXT_STEP)]
            episode += 1


def test_a_reward_that_is_not_finite_names_the_env_and_is_not_stored():
    session = session_of(AutoresetMode.SAME_STEP, spoil=(1, 2, 1))
    with pytest.raises(NotFinite, match="env 1 gave a reward"):
        session.advance(100)
    rows = stored(session).r_t
    assert np.isfinite(rows).all()
    assert session.learner.replay.size > 3


@pytest.mark.as_users_compile
def test_two_runs_are_the_same_and_another_seed_is_not():
    runs = []
    for _ in range(2):
        session = session_of(AutoresetMode.SAME_STEP)
        session.advance(40)
        runs.append(session.arrays())
    assert all((runs[0][name] == runs[1][name]).all() for name in runs[0])


def test_a_restored_session_has_the_same_learner_replay_and_counters():
    session = session_of(AutoresetMode.NEXT_STEP)
    session.advance(40)
    kept = {name: np.array(array) for name, array in session.arrays().items()}
    other = session_of(AutoresetMode.NEXT_STEP)
    other.restore(kept)
    same = [name for name in kept if name.startswith(("learner", "replay/ring", "counters", "random", "owed"))]
    assert all((other.arrays()[name] == kept[name]).all() for name in same)
    assert other.blocks == 40
    assert other.env_steps < 40 * ENVS, "steps in which an env was only reset are no transitions"
    before, steps = other.read().updates[0], other.env_steps
    other.advance(30)
    assert other.read().updates[0] - before == pytest.approx((other.env_steps - steps) / ENVS, abs=1), "no burst"
    kept["replay/ring/size"] = np.int64(41)
    with pytest.raises(ValueError, match="41 valid rows"):
        session_of(AutoresetMode.NEXT_STEP).restore(kept)


def test_the_host_ring_is_a_list_of_the_newest_rows():
    random = np.random.default_rng(0)
    row = Item(*(jax.ShapeDtypeStruct((), np.float32) for _ in range(5)))
    ring, naive = HostRing(10, row), []
    for step in range(40):
        count = int(random.integers(1, 8))
        values = np.arange(count, dtype=np.float32) + 100 * step
        valid = random.random(count) < 0.7
        chosen = values[valid]
        values_kept = chosen.copy()
        ring.insert(Item(chosen, chosen, chosen, chosen, chosen))
        chosen[:] = -1  # what was inserted is a copy
        naive = (naive + values_kept.tolist())[-10:]
        assert ring.take(np.arange(ring.inserted - ring.size, ring.inserted)).r_t.tolist() == naive
        if naive:
            drawn = ring.take(ring.draw(random, (3, 50))).r_t
            assert drawn.shape == (3, 50)
            assert set(drawn.reshape(-1).tolist()) <= set(naive)


SPACES = {
    "box": (spaces.Box(-1, 1, (2,), np.float64), np.array([0.5, -0.5]), [0.5, -0.5]),
    "image": (spaces.Box(0, 255, (2, 2, 1), np.uint8), np.full((2, 2, 1), 7, np.uint8), [7] * 4),
    "discrete": (spaces.Discrete(3, start=5), 6, [0, 1, 0]),
    "multi-discrete": (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
    "multi-binary": (spaces.MultiBinary(3), np.array([1, 0, 1]), [1, 0, 1]),
}


@pytest.mark.parametrize("name", SPACES)
def test_observations_become_arrays(name):
    space, one, expected = SPACES[name]
    found = observations(space)
    encoded = found.encode(np.stack([one, one]))
    assert encoded.shape == (2, *found.shapes.shape)
    assert encoded.dtype == found.shapes.dtype
    assert encoded[1].reshape(-1).tolist() == expected
    inside = spaces.Dict({"a": space, "b": spaces.Tuple([space])})
    nested = observations(inside)
    tree = nested.encode({"a": np.stack([one]), "b": (np.stack([one]),)})
    assert tree["a"][0].reshape(-1).tolist() == tree["b"][0][0].reshape(-1).tolist() == expected


def test_actions_are_numbered():
    assert actions(spaces.Discrete(3, start=-1)).decode(np.array([0, 2])).tolist() == [-1, 1]
    multi = actions(spaces.MultiDiscrete([2, 3]))
    assert multi.size == 6
    assert multi.decode(np.arange(6)).tolist() == [[a, b] for a in range(2) for b in range(3)]
    for space, said in ((spaces.Box(-1, 1, (1,)), "Discrete"), (spaces.MultiDiscrete([50, 50]), "2,500 combinations")):
        with pytest.raises(SpecError, match=said):
            actions(space)
    with pytest.raises(SpecError, match=r"the observation\['x'\] is a Text space"):
        observations(spaces.Dict({"x": spaces.Text(5)}))


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu", "selu"])
@pytest.mark.parametrize(
    "head",
    [
        {"kind": "scalar"},
        {"dueling": True, "hidden": [5]},
        {"dueling": True},
        {"trunk": [7]},
        {"dueling": True, "trunk": [7, 6], "hidden": [5]},
    ],
)
def test_acting_in_numpy_is_acting_in_xla(activation, head):
    network = {"torso": {"hidden": [16, 8], "activation": activation}, "head": head}
    spec = parse_spec({"network": network})
    shapes = {"a": jax.ShapeDtypeStruct((3,), np.float32), "b": jax.ShapeDtypeStruct((2,), np.uint8)}
    engine = JaxEngine(spec, shapes, 4)
    freeze, which = choose_policy(spec, engine.on_host(), 16)
    assert which == "NumPy"
    params = engine.init(jax.random.key(0)).params
    random = np.random.default_rng(0)
    obs = {"a": random.normal(size=(16, 3)).astype(np.float32), "b": random.integers(0, 2, (16, 2)).astype(np.uint8)}
    np.testing.assert_allclose(freeze(params)(obs), engine.q_values(params, obs), rtol=2e-5, atol=2e-6)


def test_large_networks_act_in_xla():
    spec = parse_spec({"network": {"torso": {"hidden": [1024, 1024]}}})
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((8,), np.float32), 2)
    assert choose_policy(spec, engine.on_host(), 64)[1] == "the engine"


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_evaluation_plays_equally_many_episodes_in_each_env(mode):
    envs = HostEnvs(counting_envs(ENVS, mode))
    found = play(envs, lambda obs: np.zeros(ENVS), wanted=8, limit=1000, seed=0)
    episodes = [(e, LENGTHS[(e + env) % len(LENGTHS)]) for env, share in ((0, 3), (1, 3), (2, 2)) for e in range(share)]
    assert sorted(found.length.tolist()) == sorted(length for _, length in episodes)
    # 100 x episode + step, summed over the steps 1 … length.
    returns = sorted(100 * e * length + length * (length + 1) / 2 for e, length in episodes)
    assert sorted(found.episode_return.tolist()) == returns
    assert returns[:3] == [1.0, 3.0, 10.0], "the first episodes last 1, 4 and 2 steps"
