"""Events of an actor: in order, bounded, nothing half-written, none while nobody wants to know."""

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest
from exchanges import dies_at, killed_by, parcel_of, small_form, spawned

from hotloop.transport.actor_end import ActorSeat
from hotloop.transport.events import RECORDS, EventKind
from hotloop.transport.exchange import Exchange
from hotloop.transport.protocol import ActorState
from hotloop.transport.ring import BEFORE_COMMIT
from hotloop.transport.words import Word


def test_states_are_told_when_they_have_ended_one_after_the_other() -> None:
    with Exchange(small_form(actors=2)) as exchange:
        learner, actor, other = exchange.learner_seat().open(), exchange.actor_seat(1).open(), exchange.actor_seat(0)
        actor.enter(ActorState.ACT)
        assert learner.events(1) == [], "nobody wanted to know"
        learner.want_events(True)
        actor.enter(ActorState.ENV)
        actor.hand_over(parcel_of(1))
        actor.count_dropped(7)
        told = learner.events(1)
        named = [event.kind for event in told]
        assert named == [ActorState.ACT, ActorState.ENV, ActorState.HAND_OVER, EventKind.HANDED_OVER, EventKind.DROPPED]
        act, env, hand_over, handed_over, dropped = told
        assert act.at_ns <= act.value == env.at_ns <= env.value == hand_over.at_ns <= hand_over.value
        assert (handed_over.value, dropped.value) == (1, 7)
        assert learner.events(1) == learner.events(0) == []
        with_id = other.open()
        assert next((event.kind, event.value) for event in learner.events(0)) == (EventKind.OPENED, os.getpid())
        learner.want_events(False)
        actor.enter(ActorState.WAIT)
        assert learner.events(1) == []
        for end in (actor, with_id, learner):
            end.close()


def test_what_finds_no_room_is_lost_and_counted_and_room_comes_back() -> None:
    with Exchange(small_form()) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        learner.want_events(True)
        for _ in range(RECORDS + 5):
            actor.enter(ActorState.ENV)
        assert learner.lost_events() == [5]
        told = learner.events(0)
        assert len(told) == RECORDS
        for _ in range(3):
            actor.enter(ActorState.ACT)
        more = learner.events(0)
        assert [event.kind for event in more] == [ActorState.ENV, ActorState.ACT, ActorState.ACT]
        assert told[-1].value < more[0].value
        assert learner.lost_events() == [5]
        actor.close()
        learner.close()


def _die_in_a_write(seat: ActorSeat) -> None:
    end = seat.open(reached=dies_at(BEFORE_COMMIT))
    end.enter(ActorState.ACT)
    end.hand_over(parcel_of(3))


class Deadly(Word):
    """A word that its process does not live to write."""

    def store(self, value: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def _die_before_an_event_counts(seat: ActorSeat) -> None:
    end = seat.open()
    end.enter(ActorState.ACT)
    writer = end._record._events
    writer._words = writer._words._replace(written=Deadly(np.zeros(8, np.uint8), 0))
    end.enter(ActorState.ENV)


@pytest.mark.parametrize("dies", [_die_in_a_write, _die_before_an_event_counts])
def test_a_successor_goes_on_where_a_killed_actor_ended(dies: Callable[..., None]) -> None:
    with Exchange(small_form()) as exchange:
        learner = exchange.learner_seat().open()
        learner.want_events(True)
        process = spawned(dies, exchange.actor_seat(0))
        assert killed_by(process) == signal.SIGKILL
        successor = exchange.actor_seat(0).open()
        successor.enter(ActorState.ENV)
        told = learner.events(0)
        opened = [event.value for event in told if event.kind == EventKind.OPENED]
        assert opened == [process.pid, os.getpid()]
        assert told[-1].kind == ActorState.STARTING
        assert all(event.kind in {*ActorState, EventKind.OPENED} for event in told)
        assert [event.at_ns for event in told] == sorted(event.at_ns for event in told)
        successor.close()
        learner.close()
