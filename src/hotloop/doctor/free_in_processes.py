"""Stages of a run in processes that cost nothing for a while, and a learner that takes longer by a known time.

| stage | what stands in for it |
|---|---|
| step | other actors, whose envs show what was recorded (`recorded_env.py`, `recorded_team.py`); its own rest |
| insert | parcels are counted, and nothing of them is stored |
| sample, transfer, update | as in this process (`free_on_host.py`) |
| publish | weights are not sent; actors go on with those they have |

Actors are some parcels ahead of the learner. What lies ready was made as the run was before, so it is used up first
whenever something changes, and only then does a slice begin.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from hotloop.doctor.free_learners import FreeLearners
from hotloop.doctor.free_on_host import Change, in_place_of
from hotloop.doctor.slices import HasSeconds
from hotloop.envs.gym_types import Make
from hotloop.pipelines.actor_figures import processor_seconds
from hotloop.pipelines.actor_parcels import transitions_ahead
from hotloop.pipelines.crews import AnyCrew, Brought, Seats, crew_of
from hotloop.pipelines.parcel_learner import ParcelLearner
from hotloop.pipelines.process_run import ProcessRun
from hotloop.pipelines.process_team import ProcessTeam
from hotloop.pipelines.processes import ActorsPipeline
from hotloop.pipelines.session import Reading
from hotloop.pipelines.supply import Supply
from hotloop.replay.parcels import Account, Packed
from hotloop.spec import Spec
from hotloop.transport.exchange import Exchange
from hotloop.transport.protocol import ActorState
from hotloop.trees import Arrays

SLOWER = "learner slower"
"""Not a stage: what the learner takes more of a block (`FreeInProcesses.delay`)."""
DELAYED = 0.25
"""Of the time of a block, by which the learner is made slower."""
OF_ACTORS = {"step": ActorState.ENV, "select": ActorState.ACT, "hand over": ActorState.HAND_OVER}
ACTORS_WAIT, LEARNER_WAITS, WORK_OF_ACTORS, WORK_OF_LEARNER = "actors wait", "wait", "work of actors", "work of learner"
"""Seconds that are no stage's: both sides waiting, and those of a processor."""


AnyRun = ProcessRun | ProcessTeam


class FreeInProcesses:
    """The stages of a run that can be free; it must have learned already."""

    def __init__(self, run: AnyRun, pipeline: ActorsPipeline, recorded: Make | None) -> None:
        """Starts actors of its own, which end with those of the pipeline: `recorded` makes their envs. Without it steps
        are never free."""
        self._run, self._learners = run, FreeLearners(learners_of(run))
        self._stock = 1 + math.ceil(sum(transitions_ahead(run.spec, pipeline.form.actors)) / run.block_plan.env_steps)
        self.delay = 0.0
        """Seconds of a block that are waited out while the learner is slower."""
        free: dict[str, Change] = {
            "insert": self._nothing_stored,
            **self._learners.stages,
            "publish": self._nothing_sent,
        }
        if recorded is not None:
            elsewhere = _Elsewhere(run, recorded, pipeline.brought.network)
            self._others = Supply(_without_options(run.spec), pipeline.form, run.spans, elsewhere)
            pipeline.supplies.append(self._others)
            self._others.begin()
            free = {"step": self._recorded_steps, **free}
        self.stages: dict[str, Change] = {name: partial(self._settled, change) for name, change in free.items()}
        self.ways: dict[str, Change] = {**self.stages, SLOWER: partial(self._settled, self._slower)}

    def prepare(self, most_blocks: int) -> bool:
        """Let the run go on as it is until all that will stand in was seen; False if it was not in so many blocks."""
        with self._learners.prepared():
            for _ in range(most_blocks):
                self._run.advance(1)
                if self._learners.is_prepared:
                    break
        self._use_up()
        began = time.perf_counter()
        self._run.advance(self._stock)
        self.delay = DELAYED * (time.perf_counter() - began) / self._stock
        return self._learners.is_prepared

    def fill(self, seconds: float) -> None:
        """Store recorded steps until the replay is full, or for so long."""
        replay, until = learners_of(self._run)[0].learner.replay, time.monotonic() + seconds
        with ExitStack() as freed:
            for name, change in self.stages.items():
                if name != "insert":
                    freed.enter_context(change())
            while replay.size < replay.capacity and time.monotonic() < until:
                self._run.advance(self._stock)

    def _use_up(self) -> None:
        """Learn from what was made ahead."""
        self._run.advance(self._stock)

    @contextmanager
    def _settled(self, change: Change) -> Iterator[None]:
        with change():
            self._use_up()
            yield
        self._use_up()

    @contextmanager
    def _recorded_steps(self) -> Iterator[None]:
        own, run = self._run.supply, self._run
        own.come_to_rest()
        run.supply = self._others
        try:
            yield
            self._others.come_to_rest()
        finally:
            run.supply = own

    @contextmanager
    def _nothing_stored(self) -> Iterator[None]:
        def forget(parcel: Packed) -> None:
            del parcel

        with ExitStack() as forgotten:
            for each in learners_of(self._run):
                forgotten.enter_context(in_place_of(each.learner.replay, "take_in", forget))
            yield

    @contextmanager
    def _nothing_sent(self) -> Iterator[None]:
        with in_place_of(self._run.supply, "send_weights", lambda: None):
            yield

    @contextmanager
    def _slower(self) -> Iterator[None]:
        own = self._run.run_block

        def slower() -> bool:
            until = time.perf_counter() + self.delay
            while time.perf_counter() < until:  # at work, as a stage that takes longer would be
                pass
            return own()

        with in_place_of(self._run, "run_block", slower):
            yield


class _Elsewhere:
    """What actors with recorded envs need of whoever learns from them: all as of the run, but for their envs."""

    def __init__(self, run: AnyRun, make: Make, network: object) -> None:
        self._run, self._brought = run, Brought(make, network)

    @property
    def env_steps(self) -> int:
        return self._run.env_steps

    def named_weights(self) -> dict[str, np.ndarray]:
        return self._run.named_weights()

    def new_crew(self, exchange: Exchange) -> AnyCrew:
        run, learners = self._run, learners_of(self._run)
        seats = Seats(exchange, run.spec.seed, run.blocks, tuple(each.seed for each in learners))
        engines, in_numpy = zip(*((each.engine, each.acts_with == "NumPy") for each in learners), strict=True)
        return crew_of(_without_options(run.spec), seats, self._brought, engines, in_numpy)

    def store(self, parcel: Arrays) -> Account[np.ndarray]:
        return self._run.store(parcel)


def learners_of(run: AnyRun) -> Sequence[ParcelLearner]:
    """The one of a run, or those of a team."""
    return run.runs if isinstance(run, ProcessTeam) else [run]


def _without_options(spec: Spec) -> Spec:
    """The spec of envs that show what was recorded: what was chosen of an observation is all that they show."""
    changed = spec.env.model_copy(update={"options": {}, "observe": (), "vectorization": "auto"})
    return spec.model_copy(update={"env": changed})


class WithActors:
    """A run in processes as `slices.py` looks at it: beside the learner's stages it has those of its actors.

    Seconds of actors are means over them: as many as pass while each does its share.
    """

    def __init__(self, run: AnyRun) -> None:
        self._run = run
        self.spans: HasSeconds = self

    def advance(self, blocks: int) -> None:
        """Run so many blocks."""
        self._run.advance(blocks)

    def read(self) -> Reading:
        """The numbers of the present state."""
        return self._run.read()

    def seconds(self) -> dict[str, float]:
        """Of both sides so far."""
        statuses = self._run.supply.statuses()
        states = {**OF_ACTORS, ACTORS_WAIT: ActorState.WAIT}
        spent = {
            name: sum(status.nanoseconds[state] for status in statuses) / len(statuses) / 1e9
            for name, state in states.items()
        }
        here = {name: each for name, each in self._run.spans.seconds().items() if name not in spent}
        work = {WORK_OF_LEARNER: time.process_time(), WORK_OF_ACTORS: sum(map(processor_seconds, self._pids()))}
        return {**here, **spent, **work}

    def _pids(self) -> list[int]:
        crew = self._run.supply.crew
        return [] if crew is None else [pid for pid in crew.pids() if pid is not None]
