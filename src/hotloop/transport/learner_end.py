"""The learner's end of an exchange in shared memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hotloop.transport.bell import Bell
from hotloop.transport.control import Control
from hotloop.transport.descriptors import Descriptor
from hotloop.transport.events import Event, EventReader
from hotloop.transport.form import EVENTS_AT, RING_AT, Form
from hotloop.transport.memory import mapped, refuse_other_platforms
from hotloop.transport.protocol import ActorStatus, Parcel
from hotloop.transport.ring import RingReader
from hotloop.transport.weights import WeightsWriter


@dataclass(frozen=True)
class LearnerSeat:
    """Where the learner takes part: opened in the process that made the exchange, or in one that it starts."""

    form: Form
    memory: Descriptor
    bell: Descriptor
    """For the learner."""
    actor_bells: tuple[Descriptor, ...]

    def open(self) -> "SharedLearnerEnd":
        """Take the seat, in this process."""
        return SharedLearnerEnd(self)


class SharedLearnerEnd:
    """The protocol's `LearnerEnd`."""

    def __init__(self, seat: LearnerSeat) -> None:
        refuse_other_platforms()
        form = seat.form
        memory = mapped(seat.memory, 0, form.num_bytes, writable=True)
        of_actors = [memory[form.actor_offset(actor) :][: form.actor_bytes] for actor in range(form.actors)]
        self._controls = [Control(part) for part in of_actors]
        self._rings = [
            RingReader(part[RING_AT:], form.parcel_layout, form.slots, control.learner.released)
            for part, control in zip(of_actors, self._controls, strict=True)
        ]
        self._events = [EventReader(part[EVENTS_AT:]) for part in of_actors]
        self._weights = WeightsWriter(memory[: form.weights_bytes], form.weights_layout)
        self._slots = form.slots
        self._bell = Bell(seat.bell.duplicate())
        self._actor_bells = [Bell(bell.duplicate()) for bell in seat.actor_bells]
        self._is_open = True

    def committed(self) -> Iterator[Parcel]:
        """Parcels that have not been given yet: one of every actor in turn, at most a ring of each."""
        for _ in range(self._slots):
            found = False
            for actor, ring in enumerate(self._rings):
                taken = ring.take()
                if taken is not None:
                    found = True
                    yield Parcel(actor, *taken)
            if not found:
                return

    def release(self, parcel: Parcel) -> None:
        """Let the actor write over the oldest parcel of its own that was given; it is woken if it waits for room."""
        self._rings[parcel.actor].release(parcel.number)
        self._actor_bells[parcel.actor].ring()

    def in_ring(self, actor: int) -> int:
        """Parcels of an actor that have been handed over and not released."""
        released = self._controls[actor].learner.released.load()
        return self._rings[actor].committed - released

    def wait(self, timeout: float) -> bool:
        """Wait until there is a parcel that has not been given; False after `timeout` seconds."""
        return self._bell.wait_until(lambda: any(ring.has_more for ring in self._rings), timeout)

    def publish(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        """Copy a version to where actors find it when they ask."""
        self._weights.publish(version, weights)

    def allow(self, actor: int, transitions: int) -> None:
        """Set how many transitions an actor may make in total; it is woken if it waits for that."""
        self._controls[actor].learner.allowance.store(transitions)
        self._actor_bells[actor].ring()

    def statuses(self) -> list[ActorStatus]:
        """What is known of each actor; how many parcels were handed over is what its ring says, as an actor counts them
        after it commits, and may be killed in between."""
        each = [control.status() for control in self._controls]
        return [status._replace(parcels=ring.committed) for status, ring in zip(each, self._rings, strict=True)]

    def dropped_transitions(self, actor: int) -> int:
        """In all parcels that an actor has given up."""
        return self._controls[actor].actor.dropped_transitions.load()

    def want_events(self, is_wanted: bool) -> None:
        """Have actors write down what they do from now on, or no more."""
        for events in self._events:
            events.want(is_wanted)

    def events(self, actor: int) -> list[Event]:
        """What an actor has written down since this was last asked, in order."""
        return self._events[actor].take()

    def lost_events(self) -> list[int]:
        """Of each actor how many found no room, ever."""
        return [events.lost for events in self._events]

    def ask_to_stop(self) -> None:
        """Have all actors end."""
        for control, bell in zip(self._controls, self._actor_bells, strict=True):
            control.learner.stop.store(1)
            bell.ring()

    def close(self) -> None:
        """Close its descriptors and let go of the memory; a parcel's views keep it until they are gone too."""
        if not self._is_open:
            return
        self._is_open = False
        self._bell.close()
        for bell in self._actor_bells:
            bell.close()
        del self._controls, self._rings, self._events, self._weights  # all that views the memory
