"""What the model of a run's speed says, by hand."""

import pytest

from hotloop.doctor.model import BETWEEN, TO_A_THREAD, left_without, seconds_if_concurrent, times_as_fast_without

STAGES = {"select": 1.0, "step": 3.0, "insert": 0.5, "sample": 0.5, "transfer": 0.0, "update": 4.0}


@pytest.mark.parametrize(("stage", "left"), [("step", 7.0), ("update", 6.0), ("sample", 9.5), ("insert", 9.5)])
def test_in_sync_a_stage_is_taken_out_of_the_sum(stage, left):
    assert times_as_fast_without(stage, "sync", STAGES, whole=10.0) == pytest.approx(10.0 / left)


def test_what_is_left_takes_less_the_more_is_gone_of_what_was_between_its_turns():
    stages, alone = {"select": 2.0, "step": 2.0, "update": 6.0}, {"select": 1.0, "step": 2.0, "update": 5.0}
    left = left_without(["update"], stages, alone)
    assert left == pytest.approx({"select": 2.0 - 1.0 * 6 / 8, "step": 2.0}), "steps are as fast as they are alone"
    assert times_as_fast_without("update", "sync", stages, whole=10.0, alone=alone) == pytest.approx(10 / 3.25)
    small = left_without(["step"], stages, alone)
    assert small == pytest.approx({"select": 2.0 - 1.0 * 2 / 8, "update": 6.0 - 1.0 * 2 / 4})
    assert left_without(["step", "update"], stages, alone) == pytest.approx({"select": 1.0}), "alone"


def test_what_is_left_of_the_stage_itself_stays():
    stages = {"step": 4.0, "update": 6.0}
    assert times_as_fast_without("update", "sync", stages, whole=10.0, left_over=1.0) == pytest.approx(10 / 5)
    assert times_as_fast_without("update", "sync", stages, whole=10.0, left_over=7.0) == pytest.approx(1.0)


def test_what_is_between_stages_is_warmed_as_they_are_and_nothing_is_slower_alone():
    stages, alone = {"step": 4.0, "update": 4.0}, {"step": 5.0, BETWEEN: 1.0}
    assert times_as_fast_without("update", "sync", stages, whole=10.0, alone=alone) == pytest.approx(
        10 / (4.0 + 2.0 - 1.0 * 4 / 8)
    )


@pytest.mark.parametrize(
    ("stage", "left"),
    [
        ("update", 5.5),  # acting takes as long as before: 4.5, and drawing, and what is between
        ("step", 5.0),  # learning is the longer side then: 4.0
        ("select", 5.0),
        ("sample", 5.0),
    ],
)
def test_side_by_side_the_longer_side_counts(stage, left):
    assert times_as_fast_without(stage, "concurrent", STAGES, whole=5.5) == pytest.approx(5.5 / left)


def test_drawing_between_gradient_steps_is_on_the_learners_side():
    stages = {"step": 5.0, "sample": 0.0, "redraw": 2.5, "update": 3.0}
    assert times_as_fast_without("sample", "concurrent", stages, whole=5.5) == pytest.approx(5.5 / 5.0)


def test_who_holds_pythons_lock_has_gradient_steps_begin_late(monkeypatch):
    monkeypatch.setattr("sys.getswitchinterval", lambda: 5e-3)
    stages = {"step": 1e-3, "sample": 1e-4, "update": 1e-3}  # seconds of an env step
    holds, lets_go = (seconds_if_concurrent(stages, 10, holds_lock=holds) for holds in (True, False))
    assert lets_go == pytest.approx(1.1e-3 + TO_A_THREAD / 10)
    assert holds == pytest.approx(lets_go + 5e-4), "a tenth of the interval is of each env step"
    short = seconds_if_concurrent(stages, 1, holds_lock=True)
    assert short == pytest.approx(2.1e-3 + TO_A_THREAD), "a block that is over before: one after the other"
