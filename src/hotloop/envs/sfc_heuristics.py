"""Policies for service function chains that nobody has to learn: what a trained agent should beat.

| policy | what it does |
|---|---|
| `random_legal` | any legal action, all equally likely |
| `greedy` | serves the request with the shortest remaining delay of those that fit in this DC, but leaves those whose traffic is in another DC to that one while it has an idle instance or room |
| `priority` | serves the request that an allocation ranks highest (P1 + P2 + P3) of those that fit in this DC |

The last two never wait while they could serve such a request. They say which function is allocated; which request gets it is the env's
rule. Where the function of the first one has neither an idle instance nor room, they uninstall idle instances that
none of these requests waits for, the one with most CPU first, and if all of these are not enough, serve the next one.
"""  # noqa: E501

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hotloop.envs.device import reset_all
from hotloop.envs.sfc import Sfc
from hotloop.envs.sfc_state import SfcState, Survey, legal, pick, remaining_ms, survey
from hotloop.envs.sfc_tables import CPU, DC_RAM, MOST_DCS, RAM, WAIT, V

Policy = Callable[[SfcState, jax.Array], jax.Array]
"""`policy(state, key)` gives an action; pure, so it can be jitted and vmapped."""
FIRST = 1 << 20


def random_legal(state: SfcState, key: jax.Array) -> jax.Array:
    """Any action that is not invalid."""
    return jax.random.categorical(key, jnp.where(legal(survey(state)), 0.0, -jnp.inf))


def greedy(state: SfcState, key: jax.Array) -> jax.Array:
    """Shortest remaining delay first."""
    del key  # nothing is left to chance
    here = survey(state)
    return _serve(here, here.fits & ~_served_elsewhere(state, here), FIRST - remaining_ms(state))


def priority(state: SfcState, key: jax.Array) -> jax.Array:
    """What the env's own P1 + P2 + P3 puts first."""
    del key
    here = survey(state)
    return _serve(here, here.fits, here.rank)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"random legal": random_legal, "greedy": greedy, "priority": priority}
)


class Outcome(NamedTuple):
    """One entry per episode."""

    episode_return: jax.Array
    decisions: jax.Array
    figures: dict[str, jax.Array]
    """Acceptance of all and by service, mean delay, CPU use: what the env's `info` says at the end."""


def play(env: Sfc, policy: Policy, episodes: int, key: jax.Array) -> Outcome:
    """Play so many episodes side by side, each to its end; to be jitted, with all but the key fixed."""
    reset_key, step_key = jax.random.split(key)
    state_E, _ = reset_all(env, reset_key, episodes)
    names = jax.eval_shape(jax.vmap(env.step), state_E, jnp.zeros(episodes, jnp.int32), _keys(key, episodes))[5]
    del names[env.clock]  # no figure
    Carry = tuple[jax.Array, SfcState, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]

    def one(carry: Carry) -> Carry:
        t, state_E, alive_E, return_E, length_E, figures_E = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(step_key, t))
        action_E = jax.vmap(policy)(state_E, _keys(act_key, episodes))
        state_E, _, reward_E, _, truncated_E, info_E = jax.vmap(env.step)(state_E, action_E, _keys(env_key, episodes))
        figures_E = {name: jnp.where(alive_E, info_E[name], figures_E[name]) for name in figures_E}
        return_E = return_E + jnp.where(alive_E, reward_E, 0.0)
        return t + 1, state_E, alive_E & ~truncated_E, return_E, length_E + alive_E, figures_E

    nothing = jnp.zeros(episodes)
    start = (jnp.int32(0), state_E, nothing == 0, nothing, nothing.astype(jnp.int32), dict.fromkeys(names, nothing))
    end = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), one, start)
    return Outcome(end[3], end[4], end[5])


def _serve(here: Survey, fits: jax.Array, score: jax.Array) -> jax.Array:
    """Allocate for whom fits and scores highest (positive; (S, R)) and can be served, or make room for it."""
    scores = jnp.max(jnp.where(here.waits_for & fits, score, 0), (1, 2))  # (V,), 0 where nobody fits
    can = here.can_allocate & (scores > 0)
    unwanted = here.can_uninstall & (scores == 0)
    spare_cpu, spare_ram = (jnp.sum(jnp.where(unwanted, here.idle, 0) * need) for need in (CPU, RAM))
    could = can | ((scores > 0) & (here.free_cpu + spare_cpu >= CPU) & (here.free_ram + spare_ram >= RAM))
    wanted = jnp.argmax(jnp.where(could, scores, 0))
    largest = jnp.argmax(jnp.where(unwanted, CPU, 0))
    return jnp.where(jnp.any(could), jnp.where(can[wanted], V + wanted, largest), WAIT)


def _served_elsewhere(state: SfcState, here: Survey) -> jax.Array:
    """Requests with traffic in another DC that has an idle instance, or room for one, of what they wait for, (S, R)."""
    r = state.requests
    busy = jnp.stack([jnp.sum((r.where == dc) & r.busy, (1, 2)) for dc in range(MOST_DCS)])
    cpu, ram = state.cpu - jnp.sum(state.installed * CPU, 1), DC_RAM - jnp.sum(state.installed * RAM, 1)
    able = (state.installed > busy) | ((cpu[:, None] >= CPU) & (ram[:, None] >= RAM))  # (8, V)
    able_there = jnp.stack([pick(able[:, v].astype(jnp.int32), r.at) > 0 for v in range(V)])
    return (r.at != state.dc) & jnp.any(able_there & here.waits_for, 0)


def _keys(key: jax.Array, count: int) -> jax.Array:
    return jax.random.split(key, count)
