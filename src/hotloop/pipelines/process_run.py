"""A learner whose actors are elsewhere: it takes their parcels, learns what these have earned, publishes weights.

How far an actor may go is its **allowance**, in transitions: what of it the learner has counted, what was dropped or
died with a process, then a few parcels and a share of a block. `processes.py` has a picture of it all.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, cast

import numpy as np

from hotloop.engines.policies import numpy_policy
from hotloop.engines.protocol import Choice, Engine, Weights
from hotloop.envs.gym_types import Make
from hotloop.episodes import Finished
from hotloop.evaluate import Episodes, Tell
from hotloop.interrupts import end_is_wanted
from hotloop.members import Members
from hotloop.pipelines.actor_figures import ActorFigures, State
from hotloop.pipelines.actor_loop import ENV_STEPS, shares_of, steps_per_parcel
from hotloop.pipelines.actor_process import duty_of, pack
from hotloop.pipelines.crew import Crew, Gone, Loss
from hotloop.pipelines.learner import Update
from hotloop.pipelines.learning_run import EPISODES_LOST, STAGES, LearningRun
from hotloop.pipelines.sync import learn_if_due
from hotloop.pipelines.timeline import Timeline
from hotloop.plain import Figures
from hotloop.random_streams import generator_to_array
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Packed
from hotloop.runs.state import to_arrays
from hotloop.spans import Spans
from hotloop.spec import Network, Spec
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.transport.protocol import ActorStatus, Parcel
from hotloop.trees import Specs

PARCELS_AHEAD = 2
"""Parcels that an actor may be ahead of what the learner has counted, beside its share of a block."""
PUBLISH_SECONDS = 0.02
"""Between two versions of the weights, at least; in_step there is one for each block."""
LONGEST_UNPUBLISHED = 1.0
"""Seconds after which the same weights are published again while nothing is learned, with how far the run is."""
WAIT_SECONDS = 0.25
START_SECONDS = 0.01
"""Between two looks at actors that start."""


def transitions_ahead(spec: Spec, actors: int) -> list[int]:
    """How far each of so many actors may be ahead of what the learner has counted."""
    shares, steps = shares_of(spec.env.num_envs, actors), steps_per_parcel(spec)
    share_of_block = math.ceil(spec.block_plan.env_steps / actors)
    return [PARCELS_AHEAD * envs * steps + share_of_block for envs in shares]


class Brought(NamedTuple):
    """What the user brought along."""

    make: Make | None
    """Makes envs."""
    network: object


class ProcessRun(LearningRun):
    """A learner whose actors are elsewhere."""

    _crew: "AnyCrew | None" = None
    _failures = 0
    _timeline: Timeline | None = None
    """What is written down while someone wants to know."""

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
        super().__init__(spec, engine, replay, update, members, Spans(*STAGES, "wait", "publish"))
        self._form, self._obs, self._brought, self._in_step = form, obs, brought, spec.actors.in_step
        self._untold: list[Loss] = []
        self._largest_share = max(shares_of(spec.env.num_envs, form.actors))
        self._explorer = self.acting(self._largest_share)
        self._ahead = transitions_ahead(spec, form.actors)

    def compile(self) -> Choice | None:
        """Act and learn once, so that all is compiled before the clock runs."""
        return self.compile_for(self._explorer, self._obs, self._largest_share)

    def begin(self) -> None:
        """Fresh weights, an empty replay, actors that begin."""
        self.begin_learning()
        self._begin_actors()
        self.forget_totals()

    def _begin_actors(self) -> None:
        """Start the actors and wait until each has begun; those that there were are stopped."""
        self.close()
        with contextlib.ExitStack() as undone:
            self._exchange = Exchange(self._form)
            undone.callback(self._exchange.close)
            self._end = self._exchange.learner_seat().open()
            undone.callback(self._end.close)
            self._waiting, self._failures = 0, 0
            self._seen, self._allowed = [Gone()] * self._form.actors, [0] * self._form.actors
            self._version, self._published_at = -1, 0.0
            self.act_with_learner()
            self._crew = self._new_crew()
            undone.callback(self.close)
            self._crew.start()
            self._figures = ActorFigures(self.spec, self._form.slots, self._end.statuses())
            while not self._crew.are_ready():
                self._crew.raise_if_lost()
                time.sleep(START_SECONDS)
            self._allow()
            undone.pop_all()

    def _new_crew(self) -> "AnyCrew":
        spec, in_numpy = self.spec, self.acts_with == "NumPy"
        duty = duty_of(spec, self._brought.make, self._brought.network, acts_in_numpy=in_numpy)
        if not spec.actors.here:
            patience, tries = spec.actors.patience, spec.actors.tries
            return Crew(pack(duty), self._exchange, self.seed, self.blocks, patience, tries)
        from hotloop.pipelines.crew_here import CrewHere

        engine, network = self.engine, spec.network
        if in_numpy:
            assert isinstance(network, Network)
            here = CrewHere(duty, self._exchange, self.seed, self.blocks, lambda n: numpy_policy(network, {**n}), _none)
        else:
            wanted = engine.wanted_to_act
            here = CrewHere(
                duty, self._exchange, self.seed, self.blocks, lambda n: engine.freeze(engine.from_named(n)), wanted
            )
        self._work_here: Callable[[], None] = here.work
        return here

    def act_with(self, weights: Weights) -> None:
        """Publish these, or if others were just now, before the learner waits: actors take them for the next parcel."""
        self._is_published = False
        if self._version < 0 or self._in_step or time.monotonic() - self._published_at >= PUBLISH_SECONDS:
            self._publish(weights)

    def _publish(self, weights: Weights) -> None:
        self._version, self._published_at, self._is_published = self._version + 1, time.monotonic(), True
        with self.spans["publish"]:
            named = self.engine.to_named(weights)
            self._end.publish(self._version, {**named, ENV_STEPS: np.asarray(self.env_steps, np.int64)})
            if self._timeline is not None:
                self._timeline.published(self._version)

    def run_block(self) -> bool:
        """One unit of work; False if someone does not want to wait for it."""
        if self._timeline is not None:
            self._timeline.collect()
        return self._run_block_in_step() if self._in_step else self._run_block_as_it_comes()

    def _run_block_as_it_comes(self) -> bool:
        """Learn what a block's worth of transitions has earned, once there are as many."""
        wanted = self.block_plan.env_steps
        self._receive()
        while self._waiting < wanted:
            self._wait()
            self._receive()
            if end_is_wanted():  # and there may be nothing to come for minutes: an actor hangs
                return False
        self._waiting -= wanted
        self.env_steps += wanted
        self.learner.earn(wanted, self.env_steps, self.learning_starts)
        learn_if_due(self)
        if time.monotonic() - self._published_at > LONGEST_UNPUBLISHED:  # before it learns: actors explore by env steps
            self._publish(self.engine.weights(self.learner.state))
        self._allow()
        return True

    def _run_block_in_step(self) -> bool:
        """One parcel of every actor, which is a block, then what it has earned; then they may go on."""
        came: list[Parcel] = []
        while len({parcel.actor for parcel in came}) < self._form.actors:
            self._wait()
            came += self._end.committed()
            if end_is_wanted():
                return False
        for parcel in sorted(came, key=lambda parcel: parcel[:2]):  # by actor, whoever came first
            self._take_in(parcel)
        made, self._waiting = self._waiting, 0
        self.env_steps += made
        self.learner.earn(made, self.env_steps, self.learning_starts)
        learn_if_due(self)
        self._allow()
        return True

    def _receive(self) -> None:
        """Store all parcels that have been handed over."""
        for parcel in self._end.committed():
            self._take_in(parcel)

    def _take_in(self, parcel: Parcel) -> None:
        with self.spans["insert"]:
            packed = cast(Packed, parcel.arrays)
            self.learner.replay.take_in(packed)
            self._count(parcel.actor, packed)
            self._end.release(parcel)
            if self._timeline is not None:
                self._timeline.released(parcel.actor, self._end.in_ring(parcel.actor))

    def _count(self, actor: int, packed: Packed) -> None:
        account = packed.account
        self._waiting += int(account.env_steps)
        self._seen[actor] = Gone(int(account.env_steps_before + account.env_steps), int(account.dropped))
        self._figures.note(packed, self._version)
        if episodes := int(account.episodes):
            info = {key: float(total) for key, total in account.info.items()}
            self.add_finished(Finished(episodes, float(account.episode_return), float(account.episode_length), info))

    def _wait(self) -> None:
        """Until there is a parcel, or for a moment."""
        assert self._crew is not None
        self._allow()
        if not self._is_published:
            self._publish(self.engine.weights(self.learner.state))
        with self.spans["wait"]:
            if self.spec.actors.here:
                self._work_here()
            self._end.wait(WAIT_SECONDS)
        self._crew.raise_if_lost()

    def _allow(self) -> None:
        """Let actors go on: a few parcels beyond what the learner has counted; in_step one each."""
        if self._in_step and self._waiting:
            return
        assert self._crew is not None
        fewer = self._waiting // self._form.actors
        for actor, gone in enumerate(self._crew.made_by_the_dead()):
            ahead = 1 if self._in_step else self._ahead[actor] - fewer
            # What was made and will not come any more: that, and what has been dropped since.
            last = max(self._seen[actor], gone)
            allowed = last.made + self._end.dropped_transitions(actor) - last.dropped + ahead
            if ahead > 0 and allowed > self._allowed[actor]:
                self._allowed[actor] = allowed
                self._end.allow(actor, allowed)

    # -- what the host loop asks for --------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        if self._crew is not None:
            self._failures = sum(status.env_failures for status in self._end.statuses())
        return self.failed_before + self._failures

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return "" if self._crew is None else self._crew.last_failure()

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes on envs of their own, in this process."""
        self.policy = self._freeze(self.engine.weights(self.learner.state))
        return super().evaluate(tell, attempt)

    def notices(self) -> list[str]:
        """Envs that raised, and actors that were replaced."""
        losses, self._untold = self._untold + ([] if self._crew is None else self._crew.losses()), []
        return [*super().notices(), *(f"{loss}; another takes its place\n{loss.words}".rstrip() for loss in losses)]

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Timeline]:
        """Within, all that learner and actors do is written down, and spans count for nothing; complete at the end."""
        assert self._crew is not None
        self._untold += self._crew.losses()  # of before
        timeline = self._timeline = Timeline(self._end, self._crew.pids())
        try:
            with self.spans.apart() as spans:
                yield timeline
        finally:
            self._timeline = None
            if self._crew is not None:  # else all was closed meanwhile
                losses = self._crew.losses()
                self._untold += losses
                timeline.end(spans, losses)

    def statuses(self) -> list[ActorStatus]:
        """What is known of each actor."""
        return self._end.statuses()

    def own_figures(self) -> Figures:
        """Beside the usual what the actors did since this was last asked (`docs/processes.md` says what each means)."""
        if self._crew is None:
            return {**super().own_figures()}
        state = State(self.env_steps, self._version, self._crew.restarts_of(), self._crew.pids())
        learned = max(1, self.env_steps - self.first_update_at + self.block_plan.env_steps)
        updates = self.engine.counts(self.learner.state).updates
        return {
            **super().own_figures(),
            "transitions_waiting": self._waiting,
            "samples_per_insert": updates * self.spec.replay.batch_size / learned if self.first_update_at else 0.0,
            **self._figures.line(self._end.statuses(), state),
        }

    def close(self) -> None:
        """Stop the actors, and let go of what was shared with them."""
        if self._crew is None:
            return
        try:
            self._crew.stop()
        finally:  # who interrupts it does not wait for the actors' end
            self._crew = None
            self._end.close()
            self._exchange.close()

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters; actors begin anew after a resume."""
        return to_arrays({**self.learner_parts(self._of_actor()), "waiting": np.int64(self._waiting)})

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.close()
        self._failures = 0
        self.begin_learning()
        self.forget_totals()
        of_learner = dict(arrays)
        waiting = of_learner.pop("waiting", np.int64(0))
        restored = self.restore_learner(of_learner, self._of_actor())
        self._begin_actors()
        self._waiting = int(waiting) if restored.has_replay else 0
        self.totals = restored.totals
        return [EPISODES_LOST] if restored.has_replay else [EPISODES_LOST, self.begin_without_replay()]

    def _of_actor(self) -> np.ndarray:
        """What stands where other pipelines keep the state of their actor's random stream: actors have their own."""
        return generator_to_array(np.random.default_rng(0))


class AnyCrew(Protocol):
    """The actors, wherever they are."""

    def start(self) -> None:
        """Have them begin."""

    def raise_if_lost(self) -> None:
        """Raise what ends the run, if it cannot go on with them."""

    def are_ready(self) -> bool:
        """Whether each has begun to act."""

    def made_by_the_dead(self) -> list[Gone]:
        """For each actor what processes that have ended made."""

    def pids(self) -> list[int | None]:
        """The process of each actor, if it has one."""

    def restarts_of(self) -> list[int]:
        """How many processes of each actor have ended."""

    def losses(self) -> list[Loss]:
        """Processes that have ended since this was last asked."""

    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""

    def stop(self) -> None:
        """Have all end."""


def _none(num_envs: int) -> None:
    """What a policy in NumPy takes of chance."""
    del num_envs
