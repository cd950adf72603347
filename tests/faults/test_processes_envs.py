"""Envs that go wrong in an actor: one that raises, hangs, ends its process or gives NaN."""

import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from actor_envs import Counting, Faulty
from hotloop_process import checkpoints
from process_sessions import SMALL, begun

import hotloop
from hotloop.errors import ActorsFailed
from hotloop.progress import Silent

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("in_time", "nothing_left")]

TWO = {"pipeline": "processes", "actors.count": 2}


def test_an_env_that_raises_is_built_anew_and_counted(tmp_path):
    with begun(TWO, partial(Faulty, "raise", once=tmp_path / "once")) as session:
        session.advance(100)
        figures = session.own_figures()
        assert (figures["env_failures"], figures["actor_restarts"]) == (1, 0)
        [notice] = session.notices()
        said, _, where = notice.partition(" (")
        assert said.startswith("an env raised and was built anew, once; the last time with RuntimeError: ")
        assert said.endswith("the env is out of order")
        assert re.fullmatch(r".*actor_envs\.py:\d+ in go_wrong\)", where)
        assert session.read().env_steps == 100 * session.block_plan.env_steps


def test_an_env_that_hangs_costs_its_actor_and_the_learner_goes_on_meanwhile(tmp_path):
    make = partial(Faulty, "hang", once=tmp_path / "once")
    with begun({**TWO, "actors.patience": 2.0}, make) as session:
        while not (tmp_path / "once").exists():
            session.advance(1)
        hung_at, blocks = time.monotonic(), session.blocks
        while session.blocks < blocks + 40:
            session.advance(1)
        assert sum(session.supply.crew.restarts_of()) == 0, "the learner has waited for the actor that hangs"
        before = session.supply.crew.pids()
        while not (notices := session.notices()):
            session.advance(1)
        assert 1.5 < time.monotonic() - hung_at < 20
        [notice] = notices
        first, *stack = notice.splitlines()
        (pid,) = set(before) - set(session.supply.crew.pids())
        assert f"(pid {pid}) said nothing for 2 s (in: env) and was killed" in first
        assert first.endswith("another takes its place")
        assert any("hang_for_ever" in line and "actor_envs.py" in line for line in stack)
        made = session.own_figures()["actors"]
        number = next(i for i, one in enumerate(made) if one["restarts"])
        while not session.own_figures()["actors"][number]["transitions"]:  # of who took its place
            session.advance(5)


def test_an_env_that_ends_its_process_each_time_ends_the_run_saved_with_the_traceback(tmp_path):
    told, began = _Told(), time.monotonic()
    with pytest.raises(ActorsFailed) as failed:
        _train(partial(Faulty, "exit", at=5), tmp_path, told)
    assert time.monotonic() - began < 30
    assert "4 times in a row without having handed over anything" in str(failed.value)
    assert "the run is saved in" in str(failed.value)
    assert "in go_wrong" in failed.value.words
    assert "SystemExit: the env has had enough" in failed.value.words
    kept = (tmp_path / "run" / "notices.log").read_text()
    assert kept.count("in go_wrong") >= 4
    assert "env step 0  actor" in kept
    assert sum("in go_wrong" in said for said in told.lines) >= 3  # the last one is in the error
    assert checkpoints(tmp_path / "run") == [0]


def test_what_an_env_starts_can_be_terminated():
    """Nothing of the signals that actors leave to the learner is inherited."""
    code = "import signal, subprocess, sys\n"
    code += "from hotloop.pipelines.actor_process import _leave_signals_to_the_learner\n"
    code += "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})\n"
    code += "_leave_signals_to_the_learner()\n"
    code += "simulator = subprocess.Popen(['sleep', '60'])\n"
    code += "signal.raise_signal(signal.SIGTERM)\n"  # which the actor itself does not heed
    code += "simulator.terminate()\n"
    code += "print(simulator.wait(10))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(-signal.SIGTERM)


def test_nan_ends_the_run_at_once_and_names_the_env(tmp_path):
    with pytest.raises(ActorsFailed, match=r"actor \d: env \d gave a reward that is not finite .*the run is saved"):
        _train(partial(Faulty, "nan"), tmp_path, _Told())


def test_a_vector_env_that_fails_for_good_in_one_process_is_tried_in_another(tmp_path):
    make = partial(FailsInOneProcess, tmp_path / "pid")
    with begun(TWO, make) as session:
        session.advance(100)
        notices = session.notices()
        while not any("failed 10 times in a row" in notice for notice in notices):  # until it is too late (in_time)
            session.advance(1)
            notices += session.notices()
        assert session.own_figures()["actor_restarts"] == 1


class FailsInOneProcess(Counting):
    """The first process that comes to its 40th step never gets beyond it."""

    def __init__(self, file):
        super().__init__()
        self.file, self.steps = file, 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40 and not self.file.exists():
            self.file.write_text(str(os.getpid()))
        if self.file.exists() and self.file.read_text() == str(os.getpid()):
            raise RuntimeError("out of order for good")
        return super().step(action)


def _train(make, tmp_path, reporter):
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 2}, "log": {"every": 200}}
    return hotloop.train(spec, env=make, out=tmp_path / "run", reporter=reporter)


class _Told(Silent):
    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    warn = say


def test_of_long_last_words_the_beginning_and_the_end_are_kept(tmp_path):
    make = partial(SaysMuch, tmp_path / "once")
    with begun(TWO, make) as session:
        while not (notices := session.notices()):
            session.advance(1)
        first, *trace = notices[0].splitlines()
        assert first.endswith("the end; another takes its place")
        assert trace[0].startswith("Traceback")
        assert "[...]" in trace
        assert len(notices[0]) < 45_000


class SaysMuch(Faulty):
    def __init__(self, once):
        super().__init__("exit", once=once)

    def go_wrong(self):
        raise SystemExit("much\n" * 50_000 + "the end")
