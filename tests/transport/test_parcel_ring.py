"""The ring is a queue of bounded length: naive twin, wrap-around, parts of parcels, what it refuses."""

from collections import deque

import numpy as np
import pytest
from exchanges import PARCEL, Rows, holds, parcel_of, small_form
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.transport.exchange import Exchange
from hotloop.transport.layout import CACHE_LINE, Layout
from hotloop.transport.ring import RingReader, RingWriter, ring_bytes
from hotloop.transport.words import Word

LAYOUT = Layout.of(PARCEL)


class NaiveRing:
    """A queue of what was handed over and a queue of what was given: together never more than there are slots."""

    def __init__(self, slots: int) -> None:
        self.slots, self.made = slots, 0
        self.waiting: deque[int] = deque()
        self.given: deque[int] = deque()

    def hand_over(self) -> bool:
        if len(self.waiting) + len(self.given) == self.slots:
            return False
        self.waiting.append(self.made)
        self.made += 1
        return True

    def take(self) -> int | None:
        if not self.waiting:
            return None
        self.given.append(self.waiting.popleft())
        return self.given[-1]


EVENTS = ("write", "write", "take", "release", "successor")


@settings(max_examples=40, deadline=None)
@given(slots=st.integers(1, 4), program=st.lists(st.sampled_from(EVENTS), min_size=30, max_size=90))
def test_a_ring_is_a_bounded_queue_whatever_the_order_of_events(slots: int, program: list[str]) -> None:
    memory = _memory(slots)
    writer, reader, naive = _writer(memory, slots), _reader(memory, slots), NaiveRing(slots)
    views = {}
    for event in program:
        if event == "write":
            has_room = writer.has_room
            assert naive.hand_over() == has_room
            if has_room:
                writer.write(parcel_of(naive.made - 1))
        elif event == "take":
            taken, expected = reader.take(), naive.take()
            assert (taken is None) == (expected is None)
            if taken is not None:
                assert taken[0] == expected
                views[taken[0]] = taken[1]
        elif event == "release" and naive.given:
            number = naive.given.popleft()
            del views[number]
            reader.release(number)
        elif event == "successor":
            writer = _writer(memory, slots)
        assert writer.next == naive.made
        assert all(holds(arrays, number) for number, arrays in views.items())  # nobody has written over them
        assert reader.has_more == bool(naive.waiting)


def test_a_ring_goes_round_many_times() -> None:
    memory = _memory(3)
    writer, reader = _writer(memory, 3), _reader(memory, 3)
    for number in range(1000):
        writer.write(parcel_of(number))
        taken = reader.take()
        assert taken is not None
        assert taken[0] == number
        assert holds(taken[1], number)
        reader.release(number)


def test_only_the_rows_that_are_used_are_copied() -> None:
    memory = _memory(1)
    writer, reader = _writer(memory, 1), _reader(memory, 1)
    writer.write(parcel_of(1))
    assert reader.take() is not None
    reader.release(0)
    writer.write(parcel_of(2), rows=[3, 0, 2, 1])  # picture, place, reward, used: the order of the tree
    taken = reader.take()
    assert taken is not None
    seen = taken[1]
    assert isinstance(seen, Rows)
    assert np.array_equal(seen.obs["picture"][:, 0, 0], [2, 2, 2, 1, 1, 1])
    assert np.array_equal(seen.obs["place"][:, 0], [1, 1, 1, 1])
    assert np.array_equal(seen.reward, [2, 2, 1, 1])
    assert seen.used == 2  # without rows: always whole


def test_what_has_another_form_is_refused_and_nothing_is_committed() -> None:
    memory = _memory(2)
    writer, reader = _writer(memory, 2), _reader(memory, 2)
    right = parcel_of(0)
    for wrong in (
        right._replace(reward=np.zeros(1)),  # NumPy would broadcast it
        right._replace(reward=np.zeros(4, np.float32)),
        right._replace(obs={"picture": right.obs["picture"]}),
    ):
        with pytest.raises(ValueError, match=r"expected float64\[4\]|zip|expected"):
            writer.write(wrong)
    with pytest.raises(ValueError, match="rows is"):
        writer.write(right, rows=[1, 1, -1, 1])
    assert not reader.has_more
    writer.write(right)
    assert reader.has_more


def test_parcels_are_released_once_and_in_order() -> None:
    memory = _memory(3)
    writer, reader = _writer(memory, 3), _reader(memory, 3)
    for number in range(3):
        writer.write(parcel_of(number))
    with pytest.raises(ValueError, match="in order"):
        reader.release(0)  # not taken yet
    reader.take()
    reader.take()
    with pytest.raises(ValueError, match="expected 0"):
        reader.release(1)
    reader.release(0)
    with pytest.raises(ValueError, match="expected 1"):
        reader.release(0)
    assert writer.has_room


def test_the_learner_cannot_write_to_a_parcel() -> None:
    memory = _memory(1)
    writer, reader = _writer(memory, 1), _reader(memory, 1)
    writer.write(parcel_of(0))
    taken = reader.take()
    assert taken is not None
    assert isinstance(taken[1], Rows)
    with pytest.raises(ValueError, match="read-only"):
        taken[1].reward[0] = 1.0


def test_every_array_of_a_slot_begins_on_a_cache_line() -> None:
    with Exchange(small_form(actors=2)) as exchange:
        actor, learner = exchange.actor_seat(1).open(), exchange.learner_seat().open()
        assert actor.hand_over(parcel_of(1))
        (parcel,) = learner.committed()
        assert isinstance(parcel.arrays, Rows)
        for array in (*parcel.arrays.obs.values(), parcel.arrays.reward, parcel.arrays.used):
            assert array.__array_interface__["data"][0] % CACHE_LINE == 0
        actor.close()
        learner.close()


def test_a_full_ring_says_so_and_loses_nothing() -> None:
    with Exchange(small_form(slots=3)) as exchange:
        actor, learner = exchange.actor_seat(0).open(), exchange.learner_seat().open()
        assert [actor.hand_over(parcel_of(number)) for number in range(5)] == [True, True, True, False, False]
        actor.count_dropped(3)
        actor.count_dropped(4)
        parcels = list(learner.committed())
        assert [parcel.number for parcel in parcels] == [0, 1, 2]
        assert all(holds(parcel.arrays, parcel.number) for parcel in parcels)
        assert not actor.hand_over(parcel_of(5))  # read, but not released
        learner.release(parcels[0])
        assert actor.hand_over(parcel_of(3))
        assert holds(parcels[1].arrays, 1)
        assert [parcel.number for parcel in learner.committed()] == [3]
        assert learner.statuses()[0].parcels == 4
        status = learner.statuses()[0]
        assert (status.dropped_parcels, status.dropped_transitions, status.released) == (2, 7, 1)
        actor.close()
        learner.close()


def test_parcels_come_from_every_actor_in_turn() -> None:
    with Exchange(small_form(actors=3)) as exchange:
        actors, learner = [exchange.actor_seat(actor).open() for actor in range(3)], exchange.learner_seat().open()
        for actor, count in enumerate([3, 0, 2]):
            for number in range(count):
                assert actors[actor].hand_over(parcel_of(10 * actor + number))
        found = [
            (parcel.actor, parcel.number, holds(parcel.arrays, 10 * parcel.actor + parcel.number))
            for parcel in learner.committed()
        ]
        assert found == [(0, 0, True), (2, 0, True), (0, 1, True), (2, 1, True), (0, 2, True)]
        for end in (*actors, learner):
            end.close()


def _memory(slots: int) -> np.ndarray:
    """A ring and, on the last line, the word of what was released."""
    whole = np.zeros(ring_bytes(LAYOUT, slots) + 2 * CACHE_LINE, np.uint8)
    begin = -whole.__array_interface__["data"][0] % CACHE_LINE
    return whole[begin : begin + ring_bytes(LAYOUT, slots) + CACHE_LINE]


def _writer(memory: np.ndarray, slots: int) -> RingWriter:
    return RingWriter(memory, LAYOUT, slots, Word(memory[-CACHE_LINE:], 0))


def _reader(memory: np.ndarray, slots: int) -> RingReader:
    return RingReader(memory, LAYOUT, slots, Word(memory[-CACHE_LINE:], 0))
