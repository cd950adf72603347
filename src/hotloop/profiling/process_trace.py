"""All processes of a run in one trace: two seconds more of a run that has ended and is saved, which nothing keeps.

In Chrome's format, which Perfetto opens: for each process a track with what it spends its time on, counters of the
rings, and arrows from weights that are published to actors that take them. A piece that the engine's profiler looked at
stands before it, on the same clock.
"""

import gzip
import json
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from hotloop.pipelines.supply import InProcesses
from hotloop.pipelines.timeline import Mark, Timeline, Track
from hotloop.plain import Figures
from hotloop.profiling.merging import moved, rows_of
from hotloop.progress import Reporter
from hotloop.replay.plan import readable
from hotloop.runs.folder import RunFolder

SECONDS = 2.0
CALL_SECONDS, MOST_BLOCKS = 0.2, 1 << 16
"""Of a call, between which there is a look at the clock."""
MOST_EVENTS = 400_000
"""Of all actors: a trace that would have more is shorter."""
FILE = "processes.json.gz"


class Profiled(NamedTuple):
    """A piece that an engine's profiler has looked at."""

    engine: str
    path: Path
    """What it wrote."""
    timeline: Timeline
    """What learner and actors did meanwhile."""


def trace_processes(
    session: InProcesses, profiled: Profiled | None, folder: RunFolder, result: Figures, reporter: Reporter
) -> Path | None:
    """Leave `trace/processes.json.gz` in the run's folder; returns it, or None: then it has said why."""
    path, missing = folder.path / "trace" / FILE, list[str]()
    try:
        with reporter.busy("tracing learner and actors"):
            timeline = record(session, SECONDS)
            path.parent.mkdir(exist_ok=True)
            if profiled is None:
                write([timeline], path)
            else:
                rows = _rows_of_engine(profiled)
                if not rows:
                    missing.append(f"what the profiler of engine {profiled.engine} saw: no stage tells when that was")
                write([profiled.timeline, timeline], path, rows)
    except OSError as error:
        result["disk_error"] = said = f"the trace of learner and actors could not be written: {error}"
        reporter.warn(said)
        return None
    except Exception as error:  # of actors that fail now: the run is saved
        first_line = str(error).strip().partition("\n")[0]
        reporter.warn(f"no trace of learner and actors: {type(error).__name__}: {first_line}")
        return None
    seconds, lost = (timeline.ended_ns - timeline.began_ns) / 1e9, timeline.lost
    if lost:
        missing.append(f"{lost:,} events of actors, which found no room")
    size, lacks = readable(path.stat().st_size), f"; missing in it: {'; '.join(missing)}" if missing else ""
    reporter.say(f"traced {seconds:.1f} s more of {len(timeline.tracks)} processes: {size} in {path}{lacks}")
    return path


def record(session: InProcesses, seconds: float) -> Timeline:
    """Go on for so long, or until a stop rule lets nothing more happen, and write down what everyone does."""
    with session.supply.recorded() as timeline:
        blocks, now = 1, time.monotonic()
        until, before = now + seconds, -1
        while now < until and timeline.size < MOST_EVENTS and (env_steps := session.read().env_steps) != before:
            began, before = now, env_steps
            session.forget_episodes()  # of which so many would end it
            session.advance(blocks)  # of which each call takes a while by itself
            now = time.monotonic()
            blocks = min(MOST_BLOCKS, max(1, int(blocks * min(2.0, CALL_SECONDS / max(1e-9, now - began)))))
    return timeline


def write(timelines: Sequence[Timeline], path: Path, more: Sequence[Figures] = ()) -> None:
    """As Perfetto and chrome://tracing open it; `more` rows are in microseconds since the first timeline began."""
    rows = [*_rows(timelines), *more]
    lost = sum(timeline.lost for timeline in timelines)
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as file:
        json.dump({"traceEvents": rows, "displayTimeUnit": "ms", "otherData": {"lost_events": lost}}, file)


def _rows(timelines: Sequence[Timeline]) -> Iterator[Figures]:
    """Each track is a thread of its process, by a number of its own; actors may be in the learner's process."""
    start, numbers, processes, ids = timelines[0].began_ns, dict[str, int](), set[int](), count(1)
    for timeline in timelines:
        for track in timeline.tracks:
            if track.name not in numbers:
                numbers[track.name] = len(numbers)
                yield from _names(track, numbers[track.name], names_process=track.pid not in processes)
                processes.add(track.pid)
            yield from _of_track(track, numbers[track.name], start)
        for actor, ring in enumerate(timeline.rings):
            of_ring: Figures = {"ph": "C", "pid": timeline.learner.pid, "name": f"ring of actor {actor}"}
            for mark in ring:
                yield {**of_ring, "ts": _us(mark.at_ns, start), "args": {"parcels": mark.value}}
        yield from _arrows(timeline, numbers, start, ids)


def _rows_of_engine(profiled: Profiled) -> list[Figures]:
    """What its profiler wrote, on the clock of the timeline, on whose learner's track stands when it was."""
    engine, path, timeline = profiled
    looks = f"the profiler of engine {engine} looks on"
    timeline.learner.marks += [Mark(looks, timeline.began_ns), Mark(f"{looks} no more", timeline.ended_ns)]
    return moved(rows_of(path), engine, timeline.learner.stretches, timeline.began_ns)


def _names(track: Track, number: int, *, names_process: bool) -> Iterator[Figures]:
    for what in ("process", "thread") if names_process else ("thread",):
        place: Figures = {"ph": "M", "pid": track.pid, "tid": number}
        yield {**place, "name": f"{what}_name", "args": {"name": track.name}}
        yield {**place, "name": f"{what}_sort_index", "args": {"sort_index": number}}


def _of_track(track: Track, number: int, start: int) -> Iterator[Figures]:
    place: Figures = {"pid": track.pid, "tid": number}
    for name, began, ended in track.stretches:  # a nanosecond less: rounded to microseconds, no two may overlap
        yield {"ph": "X", **place, "name": name, "ts": _us(began, start), "dur": _us(ended - 1, began)}
    for mark in (*track.marks, *track.taken):
        yield {"ph": "i", **place, "name": mark.name, "ts": _us(mark.at_ns, start), "s": "t"}


def _arrows(timeline: Timeline, numbers: dict[str, int], start: int, ids: Iterator[int]) -> Iterator[Figures]:
    """From the publication of weights to each actor that takes them, each with a number of its own."""
    learner, *actors = timeline.tracks
    published = {mark.value: mark for mark in learner.taken}
    for track in actors:
        for mark in track.taken:
            if (origin := published.get(mark.value)) is None:
                continue  # of before
            both: Figures = {"name": "weights", "cat": "weights", "id": next(ids)}
            at_first: Figures = {"pid": learner.pid, "tid": numbers[learner.name], "ts": _us(origin.at_ns, start)}
            yield {"ph": "s", **both, **at_first}
            at_last: Figures = {"pid": track.pid, "tid": numbers[track.name], "ts": _us(mark.at_ns, start)}
            yield {"ph": "f", "bp": "e", **both, **at_last}


def _us(at_ns: int, since_ns: int) -> float:
    return (at_ns - since_ns) / 1e3
