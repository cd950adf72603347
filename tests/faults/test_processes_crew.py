"""Who watches over actors: closing that is interrupted, ids that come again, flags of the interpreter."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from actor_envs import Counting, OnlyHere, Pictures
from process_sessions import begun

from hotloop.errors import ActorsFailed
from hotloop.interrupts import Interrupts, end_is_wanted
from hotloop.pipelines import collector, first_errors
from hotloop.pipelines.crew import Crew
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.transport.protocol import ActorState
from hotloop.trees import ArraySpec

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("in_time", "nothing_left")]

TWO = {"pipeline": "processes", "actors.count": 2}


def _until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def _open_files():
    return len(os.listdir("/proc/self/fd"))


def test_a_second_ctrl_c_while_actors_end_leaks_nothing_and_they_still_end(monkeypatch):
    with begun(TWO, Counting) as session:
        session.advance(5)
    open_before, threads_before = _open_files(), threading.active_count()  # whatever JAX opens is open now
    with begun(TWO, Counting) as session:
        session.advance(5)
        crew, actors = session.supply.crew, [psutil.Process(pid) for pid in session.supply.crew.pids()]

        def impatient(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(crew._thread, "join", impatient)
        with pytest.raises(KeyboardInterrupt):
            session.close()
    _until(lambda: not crew._thread.is_alive())
    assert not any(actor.is_running() for actor in actors)
    assert threading.active_count() == threads_before
    assert _open_files() == open_before


def test_a_crew_that_was_never_started_is_closed():
    with Exchange(Form(1, 2, ArraySpec((1,), np.int8), {})) as exchange:
        before = _open_files()
        Crew(b"", exchange, 0, 0, (0,), 60.0, 4).stop()
        assert _open_files() == before


def test_a_thread_that_cannot_be_started_is_one_line_and_leaves_nothing_behind(monkeypatch):
    with begun(TWO, Counting):
        pass
    before, start = _open_files(), threading.Thread.start

    def refused(thread):
        if thread.name == "crew":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    refusal = r"watches over the actors could not be started \(can't .*; end other"
    with pytest.raises(ActorsFailed, match=refusal), begun(TWO, Counting):
        pass
    assert _open_files() == before


def test_who_asks_for_the_end_while_actors_start_does_not_wait_for_them():
    began = time.monotonic()
    with Interrupts() as interrupts:
        interrupts.seen = "stopped by SIGINT"
        with begun(TWO, partial(OnlyHere, os.getpid(), "hang")) as session:
            session.advance(5)
            assert session.read().env_steps == 0
    assert time.monotonic() - began < 25, "and not for as long as an actor may take to start"


def test_a_run_within_another_leaves_that_ones_signals_to_it():
    with Interrupts() as outer:
        with Interrupts() as inner, inner:
            outer.seen = "stopped by SIGINT"
            assert not end_is_wanted(), "the inner one"
        assert end_is_wanted()
    assert Interrupts.going_on is None


@pytest.mark.parametrize("is_picture", [True, False], ids=["pictures", "numbers"])
def test_what_a_turn_takes_is_compiled_before_the_first_one(is_picture, monkeypatch):
    told = []

    def noted(policy, parcel):
        told.append(first_errors.first_errors(policy, parcel))
        return told[-1]

    monkeypatch.setattr(collector, "first_errors", noted)
    more = {"replay.stacked_frames": 3} if is_picture else {"network.head": {"kind": "iqn"}}
    overrides = {**TWO, **more, "actors.here": True, "replay.sampling": {"kind": "prioritized"}}
    with begun(overrides, Pictures if is_picture else Counting) as session:
        assert [len(errors) for errors in told] == [1, 1], "of each actor"
        assert session.supply.statuses()[0].transitions == 0
        session.advance(20)


def test_a_parcel_that_was_committed_counts_whoever_is_killed_before_it_says_so():
    form = Form(1, 4, ArraySpec((2,), np.int64), {"w": ArraySpec((), np.float32)})
    with Exchange(form) as exchange, contextlib.ExitStack() as open_:
        learner, actor = exchange.learner_seat().open(), exchange.actor_seat(0).open()
        open_.callback(learner.close)
        open_.callback(actor.close)
        actor._ring.write(np.zeros(2, np.int64))  # and no more
        assert learner.in_ring(0) == learner.statuses()[0].parcels == 1
        for parcel in learner.committed():
            learner.release(parcel)
        status = learner.statuses()[0]
        assert status.parcels - status.released == learner.in_ring(0) == 0


def test_a_process_with_the_id_of_one_before_it_is_not_taken_for_that_one(monkeypatch):
    form = Form(1, 2, ArraySpec((1,), np.int8), {"w": ArraySpec((1,), np.int8)})
    with Exchange(form) as exchange, contextlib.ExitStack() as open_:
        crew = Crew(b"", exchange, 0, 0, (0,), 60.0, 4)
        open_.callback(crew.stop)
        seat, learner = crew._seats[0], exchange.learner_seat().open()
        open_.callback(learner.close)
        same_id = SimpleNamespace(pid=os.getpid(), poll=lambda: None)
        monkeypatch.setattr(seat, "start", lambda *_: setattr(seat, "process", same_id))
        for _ in range(2):  # each as the process of one id
            crew._start(seat, learner.statuses()[0])
            assert not crew.are_ready()
            end = exchange.actor_seat(0).open()
            assert not crew.are_ready(), "it has only begun to start"
            end.enter(ActorState.ACT)
            assert crew.are_ready()
            seat.succeed(0.0, seat.gone)  # killed: it had no time to say that it ends
            assert not crew.are_ready()
            open_.callback(end.close)


FLAGS = ["-O", "-B", "-W", "error::FutureWarning", "-X", "faulthandler"]
FLAGGED = """
import sys
import hotloop
from counting_env import Counting
from process_sessions import SMALL

class SaysFlags(Counting):
    def __init__(self):
        super().__init__()
        print(sys.flags.optimize, sys.flags.dont_write_bytecode, sys.warnoptions, sorted(sys._xoptions), flush=True)

spec = {**SMALL, "pipeline": "processes", "actors": {"count": 1}, "env": {"num_envs": 1}, "stop": {"steps": 64}}
hotloop.train(spec, env=SaysFlags, out=None)
"""


def test_actors_have_the_flags_of_the_interpreter():
    oracle = Path(__file__).parents[1] / "oracle"
    path = os.pathsep.join([str(oracle), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    ran = subprocess.run(
        [sys.executable, *FLAGS, "-c", FLAGGED],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert len(said) >= 2, "here, and in an actor"
    assert set(said) == {"1 1 ['error::FutureWarning'] ['faulthandler']"}
