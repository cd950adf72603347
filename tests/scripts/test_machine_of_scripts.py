"""Other processes beside a script are said, and where they take much of the cores no other figure is to be trusted."""

import pytest

from hotloop.doctor.causes import verdict_of
from hotloop.doctor.scripts.attach import Attended, Process, Window
from hotloop.doctor.scripts.findings import findings_of
from hotloop.doctor.scripts.report import confidence_in
from hotloop.doctor.scripts.stacks import Frame, Stack
from hotloop.doctor.watch import Other, Watched


def found(others, throttled=0.0, waited=9.0, unnamed=0):
    step = (Frame("<module>", "/home/me/train.py", 3), Frame("hotloop.env.step", "hook", 1))
    stacks = [Stack("", step, 100), Stack("", (Frame("best_ones", "/home/me/train.py", 22),), unnamed)]
    process = Process(1, {}, {"env_steps": 100.0, "gradient_steps": 10.0}, stacks=stacks, waited=waited)
    top = (Other("burner", 7, others),)
    watched = Watched(10.0, 2, others, top, 0.9, throttled, None, None, 0, 0, 0.0, 1 << 30, False, ())
    windows = [Window(10.0, {"env_steps": 100.0}, True)]
    return findings_of(Attended(["python"], {1: process}, windows, 12.0, 1.0, None, [], watched))


def test_a_calm_machine_is_not_named():
    assert [cause.cause for cause in found(0.02).causes] == ["env-step"]


def test_others_are_listed_and_become_the_verdict_where_they_take_much():
    (machine,) = [cause for cause in found(0.3).causes if cause.cause == "machine"]
    assert machine.is_loss
    assert "burner (7) 30%" in machine.evidence
    assert "the run waited 90% of the time for a core" in machine.evidence, "as the script's own threads did"
    assert verdict_of(found(0.3).causes).cause == "env-step"
    assert verdict_of(found(0.6).causes).cause == "machine"
    assert machine.predicted == pytest.approx(1 / 0.7)


def test_a_limit_of_cores_is_named():
    assert verdict_of(found(0.0, throttled=0.5).causes).where == "control group"


def test_others_that_the_script_does_not_wait_for_take_no_time_of_it():
    seen = found(0.6, waited=0.3)
    assert verdict_of(seen.causes).cause == "env-step"
    (machine,) = [cause for cause in seen.causes if cause.cause == "machine"]
    assert machine.share == pytest.approx(0.03)
    assert verdict_of(found(0.6, waited=None).causes).cause == "env-step", "not known: said, and no verdict"


def test_lines_that_take_what_has_no_name_are_named_and_the_verdict_is_less_sure():
    seen = found(0.0, unnamed=300)
    assert seen.coverage == pytest.approx(0.25)
    assert (seen.unnamed[0]["file"], seen.unnamed[0]["line"], seen.unnamed[0]["share"]) == ("train.py", 22, 0.75)
    assert confidence_in(seen) == "low"
    assert confidence_in(found(0.0)) == "high"
