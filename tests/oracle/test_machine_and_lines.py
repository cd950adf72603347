"""Runs whose time goes to the machine, to memory or to a line of the env: it is named."""

import contextlib
import ctypes
import io
import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path

import gymnasium as gym
from plain_envs import Quick
from rich.console import Console

from hotloop.assembly import Own
from hotloop.doctor import watch
from hotloop.doctor.causes import causes_of, verdict_of
from hotloop.doctor.diagnosis import Diagnosis
from hotloop.doctor.examination import Examined, examine
from hotloop.doctor.losses import BY_SHARE
from hotloop.doctor.page import page_of
from hotloop.doctor.report import figures_of, print_report
from hotloop.profiling.functions import profile_steps
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec

SMALL = {
    "network.torso.hidden": [16],
    "replay.batch_size": 8,
    "replay.capacity": 2_000,
    "env.num_envs": 2,
    "updates_per_step": 0.25,
    "evaluation.every": 0,
}


class Floods(Quick):
    def work(self):
        self.reached = self.flood(40)

    def flood(self, size):
        seen, queue = {(0, 0)}, deque([(0, 0)])
        while queue:
            x, y = queue.popleft()
            for cell in [(x + 1, y), (x, y + 1), (x - 1, y), (x, y - 1)]:
                if cell not in seen and min(cell) >= 0 and max(cell) < size:
                    seen.add(cell)
                    queue.append(cell)
        return len(seen)


class Draws(Quick):
    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def work(self):
        if self.render_mode is not None:
            self.render()

    def render(self):
        return [sum(range(50)) for _ in range(5_000)]


class MakesCircles(Quick):
    def work(self):
        for _ in range(3_000):
            ring = []
            ring.append(ring)


class LastsLonger(Quick):
    """Of all these envs together, every eighth episode has a step more than those before."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        type(self).begun += 1
        self.lasts = 2 + type(self).begun // 8
        return super().reset()


def undisturbed(seen: Examined) -> Examined:
    """As if the machine had done nothing else: tests run beside others."""
    return seen._replace(watched=seen.watched._replace(others=0.0, top=(), waited=0.0, throttled=0.0, slower=1.0))


def looked_at(env, changes=(), seconds=2.0):
    return undisturbed(examine(load_spec({}, {**SMALL, **dict(changes)}), Own(env=env), seconds, Silent()))


def line_of(text):
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(source, 1) if line.strip().startswith(text))


def test_the_hot_lines_of_a_search_written_in_python_are_named(tmp_path):
    seen = looked_at(lambda: gym.wrappers.TimeLimit(Floods(), 100))
    verdict = verdict_of(causes_of(seen))
    assert verdict is not None
    assert verdict.cause in ("env-step", "env-one-at-a-time")
    assert {line["function"] for line in verdict.lines} == {"flood"}
    hot = range(line_of("while queue:"), line_of("return len(seen)"))
    assert all(line["line"] in hot for line in verdict.lines[:3])
    assert verdict.where == f"test_machine_and_lines.py:{verdict.lines[0]['line']} flood"
    assert len(verdict.lines) <= 8
    assert 0.5 < sum(line["share"] for line in verdict.lines) <= 1.01
    console = Console(width=2_000, file=io.StringIO(), record=True)
    print_report(Diagnosis(seen, []), console)
    (tmp_path / "doctor.html").write_text(page_of(Diagnosis(seen, [])))
    assert console.export_text().count(verdict.lines[0]["text"]) >= 2, "in the box and in the table, as it is written"
    assert verdict.where in (tmp_path / "doctor.html").read_text()


def test_an_env_that_draws_in_every_step_is_told_to_leave_it():
    seen = looked_at(Draws, {"env.options": {"render_mode": "rgb_array"}})
    verdict = verdict_of(causes_of(seen))
    assert verdict is not None
    assert verdict.cause == "rendering"
    assert verdict.remedy == "--set env.options.render_mode=null"


def test_garbage_of_an_env_is_seen():
    seen = looked_at(MakesCircles)
    assert seen.collecting > 0.1
    assert "memory" in {cause.cause for cause in causes_of(seen)}


def test_episodes_that_become_longer_are_told_from_slower_steps():
    LastsLonger.begun = 0
    seen = looked_at(LastsLonger, {"stop.episodes": 100_000}, seconds=4.0)
    assert seen.course is not None
    first, last = seen.course.first, seen.course.last
    same_steps = seen.course._replace(last=last._replace(of_step=first.of_step))  # whatever else the machine did
    found = {cause.cause: cause for cause in causes_of(seen._replace(course=same_steps))}
    assert found["longer-episodes"].share > 1 / 3
    assert found["longer-episodes"].is_verdict == BY_SHARE
    slower = seen.course._replace(last=last._replace(of_step=2 * first.of_step))
    assert "longer-episodes" not in {cause.cause for cause in causes_of(seen._replace(course=slower))}


BURNS = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"
BEGINS = """
import subprocess, sys
for _ in range(int(sys.argv[1])):
    nowhere = subprocess.DEVNULL
    print(subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=nowhere, stderr=nowhere).pid)
"""


ADOPT_ORPHANS, ADOPTS_ORPHANS = 36, 37  # PR_SET_CHILD_SUBREAPER and its getter, of <sys/prctl.h>


@contextlib.contextmanager
def adopting_no_orphans():
    """Other tests may have made this process the parent of those whose own has ended."""
    system, adopts = ctypes.CDLL(None), ctypes.c_int()
    system.prctl(ADOPTS_ORPHANS, ctypes.byref(adopts), 0, 0, 0)
    system.prctl(ADOPT_ORPHANS, 0, 0, 0, 0)
    try:
        yield
    finally:
        system.prctl(ADOPT_ORPHANS, adopts.value, 0, 0, 0)


@contextlib.contextmanager
def burning(number):
    """So many processes that are not children of this one, as their parent has ended."""
    with adopting_no_orphans():
        begun = subprocess.run([sys.executable, "-c", BEGINS, str(number), BURNS], capture_output=True, check=True)
    pids = [int(line) for line in begun.stdout.split()]
    try:
        yield pids
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_processes_that_burn_all_cores_are_listed(monkeypatch):
    monkeypatch.setattr(watch, "NAMED", 50)  # tests run beside others that burn as well
    with burning(3 * len(os.sched_getaffinity(0))) as pids:
        seen = examine(load_spec({}, SMALL), Own(env=Floods), 3.0, Silent())
    watched = seen.watched
    assert watched.others is not None
    assert watched.others > 0.1, "what the scheduler gives to many is not what they want"
    assert {other.pid for other in watched.top} & set(pids)
    found = [cause for cause in causes_of(seen) if cause.where == "other processes"]
    assert [cause.cause for cause in found] == ["machine"]
    assert f"{watched.others:.0%}" in found[0].evidence[0]
    report = figures_of(Diagnosis(seen, []))
    assert report["watched"]["others"] == watched.others
    json.dumps(report)


def test_nothing_is_said_of_envs_that_are_not_the_users():
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)

    def step():
        if env.step(env.action_space.sample())[2]:
            env.reset()

    found = profile_steps("CartPole-v1", step, 0.3)
    assert [line for line in found["lines"] if "cartpole" in line["file"]] == []
