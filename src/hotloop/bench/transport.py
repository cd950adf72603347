"""Parcels and weights between processes: against a plain copy of the same bytes, and how long who waits for whom."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Generic, NamedTuple

import numpy as np

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.interrupts import interrupts_held_back
from hotloop.progress import Reporter
from hotloop.transport.actor_end import ActorSeat
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.transport.learner_end import LearnerSeat, SharedLearnerEnd
from hotloop.transport.lifeline import end_with_parent
from hotloop.trees import A, Arrays, ArraySpec, leaves, num_bytes, zeros_of

TRANSITIONS, FRAMES = 64, 74
"""Of a parcel: stacks of eight frames of 128 x 128, each frame once."""
PARCELS, SLOTS = 40, 8
"""Parcels of a round, parcels in the ring."""
REPLAY_PARCELS = 200
PARAMETERS = 5_000_000
ROUNDS, WAKE_UPS, FULL_CALLS = 15, 500, 20_000
TORN_SECONDS = 10.0
PATIENCE = 30.0
READY = 1
"""Transitions a process may make once to say that it is there."""


class Experience(NamedTuple, Generic[A]):
    """Arrays of a parcel, or what they are like."""

    frames: A
    first_frame: A
    action: A
    reward: A
    discount: A


EXPERIENCE: Experience[ArraySpec] = Experience(
    frames=ArraySpec((FRAMES, 128, 128), np.uint8),
    first_frame=ArraySpec((TRANSITIONS, 2), np.int64),
    action=ArraySpec((TRANSITIONS,), np.int32),
    reward=ArraySpec((TRANSITIONS,), np.float32),
    discount=ArraySpec((TRANSITIONS,), np.float32),
)
STAMP = ArraySpec((1,), np.int64)
WEIGHTS = {"torso": ArraySpec((PARAMETERS - 1000,), np.float32), "head": ArraySpec((1000,), np.float32)}
NO_WEIGHTS = {"none": ArraySpec((1,), np.float32)}


def run(reporter: Reporter) -> Result:
    """One part after the other; within a part, what is compared is interleaved."""
    rows = [*_parcels(reporter), *_full_ring(), *_wake_ups(reporter), *_weights(reporter), *_torn_reads(reporter)]
    settings = {
        "a parcel": f"{TRANSITIONS} transitions of (8, 128, 128) uint8: {FRAMES} frames, {num_bytes(EXPERIENCE):,} B",
        "through a ring": "copied into it, and from there into the replay; a plain copy goes into the same replay",
        "replay": f"{REPLAY_PARCELS} parcels",
        "slots": SLOTS,
    }
    return Result("transport", {**machine(), **settings}, rows)


def _parcels(reporter: Reporter) -> Iterator[Row]:
    """Parcels to the replay: copied from memory of this process, through a ring in it, through that of another one."""
    replay, at, source = leaves(zeros_of(EXPERIENCE, (REPLAY_PARCELS,))), 0, _experience()
    form, allowed = Form(1, SLOTS, EXPERIENCE, NO_WEIGHTS), READY

    def store(parcel: Arrays) -> None:
        nonlocal at
        for place, array in zip(replay, leaves(parcel), strict=True):
            place[at % REPLAY_PARCELS] = array
        at += 1

    def plain() -> None:
        for _ in range(PARCELS):
            store(source)

    with Exchange(form) as exchange, _learner_and_process(form, _hand_over_experience) as learner:
        here, there = exchange.learner_seat().open(), exchange.actor_seat(0).open()

        def within_a_process() -> None:
            for _ in range(PARCELS):
                _expect(there.hand_over(source), "room")
                for parcel in here.committed():
                    store(parcel.arrays)
                    here.release(parcel)

        def between_processes() -> None:
            nonlocal allowed
            allowed += PARCELS * TRANSITIONS
            learner.allow(0, allowed)
            left = PARCELS
            while left:
                _expect(learner.wait(PATIENCE), "a parcel")
                for parcel in learner.committed():
                    store(parcel.arrays)
                    learner.release(parcel)
                    left -= 1

        cases = {"plain": plain, "within": within_a_process, "between": between_processes}
        seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
        here.close()
        there.close()
    size = num_bytes(EXPERIENCE)
    speed = {name: PARCELS * size / statistics.median(times) / 1e9 for name, times in seconds.items()}
    yield Row("parcels: one plain copy", speed["plain"], "GB/s")
    for name, case in (
        ("within", "parcels: through a ring, in one process"),
        ("between", "parcels: between processes"),
    ):
        cost, spread = paired_ratio(seconds[name], seconds["plain"])
        yield Row(case, speed[name], "GB/s", cost, "one plain copy", spread, means=COST)
    whole = 2 * 8 * 128 * 128
    yield Row("a transition in a parcel", size / TRANSITIONS, "bytes", note=f"{whole:,} if both its stacks were sent")


def _full_ring() -> Iterator[Row]:
    with Exchange(Form(1, 1, EXPERIENCE, NO_WEIGHTS)) as exchange:
        actor = exchange.actor_seat(0).open()
        parcel = _experience()
        actor.hand_over(parcel)
        nanoseconds = []
        for _ in range(FULL_CALLS):
            began = time.perf_counter_ns()
            actor.hand_over(parcel)
            nanoseconds.append(time.perf_counter_ns() - began)
        actor.close()
    yield _percentiles("hand-over to a full ring", nanoseconds)


def _wake_ups(reporter: Reporter) -> Iterator[Row]:
    """From before a small parcel is handed over to when the learner, which waits for it, goes on."""
    nanoseconds = []
    with _learner_and_process(Form(1, 2, STAMP, NO_WEIGHTS), _hand_over_stamps) as learner:
        for number in range(WAKE_UPS):
            learner.allow(0, READY + number + 1)
            _expect(learner.wait(PATIENCE), "a stamp")
            now = time.monotonic_ns()
            for parcel in learner.committed():
                assert isinstance(parcel.arrays, np.ndarray)
                nanoseconds.append(now - int(parcel.arrays[0]))
                learner.release(parcel)
            reporter.show(number + 1, WAKE_UPS, {"rounds of": "wake-ups"})
    yield _percentiles("hand-over to a learner that waits, until it goes on", nanoseconds)


def _weights(reporter: Reporter) -> Iterator[Row]:
    """One version written and read, against a copy of as many numbers."""
    with Exchange(Form(1, 1, STAMP, WEIGHTS)) as exchange:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        weights = {name: np.ones(spec.shape, spec.dtype) for name, spec in WEIGHTS.items()}
        source, target = np.ones(PARAMETERS, np.float32), np.ones(PARAMETERS, np.float32)
        version = 0

        def publish() -> None:
            nonlocal version
            version += 1
            learner.publish(version, weights)

        def plain() -> None:
            target[...] = source

        def read() -> None:
            _expect(actor.newest_weights() is not None, "weights")

        cases: dict[str, Callable[[], None]] = {
            "plain": plain,
            "publish": publish,
            "read": read,
            "publish again": publish,
        }
        seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
        actor.close()
        learner.close()
    yield Row(f"{PARAMETERS:,} float32: plain copy", _median_ms(seconds["plain"]), "ms")
    for name, note in (("publish", ""), ("read", "into new memory, as it is the actor's own")):
        cost, spread = paired_ratio(seconds[name], seconds["plain"])
        case = f"{PARAMETERS:,} float32: {name}"
        yield Row(case, _median_ms(seconds[name]), "ms", cost, "plain copy", spread, means=COST, note=note)


def _torn_reads(reporter: Reporter) -> Iterator[Row]:
    """Versions of one value each, published without pause by another process: how many are read, and how many mixed."""
    read, torn = 0, 0
    form = Form(1, 1, STAMP, {"all": ArraySpec((200_000,), np.float64)})
    with Exchange(form) as exchange:
        process = get_context("spawn").Process(target=_publish_for, args=(exchange.learner_seat(), TORN_SECONDS))
        with interrupts_held_back():
            process.start()
        actor = exchange.actor_seat(0).open()
        with reporter.busy(f"reading weights while they are written, {TORN_SECONDS:.0f} s"):
            while process.is_alive():
                weights = actor.newest_weights()
                if weights is not None:
                    read += 1
                    torn += int((weights.arrays["all"] != weights.version).any())
        actor.close()
        process.join()
    yield Row(f"torn reads in {TORN_SECONDS:.0f} s", float(torn), "", note=f"of {read:,} versions read")


@contextmanager
def _learner_and_process(form: Form, target: Callable[[ActorSeat], None]) -> Iterator[SharedLearnerEnd]:
    """A learner's end, with an actor in a process of its own that has begun."""
    with Exchange(form) as exchange:
        learner = exchange.learner_seat().open()
        process = get_context("spawn").Process(target=target, args=(exchange.actor_seat(0),))
        with interrupts_held_back():
            process.start()
        try:
            learner.allow(0, READY)
            _expect(learner.wait(PATIENCE), "the actor's first parcel")
            for parcel in learner.committed():
                learner.release(parcel)
            yield learner
        finally:
            learner.ask_to_stop()
            process.join(PATIENCE)
            process.kill()
            learner.close()


def _hand_over_experience(seat: ActorSeat) -> None:
    end_with_parent()
    actor, parcel = seat.open(), _experience()
    _expect(actor.hand_over(parcel), "room")
    actor.count(transitions=READY)
    while actor.wait_for_allowance(PATIENCE) and not actor.should_stop:
        if actor.hand_over(parcel):
            actor.count(transitions=TRANSITIONS)
        else:
            actor.wait_for_room(PATIENCE)
    actor.close()


def _hand_over_stamps(seat: ActorSeat) -> None:
    end_with_parent()
    actor, stamp = seat.open(), np.zeros(1, np.int64)
    while actor.wait_for_allowance(PATIENCE) and not actor.should_stop:
        time.sleep(0.001)  # the learner has begun to wait by then
        stamp[0] = time.monotonic_ns()
        actor.count(transitions=1)
        _expect(actor.hand_over(stamp), "room")
    actor.close()


def _publish_for(seat: LearnerSeat, seconds: float) -> None:
    end_with_parent()
    learner, version, deadline = seat.open(), 0, time.monotonic() + seconds
    array = np.empty(seat.form.weights["all"].shape)
    while time.monotonic() < deadline:
        array[...] = version
        learner.publish(version, {"all": array})
        version += 1
    learner.close()


def _experience() -> Experience[np.ndarray]:
    return Experience(*(np.full(spec.shape, 3, spec.dtype) for spec in EXPERIENCE))


def _percentiles(case: str, nanoseconds: list[int]) -> Row:
    centiles = statistics.quantiles(nanoseconds, n=100)
    return Row(case, centiles[49] / 1e3, "us", columns={"99 of 100 within, us": round(centiles[98] / 1e3, 2)})


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _expect(came: bool, what: str) -> None:
    if not came:
        raise TimeoutError(f"{what} did not come within {PATIENCE:.0f} s")
