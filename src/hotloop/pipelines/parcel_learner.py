"""A learner whose experience comes in parcels: of a run (`process_run.py`), or one of a team (`process_team.py`)."""

import numpy as np

from hotloop.engines.protocol import Choice, Engine
from hotloop.members import Members
from hotloop.pipelines.learner import Update
from hotloop.pipelines.learning_run import LearningRun
from hotloop.pipelines.supply import Supply
from hotloop.random_streams import generator_to_array
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Packed, finished_in
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import Specs


class ParcelLearner(LearningRun):
    """A learner, and a supply of parcels."""

    supply: Supply
    inserted: int
    """Transitions that came since learning began."""

    def __init__(
        self,
        spec: Spec,
        engine: Engine,
        replay: HostReplay,
        update: Update,
        members: Members,
        spans: Spans,
        obs: Specs,
        rows: int,
    ) -> None:
        """`obs` has the shapes of an observation; actors act on `rows` of them at a time, at most."""
        super().__init__(spec, engine, replay, update, members, spans)
        self._obs, self._rows = obs, rows
        self._explorer = self.acting(rows)

    def compile(self) -> Choice | None:
        """Act and learn once, so that all is compiled before the clock runs."""
        return self.compile_for(self._explorer, self._obs, self._rows)

    def begin_learning(self) -> np.random.SeedSequence:
        """Fresh weights, an empty replay, counters at 0."""
        self.inserted = 0
        return super().begin_learning()

    def take_in(self, parcel: Packed) -> None:
        """Put a parcel into the replay."""
        self.learner.replay.take_in(parcel)
        self.supply.note_first_errors(parcel)
        if self.env_steps + self.block_plan.env_steps >= self.learning_starts:  # it is for a block that is learned from
            self.inserted += int(parcel.account.env_steps)
        if (finished := finished_in(parcel.account)) is not None:
            self.add_finished(finished)

    def play_with_learner(self) -> None:
        """Evaluations play with the present weights."""
        self.policy = self._freeze(self.engine.weights(self.learner.state))

    def samples_per_insert(self) -> float:
        """Samples learned from for each transition that came since learning began."""
        samples = self.engine.counts(self.learner.state).updates * self.spec.replay.batch_size
        return samples / max(1, self.inserted)

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.failed_before + self.supply.failures

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return self.supply.last_failure


def of_no_actor() -> np.ndarray:
    """What stands where other pipelines keep the state of their actor's random stream: actors have their own."""
    return generator_to_array(np.random.default_rng(0))
