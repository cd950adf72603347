"""Other processes beside a script are said, and where they take much of the cores no other figure is to be trusted."""

import pytest

from hotloop.doctor.causes import verdict_of
from hotloop.doctor.scripts.attach import Attended, Process, Window
from hotloop.doctor.scripts.findings import findings_of
from hotloop.doctor.scripts.stacks import Frame, Stack
from hotloop.doctor.watch import Other, Watched


def found(others, throttled=0.0):
    stack = Stack("", (Frame("<module>", "/home/me/train.py", 3), Frame("hotloop.env.step", "hook", 1)), 100)
    process = Process(1, {}, {"env_steps": 100.0, "gradient_steps": 10.0}, stacks=[stack])
    top = (Other("burner", 7, others),)
    watched = Watched(10.0, 2, others, top, 0.9, throttled, None, None, 0, 0, 0.0, 1 << 30, False, ())
    windows = [Window(10.0, {"env_steps": 100.0}, True)]
    return findings_of(Attended(["python"], {1: process}, windows, 12.0, 1.0, None, [], watched)).causes


def test_a_calm_machine_is_not_named():
    assert [cause.cause for cause in found(0.02)] == ["env-step"]


def test_others_are_listed_and_become_the_verdict_where_they_take_much():
    (machine,) = [cause for cause in found(0.3) if cause.cause == "machine"]
    assert machine.is_loss
    assert "burner (7) 30%" in machine.evidence
    assert not any("waited 90%" in said for said in machine.evidence), "the doctor's own threads are not the script's"
    assert verdict_of(found(0.3)).cause == "env-step"
    assert verdict_of(found(0.6)).cause == "machine"
    assert machine.predicted == pytest.approx(1 / 0.7)


def test_a_limit_of_cores_is_named():
    assert verdict_of(found(0.0, throttled=0.5)).where == "control group"
