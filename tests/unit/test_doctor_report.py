"""Shares that add up, or say why they do not; a verdict that says how sure it is."""

import pytest
from examined import WHOLE, seen

from hotloop.doctor import examination, free_learners
from hotloop.doctor.causes import causes_of
from hotloop.doctor.free_learners import FreeLearners
from hotloop.doctor.report import cells_of, on_shares, verdict_line
from hotloop.doctor.slices import Comparison, Ratio


def test_the_verdict_says_how_sure_it_is():
    causes = causes_of(seen(step=0.8, update=0.1))
    assert verdict_line(causes) == "env-step: the env's own step (confidence: high)"
    assert "(confidence: low)" in verdict_line(causes_of(seen(step=0.41, update=0.4, products=0.5)))


def test_what_does_not_add_up_is_marked_and_explained():
    examined = seen(step=0.5, update=0.5)
    assert on_shares(causes_of(examined)) == ""
    stages = dict(examined.stages)
    stages["update"] = stages["update"]._replace(is_beside=True)
    causes = causes_of(examined._replace(stages=stages, collecting=0.3))
    rows = {cells_of(cause)[0]: cells_of(cause) for cause in causes}
    assert set(rows) == {"step", "update (beside)", "(garbage collection)"}
    assert "beside:" in on_shares(causes)
    assert "brackets" in on_shares(causes)


def test_shares_of_a_program_on_the_device_add_up_to_no_more_than_all_of_it():
    ratios = {name: Ratio(value, value, value) for name, value in (("step", 2.5), ("update", 2.5), ("sample", 1.25))}
    found = Comparison(1 / WHOLE, {}, ratios, 5, 1.0, [], None)
    stages = examination._of_device(found)
    assert sum(stage.seconds for stage in stages.values()) == pytest.approx(WHOLE)
    assert stages["step"].seconds == pytest.approx(stages["update"].seconds)
    noisy = {"update": Ratio(10.0, 9.5, 10.5), "step": Ratio(1.2, 0.9, 1.5), "select": Ratio(1.1, 0.9, 1.3)}
    known = examination._of_device(found._replace(times_as_fast=noisy))
    assert sum(stage.seconds for stage in known.values()) <= 1.001 * WHOLE
    assert known["update"].seconds == pytest.approx(0.9 * WHOLE, rel=0.01), "what is known well stays"
    small = examination._of_device(found._replace(times_as_fast={"step": Ratio(2.0, 2.0, 2.0)}))
    assert small["step"].seconds == pytest.approx(WHOLE / 2), "as it was measured, where there is room for all"


def test_learners_of_a_team_need_not_have_the_same_stages(monkeypatch):
    entered = []

    class Free:
        def __init__(self, names):
            self.stages = {name: lambda name=name: _Entering((names, name), entered) for name in names}

    class Learner:
        engine = type("Engine", (), {"update_all": None})()
        spec = type("Spec", (), {"updates_per_draw": 1})()

    monkeypatch.setattr(free_learners, "FreeLearner", lambda run: Free(run.names))
    runs = [Learner(), Learner()]
    runs[0].names, runs[1].names = ("sample", "update"), ("sample", "update", "transfer")
    free = FreeLearners(runs)
    assert list(free.stages) == ["sample", "update", "transfer"]
    with free.stages["transfer"]():
        assert entered == [(runs[1].names, "transfer")]
    with free.stages["sample"]():
        assert entered[1:] == [(run.names, "sample") for run in runs]


class _Entering:
    def __init__(self, what, entered):
        self.what, self.entered = what, entered

    def __enter__(self):
        self.entered.append(self.what)

    def __exit__(self, *_):
        pass
