"""What a line of metrics says of actors in processes of their own; `docs/processes.md` says what each figure means."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import psutil

from hotloop.learning import schedules
from hotloop.pipelines.actor_process import power_of
from hotloop.plain import Figures
from hotloop.replay.parcels import Account, Packed
from hotloop.spec import EpsilonGreedy, Spec
from hotloop.transport.protocol import ActorState, ActorStatus

WORKS = (ActorState.ENV, ActorState.ACT, ActorState.HAND_OVER, ActorState.WAIT)
"""States of an actor whose shares are figures."""


class State(NamedTuple):
    """What the learner knows when a line is written."""

    env_steps: int
    version: int
    """Of the weights that were published last."""
    restarts: Sequence[int]
    pids: Sequence[int | None]


class ActorFigures:
    """Collects what parcels say, and compares what actors say of themselves with the line before."""

    def __init__(self, spec: Spec, slots: int, statuses: Sequence[ActorStatus]) -> None:
        """`slots` are the parcels that a ring holds."""
        self._slots = slots
        self._schedule = spec.exploration_schedule.model_dump()
        is_epsilon = isinstance(spec.exploration, EpsilonGreedy)
        self._powers = [power_of(spec, number, len(statuses)) for number in range(len(statuses))] if is_epsilon else []
        self._before = list(statuses)
        self._cpu = ProcessorTime()
        self._forget()

    def _forget(self) -> None:
        self._parcels = self._lag = self._errors = 0
        self._error = 0.0

    def note(self, account: Account[np.ndarray], version: int) -> None:
        """A parcel has come, while the weights were at this version."""
        self._parcels += 1
        self._lag += max(0, version - int(account.weights_version))

    def note_first_errors(self, parcel: Packed) -> None:
        """A parcel was stored, with what its actor said of it."""
        error = parcel.error[: int(parcel.num_rows)]
        told = error[np.isfinite(error)]
        self._errors, self._error = self._errors + len(told), self._error + float(told.sum())

    def line(self, statuses: Sequence[ActorStatus], state: State) -> Figures:
        """The figures since the last line; `actors` has those of each."""
        pairs = list(zip(statuses, self._before, strict=True))
        self._before = list(statuses)
        spent = [{work: now.nanoseconds[work] - before.nanoseconds[work] for work in WORKS} for now, before in pairs]
        total = max(1, sum(sum(each.values()) for each in spent))
        cores = self._cpu.cores(state.pids)
        each: list[Figures] = [
            self._of_actor(number, now, before, spent[number], state) | {"cpu": round(cores.of_actors[number], 3)}
            for number, (now, before) in enumerate(pairs)
        ]
        line: Figures = {
            **{f"actors_{work.name.lower()}_share": sum(one[work] for one in spent) / total for work in WORKS},
            "actors_transitions": sum(now.transitions for now in statuses),
            "parcels": sum(now.parcels - before.parcels for now, before in pairs),
            "parcels_dropped": sum(now.dropped_parcels - before.dropped_parcels for now, before in pairs),
            "ring_fill": sum(now.parcels - now.released for now in statuses) / (self._slots * len(statuses)),
            "weights_version": state.version,
            "weights_lag": self._lag / self._parcels if self._parcels else 0.0,
            "first_error_mean": self._error / self._errors if self._errors else None,
            "actor_restarts": sum(state.restarts),
            "actors_cpu": round(sum(cores.of_actors), 3),
            "learner_cpu": round(cores.of_this, 3),
            "actors": [*each],
        }
        self._forget()
        return line

    def _of_actor(
        self, number: int, now: ActorStatus, before: ActorStatus, spent: dict[ActorState, int], state: State
    ) -> Figures:
        total = max(1, sum(spent.values()))
        figures: Figures = {
            "transitions": now.transitions - before.transitions,
            "dropped": now.dropped_transitions - before.dropped_transitions,
            "env_failures": now.env_failures - before.env_failures,
            "restarts": state.restarts[number],
            "ring": now.parcels - now.released,
            "weights_version": now.weights_version,
            **{work.name.lower(): round(spent[work] / total, 4) for work in WORKS},
        }
        if self._powers:
            epsilon = schedules.value_at(state.env_steps, xp=schedules.Scalars, **self._schedule)
            figures["epsilon"] = float(epsilon ** self._powers[number])
        return figures


class Cores(NamedTuple):
    """Cores that were used on average: 1 is all of one."""

    of_this: float
    of_actors: list[float]


class ProcessorTime:
    """How much of the processor this process and others take from one look to the next."""

    def __init__(self) -> None:
        self._at, self._this, self._others = time.monotonic(), time.process_time(), dict[int, float]()

    def cores(self, pids: Sequence[int | None]) -> Cores:
        """Since the last time; a process that is not there any more counts nothing."""
        now, this = time.monotonic(), time.process_time()
        others = {pid: processor_seconds(pid) for pid in pids if pid is not None}
        passed = max(1e-9, now - self._at)
        spent = {pid: max(0.0, seconds - self._others.get(pid, 0.0)) for pid, seconds in others.items()}
        of_actors = [0.0 if pid is None else spent[pid] / passed for pid in pids]
        found = Cores((this - self._this) / passed, of_actors)
        self._at, self._this, self._others = now, this, others
        return found


def processor_seconds(pid: int) -> float:
    """Of a process, as long as it is there."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:  # it has just ended
        return 0.0
    return float(times.user + times.system)
