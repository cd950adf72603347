"""Pipeline auto takes processes where a trial says that they are faster, and says so; elsewhere it is as it was."""

import json
import os
import threading
from functools import partial

import numpy as np
import psutil
import pytest
from actor_envs import Sleeping
from counting_env import Counting
from process_sessions import SMALL
from typer.testing import CliRunner

import hotloop
from hotloop import pipeline_trial
from hotloop.assembly import Assembly, Own
from hotloop.cli import app
from hotloop.errors import SpecError
from hotloop.pipeline_trial import Look
from hotloop.progress import Silent
from hotloop.runs.state import digests
from hotloop.searching.subject import OwnSpec
from hotloop.spec.reading import given, load_spec, parse_spec, to_yaml
from hotloop.trial import Trial, trial

AUTO = {**SMALL, "log": {"every": 100}, "stop": {"steps": 300}}
TWO = {"actors.count": 2}
"""Two actors sleep at the same time, on however few cores."""
MANY = {"env.num_envs": 16, "actors.count": 1}
"""One actor sleeps as long as this process, and there is next to nothing beside that."""


class Told(Silent):
    """Keeps what is said."""

    def __init__(self):
        self.lines, self.warned = [], []

    def say(self, text):
        self.lines.append(text)

    def warn(self, text):
        self.warned.append(text)

    @property
    def pipeline(self):
        [line] = [line for line in self.lines if line.startswith("pipeline: ")]
        return line.partition(";")[0]


@pytest.fixture
def short(monkeypatch):
    """Trials are short, and held however short the run is."""
    monkeypatch.setattr(pipeline_trial, "SECONDS", 0.5)
    monkeypatch.setattr(pipeline_trial, "MOST_SHARE", float("inf"))
    monkeypatch.setattr(pipeline_trial, "FEWEST_STEPS", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def no_trial(monkeypatch):
    """Whoever holds a trial fails."""

    def fails(*_, **__):
        raise BaseException("a trial was held")

    monkeypatch.setattr(pipeline_trial, "trial", fails)
    return fails


@pytest.fixture
def no_look(monkeypatch, no_trial):
    """Whoever looks at the env fails."""
    monkeypatch.setattr(pipeline_trial, "look_at_one", no_trial)


@pytest.fixture
def slow_env(monkeypatch):
    """Every env seems to be slow."""
    monkeypatch.setattr(pipeline_trial, "look_at_one", lambda _: Look(0.0, 1.0, 0.0))


def left_open():
    """Processes, what of the transport is open, and envs that nobody has closed."""
    links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    shared = [link for link in links if any(kind in link for kind in ("memfd", "eventfd", "pidfd"))]
    return psutil.Process().children(), shared, Sleeping.opened


def trained(env=None, out=None, **changes):
    told = Told()
    run = hotloop.train(AUTO, env=env, out=out, reporter=told, **changes)
    return run, told


# -- a trial decides ----------------------------------------------------------------------------------


def test_a_slow_env_goes_into_processes_with_both_figures_and_stays_there(short, tmp_path, monkeypatch):
    before = left_open()
    run, told = trained(Sleeping, tmp_path / "run", **TWO)
    assert told.pipeline.startswith("pipeline: processes (measured: ")
    faster, slower = (
        float(part.split()[0].replace(",", ""))
        for part in told.pipeline.partition("measured: ")[2].split(" env steps/s with 2 actors against ")
    )
    assert faster > slower > 0
    assert left_open() == before

    spec, facts = load_spec(run.path / "spec.yaml"), json.loads((run.path / "run.json").read_text())
    assert (spec.pipeline, spec.actors.count, spec.replay.start) == ("processes", 2, SMALL["replay"]["start"])
    assert facts["chosen"] == ["pipeline"]

    monkeypatch.setattr(pipeline_trial, "choose", None)  # who calls it fails
    again = Told()
    assert hotloop.resume(run, steps=400, reporter=again).env_steps >= 400
    assert again.pipeline == "pipeline: processes (as the spec says)"


def test_where_it_brings_nothing_the_run_is_the_one_that_it_would_be_without_measuring(short):
    def weights(**changes):
        np.random.seed(3)
        run, told = trained(Sleeping, **{**changes, "stop.steps": 160, "env.num_envs": 16})
        assert run.kept.spec.pipeline in ("auto", "sync")
        return digests(dict(run.kept.store.weights("last")[0])), told

    unmeasured, said = weights(**{"actors.measure": False})
    assert said.pipeline == "pipeline: sync (the env is a Gymnasium env, stepped on the host)"
    measured, said = weights(**MANY)
    assert said.pipeline.startswith("pipeline: sync (measured: ")
    assert "processes with 1 actor would bring 1." in said.pipeline
    assert measured == unmeasured


def test_a_run_that_stays_says_so_in_a_spec_that_is_read_again(short, tmp_path):
    run, _ = trained(Sleeping, tmp_path / "run", **{**MANY, "stop.steps": 64})
    spec = load_spec(run.path / "spec.yaml")
    assert spec.pipeline == "sync"
    assert not spec.describes_actors


@pytest.mark.parametrize(
    ("how", "words"),
    [("raise", "no such level: 7-4"), pytest.param("exit", "ended with exit code 9", marks=pytest.mark.heavy)],
)
def test_a_trial_that_fails_costs_the_run_nothing(short, how, words):
    before = left_open()
    run, told = trained(partial(Sleeping, os.getpid(), how), **{**TWO, "stop.steps": 100})
    assert told.pipeline.startswith("pipeline: sync (processes could not be measured: ActorsFailed: actor ")
    assert words in told.pipeline
    assert run.env_steps == 100
    assert left_open() == before


def test_trials_that_take_longer_than_they_may_are_given_up(short, slow_env, monkeypatch):
    before = left_open()
    monkeypatch.setattr(pipeline_trial, "MOST_SHARE", 1e-9)
    monkeypatch.setattr(Look, "obstacle", lambda *_: None)
    run, told = trained(Sleeping, **{**TWO, "stop.steps": 100})
    assert told.pipeline == "pipeline: sync (processes could not be measured within 0 s"
    assert any("the run's spec says nothing of actors any more" in line for line in told.lines)
    assert not run.kept.spec.describes_actors
    assert left_open() == before


def test_trials_wait_for_no_compiler(short, slow_env, monkeypatch):
    tried = []

    def noted(spec, **_):
        tried.append(spec)
        raise RuntimeError("not now")

    monkeypatch.setattr(pipeline_trial, "trial", noted)
    spec = load_spec(parse_spec(AUTO), {"engine": "torch", "stop.steps": 3000, **TWO})
    with Assembly(spec, Own(env=Sleeping)) as assembly:
        pipeline_trial.choose(assembly, spec, Own(env=Sleeping), Told())
    assert [one.torch.mode for one in tried] == ["eager"]


@pytest.mark.heavy
def test_a_run_that_was_measured_is_profiled(short, tmp_path):
    run = hotloop.profile(AUTO, env=Sleeping, out=tmp_path / "run", **TWO)
    assert run.profile["pipeline"].startswith("processes (measured: ")
    assert "wait" in {row["stage"] for row in run.profile["stages"]}


@pytest.mark.parametrize(
    ("stages", "actors", "expected"),
    [
        ({"step": 8.0, "update": 2.0}, 1, 1.25),  # which is to overlap both
        ({"step": 8.0, "update": 2.0}, 4, 5.0),
        ({"step": 7.0, "select": 1.0, "update": 1.0, "sample": 1.0}, 8, 5.0),
        ({"step": 1.0, "update": 9.0}, 4, 10 / 9),
        ({"step": 8.0, "update": 8.0}, 1, 1.25),  # beside each other already
    ],
)
def test_at_best_neither_actors_nor_learner_wait(stages, actors, expected):
    none = dict.fromkeys(("select", "step", "insert", "sample", "redraw", "transfer", "update"), 0.0)
    found = Trial(100.0, 25.0, 1000, 250, 10.0, {**none, **stages}, [])
    assert 10.0 / pipeline_trial.seconds_with(found.stage_seconds, actors, 0.0, 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stages", "busy", "cores", "expected"),
    [
        ({"step": 8.0, "update": 2.0}, 1.0, 2, 2),  # (8 + 2) / 2 s: both cores are busy
        ({"step": 9.9, "update": 0.1}, 1.0, 2, 2),
        ({"step": 5.0, "update": 5.0}, 1.0, 2, 1),
        ({"step": 9.0, "update": 1.0}, 0.0, 2, 8),  # which wait: as many as there are envs
        ({"step": 8.0, "update": 2.0}, 0.0, 2, 4),
        ({"step": 9.0, "update": 1.0}, 1.0, 8, 7),
    ],
)
def test_actors_are_as_many_as_help(stages, busy, cores, expected):
    none = dict.fromkeys(("select", "step", "insert", "sample", "redraw", "transfer", "update"), 0.0)
    found = Trial(100.0, 25.0, 1000, 250, 10.0, {**none, **stages}, [])
    spec = load_spec({}, {"env.num_envs": 8})
    assert pipeline_trial.actors_for(found.stage_seconds, spec, busy, cores) == expected
    assert pipeline_trial.actors_for(found.stage_seconds, spec.with_field("actors.count", 3), busy, cores) == 3


@pytest.mark.heavy
def test_envs_that_wait_get_more_actors_than_there_are_cores_unasked(short):
    _, told = trained(Sleeping, **{"env.num_envs": 8})
    assert told.pipeline.startswith("pipeline: processes (measured: ")
    count = int(told.pipeline.partition(" env steps/s with ")[2].split()[0])
    assert count > 2


# -- nothing is measured ------------------------------------------------------------------------------


def test_a_fast_env_stays_without_a_trial(no_trial):
    run, told = trained(Counting, **{"stop.steps": 3000})
    assert told.pipeline == "pipeline: sync (the env is a Gymnasium env, stepped on the host)"
    assert run.kept.spec.pipeline == "auto"


@pytest.mark.parametrize(
    ("of_step", "steps", "worth"),
    [
        (5e-6, 2_000_000_000, False),  # a step that is next to nothing
        (5e-3, 10_000, False),  # 50 s, of which two trials would be too much
        (5e-3, 100_000, True),
        (1.0, 100_000, True),
    ],
)
def test_an_env_is_tried_if_it_is_slow_and_the_run_is_long(of_step, steps, worth):
    spec = load_spec(parse_spec(AUTO), {"stop.steps": steps})
    assert (Look(0.01, of_step, 1.0).obstacle(spec) is None) == worth


def test_trials_count_what_it_takes_to_open_envs():
    spec = load_spec(parse_spec(AUTO), {"stop.steps": 100_000})
    assert Look(0.01, 5e-3, 1.0).obstacle(spec) is None
    assert Look(10.0, 5e-3, 1.0).obstacle(spec) is not None


HERE = "pipeline: sync (the env is a Gymnasium env, stepped on the host)"


@pytest.mark.parametrize(
    "changes",
    [
        {"actors.measure": False},
        {"pipeline": "sync"},
        {"pipeline": "concurrent"},
        {"env.id": "cartpole"},
        {"seeds": 2},
        {"replay.hindsight": {}, "env.id": "hotloop.envs.bit_flip:hotloop/BitFlip-v0", "replay.storage": "whole"},
        {"actors.in_step": True},
        {"stop.steps": 100},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_what_is_not_to_be_measured_is_not_even_looked_at(changes, no_look):
    spec = load_spec(parse_spec(AUTO), {"stop.steps": 1_000_000, **changes})
    with Assembly(spec) as assembly:
        assert pipeline_trial.choose(assembly, spec, Own(), Told()) is None
        assert assembly.envs is None or not assembly.envs._is_closed


def test_one_core_is_not_shared_out(no_look, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with Assembly(load_spec(parse_spec(AUTO), {"stop.steps": 1_000_000})) as assembly:
        assert pipeline_trial.obstacle(assembly, assembly.spec) == "processes need Linux, and two cores"


def test_envs_that_cannot_travel_stay_without_a_word(short, slow_env, no_trial):
    lock = threading.Lock()

    def make():
        with lock:
            return Counting()

    _, told = trained(make, **{"stop.steps": 64})
    assert told.pipeline == HERE
    assert told.warned == []


def test_an_env_of_which_there_is_one_takes_no_step_for_it(no_look):
    _, told = trained(Counting(), **{"stop.steps": 3000, "env.num_envs": 1})
    assert told.pipeline == HERE


def test_a_trial_of_a_spec_holds_no_trial_of_its_own(short, monkeypatch):
    monkeypatch.setattr(pipeline_trial, "choose", None)
    found = trial({**AUTO, "stop": {"steps": 1_000_000}}, replace={"env": Sleeping, "log": False}, seconds=0.1)
    assert "wait" not in found.stage_seconds  # which is what a learner does whose actors are elsewhere


def test_a_search_measures_nothing_and_its_best_spec_says_so():
    on_host = OwnSpec.of(parse_spec(AUTO)).with_values({"discount": 0.9})
    assert on_host.actors.measure is False
    assert "measure: false" in to_yaml(on_host)
    on_device = OwnSpec.of(load_spec("cartpole")).with_values({"discount": 0.9})
    assert "actors" not in given(on_device)


# -- what is said of actors beside auto ---------------------------------------------------------------


def test_actors_that_auto_has_no_use_for_are_named(no_trial):
    _, told = trained(Counting, **{**TWO, "stop.steps": 2000})
    [warning] = told.warned
    assert warning.startswith("actors are not used: a step of the env takes ")
    with pytest.raises(SpecError, match="actors are for pipeline processes, but pipeline auto has none for cartpole"):
        hotloop.train("cartpole", out=None, **TWO)


def test_a_plan_measures_nothing_and_says_what_will_be(no_look, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(load_spec(parse_spec(AUTO), {"stop.steps": 100_000})))
    said = CliRunner().invoke(app, ["train", str(file), "--plan"]).output
    assert "pipeline: sync; where the env turns out to be slow, processes if a trial as the run begins says" in said
    plan = json.loads(CliRunner().invoke(app, ["train", str(file), "--plan", "--json"]).output)
    assert plan["measured_at_the_start"] == ["sync", "processes"]
    for refused in ("actors.measure=false", "pipeline=sync", "seeds=2"):
        plan = json.loads(CliRunner().invoke(app, ["train", str(file), "--plan", "--json", "--set", refused]).output)
        assert "measured_at_the_start" not in plan
