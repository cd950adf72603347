"""An actor that hands its experience over: envs, a policy that follows the published weights, parcels.

The same in a process of its own (`actor_process.py`) and, turn by turn, in the learner's (`crew_here.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hotloop.engines.protocol import Policy
from hotloop.envs.host import HostEnvs
from hotloop.pipelines.actor import Actor
from hotloop.pipelines.explorer import Explorer
from hotloop.pipelines.first_errors import first_errors
from hotloop.replay.packer import Packer
from hotloop.replay.parcels import leading_frames, rows_used
from hotloop.spans import Spans
from hotloop.spec import Network, Prioritized, Spec
from hotloop.transport.protocol import NO_VERSION, ActorEnd, ActorState

ENV_STEPS = "env_steps"
"""Published beside the weights: env steps of the run so far, by which actors explore."""
SHORTEST_PARCEL, FRAMES_REPEATED = 16, 4
"""Vector steps of a parcel: so many, and so many for each frame that it repeats of the one before."""
WAIT_SECONDS = 0.5
"""How long an actor waits before it shows that it lives."""

Freeze = Callable[[Mapping[str, np.ndarray]], Policy]
"""Makes a policy of named weights."""


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

    def streams(self) -> tuple[np.random.Generator, int]:
        """Its random stream, and the seed of its envs: those of pipeline sync for the first actor of a fresh run."""
        if self.number == self.incarnation == self.blocks == 0:
            of_actor, _ = np.random.SeedSequence(self.seed).spawn(2)
            of_envs = np.random.SeedSequence([self.seed, 0])
        else:
            drawn_by = [self.seed, self.blocks, self.number, self.incarnation]
            of_actor, of_envs = np.random.SeedSequence(drawn_by).spawn(2)
        return np.random.Generator(np.random.PCG64(of_actor)), int(of_envs.generate_state(1)[0])


def shares_of(num_envs: int, actors: int) -> list[int]:
    """Envs of each actor, as even as can be, the larger shares first."""
    return [num_envs // actors + (index < num_envs % actors) for index in range(actors)]


def errors_are_of_returns(spec: Spec) -> bool:
    """Whether the learner's errors, by which it draws, are TD errors of Q-values: those that actors can tell."""
    network = spec.network
    are_of_head = network.head.errors_are_of_returns if isinstance(network, Network) else True
    return are_of_head and spec.target.munchausen is None


def steps_per_parcel(spec: Spec) -> int:
    """Vector steps that an actor hands over at once."""
    if spec.actors.in_step:
        return spec.block_plan.vector_steps
    return spec.actors.steps_per_parcel or max(SHORTEST_PARCEL, FRAMES_REPEATED * leading_frames(spec.replay))


def steps_that_begin(spec: Spec) -> int:
    """Steps of a parcel in which all envs may begin an episode: in_step it may not end before a block does."""
    return steps_per_parcel(spec) if spec.actors.in_step else 1


class ActorLoop:
    """One actor: what it does in a turn is make one parcel."""

    def __init__(self, spec: Spec, place: Place, envs: HostEnvs, explorer: Explorer, freeze: Freeze, end: ActorEnd):
        self.spec, self.place, self.envs, self.end, self._freeze = spec, place, envs, end, freeze
        self.actor = Actor(envs, explorer, Spans("select", "step"))
        self.packer = Packer(
            spec.replay,
            spec.discount,
            envs.observations.shapes,
            envs.num_envs,
            steps_per_parcel(spec),
            envs.actions.size if spec.env.action_mask else None,
            spec.env.info,
            room_for=max(shares_of(spec.env.num_envs, place.of)),
            steps_that_begin=steps_that_begin(spec),
            env_steps_before=place.made_before,
        )
        actors = spec.actors
        self._drops = actors.on_full == "drop" and actors.parcels is not None and not actors.in_step
        sampling = spec.replay.sampling
        by_largest = isinstance(sampling, Prioritized) and sampling.first_error is None
        self._says_errors = by_largest and spec.actors.first_errors and errors_are_of_returns(spec)
        self._version, self._env_steps, self._failures = NO_VERSION, 0, 0

    def begin(self) -> None:
        """Begin an episode in every env."""
        self.actor.random, seed = self.place.streams()
        self.packer.begin(self.actor.begin(seed))

    def turn(self) -> None:
        """Make a parcel with the newest weights and hand it over; what finds no room is dropped, or waits."""
        self._take_weights()
        while not self.packer.is_full and not self.end.should_stop:
            self._step()
        if self.end.should_stop:
            return
        parcel = self.packer.take(self._version)
        parcel.account.dropped[...] = self.end.dropped_transitions
        if self._says_errors:
            self.end.enter(ActorState.ACT)
            parcel.error[: int(parcel.num_rows)] = first_errors(self.actor.policy, parcel)
        rows = rows_used(parcel)
        while not self.end.hand_over(parcel, rows):
            if self._drops:
                self.end.count_dropped(int(parcel.account.env_steps))
                return
            self.end.wait_for_room(WAIT_SECONDS)
            if self.end.should_stop:
                return

    def _take_weights(self) -> None:
        if (weights := self.end.newest_weights()) is None:
            return
        named = dict(weights.arrays)
        self._version, self._env_steps = weights.version, int(named.pop(ENV_STEPS))
        self.actor.policy = self._freeze(named)

    def _step(self) -> None:
        self.end.enter(ActorState.ACT)
        action_N = self.actor.choose(self._env_steps)
        self.end.enter(ActorState.ENV)
        step = self.envs.step(action_N)
        self.packer.push(step, self.actor.stored(step))
        made = int(np.count_nonzero(step.valid))
        failures, self._failures = self.envs.failures - self._failures, self.envs.failures
        self.end.count(transitions=made, env_failures=failures)
        self._env_steps += made * self.spec.env.num_envs // self.envs.num_envs  # others make theirs meanwhile
