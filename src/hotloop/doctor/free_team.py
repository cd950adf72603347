"""Stages of several agents' run in this process that cost nothing for a while: those of all learners at once.

| stage | what stands in for it |
|---|---|
| step | turns of all envs recorded before, in turn; each round of them ends in new episodes |
| select, insert, sample, transfer, update | of each learner as in a run of one (`free_on_host.py`) |
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy as np

from hotloop.doctor.free_learners import FreeLearners, all_at_once
from hotloop.doctor.free_on_host import RECORDED, Change, FreeActor, copied, in_place_of
from hotloop.envs.team import TeamStep
from hotloop.pipelines.host_team import HostTeam
from hotloop.trees import Arrays, tree_map


class FreeTeam:
    """The stages of a team's run that can be free; all must have learned already."""

    def __init__(self, team: HostTeam) -> None:
        self._team, self._turns = team, list[TeamStep]()
        self._first: list[Arrays] = []
        self._learners = FreeLearners(team.runs)
        self._actors = [FreeActor(run) for run in team.runs]
        of_all: dict[str, list[Change]] = {
            "select": [actor.random_actions for actor in self._actors],
            "insert": [actor.nothing_stored for actor in self._actors],
        }
        self.stages: dict[str, Change] = {
            "step": self._recorded_turns,
            **{name: partial(all_at_once, changes) for name, changes in of_all.items()},
            **self._learners.stages,
        }

    def prepared(self) -> AbstractContextManager[None]:
        """Within, the run goes on as it is and what will stand in is kept: let it run for some blocks."""
        return self._learners.prepared()

    @property
    def is_prepared(self) -> bool:
        """Whether all that will stand in was seen."""
        return self._learners.is_prepared

    @contextmanager
    def _recorded_turns(self) -> Iterator[None]:
        if not self._turns:
            self._record()
        turns, turn, runs = self._turns, 0, self._team.runs

        def step(chosen: Sequence[np.ndarray]) -> TeamStep:
            nonlocal turn
            del chosen
            turn += 1
            return turns[(turn - 1) % len(turns)]

        stand_at = [run.actor.obs for run in runs]
        self._begin_at(self._first)
        try:
            with in_place_of(self._team.envs, "step", step):
                yield
        finally:
            self._begin_at(stand_at)

    def _record(self) -> None:
        """Let the envs take as many turns as are recorded."""
        team = self._team
        self._first, own = [copied(run.actor.obs) for run in team.runs], team.envs.step

        def step(chosen: Sequence[np.ndarray]) -> TeamStep:
            made = own(chosen)
            if len(self._turns) < RECORDED:
                self._turns.append(copied(made))
            return made

        with in_place_of(team.envs, "step", step):
            while len(self._turns) < RECORDED:
                team.advance(1)
        self._turns[-1] = self._ended(self._turns[-1])

    def _ended(self, turn: TeamStep) -> TeamStep:
        """The turn after which all episodes begin anew, where the recording did."""
        first = [seen for run_obs, agents in self._by_learner() for seen in self._apart(run_obs, len(agents))]
        by_agent = [
            step._replace(obs=obs, truncated=step.valid & ~step.terminated, began=np.ones_like(step.began))
            for step, obs in zip(turn.by_agent, first, strict=True)
        ]
        return turn._replace(by_agent=by_agent, ended=np.ones_like(turn.ended))

    def _by_learner(self) -> Iterator[tuple[Arrays, tuple[int, ...]]]:
        yield from zip(self._first, self._team.agents, strict=True)

    def _apart(self, obs: Arrays, agents: int) -> list[Arrays]:
        """What each of so many agents sees, of rows that belong to all of them."""
        count = self._team.envs.num_envs
        return [tree_map(lambda leaf, at=i: leaf[at * count : (at + 1) * count], obs) for i in range(agents)]

    def _begin_at(self, seen: Sequence[Arrays]) -> None:
        for actor, obs in zip(self._actors, seen, strict=True):
            actor.begin_at(obs)
