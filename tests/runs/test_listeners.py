"""Callbacks and listeners hear what happens, may end a run, and change nothing of it."""

import copy

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, manifest, metrics
from safetensors.numpy import load_file

import hotloop
from hotloop.errors import SpecError
from hotloop.listeners import Checkpoint, Chunk, End, Evaluation, Log, Start

HOST = {
    **TINY,
    "env": {"id": "hotloop.envs.gymnasium:hotloop/CartPole-v1", "num_envs": 4, "options": {"max_steps": 50}},
}
SPECS = {"device": TINY, "host": HOST}
TIMES = {"seconds", "env_steps_per_s", "updates_per_s", "stage_seconds"}


class Everything(hotloop.Listener):
    """Keeps all events."""

    def __init__(self):
        self.events = []

    def on_start(self, start):
        self.events.append(start)

    def on_chunk(self, chunk):
        self.events.append(chunk)

    def on_log(self, log):
        self.events.append(log)

    def on_evaluation(self, evaluation):
        self.events.append(evaluation)

    def on_checkpoint(self, checkpoint):
        self.events.append(checkpoint)

    def on_end(self, end):
        self.events.append(end)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="module", params=SPECS)
def whole(request, tmp_path_factory):
    """A run that is listened to, its listener, and its spec."""
    listener, spec = Everything(), SPECS[request.param]
    run = hotloop.train(spec, out=tmp_path_factory.mktemp("whole") / "run", listeners=[listener])
    return run, listener, spec


def lines(run):
    return [{name: value for name, value in row.items() if name not in TIMES} for row in metrics(run.path)]


def test_a_listener_hears_of_everything_once(whole):
    run, heard, _ = whole
    [start], [end] = heard.of(Start), heard.of(End)
    assert heard.events[0] is start
    assert heard.events[-1] is end
    assert (start.path, start.resumed_at, start.spec.stop.steps) == (run.path, None, 1000)
    assert [log.env_steps for log in heard.of(Log)] == [200, 400, 600, 800, 1000]
    assert [each.env_steps for each in heard.of(Evaluation)] == [400, 800, 1000]
    assert [each.env_steps for each in heard.of(Checkpoint)] == [400, 800, 1000]
    assert all(each.path.is_dir() for each in heard.of(Checkpoint)[-2:])
    assert heard.of(Chunk)[-1].env_steps == 1000
    assert end.result == run.result
    assert end.error is None


def test_what_it_hears_is_what_the_metrics_say(whole):
    run, heard, _ = whole
    for kind, name, figures in ((Log, "train", "figures"), (Evaluation, "eval", "summary")):
        told = [{"kind": name, "env_steps": each.env_steps, **getattr(each, figures)} for each in heard.of(kind)]
        assert told == metrics(run.path, name)
    best = [each.summary["return_mean"] for each in heard.of(Evaluation) if each.is_best]
    assert best[-1] == manifest(run.path)["best_return"]
    assert best == sorted(best)


def test_who_listens_changes_no_bit(whole, tmp_path):
    run, _, spec = whole

    def meddle(event):
        np.random.seed(event.env_steps)
        event.figures.clear()

    def wipe(event):
        event.summary.clear()

    alone = hotloop.train(spec, out=tmp_path / "run", on_log=meddle, on_evaluation=wipe)
    assert manifest(alone.path)["digests"] == manifest(run.path)["digests"]
    assert lines(alone) == lines(run)


STOPS = {"on_log": 600, "on_evaluation": 400, "on_checkpoint": 400}


@pytest.mark.parametrize("name", STOPS)
def test_a_callback_stops_a_run_which_is_saved_and_resumes_to_the_same_bits(whole, tmp_path, name):
    run, _, spec = whole
    stopped = hotloop.train(
        spec, out=tmp_path / "run", **{name: lambda event: hotloop.STOP if event.env_steps >= STOPS[name] else None}
    )
    assert stopped.stopped == f"stopped by {name}"
    assert stopped.result["stopped_by"] == "callback"
    assert stopped.env_steps == checkpoints(stopped.path)[-1] == STOPS[name]
    assert (stopped.path / "curve.png").is_file(), "an orderly end"
    assert [row["env_steps"] for row in metrics(stopped.path, "eval")][-1] == STOPS[name]
    resumed = hotloop.resume(stopped)
    assert resumed.env_steps == 1000
    assert manifest(resumed.path)["digests"] == manifest(run.path)["digests"]
    train = [row for row in lines(resumed) if row["kind"] == "train"]
    assert train == [row for row in lines(run) if row["kind"] == "train"]


def test_only_stop_stops(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", on_log=lambda log: True)
    assert run.stopped == "1,000 env steps done"


@pytest.mark.parametrize("name", STOPS)
def test_an_exception_in_a_callback_ends_the_run_saved_and_is_raised(whole, tmp_path, name):
    run, _, spec = whole
    error, heard = LookupError("mine"), Everything()

    def fail(event):
        if event.env_steps >= STOPS[name]:
            raise error

    with pytest.raises(LookupError) as raised:
        hotloop.train(spec, out=tmp_path / "run", listeners=[heard], **{name: fail})
    assert raised.value is error
    assert checkpoints(tmp_path / "run")[-1] == STOPS[name]
    assert (tmp_path / "run" / "last").is_dir()
    assert heard.of(End)[0].error is error
    resumed = hotloop.resume(tmp_path / "run")
    assert manifest(resumed.path)["digests"] == manifest(run.path)["digests"]
    assert lines(resumed) == lines(run), "an evaluation that was due then is made up for"


def test_an_exception_at_the_end_is_raised_too(tmp_path):
    class Late(hotloop.Listener):
        def on_end(self, end):
            raise LookupError(end.result["env_steps"])

    with pytest.raises(LookupError, match="200"):
        hotloop.train(TINY, out=tmp_path / "run", listeners=[Late()], **{"stop.steps": 200})
    assert checkpoints(tmp_path / "run") == [200]


def test_a_resumed_run_can_be_listened_to(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 400})
    heard = Everything()
    again = hotloop.resume(run, steps=1000, listeners=[heard], on_log=lambda log: hotloop.STOP)
    assert heard.of(Start)[0].resumed_at == 400
    assert (again.stopped, again.env_steps) == ("stopped by on_log", 600)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": [object()]}, r"listeners\[0\] has no on_start, .*hotloop\.Listener"),
        ({"listeners": [Everything]}, r"listeners\[0\] is the class Everything"),
        ({"on_log": 3}, "on_log is 3, expected a function"),
    ],
)
def test_what_cannot_listen_is_refused_before_anything_is_written(tmp_path, given, says):
    with pytest.raises(SpecError, match=says):
        hotloop.train(TINY, out=tmp_path / "run", **given)
    assert list(tmp_path.iterdir()) == []


def test_stop_is_one_thing():
    assert copy.deepcopy(hotloop.STOP) is hotloop.STOP
    assert repr(hotloop.STOP) == "hotloop.STOP"


def test_a_checkpoint_is_whole_when_it_is_told(tmp_path):
    seen = []

    def look(checkpoint):
        seen.append(load_file(checkpoint.path / "arrays.safetensors")["env_steps"].item())

    hotloop.train(TINY, out=tmp_path / "run", on_checkpoint=look)
    assert seen == [400, 800, 1000]
