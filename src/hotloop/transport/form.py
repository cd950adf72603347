"""What is exchanged, and where each part of it lies in one piece of shared memory.

First the weights, then for each actor its words (`control.py`), its events (`events.py`) and its ring (`ring.py`). Each
of these parts, weights and actors, begins on a page, so that an actor maps only its own.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from hotloop.errors import SpecError
from hotloop.transport.control import CONTROL_BYTES
from hotloop.transport.events import EVENTS_BYTES
from hotloop.transport.layout import Layout
from hotloop.transport.ring import ring_bytes
from hotloop.transport.weights import weights_bytes
from hotloop.trees import ArraySpec, Specs

EVENTS_AT, RING_AT = CONTROL_BYTES, CONTROL_BYTES + EVENTS_BYTES
"""In the memory of an actor, behind its words."""


@dataclass(frozen=True)
class Form:
    """How many actors, how many parcels of each may wait for the learner, and the arrays of parcels and weights."""

    actors: int
    slots: int
    """Parcels in the ring of each actor."""
    parcel: Specs
    weights: Mapping[str, ArraySpec]

    def __post_init__(self) -> None:
        """Refuse what could not be exchanged."""
        if self.actors < 1 or self.slots < 1:
            raise SpecError(f"{self.actors} actors with rings of {self.slots} parcels; both must be at least 1")

    @cached_property
    def parcel_layout(self) -> Layout:
        """Of a slot of a ring."""
        return Layout.of(self.parcel)

    @cached_property
    def weights_layout(self) -> Layout:
        """Of a version."""
        return Layout.of(self.weights)

    @property
    def weights_bytes(self) -> int:
        """Of both slots of the weights, in whole pages; they come first."""
        return _whole_pages(weights_bytes(self.weights_layout))

    @property
    def actor_bytes(self) -> int:
        """Of an actor's words, events and ring, in whole pages."""
        return _whole_pages(RING_AT + ring_bytes(self.parcel_layout, self.slots))

    def actor_offset(self, actor: int) -> int:
        """Where an actor's words begin."""
        return self.weights_bytes + actor * self.actor_bytes

    @property
    def num_bytes(self) -> int:
        """Of all together."""
        return self.actor_offset(self.actors)


def _whole_pages(num_bytes: int) -> int:
    return math.ceil(num_bytes / mmap.PAGESIZE) * mmap.PAGESIZE
