"""The doctor reports what goes wrong in a trial and goes on; Ctrl-C gives what it has; nothing is left behind."""

import errno
import json
import signal
import subprocess
import sys
import time

import pytest
from plain_envs import Quick

from hotloop.assembly import Own
from hotloop.doctor import occasions
from hotloop.doctor.diagnosis import diagnose
from hotloop.doctor.examination import examine
from hotloop.doctor.report import figures_of
from hotloop.errors import HotloopError
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec
from hotloop.trainer_process import Orders, Trainer, TrainingEnded

SMALL = {
    "network.torso.hidden": [8],
    "replay.batch_size": 8,
    "replay.capacity": 1_000,
    "env.num_envs": 2,
    "evaluation.every": 0,
}


class Raises(Quick):
    """Every so many steps of all envs."""

    every = 500
    steps_of_all = 0

    def work(self):
        print("an env may print what it likes")
        type(self).steps_of_all += 1
        if type(self).steps_of_all % self.every == 0:
            raise RuntimeError("the simulator is gone")


class AlwaysRaises(Raises):
    every = 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_env_that_raises_now_and_then_is_looked_into_all_the_same():
    found = diagnose(load_spec({}, SMALL), Own(env=Raises), 0.05, Silent())
    assert figures_of(found)["env_steps_per_s"] > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_env_that_always_raises_is_one_line():
    with pytest.raises(HotloopError, match="the simulator is gone"):
        examine(load_spec({}, SMALL), Own(env=AlwaysRaises), 1.0, Silent())


def test_a_full_disk_is_said_and_the_rest_goes_on(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(occasions.checkpoint, "save", full)
    seen = examine(load_spec({}, {**SMALL, "env.id": "CartPole-v1"}), Own(), 1.0, Silent())
    assert "checkpoint" not in seen.occasions
    assert "log" in seen.occasions
    assert any("checkpoint could not be timed" in notice and "No space left" in notice for notice in seen.notices)


def test_a_training_that_hangs_is_ended():
    code = "hotloop.bench.planted_envs:planted/Waits-v0"
    trainer = Trainer(Orders({**SMALL, "env.id": code, "env.options": {"length": 5}}))
    try:
        with pytest.raises(TrainingEnded, match="said nothing"):
            trainer.train(0.1, patience=0.3)  # it has not even begun by then
    finally:
        trainer.close()


@pytest.mark.heavy
def test_ctrl_c_gives_what_it_has():
    command = [sys.executable, "-m", "hotloop", "doctor", "--env", "CartPole-v1", "--minutes", "4", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    report = json.loads(out.splitlines()[-1])
    assert report["verdict"]["cause"]
    assert any("stopped by a signal" in notice for notice in report["notices"])
