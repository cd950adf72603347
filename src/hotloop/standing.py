"""How a run stands: what it knows beside its arrays, and what the manifest of a checkpoint says of that."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from hotloop.members import Members
from hotloop.pipelines.session import Reading
from hotloop.plain import Figures, Json, number


@dataclass
class Standing:
    """The last evaluation, the best one, and what is still owed."""

    members: Members
    evaluation: Figures | None = None
    best_return: float | None = None
    owes_evaluation: bool = False
    evaluations_failed: int = 0  # since the last one that did not: each attempt plays other episodes
    goal_from: int = -1  # evaluations after this env step may end the run as solved

    def facts(self, host: Reading) -> Figures:
        """What the manifest of a checkpoint says of it."""
        return {
            **counts(host),
            "evaluation": self.evaluation,
            "best_return": self.best_return,
            **({"evaluation_due": True} if self.owes_evaluation else {}),
            **({"evaluations_failed": self.evaluations_failed} if self.evaluations_failed else {}),
            **({"goal_from": self.goal_from} if self.goal_from >= 0 else {}),
        }

    @classmethod
    def from_facts(cls, facts: Figures, members: Members) -> Self:
        """Take back what `facts` gave; raises ValueError for what it cannot have given."""
        best, found = facts.get("best_return"), facts.get("evaluation")
        evaluation = _evaluation(found, members)
        if not (best is None or isinstance(best, int | float)) or (found is not None and evaluation is None):
            raise ValueError(f"the checkpoint's manifest has best_return {best!r} and evaluation {found!r}")
        return cls(
            members,
            evaluation,
            best,
            facts.get("evaluation_due") is True,
            _whole(facts, "evaluations_failed", 0),
            _whole(facts, "goal_from", -1),
        )

    def take(self, env_steps: int, summaries: Sequence[Mapping[str, float]], summary: Figures) -> bool:
        """Note an evaluation: each member's summary and that of all; returns whether one has never been so good."""
        self.owes_evaluation, self.evaluations_failed = False, 0
        self.evaluation = {"env_steps": env_steps, **summary}
        index = self.best_member()
        best = summary if index is None else summaries[index]
        mean, is_whole = number(best, "return_mean"), "cut" not in best
        if not is_whole or not math.isfinite(mean) or (self.best_return is not None and mean <= self.best_return):
            return False
        self.best_return = mean
        return True

    def is_evaluated(self, env_steps: int) -> bool:
        """Whether the last evaluation was at this env step."""
        return self.evaluation is not None and self.evaluation["env_steps"] == env_steps

    def best_member(self) -> int | None:
        """Index of the member that did best in the last evaluation; None where all of them belong together."""
        if self.members.are_many and self.members.are_a_team:
            return None
        if not self.members.are_many or self.evaluation is None:
            return 0
        returns = np.array(_returns(self.evaluation, self.members), np.float64)
        return int(np.argmax(np.nan_to_num(returns, nan=-math.inf)))

    def weights_facts(self, host: Reading, index: int | None) -> Figures:
        """What the manifest of one member's weights says, or of those of all."""
        if index is None:
            return {**counts(host), f"{self.members.kind}s": len(self.members), "evaluation": self.evaluation}
        return {
            "env_steps": int(host.steps[index]),
            "updates": int(host.updates[index]),
            self.members.kind: self.members.numbers[index],
            "evaluation": self.evaluation,
        }


def counts(host: Reading) -> Figures:
    """How far a run is, as every manifest says it."""
    updates = [int(count) for count in host.updates]
    return {"env_steps": host.env_steps, "updates": updates if len(updates) > 1 else updates[0]}


def _whole(facts: Figures, name: str, otherwise: int) -> int:
    """A whole number from a checkpoint's manifest, if it is there."""
    number = facts.get(name, otherwise)
    if type(number) is not int:
        raise ValueError(f"the checkpoint's manifest has {name} {number!r}")
    return number


def _evaluation(found: Json, members: Members) -> Figures | None:
    """An evaluation from a checkpoint's manifest, if all that is read from it later is there."""
    if not isinstance(found, dict):
        return None
    names = ("env_steps", "return_mean", *(("return_iqm",) if members.are_many and not members.are_a_team else ()))
    each = _returns(found, members) if members.are_many else [0.0]
    numbers = [*(found.get(name) for name in names), found.get("cut", 0), *each]
    is_one = len(each) == len(members) and all(isinstance(number, int | float) for number in numbers)
    return found if is_one else None


def _returns(evaluation: Figures, members: Members) -> Sequence[Json]:
    """Mean returns of each of several members; none if it does not say them."""
    by_member = evaluation.get(members.by)
    each = by_member.get("return_mean") if isinstance(by_member, dict) else None
    return each if isinstance(each, list) else []
