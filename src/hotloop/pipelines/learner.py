"""The half of a run on the host that learns: engine, replay, and which gradient steps are due.

It knows nothing of envs, and has a random stream of its own: for what is drawn from the replay, relabelled by
hindsight, and for networks with noise or fractions.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hotloop.engines.draws import draw
from hotloop.engines.protocol import Choice, Engine, Learned, Lesson, State
from hotloop.experience import Items, VectorStep, items_of
from hotloop.learning import schedules
from hotloop.replay.host import Batches, HostReplay
from hotloop.replay.limiter import Dues, Limiter, RingTurns
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import Arrays, HasShape, zeros_of

TRANSFER_APART = 1 << 20
"""Bytes of batches from which their way to the device is a stage of its own."""


Update = Callable[[State, Items, np.ndarray | None, float, int, Arrays], Learned[State]]
"""As `Engine.update`."""


class Period(NamedTuple):
    """Env steps that a block of gradient steps follows: schedules are read at the first, targets moved to the last."""

    since: int
    until: int


class Portion(NamedTuple):
    """What some of a block's gradient steps are taken on."""

    batches: Batches
    draws: Arrays  # what the network takes of chance
    period: Period


class LearnedBlock(NamedTuple):
    """What a block's gradient steps left behind; counts from `Learner.take` on."""

    state: State
    sums: np.ndarray  # METRICS
    td_KB: HasShape  # TD errors of the last samples drawn
    batches: Batches  # these
    period: Period


class Learner:
    """The learner of one run; `state` is its engine's."""

    state: State
    random: np.random.Generator
    followed_until = 0
    """Env steps up to which learning rate and target copies have been followed."""
    turns = 0
    """Blocks of gradient steps taken."""

    def __init__(self, spec: Spec, engine: Engine, replay: HostReplay, spans: Spans, update: Update) -> None:
        """`update` is the engine's `update`, or what stands in for it."""
        self.engine, self.replay, self.spans, self.update = engine, replay, spans, update
        block = spec.block_plan
        self.portions = block.updates // spec.updates_per_draw
        self.limiter: Dues = Limiter(block.env_steps)
        self._in_turns, self._rate_in_turns = spec.turns is not None, spec.optimizer.schedule_in == "turns"
        if spec.turns is not None:
            self.limiter = RingTurns(spec.turns.every, spec.replay.capacity)
        self._shape = (spec.batches_per_draw, spec.replay.batch_size)
        self._target_every = spec.target.every
        self._learning_rate = spec.optimizer.learning_rate.model_dump()
        self._beta = spec.beta_schedule.model_dump() if spec.beta_schedule else None
        self._wanted = engine.wanted_to_learn(spec.updates_per_draw, spec.replay.batch_size)
        # Small batches travel with the call: a transfer of their own takes longer than they do.
        self.transfers_apart = int(np.prod(self._shape)) * replay.row_bytes >= TRANSFER_APART

    def insert(self, step: VectorStep) -> None:
        """Store what a vector step of the actor brought."""
        self.replay.insert(step, self.random)

    def earn(self, transitions: int, env_steps: int, starts: int) -> None:
        """Count what was collected until `env_steps`; nothing is owed before the learning start."""
        if self._in_turns and self.replay.size:  # of the transitions after the start each counts for itself
            self.limiter.earn(min(transitions, max(0, env_steps - starts)), env_steps)
            if not self.limiter.owed:
                self._pass_turn(env_steps)
        elif env_steps >= starts and self.replay.size:
            self.limiter.earn(transitions, env_steps)
        else:
            self.followed_until = env_steps

    def _pass_turn(self, env_steps: int) -> None:
        """A vector step without a turn: the target net follows all the same."""
        if moves := self._target_moves(Period(self.followed_until, env_steps)):
            self.state = self.engine.move_target(self.state, moves)
        self.followed_until = env_steps

    def _target_moves(self, period: Period) -> int:
        moves = period.until // self._target_every - period.since // self._target_every
        return min(moves, 1) if self._in_turns else moves

    def takes_turn(self) -> bool:
        """Whether a block's gradient steps are due; if so, they count as taken."""
        return self.limiter.take()

    def draw(self, env_steps: int) -> Portion:
        """The batches of a block's first portion of gradient steps."""
        with self.spans["sample"]:
            return self.draw_portion(0, Period(self.followed_until, env_steps))

    def draw_portion(self, portion: int, period: Period) -> Portion:
        """The batches of one of a block's portions, counted from 0."""
        beta = 1.0 if self._beta is None else schedules.value_at(period.until, xp=schedules.Scalars, **self._beta)
        drawn_before = portion * self._shape[0]
        batches = self.replay.sample(self.random, self._shape, beta, drawn_before=drawn_before)
        return Portion(batches, draw(self._wanted, self.random) if self._wanted else None, period)

    def learn(self, drawn: Portion) -> LearnedBlock:
        """A block's gradient steps, done when it returns: on these batches, then on those that priorities choose next.

        Touches nothing but the engine's state and, with several portions, priorities and the random stream.
        """
        learned = self._learn_portion(self.state, drawn, is_last=self.portions == 1)
        sums = learned.sums
        for number in range(1, self.portions):
            with self.spans["redraw"]:
                self.replay.learned(drawn.batches, np.asarray(learned.td_KB))
                drawn = self.draw_portion(number, drawn.period)
            learned = self._learn_portion(learned.state, drawn, is_last=number == self.portions - 1)
            sums = sums + learned.sums
        return LearnedBlock(learned.state, sums, learned.td_KB, drawn.batches, drawn.period)

    def lesson(self, state: State, drawn: Portion, *, is_last: bool) -> Lesson[State]:
        """What its engine is told of a portion of gradient steps."""
        items, weight = drawn.batches.items, drawn.batches.weight
        if self.transfers_apart:
            with self.spans["transfer"]:
                items, weight = self.to_device(items, weight)
        counted = self.turns if self._rate_in_turns else drawn.period.since
        rate = schedules.value_at(counted, xp=schedules.Scalars, **self._learning_rate)
        target_moves = self._target_moves(drawn.period) if is_last else 0
        return Lesson(state, items, weight, rate, target_moves, drawn.draws)

    def to_device(self, items: Items, weight: np.ndarray | None) -> tuple[Items, np.ndarray | None]:
        """Bring batches where they are learned from."""
        return self.engine.put((items, weight))

    def _learn_portion(self, state: State, drawn: Portion, *, is_last: bool) -> Learned[State]:
        lesson = self.lesson(state, drawn, is_last=is_last)
        with self.spans["update"]:
            return self.update(*lesson)

    @property
    def can_learn_together(self) -> bool:
        """Whether its gradient steps can be taken in one program with those of others (`learn_together`)."""
        return self.engine.prefers_batches and self.portions == 1 and self.update == self.engine.update

    def take(self, learned: LearnedBlock) -> None:
        """From now on these weights and priorities count."""
        self.state, self.followed_until = learned.state, learned.period.until
        self.turns += 1
        if self._beta is not None:
            with self.spans["sample"]:
                self.replay.learned(learned.batches, np.asarray(learned.td_KB))

    def prepare(self, updates: float) -> Choice | None:
        """Have compiled what so many gradient steps take; returns what the engine chose by measuring, if anything."""
        choice = self.engine.prepare(*self._blanks(), updates)
        if self.update != self.engine.update:  # a stand-in may have something to compile, too
            self.update(*self.blank_lesson())
        return choice

    def blank_lesson(self) -> Lesson[State]:
        """One of the form of all, from which nothing is to be learned."""
        items, weight, draws = self._blanks()
        return Lesson(self.engine.init(0), items, weight, 0.0, 0, draws)

    def _blanks(self) -> tuple[Items, np.ndarray | None, Arrays]:
        """Batches, weights and draws."""
        items = items_of(self.replay.whole_row, self._shape, zeros_of)
        weight = np.ones(self._shape, np.float32) if self._beta else None
        return items, weight, draw(self._wanted, np.random.default_rng(0)) if self._wanted else None


def learn_together(learners: Sequence[Learner], drawn: Sequence[Portion]) -> list[LearnedBlock]:
    """`learn` for learners of one engine, in one batched program."""
    first = learners[0]
    lessons = [one.lesson(one.state, portion, is_last=True) for one, portion in zip(learners, drawn, strict=True)]
    with first.spans["update"]:
        learned = first.engine.update_all(lessons)
    return [
        LearnedBlock(one.state, one.sums, one.td_KB, portion.batches, portion.period)
        for one, portion in zip(learned, drawn, strict=True)
    ]
