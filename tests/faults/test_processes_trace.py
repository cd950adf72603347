"""One trace of the learner and all actors: tracks, spans on one clock, figures that agree with those of a line."""

import contextlib
import gzip
import json
import os
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from actor_envs import Counting, Slow
from process_sessions import SMALL, begun

import hotloop
from hotloop.pipelines.timeline import Timeline
from hotloop.profiling import process_trace
from hotloop.profiling.merging import FIRST_PID
from hotloop.profiling.process_trace import record, write
from hotloop.profiling.trace import _longest_piece
from hotloop.transport import events as actor_events

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("in_time", "nothing_left")]

TWO = {"pipeline": "processes", "actors.count": 2}
STAGES = {"insert", "sample", "update", "wait", "publish"}
STATES = {"starting", "env", "act", "hand over", "wait"}
SLACK = 0.002
"""Microseconds by which times that were rounded may differ."""


def written(timeline: Timeline, folder: Path) -> list[dict]:
    write([timeline], folder / "trace.json.gz")
    return rows_of(folder / "trace.json.gz")


def rows_of(path: str | Path) -> list[dict]:
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def tracks_of(rows: list[dict]) -> dict[str, list[dict]]:
    """Spans by the name of their track."""
    names = {
        (row["pid"], row["tid"]): row["args"]["name"]
        for row in rows
        if row["name"] == "thread_name" and row["pid"] < FIRST_PID
    }
    assert len(set(names.values())) == len(names)
    return {
        name: [row for row in rows if row["ph"] == "X" and (row["pid"], row["tid"]) == place]
        for place, name in names.items()
    }


def assert_sound(rows: list[dict], seconds: float) -> dict[str, list[dict]]:
    """Spans of a track come one after the other, within the time that was traced, and have names that we know."""
    tracks = tracks_of(rows)
    for name, spans in tracks.items():
        assert {span["name"] for span in spans} <= (STAGES if name.startswith("learner") else STATES), name
        assert spans[0]["ts"] >= 0
        assert spans[-1]["ts"] + spans[-1]["dur"] <= seconds * 1e6 + SLACK
        assert all(span["dur"] >= 0 for span in spans)
        for before, after in pairwise(spans):  # in whole nanoseconds, as Perfetto has them
            assert int(before["ts"] * 1e3) + int(before["dur"] * 1e3) <= int(after["ts"] * 1e3), name
    return tracks


def seconds_of(timeline: Timeline) -> float:
    return (timeline.ended_ns - timeline.began_ns) / 1e9


def shares_of(spans: list[dict]) -> dict[str, float]:
    spent = Counter()
    for span in spans:
        spent[span["name"]] += span["dur"]
    return {name: value / sum(spent.values()) for name, value in spent.items()}


def test_a_trace_has_a_track_for_each_process_whose_shares_are_those_of_the_figures(tmp_path):
    with begun(TWO, Slow) as session:
        session.advance(20)
        session.own_figures()
        timeline, figures = record(session, 1.5), session.own_figures()
        pids = session.supply.crew.pids()
        assert session.supply._end.statuses()[0].state, "they go on"
    assert timeline.lost == 0
    rows = written(timeline, tmp_path)
    tracks = assert_sound(rows, seconds_of(timeline))
    assert list(tracks) == [f"learner ({os.getpid()})", *(f"actor {n} ({pid})" for n, pid in enumerate(pids))]
    of_processes = [row for row in rows if row["name"] == "process_name"]
    assert [(row["pid"], row["args"]["name"]) for row in of_processes] == [
        (pid, name) for pid, name in zip([os.getpid(), *pids], tracks, strict=True)
    ]
    learner, *actors = tracks.values()
    assert {span["name"] for span in learner} == STAGES
    assert sum(span["dur"] for span in learner if span["name"] == "wait") > 0.5e6, "for actors that are slow"
    for actor, line in zip(actors, figures["actors"], strict=True):
        shares = shares_of(actor)
        assert shares["env"] > 0.5
        for state in ("env", "act", "hand over", "wait"):
            assert abs(shares.get(state, 0.0) - line[state.replace(" ", "_")]) < 0.15, state
        assert sum(span["dur"] for span in actor) > 0.95e6 * seconds_of(timeline), "no time is missing"


def test_stop_rules_do_not_end_a_trace_or_make_it_endless():
    with begun({**TWO, "actors.here": True, "stop.episodes": 3}, Counting) as session:
        session.advance(1_000)
        before = session.env_steps
        assert seconds_of(record(session, 0.3)) >= 0.3
        assert session.env_steps > before
        session.advance = lambda blocks: None  # as a guard has it that lets nothing more happen
        assert seconds_of(record(session, 60.0)) < 10


def test_pieces_for_an_engines_profiler_grow_no_more_where_a_stop_rule_keeps_them_short(tmp_path):
    @contextlib.contextmanager
    def tracer(folder):
        folder.mkdir()
        (folder / "trace.json").write_text("{}")
        yield SimpleNamespace(path=folder / "trace.json", region=lambda _: contextlib.nullcontext())

    with begun({**TWO, "actors.here": True, "stop.episodes": 3}, Counting) as session:
        session.advance(1_000)
        piece, draft = _longest_piece(session, tracer, tmp_path)
        assert piece.env_steps > 0
        assert draft.is_dir()


def test_what_a_profiler_saw_and_no_stage_can_place_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(process_trace, "SECONDS", 0.1)
    said, alone = [], tmp_path / "jax.json.gz"
    with gzip.open(alone, "wt") as file:
        json.dump({"traceEvents": [{"ph": "X", "name": "dot", "pid": 1, "ts": 5.0, "dur": 1.0}]}, file)
    reporter = SimpleNamespace(busy=lambda _: contextlib.nullcontext(), say=said.append, warn=said.append)
    with begun({**TWO, "actors.here": True}, Counting) as session:
        session.advance(20)
        profiled = process_trace.Profiled("jax", alone, record(session, 0.1))
        process_trace.trace_processes(session, profiled, SimpleNamespace(path=tmp_path), {}, reporter)
    [line] = said
    assert "missing in it: what the profiler of engine jax saw: no stage tells when that was" in line


def test_rings_and_weights_can_be_followed(tmp_path):
    with begun(TWO, Counting) as session:
        session.advance(40)
        rows = written(record(session, 0.5), tmp_path)
    rings = {row["name"] for row in rows if row["ph"] == "C"}
    assert rings == {"ring of actor 0", "ring of actor 1"}
    filled = [row["args"]["parcels"] for row in rows if row["ph"] == "C"]
    assert max(filled) > 0
    assert min(filled) >= 0
    begins, ends = ({row["id"]: row for row in rows if row["ph"] == ph} for ph in "sf")
    assert begins.keys() == ends.keys()
    assert all(isinstance(arrow, int) for arrow in begins)
    assert {row["pid"] for row in begins.values()} == {os.getpid()}
    assert len({row["pid"] for row in ends.values()}) == 2, "both take them"
    assert all(begins[arrow]["ts"] <= ends[arrow]["ts"] for arrow in begins)
    publishing = [row for row in rows if row["ph"] == "X" and row["name"] == "publish"]
    for arrow in begins.values():
        assert any(span["ts"] <= arrow["ts"] <= span["ts"] + span["dur"] for span in publishing)
    said = {row["name"].split()[-1] for row in rows if row["ph"] == "i" and row["name"].startswith("weights ")}
    assert said == {"published", "taken"}


@pytest.mark.parametrize("at_once", [True, False], ids=["before its first event", "after some"])
def test_an_actor_that_is_killed_meanwhile_has_a_successor_with_a_track_of_its_own(at_once, tmp_path):
    with begun(TWO, Slow) as session:
        session.advance(20)
        victim = session.supply.crew.pids()[1]
        with session.supply.recorded() as timeline:
            while not at_once and len(timeline.tracks) < 3:
                session.advance(5)
            os.kill(victim, signal.SIGKILL)
            while timeline.tracks[-1].pid == victim or not timeline.tracks[-1].stretches or not _begins(timeline):
                session.advance(5)
            session.advance(10)
        successor = session.supply.crew.pids()[1]
        assert any("SIGKILL" in notice for notice in session.notices()), "it is told as well"
    rows = written(timeline, tmp_path)
    tracks = assert_sound(rows, seconds_of(timeline))
    assert {f"actor 1 ({victim})", f"actor 1 ({successor})"} <= tracks.keys()
    assert len(tracks) == 4
    killed = next(row for row in rows if row["ph"] == "i" and "was killed by SIGKILL" in row["name"])
    assert killed["name"].startswith(f"actor 1 (pid {victim}) was killed")
    of_victim, of_successor = tracks[f"actor 1 ({victim})"], tracks[f"actor 1 ({successor})"]
    assert of_victim[-1]["ts"] + of_victim[-1]["dur"] <= killed["ts"] + SLACK < of_successor[0]["ts"]
    assert {"starting", "env"} <= {span["name"] for span in of_successor}


def _begins(timeline: Timeline) -> bool:
    return any(mark.name == "begins" for mark in timeline.tracks[-1].marks)


def test_what_finds_no_room_is_counted_and_nobody_waits(monkeypatch):
    with begun({**TWO, "actors.here": True}, Counting) as session:
        monkeypatch.setattr(Timeline, "collect", lambda _: None)  # a learner that never looks
        session.advance(20)
        monkeypatch.setattr(actor_events, "RECORDS", 64)
        with session.supply.recorded() as timeline:
            session.advance(60)
        monkeypatch.undo()
    assert timeline.lost > 64


def test_actors_in_this_process_have_tracks_too(tmp_path):
    with begun({**TWO, "actors.here": True, "actors.in_step": True}, Counting) as session:
        session.advance(20)
        timeline = record(session, 0.3)
    tracks = assert_sound(written(timeline, tmp_path), seconds_of(timeline))
    assert [name.partition(" (")[0] for name in tracks] == ["learner", "actor 0", "actor 1"]
    assert all(tracks.values())


def test_nothing_is_written_down_unless_it_is_wanted_and_spans_count_for_nothing_meanwhile():
    with begun(TWO, Counting) as session:
        session.advance(40)
        assert all(session.supply._end.events(actor) == [] for actor in range(2))
        before = session.spans.seconds()
        record(session, 0.2)
        assert session.spans.seconds() == before
        session.advance(40)
        assert all(session.supply._end.events(actor) == [] for actor in range(2))


@pytest.mark.heavy
def test_a_traced_run_in_processes_leaves_one_trace_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(process_trace, "SECONDS", 0.5)
    monkeypatch.setattr("hotloop.profiling.trace.SECONDS", 0.2)
    spec = {**SMALL, "pipeline": "processes", "actors": {"count": 2}, "log": {"every": 200}, "engine": "torch"}
    run = hotloop.profile(spec, out=tmp_path / "run", trace=True, **{"stop.steps": 1200})
    assert Path(run.trace) == tmp_path / "run" / "trace" / "processes.json.gz"
    assert len(tracks_of(rows_of(run.trace))) == 3
    assert (tmp_path / "run" / "trace" / "torch.json.gz").is_file()
    rows = rows_of(run.trace)
    looks, no_more = (row["ts"] for row in rows if row["name"].startswith("the profiler of engine torch looks on"))
    updates = [row for row in rows if row["ph"] == "X" and row["name"] == "update" and row["ts"] < no_more]
    regions = [row for row in rows if row["ph"] == "X" and row["name"] == "hotloop: update"]
    assert len(updates) == len(regions) > 0
    for ours, theirs in zip(updates, sorted(regions, key=lambda row: row["ts"]), strict=True):
        assert abs(ours["ts"] - theirs["ts"]) < 5_000, "on one clock"
    products = [row for row in rows if row["name"] == "aten::addmm"]
    assert products
    assert all(looks <= row["ts"] <= no_more for row in products)
    assert any(row["args"]["name"].startswith("torch in the learner") for row in rows if row["name"] == "process_name")
