"""What `env_steps_per_s` counts: the whole loop, with all that is written in it, and no evaluation."""

import time

import numpy as np
import pytest
from hotloop_process import TINY

import hotloop
from hotloop.clock import Clock
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.session import Reading
from hotloop.runs import metrics

SPEC = {
    **TINY,  # which other tests have compiled
    "evaluation": {**TINY["evaluation"], "every": 1000},
    "stop": {"steps": 2000},
    "log": {"every": 100, "checkpoint_every": 700},
}


def train(folder, **more):
    return hotloop.train(SPEC, out=folder / "run", **more)


def lines(run, kind):
    return [row for row in metrics.read(run.path / "metrics.jsonl") if row["kind"] == kind]


@pytest.mark.heavy
def test_what_writing_metrics_takes_is_in_the_speed(tmp_path, monkeypatch):
    write, seconds = metrics.Metrics.write, 0.05

    def slowly(self, *args):
        time.sleep(seconds)
        write(self, *args)

    monkeypatch.setattr(metrics.Metrics, "write", slowly)
    run = train(tmp_path, **{"log.exact": True})
    written = len(lines(run, "train"))
    assert written == 20
    # From the first update on, at least 18 of the lines were waited for.
    assert run.env_steps_per_s <= 2000 / (18 * seconds)
    rates = [row["env_steps_per_s"] for row in lines(run, "train")][2:]
    assert max(rates) <= 100 / seconds, "a line's rate has the writing of the line before in it"


def test_how_long_evaluations_take_is_said(tmp_path, monkeypatch):
    evaluate = DeviceSession.evaluate

    def slowly(self, *args):
        time.sleep(0.2)
        return evaluate(self, *args)

    monkeypatch.setattr(DeviceSession, "evaluate", slowly)
    assert train(tmp_path).seconds_evaluating >= 0.4


def reading(steps, updates):
    numbers = (np.array([number]) for number in (steps, 0, 0, updates, 0, 0))
    return Reading(*numbers, totals=None)


def test_a_clock_counts_the_loop_from_the_first_update_on_and_no_evaluation(monkeypatch):
    """Seconds: 1 s before learning, then 2 s a chunk, of which 0.5 s are written, and 10 s of evaluation."""
    now, evaluating = 100.0, 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = Clock(lambda: evaluating, reading(0, 0))
    now += 1.0
    clock.note(reading(1000, 0))
    assert clock.lap(reading(1000, 0)) == (1000.0, 0.0)
    now += 1.5
    clock.note(reading(2000, 100))  # the first updates: the steady rate begins here
    now += 0.5
    for steps in (3000, 4000):
        now += 1.5
        clock.note(reading(steps, steps // 10))
        assert clock.recent == pytest.approx((500.0, 50.0 if steps > 3000 else 100.0), rel=0.01)
        now += 0.5
        if steps == 3000:
            now, evaluating = now + 10.0, evaluating + 10.0
    assert clock.lap(reading(4000, 400)) == pytest.approx((3000 / 6.0, 400 / 6.0))
    assert clock.steady(reading(4000, 400)) == pytest.approx((2000 / 4.5, 300 / 4.5))


def test_a_run_that_never_learned_has_the_speed_of_all_of_it(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = Clock(lambda: 0.0, reading(0, 0))
    assert clock.steady(reading(0, 0)) == (0.0, 0.0)
    now = 4.0
    clock.note(reading(100, 0))
    assert clock.steady(reading(100, 0)) == (25.0, 0.0)


def test_a_resumed_run_that_has_learned_before_counts_from_its_beginning(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    clock = Clock(lambda: 0.0, reading(5000, 100))
    now = 2.0
    clock.note(reading(6000, 300))
    assert clock.steady(reading(6000, 300)) == (500.0, 100.0)


@pytest.mark.parametrize("exact", [True, False])
def test_lines_are_exact_only_if_asked_and_events_always(tmp_path, exact):
    run = train(tmp_path, **{"log.exact": exact})
    at = [row["env_steps"] for row in lines(run, "train")]
    assert at == sorted(set(at))
    assert at[-1] == 2000
    assert (at == list(range(100, 2001, 100))) == exact
    assert [row["env_steps"] for row in lines(run, "eval")] == [1000, 2000]
    assert sorted(int(path.name) for path in (run.path / "checkpoints").iterdir()) == [1400, 2000]
