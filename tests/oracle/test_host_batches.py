"""One observation or a batch: decided by shape for every kind of space, never by dtype or bounds."""

import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from hotloop.agent import Agent
from hotloop.assembly import Player
from hotloop.envs.host_batches import batched
from hotloop.envs.host_spaces import observations
from hotloop.spec.reading import parse_spec

BOX = spaces.Box(-1, 1, (2,), np.float32)
SPACES = {
    "box": BOX,
    "box of one number": spaces.Box(-1, 1, (), np.float32),
    "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-discrete table": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(4)}),
    "tuple": spaces.Tuple([BOX, spaces.Discrete(4)]),
    "tuple of numbers": spaces.Tuple([spaces.Discrete(4), spaces.Discrete(4)]),
    "nested": spaces.Dict({"x": spaces.Tuple([BOX, spaces.MultiBinary(2)]), "y": spaces.Dict({"z": BOX})}),
}


def as_lists(obs):
    """The same in Python's own numbers and lists; tuples and dicts stay."""
    if isinstance(obs, dict):
        return {name: as_lists(part) for name, part in obs.items()}
    return tuple(map(as_lists, obs)) if isinstance(obs, tuple) else np.asarray(obs).tolist()


def leaves(tree):
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", SPACES)
def test_one_observation_and_batches_of_any_form_are_told_apart(name):
    space = SPACES[name]
    space.seed(0)
    encode = observations(space).encode
    samples = [space.sample() for _ in range(3)]
    whole = concatenate(space, samples, create_empty_array(space, 3))
    assert batch_space(space, 3).contains(whole)
    expected = encode(whole)
    for form in (whole, as_lists(whole), samples, [as_lists(one) for one in samples]):
        batch, is_single = batched(space, form)
        assert not is_single
        assert leaves(encode(batch)) == leaves(expected)
    for index, one in enumerate(samples):
        for form in (one, as_lists(one)):
            batch, is_single = batched(space, form)
            assert is_single
            assert leaves(encode(batch)) == leaves(jax.tree.map(lambda leaf, i=index: leaf[i : i + 1], expected))
    single, is_single = batched(space, samples[:1])
    assert not is_single, "a batch of one is a batch"
    assert jax.tree.leaves(encode(single))[0].shape[0] == 1


@pytest.mark.parametrize("obs", [np.array([5.0, -7.0]), np.array([0.5, 0.5], np.float64), [3, 4]])
def test_dtype_and_bounds_do_not_matter(obs):
    assert not BOX.contains(obs)
    batch, is_single = batched(BOX, obs)
    assert is_single
    assert batch.shape == (1, 2)


@pytest.mark.parametrize(
    ("name", "obs", "said"),
    [
        ("box", np.zeros(3), r"has shape \(3,\), expected \(2,\) or a batch of it"),
        ("box", np.zeros((2, 3)), r"has shape \(2, 3\), expected \(2,\)"),
        ("box", np.zeros((4, 4, 2)), r"has shape \(4, 4, 2\), expected \(2,\)"),
        ("box", np.zeros((0, 2)), r"has shape \(0, 2\), expected \(2,\)"),
        ("box", [[1.0], [1.0, 2.0]], r"is a list of 2, expected numbers of shape \(2,\)"),
        ("box", "left", r"is a str, expected numbers"),
        ("box", None, "is a NoneType"),
        ("discrete", 4, r"holds other than whole numbers from 5 to 7"),
        ("discrete", 5.5, r"holds other than whole numbers from 5 to 7"),
        ("discrete", [[5, 6]], r"has shape \(1, 2\), expected \(\)"),
        ("multi-discrete", [1, 3], r"from \[0, 0\] to \[1, 2\]"),
        ("multi-discrete", [1, 1, 1], r"has shape \(3,\), expected \(2,\)"),
        ("multi-binary", [0, 1, 2], "from 0 to 1"),
        ("image", np.full((2, 2, 1), 0.5), "from 0 to 255"),
        ("dict", {"a": np.zeros(2)}, "has the parts a, expected a, b"),
        ("dict", {"a": np.zeros(2), "b": 1, "c": 0}, "has the parts a, b, c, expected a, b"),
        ("dict", {"a": np.zeros((3, 2)), "b": [1, 2]}, "do not agree: they are a batch of 3, a batch of 2"),
        ("dict", {"a": np.zeros((3, 2)), "b": 1}, "do not agree: they are a batch of 3, one observation"),
        ("dict", np.zeros(2), r"is a ndarray of shape \(2,\), expected Dict"),
        ("dict", {"a": np.zeros(3), "b": 1}, r"observation\['a'\] has shape \(3,\), expected \(2,\)"),
        ("tuple", (np.zeros(2),), "observation"),
        ("tuple", (np.zeros((2, 2)), 1), "observation"),
        ("tuple", 3, "is a int, expected the 2 parts of Tuple"),
    ],
)
def test_what_is_neither_is_refused_with_what_was_seen_and_expected(name, obs, said):
    with pytest.raises(ValueError, match=said):
        batched(SPACES[name], obs)


def test_a_list_is_one_of_observations_and_a_tuple_that_of_the_parts_where_both_would_fit():
    space = SPACES["tuple of numbers"]
    listed, _ = batched(space, [(0, 1), (2, 3)])
    assert leaves(listed) == [[0, 2], [1, 3]]
    in_parts, _ = batched(space, ((0, 1), (2, 3)))
    assert leaves(in_parts) == [[0, 1], [2, 3]]


def test_an_agent_takes_observations_of_any_dtype_and_beyond_the_bounds():
    player = Player(parse_spec({"env": {"id": "CartPole-v1"}, "network": {"torso": {"hidden": [8]}}}))
    agent = Agent(player, player.engine.weights(player.engine.init(0)))
    far = [[0.0, 1.0, 100.0, -3.0], [0.0, 0.0, 0.0, 0.0], [-9.0, 1.0, 0.0, 0.0]]
    best = agent.predict(np.array(far))
    assert best.shape == (3,)
    for one, action in zip(far, best, strict=True):
        for form in (one, np.array(one), np.array(one, np.float32)):
            assert agent.predict(form) == action
            assert isinstance(agent.predict(form), int)
    assert agent.q_values(np.array(far[0])).shape == (2,)
    with pytest.raises(ValueError, match=r"observation has shape \(3,\), expected \(4,\) or a batch of it"):
        agent.predict(np.zeros(3))
