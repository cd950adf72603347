"""Which of two sides holds a run in processes back, by slices whose truth is known."""

import pytest
from examined import CALM

from hotloop.doctor.model import times_as_fast_without
from hotloop.doctor.sides import felt_of_delay, stages_of_sides
from hotloop.doctor.slices import Comparison, Ratio

LEARNING = {"insert": 1e-5, "sample": 1e-5, "redraw": 1e-5, "transfer": 0.0, "update": 6e-5, "publish": 1e-5}


def slices(step: float, wait: float, actors_wait: float, times: float) -> Comparison:
    """An env step of 100 µs or so, of which each side waits some."""
    whole = max(sum(LEARNING.values()) + wait, step + 2e-5 + actors_wait)
    acting = {"step": step, "select": 1e-5, "hand over": 1e-5, "actors wait": actors_wait}
    work = {"work of actors": step, "work of learner": sum(LEARNING.values())}
    measured = {"update": Ratio(2.0, 1.9, 2.1), "learner slower": Ratio(times, times, times)}
    return Comparison(1 / whole, {**LEARNING, "wait": wait, **acting, **work}, measured, 5, 1.0, [], CALM)


def test_where_the_learner_waits_the_envs_hold_the_run_back():
    stages = stages_of_sides(slices(3.8e-4, 3e-4, 0.0, 1.0), around=5e-5, delay=1e-5, cores=4)
    assert [name for name, stage in stages.items() if stage.is_beside] == ["insert", "sample", "update", "publish"]
    assert stages["step"].seconds == pytest.approx(3.3e-4), "without what goes on around an env"
    assert stages["hand over"].seconds == pytest.approx(6e-5)
    assert "the learner waits 75% of its time" in stages["step"].evidence
    assert stages["step"].predicted == pytest.approx(4.0), "no faster than the learner"
    assert stages["update"].predicted == pytest.approx(1.0)
    assert "of what the learner takes longer, the run feels 0%" in stages["update"].evidence


def test_where_actors_wait_the_learner_holds_the_run_back():
    stages = stages_of_sides(slices(3e-5, 0.0, 5e-5, 1 / 1.1), around=0.0, delay=1e-5, cores=4)
    assert [name for name, stage in stages.items() if stage.is_beside] == ["select", "step", "hand over"]
    assert stages["sample"].seconds == pytest.approx(2e-5), "with what is drawn between gradient steps"
    assert stages["update"].predicted == pytest.approx(2.0), "no faster than the actors"
    assert stages["update"].measured == Ratio(2.0, 1.9, 2.1)
    assert "actors wait 50% of their time" in stages["update"].evidence
    assert "of what the learner takes longer, the run feels 100%" in stages["update"].evidence


def test_work_on_too_few_cores_is_what_is_left():
    stages, work = {"step": 1e-4, "update": 1e-4}, {"step": 4e-5, "update": 4e-5}
    assert times_as_fast_without("step", "processes", {**stages, "update": 1e-5}, 1e-4, work) == pytest.approx(2.5)


@pytest.mark.parametrize(("times", "felt"), [(1 / 1.2, 1.0), (1 / 1.05, 0.5), (1.1, 0.0), (0.5, 1.0)])
def test_what_a_run_feels_of_a_delay(times, felt):
    assert felt_of_delay(Ratio(times, times, times), 1e-4, 1e-5) == pytest.approx(felt)
