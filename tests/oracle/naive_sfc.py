"""Service function chains once more, request by request: lists, dicts and loops, by the tables of `envs/sfc.py`."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

VNFS = ["NAT", "FW", "VOC", "TM", "WO", "IDPS"]
CPU = {"NAT": 1, "FW": 9, "VOC": 5, "TM": 13, "WO": 5, "IDPS": 11}
RAM = {"NAT": 4, "FW": 5, "VOC": 11, "TM": 7, "WO": 2, "IDPS": 15}
STORAGE = {"NAT": 7, "FW": 1, "VOC": 13, "TM": 7, "WO": 5, "IDPS": 2}
MICROSECONDS = {"NAT": 60, "FW": 30, "VOC": 110, "TM": 70, "WO": 80, "IDPS": 20}
CHAINS = {
    "cloud_gaming": ["NAT", "FW", "VOC", "WO", "IDPS"],
    "ar": ["NAT", "FW", "TM", "VOC", "IDPS"],
    "voip": ["NAT", "FW", "TM"],
    "video": ["NAT", "FW", "TM", "VOC", "IDPS"],
    "miot": ["NAT", "FW", "IDPS"],
    "industry": ["NAT", "FW"],
}
SERVICES = list(CHAINS)
LIMIT_MS = {"cloud_gaming": 80, "ar": 10, "voip": 100, "video": 100, "miot": 5, "industry": 8}
BUNDLE = {
    "cloud_gaming": (40, 55),
    "ar": (1, 4),
    "voip": (100, 200),
    "video": (50, 100),
    "miot": (10, 15),
    "industry": (1, 4),
}
KBPS = {
    "cloud_gaming": (4000, 4000),
    "ar": (100000, 100000),
    "voip": (64, 64),
    "video": (4000, 4000),
    "miot": (1000, 50000),
    "industry": (70000, 70000),
}
WAIT = 12


@dataclass
class Request:
    """A bundle of identical chains, as it was drawn, and what became of it."""

    service: str
    chains: int
    kbps: int  # of one chain
    source: int
    destination: int
    arrived: int = 0  # ms
    placed: list[int] = field(default_factory=list)  # the DC of each function allocated so far
    left_latest: int = 0  # µs
    finish: int | None = None  # µs, once all functions are allocated

    @property
    def chain(self) -> list[str]:
        return CHAINS[self.service]

    @property
    def is_pending(self) -> bool:
        return len(self.placed) < len(self.chain)

    @property
    def needs(self) -> str:
        return self.chain[len(self.placed)]

    @property
    def traffic_at(self) -> int:
        return self.placed[-1] if self.placed else self.source

    def links(self) -> list[frozenset[int]]:
        """Where its bandwidth is reserved."""
        stops = [self.source, *self.placed]
        hops = [stops[-2:]]
        if not self.is_pending:
            hops.append([stops[-1], self.destination])
        return [frozenset(hop) for hop in hops if len(set(hop)) == 2]

    def total_kbps(self) -> int:
        return self.chains * self.kbps


@dataclass
class Use:
    """An instance that works for a request, or is kept for it."""

    dc: int
    vnf: str
    request: Request
    until: int  # µs


class NaiveSfc:
    """One episode. What is random is given: CPUs and travel times (µs) of the DCs, and requests when they arrive."""

    def __init__(
        self,
        cpu: list[int],
        travel: list[list[int]],
        arrivals: list[Request],
        steps: int = 200,
        actions_per_step: int = 100,
        arrival_every: int = 4,
        full_steps: bool = False,
    ) -> None:
        self.cpu, self.travel = cpu, travel
        self.steps, self.actions_per_step, self.arrival_every = steps, actions_per_step, arrival_every
        self.full_steps = full_steps
        self.dcs = list(range(len(cpu)))
        self.installed = [dict.fromkeys(VNFS, 0) for _ in self.dcs]
        self.uses: list[Use] = []
        self.requests: list[Request] = []
        self.now = self.acted = 0
        self.counts = {"arrived": dict.fromkeys(SERVICES, 0), "satisfied": dict.fromkeys(SERVICES, 0)}
        self.delays: list[float] = []
        self.cpu_use: list[float] = []
        self.arrive(arrivals)
        self.begin_round()

    # -- the agent's way --------------------------------------------------------------------------

    def begin_round(self) -> None:
        self.unvisited = set(self.dcs)
        self.go_on()

    def go_on(self) -> None:
        def crowd(dc: int) -> int:
            return sum(self.waits(request) and request.traffic_at == dc for request in self.requests)

        self.dc = max(sorted(self.unvisited), key=crowd)

    def step(self, action: int, arrivals: list[Request]) -> tuple[float, bool]:
        """Act; return reward and whether the episode is over. `arrivals` are for the case that 1 ms passes."""
        reward, stays = 0.0, False
        if not self.is_legal(action):
            reward = -1.0
        elif action < 6:
            vnf = VNFS[action]
            if any(self.waits(request) and request.needs == vnf for request in self.requests):
                reward = -0.5
            self.installed[self.dc][vnf] -= 1
            stays = True
        elif action < WAIT:
            reward = 2.0 if self.allocate(VNFS[action - 6]) else 0.0
            stays = True
        self.acted += 1
        if not stays:
            self.unvisited.remove(self.dc)
        round_over = not self.unvisited
        if self.acted == self.actions_per_step or (round_over and not self.full_steps):
            reward -= 1.5 * self.pass_time(arrivals)
            self.acted = 0
            self.begin_round()
        elif round_over:
            self.begin_round()
        elif not stays:
            self.go_on()
        return reward, self.now == self.steps

    # -- placing ----------------------------------------------------------------------------------

    def waits(self, request: Request) -> bool:
        return request.is_pending and request.left_latest < 1000 * (self.now + 1)

    def idle(self, vnf: str) -> int:
        return self.installed[self.dc][vnf] - sum(use.dc == self.dc and use.vnf == vnf for use in self.uses)

    def free(self, need: dict[str, int], most: int) -> int:
        return most - sum(need[vnf] * count for vnf, count in self.installed[self.dc].items())

    def has_room(self, vnf: str) -> bool:
        return (
            self.free(CPU, self.cpu[self.dc]) >= CPU[vnf]
            and self.free(RAM, 256) >= RAM[vnf]
            and self.free(STORAGE, 2048) >= STORAGE[vnf]
        )

    def reserved(self, link: frozenset[int]) -> int:
        return sum(request.total_kbps() * request.links().count(link) for request in self.requests)

    def times(self, request: Request) -> tuple[int, int]:
        """When it would leave its next function here, and when it would then be at its destination, in µs."""
        start = max(1000 * self.now, request.left_latest) + self.travel[request.traffic_at][self.dc]
        leaves = start + request.chains * MICROSECONDS[request.needs]
        is_last = len(request.placed) == len(request.chain) - 1
        return leaves, leaves + (self.travel[self.dc][request.destination] if is_last else 0)

    def fits(self, request: Request) -> bool:
        if self.times(request)[1] > 1000 * (request.arrived + LIMIT_MS[request.service]):
            return False
        wanted: dict[frozenset[int], int] = {}
        hops = [(request.traffic_at, self.dc)]
        if len(request.placed) == len(request.chain) - 1:
            hops.append((self.dc, request.destination))
        for hop in hops:
            if hop[0] != hop[1]:
                wanted[frozenset(hop)] = wanted.get(frozenset(hop), 0) + request.total_kbps()
        return all(self.reserved(link) + kbps <= 1_000_000 for link, kbps in wanted.items())

    def priority(self, request: Request) -> float:
        elapsed, limit = self.now - request.arrived, LIMIT_MS[request.service]
        remaining = limit - elapsed
        p1 = elapsed - limit
        p2 = 10 if self.dc in request.placed else -5 if request.placed else 0
        p3 = 100 / (remaining + 1e-6) if remaining < 10 else 0
        return p1 + p2 + p3

    def candidates(self, vnf: str) -> list[Request]:
        """In the order of the services, then the older ones first."""
        those = [r for r in self.requests if self.waits(r) and r.needs == vnf and self.fits(r)]
        return sorted(those, key=lambda request: (SERVICES.index(request.service), request.arrived))

    def allocate(self, vnf: str) -> bool:
        """Serve the first request; return whether it is satisfied."""
        request = max(self.candidates(vnf), key=self.priority)
        leaves, finish = self.times(request)
        if self.idle(vnf) == 0:
            self.installed[self.dc][vnf] += 1
        assert vnf not in request.chain[: len(request.placed)], "no function is allocated twice"
        request.placed.append(self.dc)
        request.left_latest = leaves
        self.uses.append(Use(self.dc, vnf, request, leaves))
        if request.is_pending:
            return False
        request.finish = finish
        self.counts["satisfied"][request.service] += 1
        self.delays.append(finish / 1000 - request.arrived)
        return True

    def is_legal(self, action: int) -> bool:
        if action == WAIT:
            return True
        vnf = VNFS[action % 6]
        if action < 6:
            return self.idle(vnf) > 0
        return (self.idle(vnf) > 0 or self.has_room(vnf)) and bool(self.candidates(vnf))

    def mask(self) -> list[bool]:
        return [self.is_legal(action) for action in range(13)]

    # -- time -------------------------------------------------------------------------------------

    def pass_time(self, arrivals: list[Request]) -> int:
        """1 ms; return how many requests are dropped."""
        self.cpu_use.append(sum(CPU[v] * n for dc in self.installed for v, n in dc.items()) / sum(self.cpu))
        self.now += 1
        dropped = [r for r in self.requests if r.is_pending and self.now - r.arrived >= LIMIT_MS[r.service]]
        ended = [r for r in self.requests if r.finish is not None and r.finish <= 1000 * self.now]
        gone = {id(request) for request in dropped + ended}
        self.requests = [request for request in self.requests if id(request) not in gone]
        self.uses = [use for use in self.uses if use.until > 1000 * self.now and id(use.request) not in gone]
        if self.now % self.arrival_every == 0 and self.now < self.steps:
            self.arrive(arrivals)
        else:
            assert not arrivals, "requests arrived at a time at which none do"
        return len(dropped)

    def arrive(self, arrivals: list[Request]) -> None:
        assert [request.service for request in arrivals] == SERVICES
        for request in arrivals:
            (fewest, most), (lowest, highest) = BUNDLE[request.service], KBPS[request.service]
            assert fewest <= request.chains <= most
            assert lowest <= request.kbps <= highest
            assert {request.source, request.destination} <= set(self.dcs)
            request.arrived, request.left_latest = self.now, 1000 * self.now
            self.counts["arrived"][request.service] += 1
            self.requests.append(request)

    # -- what is seen -----------------------------------------------------------------------------

    def observation(self) -> dict[str, np.ndarray]:
        dc = [many(self.installed[self.dc][vnf]) for vnf in VNFS] + [many(self.idle(vnf)) for vnf in VNFS]
        dc += [self.free(STORAGE, 2048) / 2048, self.free(CPU, self.cpu[self.dc]) / 119]
        services, pending = [], []
        for service in SERVICES:
            live = [request for request in self.requests if request.service == service and request.is_pending]
            here = [
                request for request in live if self.dc == (request.placed[-1] if request.placed else request.source)
            ]
            has = {vnf for request in here for vnf in request.chain[: len(request.placed)]}
            lack = {vnf for request in here for vnf in request.chain[len(request.placed) :]}
            services.append([bool(here), *(vnf in has for vnf in VNFS), *(vnf in lack for vnf in VNFS)])
            if not live:
                pending.append([0.0] * 10)
                continue
            urgent = min(live, key=lambda request: request.arrived)
            left = (LIMIT_MS[service] - (self.now - urgent.arrived)) / LIMIT_MS[service]
            waiting = [many(sum(self.waits(r) and r.needs == vnf for r in live)) for vnf in VNFS]
            pending.append([1, many(len(live)), left, urgent.total_kbps() / 1_000_000, *waiting])
        arrays: dict[str, Any] = {"dc": dc, "dc_services": services, "pending": pending}
        return {name: np.array(values, np.float32) for name, values in arrays.items()}

    def figures(self) -> dict[str, float]:
        arrived, satisfied = self.counts["arrived"], self.counts["satisfied"]
        return {
            "acceptance": sum(satisfied.values()) / sum(arrived.values()),
            **{f"acceptance_{service}": satisfied[service] / arrived[service] for service in SERVICES},
            "delay_ms": float(np.mean(self.delays)) if self.delays else float("nan"),
            "cpu_use": float(np.mean(self.cpu_use)) if self.cpu_use else float("nan"),
        }


def many(count: int) -> float:
    """None is 0, one is 1/2, two are 2/3."""
    return 1 - 1 / (1 + count)
