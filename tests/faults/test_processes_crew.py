"""Who watches over actors: closing that is interrupted, ids that come again, flags of the interpreter."""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from actor_envs import Counting
from process_sessions import begun

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
