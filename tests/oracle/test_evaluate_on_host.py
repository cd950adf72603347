"""Greedy episodes of Gymnasium envs: fair shares, bounds in env steps, figures of the env; all counted by hand."""

import numpy as np
import pytest
from counting_env import LENGTHS, Counting, counting_envs
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.envs.host import HostEnvs
from hotloop.envs.serial import SerialEnvs
from hotloop.evaluate import Episodes, envs_to_play, play

ENVS = 3
FIRST = {0: [1, 4, 2, 7, 3], 1: [4, 2, 7, 3, 1], 2: [2, 7, 3, 1, 4]}
"""Lengths of the first episodes of each counting env."""


def greedy(obs):
    return np.zeros(len(obs))


def return_of(episode, steps):
    return sum(100 * episode + t for t in range(1, steps + 1))


def played(most_steps, mode=AutoresetMode.DISABLED, wanted=8):
    return play(HostEnvs(counting_envs(ENVS, mode)), greedy, wanted, limit=1000, seed=0, most_steps=most_steps)


def test_the_counting_envs_last_as_long_as_written_here():
    assert {env: [LENGTHS[(e + env) % 5] for e in range(5)] for env in range(ENVS)} == FIRST


@pytest.mark.parametrize(
    ("most_steps", "expected", "cut"),
    [
        # After so many env steps, a third of them in each env: (env, episode, its length so far).
        (3, [(0, 0, 1), (1, 0, 1), (2, 0, 1)], 7),  # only env 0 has ended one
        (4, [(0, 0, 1), (1, 0, 2), (2, 0, 2)], 6),  # a vector step is not divided
        (12, [(0, 0, 1), (1, 0, 4), (2, 0, 2)], 5),  # env 1 has just ended its first and begun nothing yet
        (15, [(0, 0, 1), (1, 0, 4), (2, 0, 2), (0, 1, 4), (1, 1, 1), (2, 1, 3)], 4),
    ],
)
def test_a_cut_evaluation_counts_equally_many_episodes_of_each_env(most_steps, expected, cut):
    found = played(most_steps)
    lengths = sorted(found.length.tolist())
    assert lengths == sorted(length for *_, length in expected)
    returns = sorted(return_of(episode, length) for _, episode, length in expected)
    assert sorted(found.episode_return.tolist()) == returns
    assert found.cut == cut
    assert found.summary()["cut"] == cut


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_bound_that_is_not_reached_changes_nothing(mode):
    whole, bound = played(None, mode), played(1000, mode)
    assert bound.cut == 0
    assert "cut" not in bound.summary()
    assert whole.episode_return.tolist() == bound.episode_return.tolist()
    shares = {0: 3, 1: 3, 2: 2}
    expected = [(e, FIRST[env][e]) for env, share in shares.items() for e in range(share)]
    assert sorted(whole.length.tolist()) == sorted(length for _, length in expected)
    assert sorted(whole.episode_return.tolist()) == sorted(return_of(*pair) for pair in expected)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_steps_of_envs_that_have_played_their_share_are_not_counted(mode):
    """Three episodes of env 0 and 1, two of env 2: 7 + 13 + 9 steps; the two that are done step on beside the third."""
    found = played(29, mode)
    assert found.cut == 0
    assert int(found.length.sum()) == 29
    assert played(28, mode).cut > 0


def test_envs_that_step_on_beside_one_that_never_ends_are_bounded_too():
    """Env 0 never ends an episode; the others have played theirs soon."""
    make = [lambda i=i: Endless(i, None, False) for i in range(ENVS)]
    envs = HostEnvs(SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))
    found = play(envs, greedy, wanted=3, limit=1000, seed=0, most_steps=30)
    assert found.cut == 1
    assert found.length.max() == 2 * 30 / ENVS, "twice the budget, shared by three"


@pytest.mark.parametrize(
    ("episodes", "most", "envs"), [(100, 16, 15), (16, 16, 16), (17, 16, 9), (3, 16, 3), (10, 4, 4), (10, 99, 10)]
)
def test_no_more_envs_than_finish_in_as_few_rounds(episodes, most, envs):
    assert envs_to_play(episodes, most) == envs


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_same_bound_gives_the_same_episodes(mode):
    one, other = played(20, mode), played(20, mode)
    assert one.cut > 0
    assert one.length.tolist() == other.length.tolist()


class Endless(Counting):
    """Env 0 never ends an episode."""

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        goes_on = self.number == 0
        return obs, reward, terminated and not goes_on, truncated and not goes_on, {}


def test_where_one_env_is_stuck_in_a_long_episode_no_other_counts_more():
    """An env that cannot be reset from outside plays no episode after one that reached the limit."""
    make = [lambda i=i: Endless(i, None, False) for i in range(ENVS)]
    envs = HostEnvs(SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))
    found = play(envs, greedy, wanted=9, limit=6, seed=0)
    assert sorted(found.length.tolist()) == [2, 4, 6]
    assert found.cut == 6, "one as it stands after `max_steps` is what was asked for, those never begun are not"
    assert found.length[found.endless].tolist() == [6]
    assert found.summary()["endless"] == 1


class Said(Counting):
    """Says how deep it was only where an episode ends."""

    def step(self, action):
        *rest, terminated, truncated, _ = super().step(action)
        return *rest, terminated, truncated, {"depth": self.t} if terminated or truncated else {}


def said_envs():
    numbers = iter(range(ENVS))
    return HostEnvs(SerialEnvs(lambda: Said(next(numbers), None, False), ENVS, ("depth",)), ("depth",))


def test_figures_of_the_env_are_means_over_the_episodes_that_have_them():
    cut = play(said_envs(), greedy, wanted=8, limit=1000, seed=0, most_steps=6)  # lengths 1, 2 (runs on), 2
    assert np.isnan(cut.info["depth"]).sum() == 1
    assert cut.summary()["depth_mean"] == 1.5
    limited = play(said_envs(), greedy, wanted=3, limit=3, seed=0)  # 1, 3 (stopped by the limit), 2
    assert limited.summary()["depth_mean"] == 1.5
    nothing = play(said_envs(), greedy, wanted=3, limit=1, seed=0)  # env 0 ends at once
    assert nothing.summary()["depth_mean"] == 1.0


def test_a_figure_that_no_episode_has_is_left_out_instead_of_nan():
    episodes = Episodes(np.array([1.0]), np.array([2]), {"depth": np.array([np.nan]), "score": np.array([3])})
    summary = episodes.summary()
    assert "depth_mean" not in summary
    assert summary["score_mean"] == 3.0
    assert all(np.isfinite(value) for value in summary.values())


def test_someone_hears_of_every_vector_step_and_may_end_it():
    heard = []
    play(HostEnvs(counting_envs(ENVS, AutoresetMode.DISABLED)), greedy, 3, 1000, 0, tell=lambda *n: heard.append(n))
    assert heard == [(0, 3), (1, 3), (2, 3), (2, 3)]

    def tell(done, wanted):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(HostEnvs(counting_envs(ENVS, AutoresetMode.DISABLED)), greedy, 3, 1000, 0, tell=tell)


def test_an_env_that_raises_before_the_cut_still_plays_an_episode():
    class Stumbling(Counting):
        stumbles = 0

        def step(self, action):
            if self.number == 1 and Stumbling.stumbles < 2:
                Stumbling.stumbles += 1
                raise RuntimeError("it stumbled")
            return super().step(action)

    numbers = iter((0, 1, 2, 1, 1))
    envs = HostEnvs(SerialEnvs(lambda: Stumbling(next(numbers), None, False), ENVS))
    found = play(envs, greedy, wanted=3, limit=100, seed=0, most_steps=1)
    assert len(found.length) == ENVS
    assert found.length.min() >= 1
