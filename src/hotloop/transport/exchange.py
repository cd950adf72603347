"""An exchange of experience and weights on one machine: who opens it gives each process its seat.

    exchange = Exchange(Form(actors=2, slots=8, parcel=..., weights=...))
    learner = exchange.learner_seat().open()
    process = get_context("spawn").Process(target=act, args=(exchange.actor_seat(0),))  # there: seat.open()

Both ends may be in one process as well. Nothing needs tidying up after a kill: there are no names, no locks, and no
process but those that were given a seat.
"""

from types import TracebackType
from typing import Self

from hotloop.transport.actor_end import ActorSeat
from hotloop.transport.bell import new_bell_descriptor
from hotloop.transport.descriptors import Descriptor
from hotloop.transport.form import Form
from hotloop.transport.learner_end import LearnerSeat
from hotloop.transport.limits import refuse_more_descriptors_than_there_are
from hotloop.transport.memory import allocate, refuse_other_platforms

DESCRIPTORS_PER_ACTOR = 2
"""Its bell, here and at the learner's end. Whoever starts a process, or opens an actor's end here, takes more."""
DESCRIPTORS_BESIDE = 4
"""Memory and the learner's bell, here and at the learner's end."""


class Exchange:
    """The memory and the bells, for as long as processes are to be given seats."""

    def __init__(self, form: Form) -> None:
        """Allocate everything; what there is too little of is said, with how much is needed."""
        refuse_other_platforms()
        refuse_more_descriptors_than_there_are(DESCRIPTORS_BESIDE + DESCRIPTORS_PER_ACTOR * form.actors)
        self.form = form
        self._memory = allocate(form.num_bytes)
        self._learner_bell = Descriptor(new_bell_descriptor())
        self._actor_bells = tuple(Descriptor(new_bell_descriptor()) for _ in range(form.actors))

    def actor_seat(self, actor: int) -> ActorSeat:
        """Of one of the actors, from 0 on; again for each process that takes the place of another."""
        if not 0 <= actor < self.form.actors:
            raise IndexError(f"there is no actor {actor}: they are 0 to {self.form.actors - 1}")
        return ActorSeat(self.form, actor, self._memory, self._actor_bells[actor], self._learner_bell)

    def learner_seat(self) -> LearnerSeat:
        """Of the one learner."""
        return LearnerSeat(self.form, self._memory, self._learner_bell, self._actor_bells)

    def close(self) -> None:
        """Give out no more seats; ends that are open stay so."""
        for descriptor in (self._memory, self._learner_bell, *self._actor_bells):
            descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
