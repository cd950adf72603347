"""Service function chains: place the functions of requests on data centres (DCs) before their delays run out.

The figures are in `sfc_tables.py`, what the agent sees in `sfc_observation.py`.

| open question | decision |
|---|---|
| a request | a bundle of identical chains, placed, satisfied or dropped as a whole; rewards and acceptance count requests |
| arrivals | at 0 ms and every `arrival_every` steps, one request of each service; source and destination are DCs drawn independently, they may be the same; chains, and the Mbps of a MIoT chain, are whole numbers |
| DCs | 2–8, drawn for each episode unless `dcs` says how many; whole CPUs, places on whole km, links for both directions together |
| the agent's way | in each step it visits every DC once (a round): each time the one not yet visited where most waiting requests have their traffic, of equals the lowest number. It stays until it waits or does something invalid |
| time | stands still during a step; 1 ms passes after the round, or after `actions_per_step` actions. With `full_steps` a step always has all its actions, and rounds follow each other |
| the order of a chain | kept: a request waits for its next function only, from the step on in which it leaves the one before (at the latest, as the step's last microsecond begins) |
| allocate v | a waiting request that fits gets an idle instance of v in this DC; if there is none, one is installed |
| it fits if | links have room for the whole request (to this DC from where its traffic is; if v is its last function, also on to its destination), and it would leave v, and then be at its destination, within its limit |
| which request | the highest P1 + P2 + P3 of those that fit; of equals the service first in the table, then the older one. Remaining is as of the step's beginning; P2 is +10 if this DC has a function of it, else -5 if another has |
| how long it takes | max(now, when it left the function before) + propagation to this DC + chains x ms of v; an instance works on the chains one after another |
| an instance in use | taken from the allocation until the end of the step in which the request leaves it |
| bandwidth | the Mbps of all chains, reserved on the link to the latest function until the next one is allocated or the request ends, and for the last one also on the link to the destination; room is what is free beside all this, its own old link included |
| satisfied | as soon as its last function is allocated: that it ends in time is then certain. Its traffic flows until that end |
| dropped | when its limit has passed and functions are missing; all that it held is free again |
| uninstall v | an idle instance: CPU, RAM and storage are free at once, nothing else frees them; requests never lose a function |
| a needed VNF | one that some request waits for at this moment, wherever |
| invalid | to uninstall what is not idle here; to allocate what nobody that fits waits for, or with no instance and no room for one. It costs -1 and is otherwise a wait |
| too many requests | cannot be: a request is gone when its limit is reached, so each service has places enough |
| the end of a step | CPU use is noted, time moves, instances and links are given back, requests are dropped, then others arrive |
| the end | after `steps` steps, a truncation; nothing arrives at that moment |
| `progress`, `lateness` | 0 is the rules' reward. Else a pending request counts as `progress` x the share of its functions that it has, less `lateness` x the share of its limit that has passed, and as nothing once it is satisfied or dropped: a potential, which moves rewards to the allocations they are for and losses to the time that was lost, and changes no episode's sum but by what is pending at its end |
| `needed` | the reward for uninstalling a needed VNF, -0.5 by the rules. Where CPU is scarce somebody waits for every function, and an agent that is to accept much must uninstall all the same: 0 lets it |
| acceptance | satisfied ÷ arrived, so what is pending at the end counts as not accepted |
| `elapsed_ms` of `info` | 1 for an action after which 1 ms passes, else 0: for `discount_per`; no figure |
| delay | from arrival to destination, mean of the satisfied requests, NaN without any |
| CPU use | CPU of installed instances ÷ CPU of all DCs, mean over the ends of steps, NaN before the first |
"""  # noqa: E501

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs import sfc_observation
from hotloop.envs.device import ObsTree
from hotloop.envs.sfc_state import EACH_DC, Requests, SfcState, Survey, legal, pending_of, survey, waits
from hotloop.envs.sfc_tables import (
    CPU,
    DC_CPU,
    DROPPED,
    FEWEST_DCS,
    INVALID,
    LENGTH,
    LIGHT_KM_PER_MS,
    LIMIT_MS,
    MOST_DCS,
    NEEDED,
    NUM_ACTIONS,
    POSITION,
    SATISFIED,
    SERVICES,
    SQUARE_KM,
    STEP_US,
    S,
    V,
    places,
)

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Sfc:
    """`dcs`: 2–8, or None for a number drawn in each episode; a step is 1 ms, of at most `actions_per_step` actions."""

    dcs: int | None = None
    steps: int = 200
    actions_per_step: int = 100
    arrival_every: int = 4
    full_steps: bool = False
    progress: float = 0.0
    lateness: float = 0.0
    needed: float = NEEDED

    def __post_init__(self) -> None:
        if self.dcs is not None and (type(self.dcs) is not int or not FEWEST_DCS <= self.dcs <= MOST_DCS):
            raise TypeError(
                f"dcs is {self.dcs!r}, expected {FEWEST_DCS} … {MOST_DCS} DCs, or none for a number drawn per episode"
            )
        for name, most in (("steps", 1_000_000), ("actions_per_step", 1_000_000), ("arrival_every", 1000)):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise TypeError(f"{name} is {value!r}, expected a whole number of 1 … {most}")
        for name, lowest, highest in (("progress", 0, 100), ("lateness", 0, 100), ("needed", -100, 0)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not lowest <= value <= highest:
                raise TypeError(f"{name} is {value!r}, expected a number of {lowest} … {highest}")
        if type(self.full_steps) is not bool:
            raise TypeError(f"full_steps is {self.full_steps!r}, expected true or false")

    @property
    def clock(self) -> str:
        """The entry of `info` that says how long a step took: 0 or 1 ms."""
        return "elapsed_ms"

    @property
    def num_actions(self) -> int:
        """Uninstall one of six functions, allocate one of six, wait."""
        return NUM_ACTIONS

    @property
    def obs_spec(self) -> ObsTree:
        """This DC, its part in each service, and what is pending of each service."""
        return sfc_observation.SPEC

    @property
    def render_fps(self) -> int:
        """Decisions per second that are pleasant to watch: a few steps of 1 ms."""
        return 25

    def reset(self, key: jax.Array) -> tuple[SfcState, dict[str, jax.Array]]:
        """Draw a network, and the first requests."""
        count_key, cpu_key, place_key, arrival_key = jax.random.split(key, 4)
        count = jax.random.randint(count_key, (), FEWEST_DCS, MOST_DCS + 1) if self.dcs is None else self.dcs
        exists = jnp.asarray(EACH_DC) < count
        place = jax.random.randint(place_key, (MOST_DCS, 2), 0, SQUARE_KM + 1)
        km = jnp.sqrt(jnp.sum((place[:, None] - place[None]).astype(jnp.float32) ** 2, -1))
        zero = jnp.int32(0)
        state = SfcState(
            requests=_no_requests(int(places(self.arrival_every).max())),
            cpu=jnp.where(exists, jax.random.randint(cpu_key, (MOST_DCS,), DC_CPU[0], DC_CPU[1] + 1), 0),
            place=place,
            travel=jnp.round(km * (STEP_US / LIGHT_KM_PER_MS)).astype(jnp.int32),
            installed=jnp.zeros((MOST_DCS, V), jnp.int32),
            now=zero,
            acted=zero,
            dc=zero,
            unvisited=exists,
            arrived=jnp.zeros(S, jnp.int32),
            satisfied=jnp.zeros(S, jnp.int32),
            delay_ms=jnp.float32(0),
            cpu_use=jnp.float32(0),
        )
        state = _begin_visit(self._arrivals(state, arrival_key, jnp.bool_(True)))
        return state, self.observe(state)

    def step(
        self, state: SfcState, action: jax.Array, key: jax.Array
    ) -> tuple[SfcState, dict[str, jax.Array], jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Act in the present DC; when the step's last visit or action is over, 1 ms passes."""
        here, before, began = survey(state), self._potential(state), state.now
        is_chosen = jnp.arange(NUM_ACTIONS) == action
        valid = jnp.any(is_chosen & legal(here))
        uninstalled, allocated = is_chosen[:V] & valid, is_chosen[V : 2 * V] & valid
        is_needed = jnp.any(uninstalled & jnp.any(here.waits_for, (1, 2)))
        state, satisfied = _allocate(state, here, allocated)
        added = (allocated & (here.idle == 0)).astype(jnp.int32) - uninstalled
        installed = state.installed + jnp.where(EACH_DC[:, None] == state.dc, added, 0)
        state = state._replace(installed=installed, acted=state.acted + 1)
        state, dropped = self._move_on(state, ~jnp.any(uninstalled | allocated), key)
        reward = (
            jnp.where(satisfied, SATISFIED, 0.0)
            + jnp.where(valid, 0.0, INVALID)
            + jnp.where(is_needed, self.needed, 0.0)
            + DROPPED * dropped
            + self._potential(state)
            - before
        ).astype(jnp.float32)
        truncated = state.now >= self.steps
        info = {**figures(state), self.clock: (state.now - began).astype(jnp.float32)}
        return state, self.observe(state), reward, jnp.bool_(False), truncated, info

    def _potential(self, state: SfcState) -> jax.Array | float:
        """What pending requests have of their chains, less the time they have lost, in rewards."""
        if not self.progress and not self.lateness:
            return 0.0
        r = state.requests
        done, late = r.stage / LENGTH[:, None], (state.now - r.arrived) / LIMIT_MS[:, None]
        return jnp.sum(jnp.where(pending_of(r), self.progress * done - self.lateness * late, 0.0))

    def observe(self, state: SfcState) -> dict[str, jax.Array]:
        """What the agent sees of a state."""
        return sfc_observation.observe(state, survey(state))

    def action_mask(self, state: SfcState) -> jax.Array:
        """All actions that are not invalid."""
        return legal(survey(state))

    def render(self, state: SfcState) -> "Image":
        """Draw one state."""
        from hotloop.envs.sfc_picture import draw

        return draw(state, self.steps)

    def _move_on(self, state: SfcState, leaves: jax.Array, key: jax.Array) -> tuple[SfcState, jax.Array]:
        """Go to the next DC, or into the next step; how many requests were dropped meanwhile."""
        unvisited = state.unvisited & ~(leaves & (state.dc == EACH_DC))
        round_over = ~jnp.any(unvisited)
        ends = state.acted >= self.actions_per_step
        if not self.full_steps:
            ends |= round_over
        state, dropped = self._pass_time(state, ends, key)
        state = state._replace(
            unvisited=jnp.where(ends | round_over, state.cpu > 0, unvisited), acted=jnp.where(ends, 0, state.acted)
        )
        return _begin_visit(state, leaves | ends), dropped

    def _pass_time(self, state: SfcState, passes: jax.Array, key: jax.Array) -> tuple[SfcState, jax.Array]:
        """Let 1 ms pass, if it does."""
        r, taken = state.requests, jnp.sum(state.installed * CPU) / jnp.sum(state.cpu)
        now = state.now + passes
        dropped = passes & pending_of(r) & (now - r.arrived >= LIMIT_MS[:, None])
        gone = dropped | (passes & (r.stage == LENGTH[:, None]) & (r.finish <= now * STEP_US))
        live = r.live & ~gone
        is_latest = r.stage - 1 == POSITION.T[..., None]
        still_busy = ~passes | (is_latest & (r.ready > now * STEP_US))
        state = state._replace(
            requests=r._replace(
                live=live,
                where=jnp.where(live, r.where, jnp.int8(-1)),
                busy=r.busy & live & still_busy,
            ),
            now=now,
            cpu_use=state.cpu_use + jnp.where(passes, taken, 0.0),
        )
        arrives = passes & (now % self.arrival_every == 0) & (now < self.steps)
        return self._arrivals(state, key, arrives), jnp.sum(dropped)

    def _arrivals(self, state: SfcState, key: jax.Array, arrives: jax.Array) -> SfcState:
        """One request of each service, if any."""
        r, (chains, kbps, source, destination) = state.requests, _draw(key, jnp.sum(state.cpu > 0))
        index = (state.now // self.arrival_every) % places(self.arrival_every)
        new = arrives & (jnp.arange(r.live.shape[1]) == index[:, None])
        begun = Requests(
            live=jnp.bool_(True),
            arrived=state.now,
            chains=chains,
            kbps=chains * kbps,
            came_from=source,
            at=source,
            destination=destination,
            stage=jnp.int32(0),
            ready=state.now * STEP_US,
            finish=jnp.int32(0),
            where=jnp.int8(-1),
            busy=jnp.bool_(False),
        )
        requests: Requests = jax.tree.map(lambda one, other: jnp.where(new, one, other), begun, r)
        return state._replace(requests=requests, arrived=state.arrived + arrives)


def figures(state: SfcState) -> dict[str, jax.Array]:
    """How well the requests so far were served: acceptance of all and by service, mean delay, CPU use."""
    satisfied = jnp.sum(state.satisfied)
    by_service = state.satisfied / state.arrived
    return {
        "acceptance": satisfied / jnp.sum(state.arrived),
        **{f"acceptance_{service.name}": by_service[i] for i, service in enumerate(SERVICES)},
        "delay_ms": jnp.where(satisfied > 0, state.delay_ms / satisfied, jnp.nan),
        "cpu_use": jnp.where(state.now > 0, state.cpu_use / state.now, jnp.nan),
    }


def _allocate(state: SfcState, here: Survey, allocated: jax.Array) -> tuple[SfcState, jax.Array]:
    """Serve the first of those that fit with the one function in `allocated` (V,), if any; whether it is satisfied."""
    r = state.requests
    wants = here.waits_for & allocated[:, None, None]
    fits = here.fits & jnp.any(wants, 0)
    best = jnp.max(jnp.where(fits, here.rank, 0))
    served = fits & (here.rank == best)
    done = served & here.is_last
    placed = served & wants
    requests = r._replace(
        came_from=jnp.where(served, r.at, r.came_from),
        at=jnp.where(served, state.dc, r.at),
        stage=r.stage + served,
        ready=jnp.where(served, here.ready, r.ready),
        finish=jnp.where(done, here.finish, r.finish),
        where=jnp.where(placed, state.dc.astype(jnp.int8), r.where),
        busy=r.busy | placed,
    )
    took = jnp.sum(jnp.where(done, here.finish - r.arrived * STEP_US, 0)) / STEP_US
    satisfied = state.satisfied + jnp.any(done, 1)
    return state._replace(requests=requests, satisfied=satisfied, delay_ms=state.delay_ms + took), jnp.any(done)


def _begin_visit(state: SfcState, goes: jax.Array | bool = True) -> SfcState:
    """Be in the unvisited DC where most of those that wait have their traffic."""
    r = state.requests
    crowd = jnp.sum(waits(state) & (r.at == EACH_DC[:, None, None]), (1, 2), dtype=jnp.int32)
    order = jnp.where(state.unvisited, crowd * MOST_DCS + (MOST_DCS - 1 - EACH_DC), -1)
    first = MOST_DCS - 1 - jnp.max(order) % MOST_DCS
    return state._replace(dc=jnp.where(goes, first, state.dc).astype(jnp.int32))


def _draw(key: jax.Array, count: jax.Array) -> tuple[jax.Array, ...]:
    """Chains, kbps of one, source and destination of a new request of each service, (S, 1) each."""
    bits = jax.random.bits(key, (4, S, 1), jnp.uint32)

    def between(drawn: jax.Array, bounds: list[tuple[int, int]]) -> jax.Array:
        low, high = np.array(bounds, np.int32).T[..., None]
        return (drawn % jnp.asarray(high - low + 1, jnp.uint32)).astype(jnp.int32) + jnp.asarray(low)

    mbps = between(bits[1], [(low // 1000, high // 1000) for low, high in (s.kbps for s in SERVICES)])
    varies = np.array([[s.kbps[0] != s.kbps[1]] for s in SERVICES])
    fixed = np.array([[s.kbps[0]] for s in SERVICES], np.int32)
    source, destination = ((drawn % count.astype(jnp.uint32)).astype(jnp.int32) for drawn in bits[2:])
    return between(bits[0], [s.chains for s in SERVICES]), jnp.where(varies, mbps * 1000, fixed), source, destination


def _no_requests(most: int) -> Requests:
    nothing, nowhere = jnp.zeros((S, most), jnp.int32), jnp.full((V, S, most), -1, jnp.int8)
    return Requests(nothing > 0, *(nothing,) * 9, where=nowhere, busy=nowhere > 0)
