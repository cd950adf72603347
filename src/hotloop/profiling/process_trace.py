"""All processes of a run in one trace: two seconds more of a run that has ended and is saved, which nothing keeps.

In Chrome's format, which Perfetto opens: for each process a track with what it spends its time on, counters of the
rings, and arrows from weights that are published to actors that take them.
"""

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

from hotloop.pipelines.process_run import ProcessRun
from hotloop.pipelines.timeline import Mark, Timeline, Track
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.replay.plan import readable
from hotloop.runs.folder import RunFolder

SECONDS = 2.0
MOST_EVENTS = 400_000
"""Of all actors: a trace that would have more is shorter."""
CALL_SECONDS = 0.2
FILE = "processes.json.gz"


def trace_processes(session: ProcessRun, folder: RunFolder, result: Figures, reporter: Reporter) -> Path | None:
    """Leave `trace/processes.json.gz` in the run's folder; returns it, or None: then it has said why."""
    path = folder.path / "trace" / FILE
    try:
        with reporter.busy("tracing learner and actors"):
            timeline = record(session, SECONDS)
            path.parent.mkdir(exist_ok=True)
            write(timeline, path)
    except OSError as error:
        result["disk_error"] = said = f"the trace of learner and actors could not be written: {error}"
        reporter.warn(said)
        return None
    except Exception as error:  # of actors that fail now: the run is saved
        first_line = str(error).strip().partition("\n")[0]
        reporter.warn(f"no trace of learner and actors: {type(error).__name__}: {first_line}")
        return None
    seconds, lost = (timeline.ended_ns - timeline.began_ns) / 1e9, timeline.lost
    missing = f"; {lost:,} events of actors found no room and are missing" if lost else ""
    size = readable(path.stat().st_size)
    reporter.say(f"traced {seconds:.1f} s more of {len(timeline.tracks)} processes: {size} in {path}{missing}")
    return path


def record(session: ProcessRun, seconds: float) -> Timeline:
    """Go on for so long, and write down what everyone does."""
    session.forget_episodes()
    with session.recorded() as timeline:
        blocks, now = 1, time.monotonic()
        until = now + seconds
        while now < until and timeline.size < MOST_EVENTS:
            began = now
            session.advance(blocks)  # of which each call takes a while by itself
            now = time.monotonic()
            blocks = max(1, int(blocks * min(2.0, CALL_SECONDS / (now - began))))
    return timeline


def write(timeline: Timeline, path: Path) -> None:
    """As Perfetto and chrome://tracing open it."""
    rows = list(_rows(timeline))
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump({"traceEvents": rows, "displayTimeUnit": "ms", "otherData": {"lost_events": timeline.lost}}, file)


def _rows(timeline: Timeline) -> Iterator[Figures]:
    """Times are in microseconds since the beginning; each track is a thread of its process, by a number of its own."""
    start, named = timeline.began_ns, set[int]()
    for number, track in enumerate(timeline.tracks):
        place: Figures = {"pid": track.pid, "tid": number}
        if track.pid not in named:  # actors may be in the learner's process
            named.add(track.pid)
            yield {"ph": "M", **place, "name": "process_name", "args": {"name": track.name}}
            yield {"ph": "M", **place, "name": "process_sort_index", "args": {"sort_index": number}}
        yield {"ph": "M", **place, "name": "thread_name", "args": {"name": track.name}}
        yield {"ph": "M", **place, "name": "thread_sort_index", "args": {"sort_index": number}}
        for name, began, ended in track.stretches:
            yield {"ph": "X", **place, "name": name, "ts": _us(began, start), "dur": _us(ended, began)}
        for mark in (*track.marks, *track.taken):
            yield {"ph": "i", **place, "name": mark.name, "ts": _us(mark.at_ns, start), "s": "t"}
    yield from _arrows(timeline)
    for actor, ring in enumerate(timeline.rings):
        for mark in ring:
            args: Figures = {"parcels": mark.value}
            name = f"ring of actor {actor}"
            yield {"ph": "C", "pid": timeline.learner.pid, "name": name, "ts": _us(mark.at_ns, start), "args": args}


def _arrows(timeline: Timeline) -> Iterator[Figures]:
    """From the publication of weights to each actor that takes them."""
    learner, *actors = timeline.tracks
    published = {mark.value: mark for mark in learner.taken}
    taken: list[tuple[int, Track, Mark]] = [
        (number, track, mark) for number, track in enumerate(actors, 1) for mark in track.taken
    ]
    for arrow, (number, track, mark) in enumerate(taken):
        if (origin := published.get(mark.value)) is None:
            continue  # of before
        both: Figures = {"name": "weights", "cat": "weights", "id": arrow}
        yield {"ph": "s", **both, "pid": learner.pid, "tid": 0, "ts": _us(origin.at_ns, timeline.began_ns)}
        at = {"pid": track.pid, "tid": number, "ts": _us(mark.at_ns, timeline.began_ns)}
        yield {"ph": "f", "bp": "e", **both, **at}


def _us(at_ns: int, since_ns: int) -> float:
    return (at_ns - since_ns) / 1e3
