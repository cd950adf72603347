"""A slow learner, slow actors, a long evaluation, too little of something, runs that end in odd ways."""

import os
import resource
import time

import pytest
from actor_envs import Counting, CountingBy, Slow
from process_sessions import SMALL, assert_real, begun, spec_of

import hotloop
from hotloop.errors import SpecError
from hotloop.pipelines.actor_parcels import transitions_ahead
from hotloop.pipelines.processes import parcels_of
from hotloop.runs.store import InFolder
from process_tree import actors_of

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("in_time", "nothing_left")]

TWO = {"pipeline": "processes", "actors.count": 2}
LARGE_BLOCKS = {"updates_per_step": 1 / 256, "actors.parcels": 2, "replay.capacity": 8192}
"""An actor may be hundreds of transitions ahead, and its ring holds few of them."""


def test_a_slow_learner_blocks_nobody_and_what_finds_no_room_is_counted():
    with begun({**TWO, **LARGE_BLOCKS}, CountingBy) as session:
        session.advance(2)
        before = session.own_figures()["actors_transitions"]
        time.sleep(2.0)  # a slow gradient step
        figures = session.own_figures()
        assert figures["parcels_dropped"] > 0
        assert sum(one["dropped"] for one in figures["actors"]) > 0
        ring = 2 * session.spec.actors.parcels * 16 * 2
        assert figures["actors_transitions"] - before > ring, "they have stopped at a full ring"
        session.advance(6)  # what was dropped does not count as still to come, else nobody could go on
        assert session.read().env_steps == 8 * session.block_plan.env_steps
        assert_real(session.learner.replay.sample(session.learner.random, (4, 256)).items)


@pytest.mark.parametrize("said", [{"actors.on_full": "wait"}, {"actors.parcels": None}], ids=["wait", "unsaid"])
def test_with_on_full_wait_or_rings_of_no_given_size_nothing_is_dropped(said):
    with begun({**TWO, **LARGE_BLOCKS, **said}, CountingBy) as session:
        session.advance(2)
        session.own_figures()
        time.sleep(1.0)
        figures = session.own_figures()
        assert 0 < figures["ring_fill"] <= 1
        session.advance(2)
        assert session.own_figures()["parcels_dropped"] == figures["parcels_dropped"] == 0


@pytest.mark.parametrize(("steps", "parcels"), [(None, 8), (16, 8), (4, 2 + 16), (1, 2 + 64)])
def test_a_ring_of_no_given_size_holds_all_that_an_actor_may_be_ahead(steps, parcels):
    spec = spec_of({**TWO, "updates_per_step": 1 / 256, "actors.steps_per_parcel": steps})
    assert parcels_of(spec, 2) == parcels
    assert max(transitions_ahead(spec, 2)) <= parcels * 2 * (steps or 16)


def test_actors_that_wait_for_a_long_evaluation_are_not_taken_for_hung():
    with begun({**TWO, "actors.patience": 1.0}, Counting) as session:
        session.advance(20)
        time.sleep(3.5)
        session.advance(20)
        assert sum(session.supply.crew.restarts_of()) == 0
        assert session.own_figures()["actors_wait_share"] > 0.5


def test_a_learner_that_waits_for_slow_actors_takes_little_of_the_processor():
    with begun(TWO, Slow) as session:
        session.advance(4)
        cpu, began = time.process_time(), time.monotonic()
        while time.monotonic() - began < 2.0:
            session.advance(4)
        assert session.spans.seconds()["wait"] > 1.0
        assert time.process_time() - cpu < 0.5 * (time.monotonic() - began)


def test_too_few_descriptors_are_refused_before_anything_is_written(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hotloop.train(SMALL, out=None, pipeline="sync", **{"stop.steps": 100})  # whatever JAX opens is open now
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.raises(SpecError, match=r"need 21 more file descriptors but \d+ of \d+ are left; use fewer actors"):
            hotloop.train(SMALL, out=tmp_path / "run", **TWO)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not (tmp_path / "run").exists()


def test_too_little_memory_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_MEMORY_LIMIT", "20000")
    with pytest.raises(SpecError, match=r"this run needs .* but 19.5 KiB is available; lower replay.capacity"):
        hotloop.train(SMALL, out=tmp_path / "run", **TWO)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_the_learner_ends_the_actors(error):
    def complain(_):
        raise error("of the callback's own")

    with pytest.raises(error):
        hotloop.train(SMALL, out=None, on_log=complain, **TWO, **{"log.every": 100})


@pytest.mark.parametrize("where", ["begin", "listeners"])
def test_a_run_that_fails_as_it_begins_leaves_no_actor(where, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no such disk")

    monkeypatch.setattr(InFolder, where, fail)
    before = actors_of()
    with pytest.raises(OSError, match="no such disk"):
        hotloop.train(SMALL, out=tmp_path / "run", **TWO)
    assert actors_of() == before == []


def test_two_runs_at_once_do_not_disturb_each_other():
    with begun(TWO, CountingBy) as one, begun({**TWO, "seed": 1}, CountingBy) as other:
        for _ in range(20):
            one.advance(5)
            other.advance(5)
        for session in (one, other):
            items = session.learner.replay.sample(session.learner.random, (4, 256)).items
            assert_real(items)
            assert {int(pid) for pid in items.s_tm1.reshape(-1, 4)[:, 0]} == set(session.supply.crew.pids())
            assert sum(session.supply.crew.restarts_of()) == 0
