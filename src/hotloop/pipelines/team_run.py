"""The learners of a team on the host: what they are together, whoever makes their experience.

An env step is a turn of one env: a transition of each agent that is there. Schedules, the target net and the learning
start follow turns; gradient steps are earned by a learner's own transitions, so one whose agent is gone for a while
waits. With shared weights there is one learner, for which the agents are so many more envs, and turns earn.

Their envs are in this process (`host_team.py`) or in those of actors (`process_team.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np

from hotloop.engines.policies import one_blas_thread
from hotloop.engines.protocol import Choice, Weights
from hotloop.envs.team import TeamSpaces, agents_of_learners
from hotloop.evaluate import Episodes, Tell
from hotloop.experience import Totals
from hotloop.members import Members
from hotloop.pipelines.host_team_play import play_team_on_host
from hotloop.pipelines.learner import learn_together
from hotloop.pipelines.learning_run import LearningRun, run_blocks
from hotloop.pipelines.session import Reading
from hotloop.pipelines.team_names import TEAM, below, learner_name
from hotloop.plain import Json, number
from hotloop.spans import Spans
from hotloop.spec import Spec

R = TypeVar("R", bound=LearningRun)


class TeamRun(ABC, Generic[R]):
    """The learners of a team, in the order of its agents."""

    runs: Sequence[R]
    episodes: int
    """Those that have ended for all agents."""
    blocks: int

    def __init__(self, spec: Spec, spaces: TeamSpaces, members: Members, spans: Spans) -> None:
        self.spec, self.members, self.spans, self.block_plan = spec, members, spans, spec.block_plan
        self.agents = agents_of_learners(spaces, spec)
        self.names = [learner_name(index) for index in range(len(self.agents))]
        self.seeds = tuple(self._seed_of(index) for index in range(len(self.agents)))

    def _seed_of(self, index: int) -> int:
        return int(np.random.SeedSequence([self.spec.seed, index]).generate_state(1)[0])

    @property
    def env_steps(self) -> int:
        """Turns of all envs."""
        return self.runs[0].env_steps

    def compile(self) -> Choice | None:
        """Act and learn once with each engine, and together, so that all is compiled before the clock runs."""
        one_of_each = {id(run.engine): run for run in self.runs}
        choices = [run.compile() for run in one_of_each.values()]
        if self._learns_together:
            self.runs[0].engine.update_all([run.learner.blank_lesson() for run in self.runs])
        return next((choice for choice in choices if choice is not None), None)

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""
        run_blocks(self, blocks)

    @property
    def skipped_in_a_row(self) -> int:
        """Of the learner that has skipped most."""
        return max(run.skipped_in_a_row for run in self.runs)

    @abstractmethod
    def run_block(self) -> bool:
        """One unit of work; False if someone does not want to wait for it."""

    def learn(self, transitions: Sequence[int]) -> None:
        """The gradient steps that each learner has earned by so many transitions of its own."""
        for run, earned in zip(self.runs, transitions, strict=True):
            run.learner.earn(int(earned), run.env_steps, run.learning_starts)
        due = [run for run in self.runs if run.learner.takes_turn()]
        if len(due) == len(self.runs) and self._learns_together:
            self._learn_together()
            return
        for run in due:
            run.learn()

    @cached_property
    def _learns_together(self) -> bool:
        """Whether all learners' gradient steps are faster in one batched program."""
        are_alike = len({id(run.engine) for run in self.runs}) == 1
        return len(self.runs) > 1 and are_alike and all(run.learner.can_learn_together for run in self.runs)

    def _learn_together(self) -> None:
        """The gradient steps of all, which count as taken, in one batched program."""
        learners = [run.learner for run in self.runs]
        try:
            learned = learn_together(learners, [run.learner.draw(run.env_steps) for run in self.runs])
        except BaseException:
            for learner in learners:
                learner.limiter.give_back()
            raise
        for run, block in zip(self.runs, learned, strict=True):
            run.publish(block)

    # -- what the host loop asks for --------------------------------------------------------------------

    def read(self) -> Reading:
        """The numbers of the present state."""
        each = [run.read() for run in self.runs]
        totals = Totals(*(np.concatenate(parts) for parts in zip(*(one.totals for one in each), strict=True)))
        return Reading(
            steps=np.concatenate([one.steps for one in each]),
            episodes=np.full(len(self.runs), self.episodes),
            first_update_at=np.concatenate([one.first_update_at for one in each]),
            updates=np.concatenate([one.updates for one in each]),
            skipped=np.concatenate([one.skipped for one in each]),
            skipped_in_a_row=np.concatenate([one.skipped_in_a_row for one in each]),
            totals=totals,
            are_in_same_envs=True,
        )

    def own_figures(self) -> Mapping[str, Json]:
        """What a line of metrics says beside the usual, as `LearningRun.own_figures`: means over the learners."""
        each = [run.own_figures() for run in self.runs]
        names = dict.fromkeys(name for figures in each for name in figures)
        return {name: float(np.mean([number(figures, name) for figures in each if name in figures])) for name in names}

    def notices(self) -> list[str]:
        """Envs that raised since the last time this was asked: all learners know of the same."""
        return self.runs[0].notices()

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        for run in self.runs:
            run.forget_totals()

    def forget_episodes(self) -> None:
        """Count episodes from 0 again."""
        self.episodes = 0

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes that all agents play together, on envs of their own."""
        first = self.runs[0]
        greedy = [run.greedy for run, agents in zip(self.runs, self.agents, strict=True) for _ in agents]
        seed, most = first.evaluation_seed(attempt), first.most_eval_steps()
        with one_blas_thread():
            played = play_team_on_host(self.spec, greedy, self.spec.evaluation.episodes, seed, most, tell)
        return played.by_agent if self.members.are_many else [played.of_all]

    def weights(self, index: int) -> Weights:
        """What one learner acts with."""
        return self.runs[index].weights(0)

    # -- checkpoints ------------------------------------------------------------------------------------

    def parts(self, arrays: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """What a checkpoint has of each learner; raises ValueError if it is one of other learners."""
        if unknown := sorted({path.partition("/")[0] for path in arrays} - {TEAM, *self.names}):
            raise ValueError(f"the checkpoint has unknown {unknown[:3]}, expected {len(self.names)} learner(s)")
        return [below(name, arrays) for name in self.names]
