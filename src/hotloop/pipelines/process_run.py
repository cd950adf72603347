"""A learner whose actors are elsewhere: it learns what their parcels have earned, block by block.

`supply.py` has the actors as it knows them; `processes.py` has a picture of it all.
"""

from typing import cast

import numpy as np

from hotloop.engines.protocol import Engine, Weights
from hotloop.evaluate import Episodes, Tell
from hotloop.members import Members
from hotloop.pipelines.actor_parcels import room_of
from hotloop.pipelines.crews import AnyCrew, Brought, Seats, crew_of
from hotloop.pipelines.learner import Update
from hotloop.pipelines.learning_run import EPISODES_LOST, STAGES
from hotloop.pipelines.parcel_learner import ParcelLearner, of_no_actor
from hotloop.pipelines.supply import Supply
from hotloop.pipelines.sync import learn_if_due
from hotloop.plain import Figures
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Account, Packed
from hotloop.runs.state import to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.trees import Arrays, Specs


class ProcessRun(ParcelLearner):
    """A learner, and actors elsewhere."""

    def __init__(
        self,
        spec: Spec,
        engine: Engine,
        replay: HostReplay,
        update: Update,
        members: Members,
        form: Form,
        obs: Specs,
        brought: Brought,
    ) -> None:
        """`form` is what is exchanged with the actors, `obs` the shapes of an observation."""
        spans, rows = Spans(*STAGES, "wait", "publish"), room_of(spec, form.actors)
        super().__init__(spec, engine, replay, update, members, spans, obs, rows)
        self.supply, self._brought = Supply(spec, form, spans, self), brought

    def begin(self) -> None:
        """Fresh weights, an empty replay, actors that begin."""
        self.begin_learning()
        self.count_skipped()
        self.supply.begin()
        self.forget_totals()

    def run_block(self) -> bool:
        """Learn what a block's worth of transitions has earned, once there are as many; False if someone does not want
        to wait for them."""
        made = self.supply.block()
        if made is None:
            return False
        self.env_steps += made
        self.learner.earn(made, self.env_steps, self.learning_starts)
        learn_if_due(self)
        self.supply.go_on()
        return True

    # -- what actors need of it -------------------------------------------------------------------------

    def act_with(self, weights: Weights) -> None:
        """Have actors act with these, the learner's present ones."""
        del weights
        self.supply.renew_weights()

    def named_weights(self) -> dict[str, np.ndarray]:
        """What actors are to act with."""
        return self.engine.to_named(self.engine.weights(self.learner.state))

    def new_crew(self, exchange: Exchange) -> AnyCrew:
        """Actors that take part in an exchange."""
        seats = Seats(exchange, self.seed, self.blocks, (self.seed,))
        return crew_of(self.spec, seats, self._brought, [self.engine], [self.acts_with == "NumPy"])

    def store(self, parcel: Arrays) -> Account[np.ndarray]:
        """Put a parcel into the replay."""
        packed = cast(Packed, parcel)
        self.take_in(packed)
        return packed.account

    # -- what the host loop asks for --------------------------------------------------------------------

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes on envs of their own, in this process."""
        self.play_with_learner()
        return super().evaluate(tell, attempt)

    def notices(self) -> list[str]:
        """Envs that raised, and actors that were replaced."""
        return [*super().notices(), *self.supply.notices()]

    def own_figures(self) -> Figures:
        """Beside the usual what the actors did since this was last asked."""
        of_actors = self.supply.figures()
        if not of_actors:
            return {**super().own_figures()}
        return {**super().own_figures(), "samples_per_insert": self.samples_per_insert(), **of_actors}

    def close(self) -> None:
        """Stop the actors, and let go of what was shared with them."""
        self.supply.close()

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters; actors begin anew after a resume."""
        counted = {"waiting": np.int64(self.supply.waiting), "inserted": np.int64(self.inserted)}
        return to_arrays({**self.learner_parts(of_no_actor()), **counted})

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.supply.close()
        self.supply.forget_failures()
        self.begin_learning()
        self.forget_totals()
        of_learner = dict(arrays)
        waiting, inserted = (of_learner.pop(name, np.int64(0)) for name in ("waiting", "inserted"))
        restored = self.restore_learner(of_learner, of_no_actor())
        self.count_skipped()
        self.inserted = int(inserted)
        self.supply.begin()
        self.supply.waiting = int(waiting) if restored.has_replay else 0
        self.totals = restored.totals
        return [EPISODES_LOST] if restored.has_replay else [EPISODES_LOST, self.begin_without_replay()]
