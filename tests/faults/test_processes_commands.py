"""Whole commands with actors: signals, kills of the learner and of the whole group, stops, crash loops, sockets."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml
from hotloop_process import DAYS, checkpoints, finish, metrics, start, wait_for
from process_sessions import SMALL

from process_tree import actors_of, of_a_living_one, sockets_of

OWN_GROUP = "import os; os.setpgid(0, 0)"
ORACLE = str(Path(__file__).parents[1] / "oracle")


@pytest.fixture
def in_folder(tmp_path):
    """A spec of two actors in the working folder, and how its training is started."""
    more = {"pipeline": "processes", "actors": {"count": 2, "patience": 2.0}, "log": {"every": 200}}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**SMALL, "name": "two", **more}))
    begun = []

    def training(*args, before="", **env):
        words = ("train", "two.yaml", "--out", "run", "--steps", str(DAYS), *args)
        begun.append(start(*words, cwd=tmp_path, before=before, env={"PYTHONPATH": _path(), **env}))
        return begun[-1]

    yield training
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _path():
    return os.pathsep.join([ORACLE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def _is_training(tmp_path, lines=2):
    file = tmp_path / "run" / "metrics.jsonl"
    return lambda: file.is_file() and file.read_text().count("\n") >= lines


def _all_gone(processes):
    return all(
        of_a_living_one(lambda one=one: [one.status()]) in ([], [psutil.STATUS_ZOMBIE])
        for one in processes
        if one.is_running()
    )


def _wait_until_gone(processes, seconds):
    until = time.monotonic() + seconds
    while not _all_gone(processes):
        assert time.monotonic() < until, f"{processes} are still there after {seconds} s"
        time.sleep(0.02)


def test_sigterm_saves_and_leaves_nobody_and_no_socket_was_open(in_folder, tmp_path):
    process = in_folder("--json")
    wait_for(_is_training(tmp_path), process)
    actors = actors_of(process.pid)
    assert len(actors) == 2
    assert sockets_of(process.pid) == []
    assert all(actor.num_threads() == 1 for actor in actors)
    process.send_signal(signal.SIGTERM)
    result = finish(process, timeout=30).json
    assert result["stopped"] == "stopped by SIGTERM"
    assert checkpoints(tmp_path / "run") == [result["env_steps"]]
    assert _all_gone(actors)


def test_sigterm_saves_at_once_while_every_actor_hangs(in_folder, tmp_path):
    process = in_folder("--json")
    wait_for(_is_training(tmp_path), process)
    actors = actors_of(process.pid)
    for actor in actors:
        actor.suspend()
    time.sleep(1.0)  # by now the learner waits for them
    process.send_signal(signal.SIGTERM)
    result = finish(process, timeout=30).json
    assert result["stopped"] == "stopped by SIGTERM"
    assert checkpoints(tmp_path / "run") == [result["env_steps"]]
    assert _all_gone(actors)


def test_ctrl_c_in_a_terminal_reaches_all_of_them_and_still_saves(in_folder, tmp_path):
    process = in_folder(before=OWN_GROUP)
    wait_for(_is_training(tmp_path), process)
    actors = actors_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    ran = finish(process, timeout=30)
    assert ran.code == 0, ran.err
    assert "stopped by SIGINT" in ran.out
    assert "takes its place" not in ran.err
    assert len(checkpoints(tmp_path / "run")) == 1
    assert _all_gone(actors)


@pytest.mark.heavy
def test_a_second_signal_is_immediate_and_leaves_nobody(in_folder, tmp_path):
    slow_disk = """
import time
from pathlib import Path
from hotloop.runs import checkpoint
def save(*_):
    Path("saving").touch()
    time.sleep(60)
checkpoint.save = save
"""
    process = in_folder(before=slow_disk)
    wait_for(_is_training(tmp_path), process)
    actors = actors_of(process.pid)
    process.send_signal(signal.SIGTERM)
    wait_for((tmp_path / "saving").exists, process)
    process.send_signal(signal.SIGTERM)
    assert finish(process, timeout=10).code == -signal.SIGTERM
    _wait_until_gone(actors, 2.0)


def test_a_killed_learner_takes_its_actors_along_and_the_run_resumes(in_folder, tmp_path):
    process = in_folder("--set", "log={every: 200, checkpoint_every: 400}")
    wait_for(lambda: len(checkpoints(tmp_path / "run")) == 2, process)
    actors = actors_of(process.pid)
    assert len(actors) == 2
    process.kill()
    _wait_until_gone(actors, 2.0)
    process.communicate()
    reached = checkpoints(tmp_path / "run")[-1]
    resumed = finish(start("resume", "run", "--steps", str(reached + 800), "--json", cwd=tmp_path))
    assert resumed.json["env_steps"] >= reached + 800
    assert "the envs begin new ones" in resumed.err


@pytest.mark.heavy
def test_a_whole_group_may_be_stopped_for_long_and_killed_at_once(in_folder, tmp_path):
    process = in_folder(before=OWN_GROUP)
    wait_for(_is_training(tmp_path), process)
    os.killpg(process.pid, signal.SIGSTOP)
    lines = len(metrics(tmp_path / "run"))
    time.sleep(4.0)  # twice the patience
    os.killpg(process.pid, signal.SIGCONT)
    wait_for(_is_training(tmp_path, lines + 20), process)
    assert {row["actor_restarts"] for row in metrics(tmp_path / "run", "train")} == {0}
    actors = actors_of(process.pid)
    for pid in (process.pid, *(actor.pid for actor in actors)):  # what has a name there would outlive them
        assert "/dev/shm/" not in Path(f"/proc/{pid}/maps").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    _wait_until_gone(actors, 2.0)
    process.communicate()


CRASHING = """
import gymnasium as gym
from actor_envs import Faulty
gym.register("Crashing-v0", entry_point=lambda: Faulty("exit", at=5))
"""


def test_a_crash_loop_ends_the_command_with_the_traceback(in_folder, tmp_path):
    (tmp_path / "crashing.py").write_text(CRASHING)
    began = time.monotonic()
    ran = finish(in_folder("--set", "env={id: 'crashing:Crashing-v0', num_envs: 4}"), timeout=60)
    assert ran.code == 1
    assert time.monotonic() - began < 30
    *said, last = ran.err.splitlines()
    assert last.startswith("hotloop: actor ")
    assert "4 times in a row without having handed over anything" in last
    assert "the run is saved in run" in last
    assert any("in go_wrong" in line for line in said)
    assert "SystemExit: the env has had enough" in said
    assert (tmp_path / "run" / "notices.log").read_text().count("in go_wrong") >= 4


def test_the_plan_says_what_the_actors_take(in_folder, tmp_path):
    ran = finish(start("train", "two.yaml", "--plan", cwd=tmp_path))
    assert ran.code == 0, ran.err
    assert "shared with the actors" in ran.out
    assert "actors: 2 process(es) of 1 thread, 2 env(s) each" in ran.out
    assert not (tmp_path / "run").exists()
