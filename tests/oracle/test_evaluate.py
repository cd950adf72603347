"""Greedy episodes against what a plain loop over them would count."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.envs.device import ObsSpec
from hotloop.evaluate import Episodes
from hotloop.pipelines.device_play import episodes_program, to_host

pytestmark = pytest.mark.less_optimised

EPISODES, LONGEST = 200, 6


@dataclass(frozen=True)
class Timed:
    """Lasts 1 to 6 steps, drawn by the reset; step t pays t x action. Even lengths terminate, odd are truncated."""

    num_actions: int = 3

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, np.zeros(2), np.full(2, LONGEST))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.stack([jax.random.randint(key, (), 1, LONGEST + 1), 0])
        return state, state.astype(jnp.float32)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        length, t = state[0], state[1] + 1
        over, is_even = t >= length, length % 2 == 0
        state = jnp.stack([length, t])
        info = {"length": length, "left": length - t}
        return state, state.astype(jnp.float32), (t * action).astype(jnp.float32), over & is_even, over & ~is_even, info


class Alternating:
    """A policy that can be followed by hand: action (t mod 2) + its weights, where t counts from 0."""

    def memory(self, count: int) -> tuple[()]:
        return ()

    def play(self, params: jax.Array, memory_N: tuple[()], obs_N: jax.Array) -> tuple[tuple[()], jax.Array]:
        return memory_N, (obs_N[:, 1].astype(jnp.int32) % 2) + params


@cache
def compiled(max_steps: int) -> Any:
    policy: Any = Alternating()
    return jax.jit(episodes_program(Timed(), policy, EPISODES, max_steps))


def play(max_steps: int, weights: int = 1, seed: int = 0) -> Episodes:
    return to_host(compiled(max_steps)(jnp.int32(weights), jax.random.key(seed)))


@pytest.fixture(scope="module")
def played() -> Episodes:
    return play(max_steps=100)


def expected_return(length: int, weights: int) -> int:
    return sum(t * ((t - 1) % 2 + weights) for t in range(1, length + 1))


def test_every_env_plays_exactly_one_episode_to_its_end(played: Episodes) -> None:
    np.testing.assert_array_equal(played.length, played.info["length"])
    assert set(played.length) == set(range(1, LONGEST + 1))
    assert len(played.length) == EPISODES


def test_a_return_is_the_sum_of_the_rewards_of_the_greedy_actions(played: Episodes) -> None:
    assert played.episode_return.tolist() == [expected_return(length, 1) for length in played.length]
    other = play(max_steps=100, weights=0)
    assert other.episode_return.tolist() == [expected_return(length, 0) for length in other.length]


def test_the_envs_own_figures_are_those_of_the_last_step(played: Episodes) -> None:
    assert not played.info["left"].any()


def test_an_endless_episode_counts_as_it_stands_after_the_most_steps_allowed(played: Episodes) -> None:
    capped = play(max_steps=4)
    np.testing.assert_array_equal(capped.length, np.minimum(played.length, 4))
    assert capped.episode_return.tolist() == [expected_return(length, 1) for length in capped.length]
    np.testing.assert_array_equal(capped.info["left"], np.maximum(played.info["length"] - 4, 0))
    np.testing.assert_array_equal(capped.endless, played.length > 4)
    assert capped.summary()["endless"] == (played.length > 4).sum()
    assert "endless" not in played.summary()


def test_the_key_decides_which_episodes_are_played(played: Episodes) -> None:
    np.testing.assert_array_equal(played.length, play(max_steps=100).length)
    assert (played.length != play(max_steps=100, seed=1).length).any()


def test_a_summary_holds_means_and_spread_under_the_command_lines_names() -> None:
    episodes = Episodes(np.array([1.0, 5.0]), np.array([2, 4]), {"score": np.array([10.0, 20.0])})
    assert episodes.summary() == {
        "episodes": 2,
        "return_mean": 3.0,
        "return_std": 2.0,
        "length_mean": 3.0,
        "score_mean": 15.0,
    }
