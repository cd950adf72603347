"""What the model of a run's speed says, by hand."""

import pytest

from hotloop.doctor.model import times_as_fast_without

STAGES = {"select": 1.0, "step": 3.0, "insert": 0.5, "sample": 0.5, "transfer": 0.0, "update": 4.0}


@pytest.mark.parametrize(("stage", "left"), [("step", 7.0), ("update", 6.0), ("sample", 9.5), ("insert", 9.5)])
def test_in_sync_a_stage_is_taken_out_of_the_sum(stage, left):
    assert times_as_fast_without(stage, "sync", STAGES, whole=10.0) == pytest.approx(10.0 / left)


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
