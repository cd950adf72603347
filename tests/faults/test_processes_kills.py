"""Actors killed at random, in mid-write, all at once, stopped: what is stored is real, and learning goes on."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from actor_envs import CountingBy
from process_sessions import assert_real, begun

from hotloop.transport.ring import BEFORE_COMMIT, BEFORE_COPY, DURING_COPY

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("nothing_left")]

THREE = {"pipeline": "processes", "actors.count": 3, "env.num_envs": 6, "replay.capacity": 8192}


def _check(session):
    """What holds at any time: transitions are real, each is counted once, gradient steps are those that they earned."""
    host, block, replay = session.read(), session.block_plan, session.learner.replay
    assert host.env_steps == session.blocks * block.env_steps
    assert int(session.arrays()["replay/ring/inserted"]) == host.env_steps + session.supply.waiting
    if host.first_update_at[0]:
        learning = host.env_steps - (host.first_update_at[0] - block.env_steps)
        assert host.attempts == learning * session.spec.replay_ratio
    items = replay.sample(np.random.default_rng(0), (16, 512)).items
    assert_real(items)
    return items


def _kill_while_learning(session, kills, chance):
    """A thread kills one actor after the other at random moments, while the learner learns all the time."""
    done = threading.Event()

    def kill():
        for _ in range(kills):
            time.sleep(chance.random())
            if pids := [pid for pid in session.supply.crew.pids() if pid is not None]:
                os.kill(chance.choice(pids), signal.SIGKILL)
        done.set()

    killer = threading.Thread(target=kill)
    killer.start()
    while not done.is_set():
        session.advance(5)
    killer.join()
    wanted = session.blocks + 300  # whatever was killed last, they go on
    while session.blocks < wanted:
        session.advance(5)


def _pids_of(items):
    """The processes that made these transitions."""
    return {int(pid) for pid in np.unique(items.s_tm1.reshape(-1, 4)[:, 0])}


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)], ids=["a few kills", "fifty kills"])
def test_actors_killed_at_random_are_replaced_and_every_transition_is_real(kills, in_time):
    with begun({**THREE, "actors.tries": 60}, CountingBy) as session:
        first = set(session.supply.crew.pids())
        _kill_while_learning(session, kills, random.Random(kills))
        while _pids_of(_check(session)) <= first:  # who took a place may still be starting; `in_time` ends it
            session.advance(50)
        assert 3 <= sum(session.supply.crew.restarts_of()) <= kills
        assert len(session.notices()) == sum(session.supply.crew.restarts_of())
        assert session.own_figures()["actor_restarts"] == sum(session.supply.crew.restarts_of())


@pytest.mark.parametrize("step", [BEFORE_COPY, DURING_COPY, BEFORE_COMMIT])
def test_actors_that_die_in_a_write_leave_nothing_of_it(step, monkeypatch, in_time):
    monkeypatch.setenv("HOTLOOP_FAILPOINT", f"{step}=kill")  # the first process of each actor, in its first write
    with begun(THREE, CountingBy) as session:
        session.advance(60)
        while sum(session.supply.crew.restarts_of()) < 3:
            session.advance(1)
        first = session.own_figures()
        session.advance(60)
        _check(session)
        assert sum(session.supply.crew.restarts_of()) == first["actor_restarts"] == 3
        assert {one["restarts"] for one in first["actors"]} == {1}
        assert all("SIGKILL" in notice for notice in session.notices())


def test_with_all_actors_gone_the_learner_waits_for_others(in_time):
    with begun(THREE, CountingBy) as session:
        session.advance(60)
        for pid in session.supply.crew.pids():
            os.kill(pid, signal.SIGKILL)
        session.advance(200)
        _check(session)
        assert sum(session.supply.crew.restarts_of()) == 3


def test_in_step_too_a_killed_actor_is_replaced_and_the_block_comes_to_its_end(in_time):
    with begun({**THREE, "actors.in_step": True}, CountingBy) as session:
        for victim in (0, 2):
            session.advance(30)
            os.kill(session.supply.crew.pids()[victim], signal.SIGKILL)
            session.advance(30)
        assert sum(session.supply.crew.restarts_of()) == 2
        assert_real(session.learner.replay.sample(np.random.default_rng(0), (16, 128)).items)


def test_an_actor_that_is_stopped_for_less_than_the_patience_is_not_replaced(in_time):
    with begun({**THREE, "actors.patience": 4.0}, CountingBy) as session:
        session.advance(30)
        os.kill(stopped := session.supply.crew.pids()[1], signal.SIGSTOP)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            session.advance(5)
        os.kill(stopped, signal.SIGCONT)
        session.advance(50)
        assert sum(session.supply.crew.restarts_of()) == 0
        assert session.supply.crew.pids()[1] == stopped


@pytest.mark.heavy
def test_an_actor_that_is_stopped_for_good_is_replaced(in_time):
    with begun({**THREE, "actors.patience": 1.5}, CountingBy) as session:
        os.kill(session.supply.crew.pids()[1], signal.SIGSTOP)
        while not sum(session.supply.crew.restarts_of()):
            session.advance(5)
        session.advance(50)
        _check(session)
