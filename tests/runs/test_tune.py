"""Tuning finds what was planted, leaves what is learned as it is, and says so when there is nothing to gain."""

import json
from pathlib import Path

import pytest

import hotloop
from hotloop.assembly import Own
from hotloop.doctor import tuning
from hotloop.doctor.advice import advise
from hotloop.doctor.alternatives import other_steps
from hotloop.doctor.diagnosis import Diagnosis, Tried
from hotloop.doctor.gradient_steps import seconds_alone, seconds_of_gradient_step
from hotloop.doctor.remedies import Remedy
from hotloop.doctor.slices import Ratio
from hotloop.errors import SpecError
from hotloop.progress import Silent
from hotloop.spec.reading import given, load_spec, parse_spec, read_text

SLOW = {
    "env.id": "hotloop.bench.planted_envs:planted/Waits-v0",
    "env.num_envs": 4,
    "env.vectorization": "sync",
    "pipeline": "sync",
    "network.torso.hidden": [16],
    "replay.batch_size": 8,
    "replay.capacity": 2_000,
    "evaluation.every": 0,
}
LEARNED = ("updates_per_step", "learn_every", "turns", "discount", "network", "target", "loss", "optimizer")
LEARNED = (*LEARNED, "exploration", "replay", "evaluation", "stop", "log", "seed", "seeds", "precision")


class Seen:
    """As much of an examined run as tuning asks for."""

    notices = ()

    def of_whole_run(self, times_as_fast):
        return times_as_fast


def found(monkeypatch, remedies, again=(1.7, 1.6, 1.8)):
    """Have the doctor say this instead of measuring, and another try of the best come to `again`."""
    monkeypatch.setattr(tuning, "diagnose", lambda *_: Diagnosis(Seen(), remedies))
    monkeypatch.setattr(tuning, "race", lambda *_: [Ratio(*again)])


def tried(changes, *interval):
    ratio = Ratio(*interval) if interval else None
    return Tried(Remedy(changes, 2.0, True), ratio, "")


def test_the_best_that_was_surely_faster_is_taken(monkeypatch):
    best = {"pipeline": "processes", "actors.count": 2}
    found(
        monkeypatch,
        [
            tried({"pipeline": "concurrent"}, 3.0, 0.9, 5.0),  # perhaps slower
            tried(best, 1.8, 1.7, 1.9),
            tried({"env.vectorization": "async"}, 1.5, 1.4, 1.6),
            tried({"log.every": 10_000}, 4.0, 3.9, 4.1),  # what is written down stays as it is
            tried({"threads": 1}),
        ],
    )
    spec = load_spec({}, SLOW)
    tuned = tuning.tune(spec, 1.0, Silent())
    assert tuned.changes == best
    assert tuned.gain == Ratio(1.7, 1.6, 1.8), "that of the second time"
    assert tuned.spec == load_spec(spec, best)
    assert json.dumps(tuned.figures(Path("tuned.yaml")))
    for name in LEARNED:
        assert getattr(tuned.spec, name) == getattr(spec, name)


def test_no_gain_is_an_answer(monkeypatch):
    found(monkeypatch, [tried({"pipeline": "concurrent"}, 1.02, 0.98, 1.06)])
    tuned = tuning.tune(load_spec({}, SLOW), 1.0, Silent())
    assert tuned.changes == {}
    assert tuned.figures(None) == {**tuned.figures(None), "speedup": 1.0, "interval": None, "changed": {}, "spec": None}


@pytest.mark.parametrize("source", ["lunar", None])
def test_the_file_that_is_written_is_the_spec_that_was_tuned(monkeypatch, source):
    found(monkeypatch, [tried({"pipeline": "concurrent"}, 1.5, 1.4, 1.6)])
    overrides = {"replay.batch_size": 16} if source else {"env.id": "CartPole-v1"}
    spec = load_spec(source or {}, overrides)
    tuned = tuning.tune(load_spec(spec, {"pipeline": "sync"}), 1.0, Silent())
    text = tuning.text_of(tuned, source, {**overrides, "pipeline": "sync"})
    assert ("base: lunar" in text) == (source is not None)
    assert given(parse_spec(read_text(text, "tuned.yaml"))) == given(tuned.spec)


def test_what_was_faster_by_chance_is_not_taken(monkeypatch):
    found(monkeypatch, [tried({"pipeline": "concurrent"}, 1.2, 1.1, 1.3)], again=(1.0, 0.95, 1.05))
    assert tuning.tune(load_spec({}, SLOW), 1.0, Silent()).changes == {}


@pytest.mark.parametrize(
    ("source", "overrides", "best"),
    [
        ("lunar", {"engine": "torch", "torch": {"mode": "eager"}}, {"engine": "jax"}),
        ("lunar", {"optimizer": {"learning_rate": 0.001}}, {"threads": 2}),
    ],
)
def test_the_file_is_the_tuned_spec_whatever_was_set_beside_a_preset(monkeypatch, source, overrides, best):
    found(monkeypatch, [tried(best, 1.5, 1.4, 1.6)])
    tuned = tuning.tune(load_spec(source, {**overrides, "pipeline": "sync"}), 1.0, Silent())
    assert tuned.changes == best
    text = tuning.text_of(tuned, source, {**overrides, "pipeline": "sync"})
    assert load_spec(read_text(text, "tuned.yaml")) == tuned.spec


def test_nothing_that_may_change_says_what_is_learned():
    how_it_flows = {"pipeline", "env.vectorization", "actors.count", "actors.first_errors", "threads", "engine"}
    assert set(tuning.MAY_CHANGE) == {*how_it_flows, "torch.mode"}, "each of these is compared in tests/learning"


def test_an_env_from_python_is_told_to_have_an_id():
    with pytest.raises(SpecError, match="name the env by its id"):
        hotloop.tune({}, env=lambda: None)


def test_gradient_steps_by_themselves_are_those_of_the_spec_and_what_fails_is_said():
    small = load_spec({}, {"replay.batch_size": 4})
    assert 0 < seconds_of_gradient_step(small) < 1
    wrong = load_spec({}, {"env.id": "NoSuchEnv-v0"})
    seconds, words = seconds_alone([small, wrong], {}, 60.0)
    assert isinstance(seconds, float)
    assert "NoSuchEnv" in words
    assert seconds_alone([small], {}, 0.01) == ["it took too long"]


def test_envs_are_stepped_in_other_ways_by_themselves():
    ways = other_steps(load_spec({}, SLOW), Own(), 2, float("inf"), Silent())
    assert set(ways.steps) == {"threads", "async"}
    assert not other_steps(load_spec({}, {**SLOW, "env.num_envs": 1}), Own(), 2, 0.0, Silent()).steps


def test_advice_has_reasons_and_marks_what_changes_learning():
    advice = advise(load_spec({}, SLOW))
    settings = {each.field: each for each in advice.settings}
    assert settings["pipeline"].value == "processes"
    assert settings["actors.count"].value == 4, "envs that wait may be more than cores"
    assert settings["threads"].value == 1
    assert all(each.why for each in advice.settings)
    changing = {each.field for each in advice.settings if each.changes_learning}
    assert changing == {"replay.capacity", "replay.batch_size", "precision"}
    assert json.dumps(advice.figures())
    assert next(each.value for each in advise(load_spec("cartpole")).settings if each.field == "pipeline") == "fused"
