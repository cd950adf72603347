"""The actors of a run as its learner knows them: parcels in, weights out, and how far each actor may go.

How far is its **allowance**, in env steps: what of it the learner has counted, what was dropped or died with a process,
then a few parcels and a share of a block. Whoever learns says where parcels are stored and which weights there are:
one learner (`process_run.py`) or those of a team (`process_team.py`).
"""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from hotloop.interrupts import end_is_wanted
from hotloop.pipelines.actor_figures import ActorFigures, State
from hotloop.pipelines.actor_loop import ENV_STEPS
from hotloop.pipelines.actor_parcels import transitions_ahead
from hotloop.pipelines.crew import Gone, Loss
from hotloop.pipelines.crews import AnyCrew
from hotloop.pipelines.session import Session
from hotloop.pipelines.timeline import Timeline
from hotloop.plain import Figures
from hotloop.replay.parcels import Account, Packed
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.transport.exchange import Exchange
from hotloop.transport.form import Form
from hotloop.transport.protocol import ActorState, ActorStatus, Parcel
from hotloop.trees import Arrays

PUBLISH_SECONDS = 0.02
"""Between two versions of the weights, at least; in_step there is one for each block."""
LONGEST_UNPUBLISHED = 1.0
"""Seconds after which the same weights are published again while nothing is learned, with how far the run is."""
WAIT_SECONDS = 0.25
START_SECONDS = 0.01
"""Between two looks at actors that start, or come to rest."""
REST_SECONDS = 20.0
"""Actors that are allowed nothing more are at rest within this time, or something is wrong."""


class Learns(Protocol):
    """What actors need of whoever learns from them."""

    @property
    def env_steps(self) -> int:
        """Env steps of the run so far, by which actors explore."""

    def named_weights(self) -> Mapping[str, np.ndarray]:
        """What actors are to act with."""

    def new_crew(self, exchange: Exchange) -> AnyCrew:
        """Actors that take part in an exchange, not started yet."""

    def store(self, parcel: Arrays) -> Account[np.ndarray]:
        """Put a parcel where it is learned from, and return its account, in env steps."""


class Supply:
    """Actors elsewhere, and what is exchanged with them; `begin` starts them, `close` ends them."""

    crew: AnyCrew | None = None
    waiting = 0
    """Env steps that are stored, and not counted yet."""
    _failures = 0
    _timeline: Timeline | None = None
    """What is written down while someone wants to know."""

    def __init__(self, spec: Spec, form: Form, spans: Spans, learns: Learns) -> None:
        """`form` is what is exchanged with the actors."""
        self.spec, self.form, self._spans, self._learns = spec, form, spans, learns
        self._in_step, self._block = spec.actors.in_step, spec.block_plan.env_steps
        self._ahead = transitions_ahead(spec, form.actors)
        self._untold: list[Loss] = []

    def begin(self) -> None:
        """Start the actors and wait until each has begun, or a signal asks for the end; those that there were are
        stopped."""
        self.close()
        with contextlib.ExitStack() as undone:
            self._exchange = Exchange(self.form)
            undone.callback(self._exchange.close)
            self._end = self._exchange.learner_seat().open()
            undone.callback(self._end.close)
            self.waiting, self._failures = 0, 0
            self._seen, self._allowed = [Gone()] * self.form.actors, [0] * self.form.actors
            self.version = -1
            self._publish()
            self.crew = self._learns.new_crew(self._exchange)
            undone.callback(self.close)
            self.crew.start()
            self._figures = ActorFigures(self.spec, self.form.slots, self._end.statuses())
            while not self.crew.are_ready() and not end_is_wanted():  # whoever drives the run sees to that
                self.crew.raise_if_lost()
                time.sleep(START_SECONDS)
            self._allow()
            undone.pop_all()

    def close(self) -> None:
        """Stop the actors, and let go of what was shared with them."""
        if self.crew is None:
            return
        try:
            self.crew.stop()
        finally:  # who interrupts it does not wait for the actors' end
            self.crew = None
            self._end.close()
            self._exchange.close()

    # -- experience -------------------------------------------------------------------------------------

    def block(self) -> int | None:
        """Store what comes until there is a block of it; returns its env steps, or None if someone does not want to
        wait for them."""
        if self._timeline is not None:
            self._timeline.collect()
        return self._block_in_step() if self._in_step else self._block_as_it_comes()

    def _block_as_it_comes(self) -> int | None:
        self._receive()
        while self.waiting < self._block:
            self._wait()
            self._receive()
            if end_is_wanted():  # and there may be nothing to come for minutes: an actor hangs
                return None
        self.waiting -= self._block
        return self._block

    def _block_in_step(self) -> int | None:
        """One parcel of every actor, which is a block."""
        came: list[Parcel] = []
        while len({parcel.actor for parcel in came}) < self.form.actors:
            self._wait()
            came += self._end.committed()
            if end_is_wanted():
                return None
        for parcel in sorted(came, key=lambda parcel: parcel[:2]):  # by actor, whoever came first
            self._take_in(parcel)
        made, self.waiting = self.waiting, 0
        return made

    def go_on(self) -> None:
        """A block is learned from: let actors go on."""
        # Before it learns as well: actors explore by env steps, and in_step no clock decides what they know of these.
        if self._in_step or time.monotonic() - self._published_at > LONGEST_UNPUBLISHED:
            self._publish()
        self._allow()

    def _receive(self) -> None:
        """Store all parcels that have been handed over."""
        for parcel in self._end.committed():
            self._take_in(parcel)

    def _take_in(self, parcel: Parcel) -> None:
        with self._spans["insert"]:
            account = self._learns.store(parcel.arrays)
            self.waiting += int(account.env_steps)
            self._seen[parcel.actor] = Gone(int(account.env_steps_before + account.env_steps), int(account.dropped))
            self._figures.note(account, self.version)
            self._end.release(parcel)
            if self._timeline is not None:
                self._timeline.released(parcel.actor, self._end.in_ring(parcel.actor))

    def _wait(self) -> None:
        """Until there is a parcel, or for a moment."""
        assert self.crew is not None
        self._allow()
        if not self._is_published:
            self._publish()
        with self._spans["wait"]:
            self.crew.work()
            self._end.wait(WAIT_SECONDS)
        self.crew.raise_if_lost()

    def _allow(self) -> None:
        """Let actors go on: a few parcels beyond what the learner has counted; in_step one each."""
        if self._in_step and self.waiting:
            return
        assert self.crew is not None
        fewer = self.waiting // self.form.actors
        for actor, gone in enumerate(self.crew.made_by_the_dead()):
            ahead = 1 if self._in_step else self._ahead[actor] - fewer
            # What was made and will not come any more: that, and what has been dropped since.
            last = max(self._seen[actor], gone)
            allowed = last.made + self._end.dropped_transitions(actor) - last.dropped + ahead
            if ahead > 0 and allowed > self._allowed[actor]:
                self._allowed[actor] = allowed
                self._end.allow(actor, allowed)

    # -- weights ----------------------------------------------------------------------------------------

    def renew_weights(self) -> None:
        """There are new weights: publish them, or if others were just now, before the learner waits; in_step with the
        block. Actors take them for the next parcel."""
        self._is_published = False
        if not self._in_step and time.monotonic() - self._published_at >= PUBLISH_SECONDS:
            self._publish()

    def _publish(self) -> None:
        self.version, self._published_at, self._is_published = self.version + 1, time.monotonic(), True
        with self._spans["publish"]:
            self.send_weights()
            if self._timeline is not None:
                self._timeline.published(self.version)

    def send_weights(self) -> None:
        """Have actors find the present weights, as the version that it is."""
        env_steps = np.asarray(self._learns.env_steps, np.int64)
        self._end.publish(self.version, {**self._learns.named_weights(), ENV_STEPS: env_steps})

    # -- what is known of actors ------------------------------------------------------------------------

    def note_first_errors(self, parcel: Packed) -> None:
        """A parcel is stored, with what its actor said of it."""
        self._figures.note_first_errors(parcel)

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew, since the actors began."""
        if self.crew is not None:
            self._failures = sum(status.env_failures for status in self._end.statuses())
        return self._failures

    def forget_failures(self) -> None:
        """Count them from 0 again."""
        self._failures = 0

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return "" if self.crew is None else self.crew.last_failure()

    def notices(self) -> list[str]:
        """Actors that were replaced since this was last asked."""
        losses, self._untold = self._untold + ([] if self.crew is None else self.crew.losses()), []
        return [f"{loss}; another takes its place\n{loss.words}".rstrip() for loss in losses]

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Timeline]:
        """Within, all that learner and actors do is written down, and spans count for nothing; complete at the end."""
        assert self.crew is not None
        self._untold += self.crew.losses()  # of before
        timeline = self._timeline = Timeline(self._end, self.crew.pids())
        try:
            with self._spans.apart() as spans:
                yield timeline
        finally:
            self._timeline = None
            if self.crew is not None:  # else all was closed meanwhile
                losses = self.crew.losses()
                self._untold += losses
                timeline.end(spans, losses)

    def come_to_rest(self) -> None:
        """Wait until all actors have made what they may make: they use no core until they are allowed more."""
        made, until = -1, math.inf
        while not all(map(self._is_at_rest, statuses := self.statuses())) and not self.spec.actors.here:
            if (now := sum(status.transitions for status in statuses)) > made:  # slow envs are not those that hang
                made, until = now, time.monotonic() + REST_SECONDS
            elif time.monotonic() > until:
                raise TimeoutError(f"actors made nothing for {REST_SECONDS:.0f} s, and are not at rest: {statuses}")
            time.sleep(START_SECONDS)

    def _is_at_rest(self, status: ActorStatus) -> bool:
        has_room = status.parcels - status.released < self.form.slots
        return status.state == ActorState.WAIT and (status.transitions >= status.allowance or not has_room)

    def statuses(self) -> list[ActorStatus]:
        """What is known of each actor."""
        return self._end.statuses()

    def figures(self) -> Figures:
        """What the actors did since this was last asked (`docs/processes.md` says what each means)."""
        if self.crew is None:
            return {}
        state = State(self._learns.env_steps, self.version, self.crew.restarts_of(), self.crew.pids())
        return {"transitions_waiting": self.waiting, **self._figures.line(self._end.statuses(), state)}


@runtime_checkable
class InProcesses(Session, Protocol):
    """A session whose actors are elsewhere."""

    supply: Supply
