"""An actor's end of an exchange in shared memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotloop.transport.bell import Bell
from hotloop.transport.control import ActorRecord, Control
from hotloop.transport.descriptors import Descriptor
from hotloop.transport.events import EventWriter
from hotloop.transport.form import EVENTS_AT, RING_AT, Form
from hotloop.transport.memory import mapped, refuse_other_platforms
from hotloop.transport.protocol import NO_VERSION, ActorState, Weights
from hotloop.transport.ring import Reached, RingWriter
from hotloop.transport.weights import WeightsReader
from hotloop.trees import Arrays

DESCRIPTORS_OF_AN_END = 4
"""Two bells, and the memory twice: to write to, and to read weights from."""


@dataclass(frozen=True)
class ActorSeat:
    """Where an actor takes part, to be given to the process that will be this actor: an argument of its function.

    When that process is gone for good, the next one may take the seat, and goes on where it ended.
    """

    form: Form
    actor: int
    memory: Descriptor
    bell: Descriptor
    """For this actor."""
    learner_bell: Descriptor

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Its descriptors, for a process that is started with these open (`subprocess`'s `pass_fds`)."""
        return self.memory.number, self.bell.number, self.learner_bell.number

    @classmethod
    def of_numbers(cls, form: Form, actor: int, numbers: tuple[int, int, int]) -> "ActorSeat":
        """The same seat in that process."""
        return cls(form, actor, *(Descriptor(number) for number in numbers))

    def open(self, *, reached: Reached | None = None) -> "SharedActorEnd":
        """Take the seat, in this process; `reached` is for tests (`ring.py`)."""
        return SharedActorEnd(self, reached)


class SharedActorEnd:
    """The protocol's `ActorEnd`."""

    def __init__(self, seat: ActorSeat, reached: Reached | None) -> None:
        refuse_other_platforms()
        form = seat.form
        memory = mapped(seat.memory, form.actor_offset(seat.actor), form.actor_bytes, writable=True)
        weights = mapped(seat.memory, 0, form.weights_bytes, writable=False)
        control = Control(memory)
        self._from_learner = control.learner
        self._transitions, self._dropped = control.actor.transitions, control.actor.dropped_transitions
        self._ring = RingWriter(
            memory[RING_AT:], form.parcel_layout, form.slots, control.learner.released, reached=reached
        )
        self._record = ActorRecord(control, EventWriter(memory[EVENTS_AT:]), parcels=self._ring.next)
        self._weights, self._version = WeightsReader(weights, form.weights_layout), NO_VERSION
        self._bell, self._learner_bell = Bell(seat.bell.duplicate()), Bell(seat.learner_bell.duplicate())
        self._is_open = True
        self._learner_bell.ring()  # a predecessor may have died between a commit and its ring

    def hand_over(self, parcel: Arrays, rows: Sequence[int] | None = None) -> bool:
        """Copy and commit a parcel, then wake the learner; False at once if the ring is full."""
        if not self._ring.has_room:
            return False
        before = self._record.state
        self._record.enter(ActorState.HAND_OVER)
        try:
            self._ring.write(parcel, rows)
        finally:
            self._record.enter(before)
        self._record.count_parcels(self._ring.next, self._ring.num_waiting)
        self._learner_bell.ring()
        return True

    def newest_weights(self) -> Weights | None:
        """A copy of the newest version, if it is not the one that this gave last."""
        weights = self._weights.newest(self._version)
        if weights is not None:
            self._version = weights.version
            self._record.use_weights(weights.version)
        return weights

    @property
    def transitions_left(self) -> int:
        """How many transitions it may still make."""
        return max(0, self._from_learner.allowance.load() - self._transitions.load())

    @property
    def should_stop(self) -> bool:
        """Whether the learner has asked all actors to end."""
        return self._from_learner.stop.load() != 0

    def enter(self, state: ActorState) -> None:
        """Say what it does from now on, and that it lives."""
        self._record.enter(state)

    def count(self, *, transitions: int = 0, env_failures: int = 0) -> None:
        """Add to the figures of its status."""
        self._record.count(transitions=transitions, env_failures=env_failures)

    def count_dropped(self, transitions: int) -> None:
        """Add a parcel of so many transitions that it gives up."""
        self._record.count_dropped(transitions)

    @property
    def dropped_transitions(self) -> int:
        """In all parcels that this actor has given up, also as another process."""
        return self._dropped.load()

    def wait_for_allowance(self, timeout: float) -> bool:
        """Wait until it may make a transition or should stop; False after `timeout` seconds."""
        return self._wait_until(lambda: self.should_stop or self.transitions_left > 0, timeout)

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until a parcel can be handed over or it should stop; False after `timeout` seconds."""
        return self._wait_until(lambda: self.should_stop or self._ring.has_room, timeout)

    def close(self) -> None:
        """Say that it has ended, close its descriptors and let go of the memory."""
        if not self._is_open:
            return
        self._is_open = False
        self._record.enter(ActorState.ENDED)
        self._bell.close()
        self._learner_bell.close()
        del self._from_learner, self._transitions, self._dropped, self._ring, self._record, self._weights  # all views

    def _wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        before = self._record.state
        self._record.enter(ActorState.WAIT)
        try:
            return self._bell.wait_until(condition, timeout)
        finally:
            self._record.enter(before)
