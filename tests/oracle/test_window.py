"""The device's n-step window against whole episodes, added up one env at a time in float64."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotloop.experience import Item
from hotloop.replay import window

pytestmark = pytest.mark.less_optimised

DISCOUNT, ENVS, STEPS, ACTIONS = 0.9, 4, 30, 3


class Played(NamedTuple):
    """What the envs did, (T, N, …): observations are trees, and all of their numbers occur once."""

    s_tm1: Any
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    s_t: Any
    legal_t: np.ndarray


class Naive(NamedTuple):
    """The item that begins with one step of one env."""

    reward: float
    discount: float
    last: int  # step whose s_t it ends in


def play(seed: int, ends: float) -> Played:
    """Each step ends each env's episode with chance `ends`: by termination, truncation, or both at once."""
    random = np.random.default_rng(seed)
    shape = (STEPS, ENVS)
    number = np.arange(STEPS * ENVS).reshape(shape)
    over, how = random.random(shape) < ends, random.integers(3, size=shape)
    return Played(
        {"place": np.stack([number, -number], -1).astype(np.float32), "id": number.astype(np.int32)},
        random.integers(ACTIONS, size=shape).astype(np.int32),
        random.normal(size=shape).astype(np.float32) * 10,
        over & (how != 1),
        over & (how != 0),
        {"place": np.stack([number, number], -1).astype(np.float32) + 0.5, "id": (number + 100_000).astype(np.int32)},
        random.random((*shape, ACTIONS)) < 0.5,
    )


def naive(played: Played, n: int) -> list[list[Naive]]:
    """Of every env, the item of each step that is complete."""
    found: list[list[Naive]] = []
    for env in range(ENVS):
        items: list[Naive] = []
        for first in range(STEPS - n + 1):
            reward, taken, is_terminated = 0.0, 0, False
            for at in range(first, first + n):
                reward += DISCOUNT**taken * float(played.reward[at, env])
                taken += 1
                is_terminated = bool(played.terminated[at, env])
                if is_terminated or played.truncated[at, env]:
                    break
            items.append(Naive(reward, 0.0 if is_terminated else DISCOUNT**taken, first + taken - 1))
        found.append(items)
    return found


@cache
def program(n: int, masked: bool) -> Any:
    """All steps through a window of n, compiled once."""

    def run(played: Played) -> Item:
        discount = jnp.float32(DISCOUNT) * (1.0 - played.terminated.astype(jnp.float32))
        items = Item(
            played.s_tm1, played.action, played.reward, discount, played.s_t, played.legal_t if masked else None
        )
        held = window.empty(n, jax.tree.map(lambda leaf: leaf[0], items))

        def one(held: window.Window, step: Any) -> Any:
            return window.push(held, *step)

        return jax.lax.scan(one, held, (items, played.terminated | played.truncated))[1]

    return jax.jit(run)


def assert_items_are_those_of_whole_episodes(played: Played, n: int, masked: bool) -> list[list[Naive]]:
    out = jax.device_get(program(n, masked)(played))
    assert out.r_t.shape == (STEPS, ENVS), "one item per env and step"
    expected = naive(played, n)
    for env in range(ENVS):
        for first, item in enumerate(expected[env]):
            at = first + n - 1, env  # n - 1 steps late
            assert out.r_t[at] == pytest.approx(item.reward, rel=1e-5, abs=1e-4)
            assert out.discount_t[at] == pytest.approx(item.discount, rel=1e-6, abs=0)
            assert out.a_tm1[at] == played.action[first, env]
            for name in ("place", "id"):
                np.testing.assert_array_equal(out.s_tm1[name][at], played.s_tm1[name][first, env])
                np.testing.assert_array_equal(out.s_t[name][at], played.s_t[name][item.last, env])
                assert out.s_t[name].dtype == played.s_t[name].dtype
            if masked:
                np.testing.assert_array_equal(out.legal_t[at], played.legal_t[item.last, env])
    assert (out.legal_t is None) is not masked
    return expected


@settings(max_examples=60)
@given(
    n=st.integers(1, 5),
    masked=st.booleans(),
    seed=st.integers(0, 2**32),
    ends=st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]),
)
@example(n=1, masked=True, seed=0, ends=1.0)
@example(n=5, masked=True, seed=0, ends=0.7)
def test_items_are_those_of_whole_episodes(n: int, masked: bool, seed: int, ends: float) -> None:
    assert_items_are_those_of_whole_episodes(play(seed, ends), n, masked)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_every_way_and_time_to_end_is_seen(n: int) -> None:
    """Each env ends after its own lengths, from 1 step to more than n, by each of the three endings."""
    played = play(0, 0.0)
    for env in range(ENVS):
        t = length = episode = 0
        for step in range(STEPS):
            length = length or 1 + (episode + env) % (n + 2)
            t += 1
            if t == length:
                ending = (episode + env) % 3
                played.terminated[step, env], played.truncated[step, env] = ending != 1, ending != 0
                t = length = 0
                episode += 1
    expected = assert_items_are_those_of_whole_episodes(played, n, masked=False)
    taken = {item.last - first + 1 for items in expected for first, item in enumerate(items)}
    assert taken == set(range(1, n + 1)), "items of every number of steps"
    over = played.terminated | played.truncated
    assert (over.any(axis=1) & ~over.all(axis=1)).any(), "envs end at different times"
    assert (played.terminated & played.truncated).any()
    assert (played.terminated & ~played.truncated).any()
    assert (played.truncated & ~played.terminated).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_the_next_episode_pays_never_enters_the_one_before(poison: float) -> None:
    played = play(0, 0.0)
    played.terminated[9, 0] = played.truncated[9, 1] = True
    played.reward[10:, :2] = poison
    out = program(4, False)(played)
    ended = np.asarray(out.r_t)[3:13, :2]  # items of steps 0 … 9
    assert np.isfinite(ended).all()
    assert not np.isfinite(np.asarray(out.r_t)[13:, :2]).any()
    assert np.isfinite(np.asarray(out.r_t)[3:, 2:]).all(), "nor another env"


def test_a_window_keeps_one_step_less_than_n_and_begins_with_all_closed() -> None:
    obs_N, number_N = np.zeros((2, 3), np.float32), np.zeros(2, np.float32)
    item_N = Item(obs_N, np.zeros(2, np.int32), number_N, number_N, obs_N)
    held = window.empty(4, item_N)
    assert held.is_open.shape == (3, 2)
    assert not held.is_open.any()
    for leaf, of_one in zip(jax.tree.leaves(held.items), jax.tree.leaves(item_N), strict=True):
        assert leaf.shape == (3, *of_one.shape)
    for _ in range(6):
        held, _ = window.push(held, item_N, jnp.zeros(2, bool))
        assert held.is_open.shape == (3, 2)
    assert held.is_open.all()
