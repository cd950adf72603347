"""The figures of the service-function-chain env: functions, services, data centres. Rows are in this order everywhere.

Times are whole microseconds and bandwidths whole kbps, so that sums are exact.
"""

import math
from typing import NamedTuple

import numpy as np


class Vnf(NamedTuple):
    """A virtual network function: what an instance takes of its DC, and how long it works on one chain."""

    name: str
    cpu: int
    ram: int
    storage: int
    us: int


class Service(NamedTuple):
    """A kind of request: its functions in order, kbps of one chain, limit of its delay, chains in a request."""

    name: str
    chain: tuple[str, ...]
    kbps: tuple[int, int]
    limit_ms: int
    chains: tuple[int, int]


VNFS = (
    Vnf("NAT", cpu=1, ram=4, storage=7, us=60),
    Vnf("FW", cpu=9, ram=5, storage=1, us=30),
    Vnf("VOC", cpu=5, ram=11, storage=13, us=110),
    Vnf("TM", cpu=13, ram=7, storage=7, us=70),
    Vnf("WO", cpu=5, ram=2, storage=5, us=80),
    Vnf("IDPS", cpu=11, ram=15, storage=2, us=20),
)
SERVICES = (
    Service("cloud_gaming", ("NAT", "FW", "VOC", "WO", "IDPS"), (4_000, 4_000), 80, (40, 55)),
    Service("ar", ("NAT", "FW", "TM", "VOC", "IDPS"), (100_000, 100_000), 10, (1, 4)),
    Service("voip", ("NAT", "FW", "TM"), (64, 64), 100, (100, 200)),
    Service("video", ("NAT", "FW", "TM", "VOC", "IDPS"), (4_000, 4_000), 100, (50, 100)),
    Service("miot", ("NAT", "FW", "IDPS"), (1_000, 50_000), 5, (10, 15)),
    Service("industry", ("NAT", "FW"), (70_000, 70_000), 8, (1, 4)),
)
V, S = len(VNFS), len(SERVICES)
FEWEST_DCS, MOST_DCS = 2, 8
DC_CPU, DC_RAM, DC_STORAGE = (12, 119), 256, 2048
SQUARE_KM, LIGHT_KM_PER_MS, LINK_KBPS, STEP_US = 1000, 299.792458, 1_000_000, 1000
SATISFIED, DROPPED, INVALID, NEEDED = 2.0, -1.5, -1.0, -0.5
NUM_ACTIONS, WAIT = 2 * V + 1, 2 * V
"""Uninstall v (0 … V-1), allocate v (V … 2V-1), wait."""

CPU, RAM, STORAGE, WORK_US = (
    np.array([getattr(vnf, field) for vnf in VNFS], np.int32) for field in ("cpu", "ram", "storage", "us")
)
LIMIT_MS = np.array([service.limit_ms for service in SERVICES], np.int32)
LENGTH = np.array([len(service.chain) for service in SERVICES], np.int32)
POSITION = np.array([[s.chain.index(v.name) if v.name in s.chain else 99 for v in VNFS] for s in SERVICES], np.int32)
"""(S, V): where in a service's chain a function stands; 99 if nowhere."""
HERE, ELSEWHERE = 10_000, -5_000
"""P2, in thousandths."""


def places(arrival_every: int) -> np.ndarray:
    """(S,): how many requests of a service can be alive at once; each is gone when its limit is reached."""
    return np.array([math.ceil(limit / arrival_every) for limit in LIMIT_MS], np.int32)
