"""An actor that hands its experience over: it follows the published weights, steps its envs and makes parcels.

The same in a process of its own (`actor_process.py`) and, turn by turn, in the learner's (`crew_here.py`).
"""

from dataclasses import dataclass

import numpy as np

from hotloop.pipelines.collector import Collects
from hotloop.spec import Spec
from hotloop.transport.protocol import NO_VERSION, ActorEnd, ActorState

ENV_STEPS = "env_steps"
"""Published beside the weights: env steps of the run so far, by which actors explore."""
WAIT_SECONDS = 0.5
"""How long an actor waits before it shows that it lives."""


@dataclass(frozen=True)
class Place:
    """Which actor it is, and of which run."""

    number: int
    of: int
    incarnation: int
    """How many processes have been this actor before."""
    made_before: int
    """Transitions that these made."""
    seed: int
    blocks: int
    """Blocks of the run when it was begun or resumed."""
    learners: tuple[int, ...]
    """The seed of each learner that it acts for."""

    def streams(self) -> tuple[list[np.random.Generator], int]:
        """A random stream for each learner, and the seed of its envs: those of pipeline sync for the first actor of a
        fresh run."""
        if self.number == self.incarnation == self.blocks == 0:
            of_learners = [np.random.SeedSequence(seed).spawn(2)[0] for seed in self.learners]
            of_envs = np.random.SeedSequence([self.seed, 0])
        else:
            drawn_by = np.random.SeedSequence([self.seed, self.blocks, self.number, self.incarnation])
            *of_learners, of_envs = drawn_by.spawn(len(self.learners) + 1)
        streams = [np.random.Generator(np.random.PCG64(one)) for one in of_learners]
        return streams, int(of_envs.generate_state(1)[0])


class ActorLoop:
    """One actor: what it does in a turn is make one parcel."""

    def __init__(self, spec: Spec, place: Place, collector: Collects, end: ActorEnd) -> None:
        self.spec, self.place, self.collector, self.end = spec, place, collector, end
        actors = spec.actors
        self._drops = actors.on_full == "drop" and actors.parcels is not None and not actors.in_step
        self._version, self._env_steps, self._failures = NO_VERSION, 0, 0

    def begin(self) -> None:
        """Begin an episode in every env, and have all compiled that a turn takes."""
        self.collector.begin(*self.place.streams())
        self._take_weights()
        if self._version != NO_VERSION:
            self.collector.prepare()

    def turn(self) -> None:
        """Make a parcel with the newest weights and hand it over; what finds no room is dropped, or waits."""
        self._take_weights()
        while not self.collector.is_full and not self.end.should_stop:
            self._step()
        if self.end.should_stop:
            return
        self.end.enter(ActorState.ACT)
        parcel = self.collector.take(self._version, self.end.dropped_transitions)
        while not self.end.hand_over(parcel.arrays, parcel.rows):
            if self._drops:
                self.end.count_dropped(parcel.env_steps)
                return
            self.end.wait_for_room(WAIT_SECONDS)
            if self.end.should_stop:
                return

    def _take_weights(self) -> None:
        if (weights := self.end.newest_weights()) is None:
            return
        named = dict(weights.arrays)
        self._version, self._env_steps = weights.version, int(named.pop(ENV_STEPS))
        self.collector.act_with(named)

    def _step(self) -> None:
        collector = self.collector
        self.end.enter(ActorState.ACT)
        actions = collector.choose(self._env_steps)
        self.end.enter(ActorState.ENV)
        made = collector.step(actions)
        failures, self._failures = collector.envs.failures - self._failures, collector.envs.failures
        self.end.count(transitions=made, env_failures=failures)
        self._env_steps += made * self.spec.env.num_envs // collector.num_envs  # others make theirs meanwhile
