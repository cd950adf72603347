"""What the learner and its actors did over a while, on one clock: a track for each process, with spans and marks.

All processes of a machine share `time.monotonic_ns`, and on Linux, where actors in processes are, spans of the learner
(`spans.py`) are read from the same clock. Actors write events to shared memory (`transport/events.py`), the learner
takes them between blocks.
"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotloop.pipelines.crew import Loss
from hotloop.spans import Kept
from hotloop.transport.events import Event, EventKind
from hotloop.transport.protocol import ActorState, ActorStatus, LearnerEnd

NAMES: dict[int, str] = {
    state: state.name.lower().replace("_", " ") for state in ActorState if state != ActorState.ENDED
}


class Stretch(NamedTuple):
    """Something that lasted."""

    name: str
    began_ns: int
    ended_ns: int


class Mark(NamedTuple):
    """Something that happened, or a figure that changed."""

    name: str
    at_ns: int
    value: int = 0


@dataclass
class Track:
    """One process."""

    name: str
    pid: int
    stretches: list[Stretch] = field(default_factory=list)
    """One after the other."""
    marks: list[Mark] = field(default_factory=list)
    taken: list[Mark] = field(default_factory=list)
    """Versions of the weights that it got, or of the learner those that it published."""


class Timeline:
    """From when it is made until `end`."""

    lost = 0
    """Events that found no room."""

    def __init__(self, end: LearnerEnd, pids: Iterable[int | None]) -> None:
        """`pids` are the processes that are actors now; they may be in this one."""
        self._end = end
        self._lost_before = sum(end.lost_events())
        end.want_events(True)
        self.began_ns = self.ended_ns = time.monotonic_ns()
        self.learner = Track(f"learner ({os.getpid()})", os.getpid())
        self.rings: list[list[Mark]] = [[] for _ in end.lost_events()]
        """For each actor how many parcels its ring held, whenever that changed."""
        running = {os.getpid(), *pids}
        statuses = end.statuses()
        self._first = [status if status.pid in running else None for status in statuses]
        self._actors = [[_track_of(actor, status.pid)] for actor, status in enumerate(statuses)]
        self.size = 0
        """Events so far, those of the learner aside."""

    @property
    def tracks(self) -> list[Track]:
        """The learner, then each process that was an actor."""
        of_actors = [track for tracks in self._actors for track in tracks if track.stretches or track.marks]
        return [self.learner, *of_actors]

    def published(self, version: int) -> None:
        """The learner has published weights just now."""
        self.learner.taken.append(Mark(f"weights {version} published", time.monotonic_ns(), version))

    def released(self, actor: int, in_ring: int) -> None:
        """The learner has released a parcel of an actor just now, whose ring still holds so many."""
        self.rings[actor].append(Mark("released", time.monotonic_ns(), in_ring))

    def collect(self) -> None:
        """Take what actors have written down since the last time."""
        for actor, tracks in enumerate(self._actors):
            events = self._end.events(actor)
            self.size += len(events)
            for event in events:
                self._add(actor, tracks, event)

    def _add(self, actor: int, tracks: list[Track], event: Event) -> None:
        kind, at_ns, value = event
        if kind in NAMES:
            tracks[-1].stretches.append(Stretch(NAMES[kind], at_ns, value))
        elif kind == EventKind.OPENED:
            tracks.append(_track_of(actor, value))
            tracks[-1].marks.append(Mark("begins", at_ns))
        elif kind == EventKind.TOOK_WEIGHTS:
            tracks[-1].taken.append(Mark(f"weights {value} taken", at_ns, value))
        elif kind == EventKind.HANDED_OVER:
            self.rings[actor].append(Mark("handed over", at_ns, value))
        elif kind == EventKind.DROPPED:
            tracks[-1].marks.append(Mark(f"dropped {value} transitions", at_ns))

    def end(self, spans: Sequence[Kept], losses: Sequence[Loss]) -> None:
        """All is over: `spans` are what the learner did meanwhile, `losses` the processes that have ended."""
        self.ended_ns, statuses = time.monotonic_ns(), self._end.statuses()
        self._end.want_events(False)
        self.collect()
        lost_at = {loss.pid: loss.seen_ns for loss in losses}
        for tracks, first, last in zip(self._actors, self._first, statuses, strict=True):
            if first is not None and first.pid in lost_at and not tracks[0].stretches:  # nothing else until its end
                _add_unended(tracks[0], first, lost_at[first.pid])
            if last.pid not in lost_at and (first is not None or len(tracks) > 1):
                _add_unended(tracks[-1], last, self.ended_ns)
        self.learner.stretches = [Stretch(name, began, began + took) for name, _, began, took in spans]
        self.learner.marks = [Mark(str(loss), loss.seen_ns) for loss in losses]
        for track in (self.learner, *(track for tracks in self._actors for track in tracks)):
            track.stretches = [clipped for one in track.stretches if (clipped := self._within(one)) is not None]
        self.rings = [sorted(ring, key=lambda mark: mark.at_ns) for ring in self.rings]
        self.lost = sum(self._end.lost_events()) - self._lost_before

    def _within(self, one: Stretch) -> Stretch | None:
        """What of it lies in the time that is looked at."""
        began, ended = max(one.began_ns, self.began_ns), min(one.ended_ns, self.ended_ns)
        return Stretch(one.name, began, ended) if began < ended else None


def _track_of(actor: int, pid: int) -> Track:
    return Track(f"actor {actor} ({pid})", pid)


def _add_unended(track: Track, status: ActorStatus, now_ns: int) -> None:
    """What the process is doing since its last event; an event may have come after the status was read."""
    until = track.stretches[-1].ended_ns if track.stretches else 0
    if status.pid == track.pid and status.state in NAMES and status.heartbeat_ns >= until:
        track.stretches.append(Stretch(NAMES[status.state], status.heartbeat_ns, now_ns))
