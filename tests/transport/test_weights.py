"""A reader of weights gets one whole version, whatever the writer does meanwhile."""

import time

import numpy as np
import pytest
from exchanges import PATIENCE, WEIGHTS, spawned, weights_of

import hotloop.transport.weights
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.transport.layout import CACHE_LINE, Layout
from hotloop.transport.learner_end import LearnerSeat
from hotloop.transport.lifeline import end_with_parent
from hotloop.transport.protocol import NO_VERSION
from hotloop.transport.weights import WeightsReader, WeightsWriter, weights_bytes
from hotloop.trees import ArraySpec

LAYOUT = Layout.of(WEIGHTS)
MANY = Form(1, 1, ArraySpec((1,), np.int8), {"a": ArraySpec((30_000,), np.float64), "b": ArraySpec((7, 9), np.float64)})


def test_a_reader_gets_the_newest_version_once() -> None:
    memory = _memory()
    writer, reader = WeightsWriter(memory, LAYOUT), WeightsReader(memory, LAYOUT)
    assert reader.newest(NO_VERSION) is None
    writer.publish(0, weights_of(0))
    writer.publish(5, weights_of(5))
    weights = reader.newest(NO_VERSION)
    assert weights is not None
    assert weights.version == 5
    assert {name: array.shape for name, array in weights.arrays.items()} == {"torso/w": (7, 3), "head/b": (5,)}
    assert all((array == 5).all() for array in weights.arrays.values())
    assert reader.newest(5) is None
    for version in (6, 7, 8):
        writer.publish(version, weights_of(version))
    assert all((array == 5).all() for array in weights.arrays.values())  # they are the reader's own


def test_weights_of_another_form_or_an_older_version_are_refused() -> None:
    memory = _memory()
    writer, reader = WeightsWriter(memory, LAYOUT), WeightsReader(memory, LAYOUT)
    writer.publish(3, weights_of(3))
    with pytest.raises(ValueError, match="version 3 were published after version 3"):
        writer.publish(3, weights_of(3))
    with pytest.raises(ValueError, match="weights are named"):
        writer.publish(4, {"head/b": np.zeros(5, np.float32)})
    with pytest.raises(ValueError, match=r"expected float32\[5\]"):
        writer.publish(4, {**weights_of(4), "head/b": np.zeros(5)})
    weights = reader.newest(NO_VERSION)
    assert weights is not None
    assert weights.version == 3
    writer.publish(4, weights_of(4))
    assert (got := reader.newest(3)) is not None
    assert (got.arrays["head/b"] == 4).all()


def test_a_writer_that_dies_in_mid_publication_leaves_the_version_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = _memory()
    writer, reader = WeightsWriter(memory, LAYOUT), WeightsReader(memory, LAYOUT)
    for version in range(3):
        writer.publish(version, weights_of(version))
    with monkeypatch.context() as patch:
        patch.setattr(hotloop.transport.weights, "copy_into", _copy_one_and_die)
        with pytest.raises(RuntimeError, match="gone"):
            writer.publish(3, weights_of(3))
    weights = reader.newest(NO_VERSION)
    assert weights is not None
    assert weights.version == 2
    WeightsWriter(memory, LAYOUT).publish(4, weights_of(4))
    weights = reader.newest(2)
    assert weights is not None
    assert (weights.arrays["torso/w"] == 4).all()


def test_a_copy_that_the_writer_came_into_is_thrown_away() -> None:
    memory = _memory()
    writer, reader = WeightsWriter(memory, LAYOUT), WeightsReader(memory, LAYOUT)
    writer.publish(1, weights_of(1))
    slot = reader._slots[1]
    looks = []

    class Interrupting:
        """The version's word, at whose first reading in a copy the writer publishes twice: round to this slot."""

        def load(self) -> int:
            looks.append(None)
            if len(looks) == 2:
                writer.publish(2, weights_of(2))
                writer.publish(3, weights_of(3))
            return slot.version.load()

    reader._slots[1] = slot._replace(version=Interrupting())
    weights = reader.newest(NO_VERSION)
    assert weights is not None
    assert weights.version == 3
    assert all((array == 3).all() for array in weights.arrays.values())
    assert len(looks) == 3  # one look whether it is new, one copy in vain, one that was whole


def test_no_version_is_torn_while_another_process_publishes() -> None:
    _hammer(seconds=1.0)


@pytest.mark.slow
def test_no_version_is_torn_in_ten_seconds() -> None:
    _hammer(seconds=10.0)


def _hammer(seconds: float) -> None:
    """Publish versions that are constant within, as fast as possible, and read them here meanwhile."""
    with Exchange(MANY) as exchange:
        process = spawned(_publish_for, exchange.learner_seat(), seconds)
        actor, versions, deadline = exchange.actor_seat(0).open(), [], time.monotonic() + PATIENCE + seconds
        while process.is_alive() and time.monotonic() < deadline:
            weights = actor.newest_weights()
            if weights is not None:
                versions.append(weights.version)
                for array in weights.arrays.values():
                    assert (array == weights.version).all()
        actor.close()
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert len(versions) > 20
    assert versions == sorted(set(versions))


def _publish_for(seat: LearnerSeat, seconds: float) -> None:
    end_with_parent()
    learner, version, deadline = seat.open(), 0, time.monotonic() + seconds
    arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in MANY.weights.items()}
    while time.monotonic() < deadline:
        for array in arrays.values():
            array[...] = version
        learner.publish(version, arrays)
        version += 1
    learner.close()


def _copy_one_and_die(places: list[np.ndarray], arrays: list[np.ndarray]) -> None:
    places[0][...] = arrays[0]
    raise RuntimeError("gone")


def _memory() -> np.ndarray:
    whole = np.zeros(weights_bytes(LAYOUT) + CACHE_LINE, np.uint8)
    begin = -whole.__array_interface__["data"][0] % CACHE_LINE
    return whole[begin:]
