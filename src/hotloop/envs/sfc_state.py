"""A network with its requests as arrays, and what the agent could do in the DC it is in."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.sfc_tables import (
    CPU,
    DC_RAM,
    DC_STORAGE,
    ELSEWHERE,
    HERE,
    LENGTH,
    LIMIT_MS,
    LINK_KBPS,
    MOST_DCS,
    POSITION,
    RAM,
    STEP_US,
    STORAGE,
    WORK_US,
    S,
)


class Requests(NamedTuple):
    """All places for requests, (S, R): the k-th request of a service has place k modulo the places it needs."""

    live: jax.Array  # bool: it has arrived, and its traffic still flows or waits
    arrived: jax.Array  # ms
    chains: jax.Array  # how many identical chains it consists of
    kbps: jax.Array  # of all of them
    came_from: jax.Array  # DC its traffic was in before this one
    at: jax.Array  # DC its traffic is in, or is on its way to
    destination: jax.Array
    stage: jax.Array  # how many of its functions are allocated
    ready: jax.Array  # µs: when it has passed the latest of them
    finish: jax.Array  # µs: when it is at its destination, once all are allocated
    where: jax.Array  # int8 (V, S, R): DC of each function, -1 if not allocated
    busy: jax.Array  # bool (V, S, R): it keeps an instance of the function from others


class SfcState(NamedTuple):
    """One network. DCs that do not exist have no CPU and are never visited."""

    requests: Requests
    cpu: jax.Array  # (8,) 0 where there is no DC
    place: jax.Array  # (8, 2) km
    travel: jax.Array  # (8, 8) µs
    installed: jax.Array  # (8, V) instances
    now: jax.Array  # ms
    acted: jax.Array  # actions taken in this step
    dc: jax.Array  # where the agent is
    unvisited: jax.Array  # (8,) bool: DCs to come in this round, the present one included
    arrived: jax.Array  # (S,) requests so far
    satisfied: jax.Array  # (S,)
    delay_ms: jax.Array  # sum over satisfied requests
    cpu_use: jax.Array  # sum over steps of the share of all CPU that is taken


class Survey(NamedTuple):
    """What can be done in the DC where the agent is; (S, R) for each request, (V,) for each function."""

    holds: jax.Array  # (V, S, R) bool: this DC has the function for it
    pending: jax.Array  # (S, R) bool: not all of its functions are allocated
    waits_for: jax.Array  # (V, S, R) bool: it waits for this function now
    fits: jax.Array  # (S, R) bool: its next function can be here, if there is an instance
    rank: jax.Array  # (S, R) P1 + P2 + P3 and, where these are equal, who comes first: no two have the same
    ready: jax.Array  # (S, R) µs: when it would have passed its next function here
    finish: jax.Array  # (S, R) µs: and gone on to its destination
    is_last: jax.Array  # (S, R) bool: its next function is its last
    installed: jax.Array  # (V,)
    idle: jax.Array  # (V,) instances
    room: jax.Array  # (V,) bool: one more instance could be installed
    free_cpu: jax.Array
    free_ram: jax.Array
    free_storage: jax.Array
    can_uninstall: jax.Array  # (V,) bool
    can_allocate: jax.Array  # (V,) bool


_POSITION, _LENGTH, _LIMIT = POSITION.T[..., None], LENGTH[:, None], LIMIT_MS[:, None]
_WORK_US = WORK_US[:, None, None]
EACH_DC = np.arange(MOST_DCS, dtype=np.int32)
_RANK_BASE = 200_000  # makes every rank positive
_SERVICE_FIRST = ((S - 1 - np.arange(S, dtype=np.int32)) << 7)[:, None]


def survey(state: SfcState) -> Survey:
    """Look around in the present DC."""
    r, dc, now = state.requests, state.dc, state.now * STEP_US
    holds = r.where == dc.astype(jnp.int8)
    pending, waits_for = pending_of(r), waiting_for(state)
    travel, used = state.travel[dc], used_kbps(r, dc)
    is_last = r.stage == _LENGTH - 1
    work = jnp.sum(jnp.where(waits_for, _WORK_US, 0), 0) * r.chains
    ready = jnp.maximum(now, r.ready) + pick(travel, r.at) + work
    finish = ready + jnp.where(is_last, pick(travel, r.destination), 0)
    free = LINK_KBPS - used
    gets_here = (r.at == dc) | (pick(free, r.at) >= r.kbps)
    gets_away = ~is_last | (r.destination == dc) | (pick(free, r.destination) >= r.kbps)
    both_ways = is_last & (r.at == r.destination) & (r.at != dc)
    gets_there = gets_here & gets_away & (~both_ways | (pick(free, r.at) >= 2 * r.kbps))
    in_time = finish <= (r.arrived + _LIMIT) * STEP_US
    fits = jnp.any(waits_for, 0) & gets_there & in_time
    installed = state.installed[dc]
    idle = installed - jnp.sum(holds & r.busy, (1, 2), dtype=jnp.int32)
    free_cpu = state.cpu[dc] - jnp.sum(installed * CPU)
    free_ram = DC_RAM - jnp.sum(installed * RAM)
    free_storage = DC_STORAGE - jnp.sum(installed * STORAGE)
    room = (free_cpu >= CPU) & (free_ram >= RAM) & (free_storage >= STORAGE)
    return Survey(
        holds=holds,
        pending=pending,
        waits_for=waits_for,
        fits=fits,
        rank=_ranks(state, jnp.any(holds, 0)),
        ready=ready,
        finish=finish,
        is_last=is_last,
        installed=installed,
        idle=idle,
        room=room,
        free_cpu=free_cpu,
        free_ram=free_ram,
        free_storage=free_storage,
        can_uninstall=idle > 0,
        can_allocate=jnp.any(waits_for & fits, (1, 2)) & ((idle > 0) | room),
    )


def legal(here: Survey) -> jax.Array:
    """The actions that are not invalid, bool (2V + 1,)."""
    return jnp.concatenate([here.can_uninstall, here.can_allocate, jnp.ones(1, bool)])


def pending_of(r: Requests) -> jax.Array:
    """Requests that have functions still to be allocated, (S, R)."""
    return r.live & (r.stage < _LENGTH)


def waiting_for(state: SfcState) -> jax.Array:
    """Who waits for which function, (V, S, R): the next of its chain, once it leaves the one before in this step."""
    return waits(state) & (state.requests.stage == jnp.asarray(_POSITION))


def waits(state: SfcState) -> jax.Array:
    """Requests that wait for a function, (S, R)."""
    r = state.requests
    return pending_of(r) & (r.ready < (state.now + 1) * STEP_US)


def remaining_ms(state: SfcState) -> jax.Array:
    """What is left of each request's limit, (S, R)."""
    return state.requests.arrived - state.now + _LIMIT


def used_kbps(r: Requests, dc: jax.Array) -> jax.Array:
    """What is reserved on the links from one DC to each, (8,); the entry of the DC itself means nothing."""
    over = r.live & (r.stage == _LENGTH)
    coming = jnp.where(r.at == dc, r.came_from, jnp.where(r.came_from == dc, r.at, -1))
    leaving = jnp.where(r.at == dc, r.destination, jnp.where(r.destination == dc, r.at, -1))
    kbps = jnp.where(r.live, r.kbps, 0)
    each = jnp.asarray(EACH_DC)[:, None, None]
    return jnp.sum(jnp.where(coming == each, kbps, 0) + jnp.where(over & (leaving == each), kbps, 0), (1, 2))


def pick(row: jax.Array, index: jax.Array) -> jax.Array:
    """`row[index]` for a row of one entry per DC: a sum is faster than a gather."""
    return jnp.sum(jnp.where(index == EACH_DC[:, None, None], row[:, None, None], 0), 0)


def _ranks(state: SfcState, is_here: jax.Array) -> jax.Array:
    left = remaining_ms(state)
    held = jnp.where(is_here, HERE, jnp.where(state.requests.stage > 0, ELSEWHERE, 0))
    return ((rank_of(left) + held + _RANK_BASE) << 10) + _SERVICE_FIRST + (127 - left)


def rank_of(remaining_ms: jax.Array) -> jax.Array:
    """P1 + P3 in thousandths, of at least 1 ms; 1e-6 more in the divisor make no difference there."""
    left = jnp.maximum(remaining_ms, 1)
    return jnp.where(left < 10, jnp.round(100_000 / left).astype(jnp.int32), 0) - 1000 * left
