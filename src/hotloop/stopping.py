"""When a run is over: its goal, its env steps, its episodes; and when it cannot go on."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from hotloop.errors import Diverged
from hotloop.members import Members
from hotloop.pipelines.session import Reading
from hotloop.plain import number
from hotloop.spec import Spec
from hotloop.standing import Standing

Kind = Literal["signal", "callback", "goal", "steps", "episodes"]


class Stop(NamedTuple):
    """Why a run ended."""

    kind: Kind
    sentence: str


def reason_to_stop(spec: Spec, host: Reading, standing: Standing) -> Stop | None:
    """The stop rule that has fired, if one has."""
    stop = spec.stop
    if solved := solved_by(spec, standing):
        return solved
    if host.env_steps >= stop.steps:
        return Stop("steps", f"{host.env_steps:,} env steps done")
    if stop.episodes is not None and (host.episodes >= stop.episodes).all():
        return Stop("episodes", f"{int(host.episodes.min()):,} episodes done")
    return None


def solved_by(spec: Spec, standing: Standing) -> Stop | None:
    """What the last evaluation has reached, if it was whole and is one that counts."""
    goal, evaluation = spec.stop.return_at_least, standing.evaluation
    if goal is None or not evaluation or evaluation.get("cut") or number(evaluation, "env_steps") <= standing.goal_from:
        return None
    name, words = ("return_iqm", f"interquartile mean return of the {standing.members.kind}s")
    if not standing.members.are_many or standing.members.are_a_team:
        name, words = ("return_mean", "mean return")
    reached = number(evaluation, name)
    return Stop("goal", f"solved: {words} {reached:.1f} >= {goal:g}") if reached >= goal else None


def how_to_go_on(spec: Spec, host: Reading, stop: Stop, path: Path | None) -> str:
    """What to say of a run that is resumed and has already ended."""
    how = f"go on with: hotloop resume {path} --steps N, N above {host.env_steps:,}"
    episodes = spec.stop.episodes
    if episodes is not None and (host.episodes >= episodes).all():
        how = f"its spec ends it after {episodes:,} episodes (stop.episodes)"
    return f"{path} is finished ({stop.sentence}); {how}"


def diverged_member(spec: Spec, host: Reading) -> int | None:
    """Index of the first member whose last updates were all skipped, if there is one."""
    diverged = np.flatnonzero(host.skipped_in_a_row >= spec.guard.skips_in_a_row)
    return int(diverged[0]) if len(diverged) else None


def divergence(host: Reading, members: Members, index: int, dump: Path | None) -> Diverged:
    """What to raise then; `dump` is where the state was saved."""
    whose = f" of {members.named(index)}" if members.are_many else ""
    return Diverged(
        f"the last {host.skipped_in_a_row[index]} updates{whose} had a loss or gradient that is not finite "
        f"(env step {host.env_steps:,}); the weights are those before them"
        + (f", the whole state is in {dump}" if dump else "")
        + ". Try a lower optimizer.learning_rate, or look for rewards, observations or outputs of your network that "
        "are not finite"
    )
