"""Policies for service function chains: legal, as they are described, and better than chance; and the picture."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_sfc import VNFS, WAIT

from hotloop.envs.sfc import Sfc
from hotloop.envs.sfc_heuristics import POLICIES, play
from hotloop.envs.sfc_state import SfcState, Survey, survey
from hotloop.envs.sfc_tables import CPU

pytestmark = pytest.mark.less_optimised

ENV, EPISODES = Sfc(dcs=4, steps=24), 8


@cache
def played(name: str) -> tuple[SfcState, Survey, np.ndarray, np.ndarray, np.ndarray]:
    """States of 300 decisions in a few envs, the survey and the mask of each, what was chosen, and rewards."""

    def one(state: Any, t: jax.Array) -> Any:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), t), EPISODES)
        action = jax.vmap(POLICIES[name])(state, keys)
        after, _, reward, _, _, _ = jax.vmap(ENV.step)(state, action, keys)
        return after, (state, jax.vmap(survey)(state), jax.vmap(ENV.action_mask)(state), action, reward)

    state, _ = jax.vmap(ENV.reset)(jax.random.split(jax.random.key(0), EPISODES))
    return jax.device_get(jax.jit(lambda state: jax.lax.scan(one, state, jnp.arange(300))[1])(state))


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_does_nothing_invalid(name: str) -> None:
    _, _, mask, action, _ = played(name)
    assert np.take_along_axis(mask, action[..., None], -1).all()
    assert len(np.unique(action)) > 5


def test_random_legal_takes_all_that_is_legal() -> None:
    _, _, mask, action, _ = played("random legal")
    alone = mask.sum(-1) == 2
    share = (action[alone] == WAIT).mean()
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("name", ["greedy", "priority"])
def test_the_function_allocated_is_that_of_the_first_request_that_can_be_served(name: str) -> None:
    state, here, mask, action, _ = played(name)
    limits = np.array([80, 10, 100, 100, 5, 8])
    checked = 0
    for t, i in np.argwhere((action >= 6) & (action < WAIT)):
        best = {}
        for v in range(len(VNFS)):
            those = np.argwhere(here.waits_for[t, i, v] & here.fits[t, i])
            if mask[t, i, 6 + v] and len(those):
                left = [limits[s] - (state.now[t, i] - state.requests.arrived[t, i, s, k]) for s, k in those]
                ranks = [here.rank[t, i, s, k] for s, k in those]
                best[v] = -min(left) if name == "greedy" else max(ranks)
        assert best[action[t, i] - 6] == max(best.values())
        checked += len(best) > 1
    assert checked > 20, "there was mostly nothing to choose from"


@pytest.mark.parametrize("name", ["greedy", "priority"])
def test_it_never_waits_while_it_could_serve_and_uninstalls_only_to_make_room(name: str) -> None:
    _, here, mask, action, _ = played(name)
    could = mask[..., 6:WAIT].any(-1)
    assert not (could & (action == WAIT)).any()
    uninstalls = action < 6
    fitting = (here.waits_for & here.fits[:, :, None]).any((-1, -2))
    useless = here.idle * ~fitting
    for t, i in np.argwhere(uninstalls):
        assert useless[t, i, action[t, i]] > 0, "somebody here could have used it"
        room = here.free_cpu[t, i] + (useless[t, i] * CPU).sum()
        assert any(fitting[t, i, v] and CPU[v] <= room for v in range(6))
    assert uninstalls.any()


def test_playing_counts_each_episode_once_and_greedy_beats_chance() -> None:
    outcomes = {
        name: jax.device_get(jax.jit(lambda key, policy=policy: play(ENV, policy, 24, key))(jax.random.key(3)))
        for name, policy in POLICIES.items()
        if name != "priority"
    }
    for outcome in outcomes.values():
        assert outcome.episode_return.shape == (24,)
        assert (outcome.decisions >= 24 * 4).all(), "24 steps, four DCs"
        assert all(((values >= 0) & (values <= 1)).all() for k, values in outcome.figures.items() if k != "delay_ms")
    chance, greedy = (outcomes[name].figures["acceptance"].mean() for name in ("random legal", "greedy"))
    assert greedy > chance + 0.03


def test_the_picture_shows_where_the_agent_is_and_changes_with_time() -> None:
    state, _, _, _, _ = played("greedy")
    first, later = (ENV.render(jax.tree.map(lambda leaf: leaf[t, 0], state)) for t in (0, 250))
    assert first.mode == "RGB"
    assert first.size == later.size == (752, 520)
    assert (np.asarray(first) != np.asarray(later)).mean() > 0.01
