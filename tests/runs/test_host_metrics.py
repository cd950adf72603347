"""The metrics of a run on the host that was interrupted are those of one that was left alone."""

import os
import signal
from contextlib import suppress

import pytest
from hotloop_process import checkpoints, manifest, metrics
from test_host_evaluations import SPEC, TIMES

import hotloop
from hotloop.progress import Silent

OWN = {"log.exact": True, "env.info": ["depth"], "evaluation.every": 0, "log.checkpoint_every": 130, "stop.steps": 700}


class PowerCut(Exception):
    """The process is gone."""


class Interrupting(Silent):
    """Ends the run at an env step: as Ctrl-C does, or as a power cut."""

    def __init__(self, at, how):
        self.at, self.how = at, how

    def show(self, env_steps, total, figures):
        if self.how and env_steps >= self.at:
            how, self.how = self.how, None
            if how == "power":
                raise PowerCut
            os.kill(os.getpid(), signal.SIGINT)


def outcome(path):
    rows = metrics(path, "train")
    return {row["env_steps"]: {name: value for name, value in row.items() if name not in TIMES} for row in rows}


@pytest.mark.parametrize(
    ("how", "pipeline"),
    [
        *(("power", "sync"), ("SIGINT", "concurrent")),
        *(pytest.param(*both, marks=pytest.mark.heavy) for both in (("power", "concurrent"), ("SIGINT", "sync"))),
    ],
)
def test_a_run_interrupted_amid_a_log_period_logs_what_an_uninterrupted_one_does(tmp_path, how, pipeline):
    own = {**OWN, "pipeline": pipeline}
    whole = hotloop.train(SPEC, out=tmp_path / "whole", **own)
    path = tmp_path / "parts"
    with suppress(PowerCut):
        hotloop.train(SPEC, out=path, reporter=Interrupting(385, how), **own)
    kept = checkpoints(path)[-1]
    assert kept % 100 not in (0, 4), "a line of metrics has been begun, and not written"
    hotloop.resume(path)
    seen, expected = outcome(path), outcome(whole.path)
    assert {steps: seen[steps] for steps in expected} == expected
    assert set(seen) - set(expected) <= {kept}, "but for the line that Ctrl-C leaves"
    assert manifest(path)["digests"] == manifest(whole.path)["digests"]
    assert all(row["depth_mean"] is not None and row["loss"] is not None for row in expected.values() if row["updates"])
