"""Policies for service function chains: legal, as they are described, and better than chance; and the picture."""

from functools import cache
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_sfc import WAIT

from hotloop.envs.sfc import Sfc
from hotloop.envs.sfc_heuristics import POLICIES, play
from hotloop.envs.sfc_state import SfcState, Survey, survey
from hotloop.envs.sfc_tables import CPU, RAM

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


def candidates(name: str) -> list[tuple[tuple[int, int], dict[int, int]]]:
    """Each decision, and how much the best request for each function counts: by the description, one by one."""
    state, here, _, action, _ = played(name)
    limits = np.array([80, 10, 100, 100, 5, 8])
    found = []
    for t, i in np.ndindex(action.shape):
        best: dict[int, int] = {}
        r = state.requests
        for v, s, k in np.argwhere(here.waits_for[t, i] & here.fits[t, i]):
            at = r.at[t, i, s, k]
            if name == "greedy" and at != state.dc[t, i] and could_serve(state, t, i, at, v):
                continue
            left = limits[s] - (state.now[t, i] - r.arrived[t, i, s, k])
            score = int(1000 - left if name == "greedy" else here.rank[t, i, s, k])
            best[int(v)] = max(best.get(int(v), 0), score)
        found.append(((t, i), best))
    return found


def could_serve(state: SfcState, t: int, i: int, dc: int, v: int) -> bool:
    installed = state.installed[t, i, dc]
    busy = ((state.requests.where[t, i, v] == dc) & state.requests.busy[t, i, v]).sum()
    has_room = CPU[v] <= state.cpu[t, i, dc] - (installed * CPU).sum() and RAM[v] <= 256 - (installed * RAM).sum()
    return bool(installed[v] > busy or has_room)


@pytest.mark.parametrize("name", ["greedy", "priority"])
def test_the_function_allocated_is_that_of_the_first_request_that_can_be_served(name: str) -> None:
    _, _, mask, action, _ = played(name)
    choices = waits = 0
    for at, best in candidates(name):
        served = {v: score for v, score in best.items() if mask[at][6 + v]}
        if 6 <= action[at] < WAIT:
            assert served[action[at] - 6] == max(served.values())
            choices += len(served) > 1
        elif action[at] == WAIT:
            assert not served, "it waits, though it could serve"
            waits += 1
    assert choices > 20, "there was mostly nothing to choose from"
    assert waits > 20


@pytest.mark.parametrize("name", ["greedy", "priority"])
def test_it_uninstalls_only_what_it_has_no_use_for_and_only_if_that_makes_room(name: str) -> None:
    _, here, _, action, _ = played(name)
    uninstalls = 0
    for at, best in candidates(name):
        if action[at] < 6:
            useless = np.array([0 if v in best else here.idle[at][v] for v in range(6)])
            assert useless[action[at]] > 0, "somebody here could have used it"
            room = here.free_cpu[at] + (useless * CPU).sum()
            assert any(CPU[v] <= room for v in best)
            uninstalls += 1
    assert uninstalls > 0


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
    first, later = (ENV.render(jax.tree.map(itemgetter((t, 0)), state)) for t in (0, 250))
    assert first.mode == "RGB"
    assert first.size == later.size == (752, 520)
    assert (np.asarray(first) != np.asarray(later)).mean() > 0.01
