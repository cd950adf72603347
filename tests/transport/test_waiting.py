"""Who waits is woken by what it waits for, uses no processor meanwhile, and is never forgotten."""

import os
import threading
import time

import pytest
from exchanges import PATIENCE, parcel_of, small_form, spawned, weights_of

from hotloop.transport.actor_end import ActorSeat
from hotloop.transport.bell import Bell, new_bell_descriptor
from hotloop.transport.exchange import Exchange
from hotloop.transport.learner_end import LearnerSeat
from hotloop.transport.lifeline import end_with_parent
from hotloop.transport.protocol import ActorState, LearnerEnd


def test_the_learner_is_woken_by_every_parcel_of_another_process() -> None:
    with Exchange(small_form()) as exchange:
        learner = exchange.learner_seat().open()
        process = spawned(_hand_over_when_allowed, exchange.actor_seat(0), 200)
        for number in range(200):
            learner.allow(0, number + 1)
            assert _is_woken(learner)
            (parcel,) = learner.committed()
            assert parcel.number == number
            learner.release(parcel)
        process.join(PATIENCE)
        assert process.exitcode == 0
        assert learner.statuses()[0].transitions == 200
        learner.close()


def test_waiting_uses_no_processor() -> None:
    with Exchange(small_form()) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        before, began = time.thread_time(), time.monotonic()
        assert not learner.wait(0.2)
        assert not actor.wait_for_allowance(0.2)
        assert time.monotonic() - began >= 0.4
        assert time.thread_time() - before < 0.1  # a busy loop takes 0.4
        learner.close()
        actor.close()


def test_it_does_not_wait_for_what_is_there() -> None:
    with Exchange(small_form()) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        assert actor.hand_over(parcel_of(0))
        assert learner.wait(0.0)
        assert list(learner.committed())
        assert not learner.wait(0.05)  # its bell has been rung, but that parcel has been given
        learner.allow(0, 1)
        assert actor.wait_for_allowance(0.0)
        assert actor.wait_for_room(0.0)
        learner.close()
        actor.close()


def test_an_actor_waits_for_room_until_a_parcel_is_released() -> None:
    with Exchange(small_form(slots=1)) as exchange:
        learner = exchange.learner_seat().open()
        process = spawned(_hand_over_all, exchange.actor_seat(0), 50)
        for number in range(50):
            assert _is_woken(learner)
            (parcel,) = learner.committed()
            assert parcel.number == number
            learner.release(parcel)
        process.join(PATIENCE)
        assert process.exitcode == 0
        learner.close()


def test_an_actor_that_waits_is_told_to_stop_and_so_is_one_that_starts_later() -> None:
    with Exchange(small_form(actors=2)) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        assert not actor.should_stop
        stopping = threading.Timer(0.1, learner.ask_to_stop)
        stopping.start()
        began = time.monotonic()
        assert actor.wait_for_allowance(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        assert actor.should_stop
        assert actor.transitions_left == 0
        stopping.join()
        late = exchange.actor_seat(1).open()
        assert late.should_stop
        assert late.wait_for_allowance(0.0)
        for end in (learner, actor, late):
            end.close()


def test_a_bell_rung_between_the_look_and_the_wait_is_heard() -> None:
    bell, looks = Bell(new_bell_descriptor()), []

    def condition() -> bool:
        looks.append(None)
        if len(looks) == 1:
            bell.ring()  # after this look, before the wait
        return len(looks) == 2

    began = time.monotonic()
    assert bell.wait_until(condition, PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    bell.close()


def test_a_successor_rings_for_a_parcel_whose_writer_died_before_it_rang(monkeypatch: pytest.MonkeyPatch) -> None:
    with Exchange(small_form()) as exchange:
        learner = exchange.learner_seat().open()
        silent = exchange.actor_seat(0).open()
        monkeypatch.setattr(silent._learner_bell, "ring", lambda: None)
        assert silent.hand_over(parcel_of(0))
        os.eventfd_read(learner._bell._descriptor)  # of its opening
        successor = exchange.actor_seat(0).open()
        assert os.eventfd_read(learner._bell._descriptor) == 1
        assert [parcel.number for parcel in learner.committed()] == [0]
        for end in (learner, silent, successor):
            end.close()


def test_an_actors_figures_say_what_it_does_and_go_on_with_its_successor() -> None:
    with Exchange(small_form(actors=2)) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(1).open()
        learner.publish(7, weights_of(7))
        learner.allow(1, 10)
        assert learner.statuses()[0].incarnation == 0
        actor.enter(ActorState.ENV)
        time.sleep(0.02)
        actor.enter(ActorState.ACT)
        actor.count(transitions=4, env_failures=1)
        assert actor.newest_weights() is not None
        assert actor.newest_weights() is None
        assert actor.transitions_left == 6
        status = learner.statuses()[1]
        assert (status.transitions, status.env_failures, status.weights_version) == (4, 1, 7)
        assert (status.state, status.pid, status.incarnation) == (ActorState.ACT, os.getpid(), 1)
        assert status.nanoseconds[ActorState.ENV] >= 20_000_000
        assert 0 <= time.monotonic_ns() - status.heartbeat_ns < 10**10
        actor.close()
        assert learner.statuses()[1].state is ActorState.ENDED
        successor = exchange.actor_seat(1).open()
        status = learner.statuses()[1]
        assert (status.transitions, status.incarnation, status.weights_version) == (4, 2, -1)
        assert status.state is ActorState.STARTING
        assert successor.transitions_left == 6
        assert successor.newest_weights() is not None
        successor.close()
        learner.close()


def test_a_learner_in_a_process_of_its_own_takes_what_actors_here_hand_over() -> None:
    with Exchange(small_form(slots=2)) as exchange:
        process, actor = spawned(_learn, exchange.learner_seat(), 20), exchange.actor_seat(0).open()
        for number in range(20):
            assert actor.wait_for_room(PATIENCE)
            assert actor.hand_over(parcel_of(number))
        assert actor.wait_for_allowance(PATIENCE)
        assert actor.should_stop
        process.join(PATIENCE)
        assert process.exitcode == 0
        actor.close()


def _is_woken(learner: LearnerEnd) -> bool:
    """By a bell, that is: at the end of its patience it would look once more by itself."""
    began = time.monotonic()
    return learner.wait(PATIENCE) and time.monotonic() - began < PATIENCE / 2


def _hand_over_when_allowed(seat: ActorSeat, count: int) -> None:
    end_with_parent()
    actor = seat.open()
    for number in range(count):
        began = time.monotonic()
        assert actor.wait_for_allowance(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        actor.count(transitions=1)
        assert actor.hand_over(parcel_of(number))
    actor.close()


def _hand_over_all(seat: ActorSeat, count: int) -> None:
    end_with_parent()
    actor = seat.open()
    for number in range(count):
        assert actor.wait_for_room(PATIENCE)
        assert actor.hand_over(parcel_of(number))
    actor.close()


def _learn(seat: LearnerSeat, count: int) -> None:
    end_with_parent()
    learner, seen = seat.open(), 0
    while seen < count:
        assert learner.wait(PATIENCE)
        for parcel in learner.committed():
            assert parcel.number == seen
            seen += 1
            learner.release(parcel)
    learner.ask_to_stop()
    learner.close()
