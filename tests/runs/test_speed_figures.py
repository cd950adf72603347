"""What `env_steps_per_s` counts: the whole loop, with all that is written in it, and no evaluation."""

import time

import pytest

import hotloop
from hotloop.pipelines.device_session import DeviceSession
from hotloop.runs import metrics

SPEC = {
    "env": {"id": "cartpole", "num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 1000, "start": 100, "batch_size": 8},
    "evaluation": {"every": 1000, "episodes": 2, "max_steps": 20},
    "stop": {"steps": 2000},
    "log": {"every": 100, "checkpoint_every": 700},
}


def train(folder, **more):
    return hotloop.train(SPEC, out=folder / "run", **more)


def lines(run, kind):
    return [row for row in metrics.read(run.path / "metrics.jsonl") if row["kind"] == kind]


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


def test_evaluations_are_not_in_the_speed(tmp_path, monkeypatch):
    evaluate = DeviceSession.evaluate

    def slowly(self, *args):
        time.sleep(1.5)
        return evaluate(self, *args)

    monkeypatch.setattr(DeviceSession, "evaluate", slowly)
    run = train(tmp_path)
    assert run.seconds_evaluating >= 3.0
    assert run.env_steps_per_s > run.env_steps / run.seconds_evaluating


@pytest.mark.parametrize("exact", [True, False])
def test_lines_are_exact_only_if_asked_and_events_always(tmp_path, exact):
    run = train(tmp_path, **{"log.exact": exact})
    at = [row["env_steps"] for row in lines(run, "train")]
    assert at == sorted(set(at))
    assert at[-1] == 2000
    assert (at == list(range(100, 2001, 100))) == exact
    assert [row["env_steps"] for row in lines(run, "eval")] == [1000, 2000]
    assert sorted(int(path.name) for path in (run.path / "checkpoints").iterdir()) == [1400, 2000]
