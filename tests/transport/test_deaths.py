"""Whoever dies, and wherever: nothing half-written is seen, a successor goes on, and no process stays behind."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from exchanges import PATIENCE, dies_at, holds, is_alive, killed_by, parcel_of, small_form, spawned, wait_until

from hotloop.transport.actor_end import ActorSeat
from hotloop.transport.exchange import Exchange
from hotloop.transport.lifeline import end_with_parent
from hotloop.transport.ring import BEFORE_COMMIT, BEFORE_COPY, DURING_COPY


@pytest.mark.parametrize("step", [BEFORE_COPY, DURING_COPY, BEFORE_COMMIT])
def test_a_writer_killed_in_a_write_leaves_a_ring_its_successor_goes_on_with(step: str) -> None:
    with Exchange(small_form(slots=3)) as exchange:
        learner, seen = exchange.learner_seat().open(), []
        for number in range(4):  # so that the slot of the half-written parcel has held another one before
            first = exchange.actor_seat(0).open()
            assert first.hand_over(parcel_of(number))
            first.close()
            (parcel,) = learner.committed()
            learner.release(parcel)
        assert killed_by(spawned(_hand_over_and_die, exchange.actor_seat(0), 4, step)) == signal.SIGKILL
        assert list(learner.committed()) == []
        assert killed_by(spawned(_hand_over_from, exchange.actor_seat(0), 4, 3)) is None
        for parcel in learner.committed():
            assert holds(parcel.arrays, parcel.number)
            seen.append(parcel.number)
            learner.release(parcel)
        assert seen == [4, 5, 6]
        learner.close()


def test_actors_killed_at_random_lose_nothing_that_was_committed() -> None:
    chance = random.Random(3)
    with Exchange(small_form(slots=4)) as exchange:
        learner, seen = exchange.learner_seat().open(), 0
        for _ in range(6):
            process = spawned(_hand_over_for_ever, exchange.actor_seat(0))
            until = seen + chance.randrange(1, 400)
            while seen < until:
                assert learner.wait(PATIENCE)
                for parcel in learner.committed():
                    assert parcel.number == seen
                    assert holds(parcel.arrays, seen)
                    seen += 1
                    learner.release(parcel)
            process.kill()
            process.join(PATIENCE)
        learner.close()


def test_an_actor_ends_with_its_parent() -> None:
    parent = _a_parent()
    child = _pid_from(parent)
    assert is_alive(child)
    parent.kill()
    parent.wait(PATIENCE)
    wait_until(lambda: not is_alive(child))


def test_an_actor_whose_parent_has_gone_before_it_looks_ends_too() -> None:
    program = "from hotloop.transport.lifeline import end_with\nend_with(1 << 22)\nprint('alive')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""


def test_a_kill_of_the_whole_group_leaves_no_process_and_nothing_in_dev_shm() -> None:
    before = set(os.listdir("/dev/shm"))
    parent = _a_parent()
    child = _pid_from(parent)
    members = [pid for pid in _processes() if _group_of(pid) == parent.pid]
    assert {parent.pid, child} <= set(members)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait(PATIENCE)
    wait_until(lambda: not any(is_alive(pid) for pid in members))
    assert set(os.listdir("/dev/shm")) == before


def _hand_over_and_die(seat: ActorSeat, number: int, step: str) -> None:
    end_with_parent()
    seat.open(reached=dies_at(step)).hand_over(parcel_of(number))


def _hand_over_from(seat: ActorSeat, first: int, count: int) -> None:
    end_with_parent()
    actor = seat.open()
    for number in range(first, first + count):
        assert actor.hand_over(parcel_of(number))
    actor.close()


def _hand_over_for_ever(seat: ActorSeat) -> None:
    end_with_parent()
    actor = seat.open()
    while actor.wait_for_room(PATIENCE):
        assert actor.hand_over(parcel_of(actor._ring.next))


def _wait_for_long(seat: ActorSeat) -> None:
    end_with_parent()
    actor = seat.open()
    print(os.getpid(), flush=True)
    actor.wait_for_allowance(60)


def _a_parent() -> "subprocess.Popen[str]":
    """A process in a group of its own that opens an exchange and starts an actor, which says its id."""
    program = (
        "from exchanges import small_form, spawned\nfrom test_deaths import _wait_for_long\n"
        "from hotloop.transport.exchange import Exchange\n"
        "if __name__ == '__main__':\n"
        "    exchange = Exchange(small_form())\n    learner = exchange.learner_seat().open()\n"
        "    process = spawned(_wait_for_long, exchange.actor_seat(0))\n    learner.wait(60)\n    process.join()\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _pid_from(parent: "subprocess.Popen[str]") -> int:
    assert parent.stdout is not None
    return int(parent.stdout.readline())


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
