"""The figures of a run: of a line of metrics, of the live line, and of its result."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotloop.clock import Clock, Rates, since_process_start
from hotloop.learning import schedules
from hotloop.members import Members
from hotloop.pipelines.session import Reading
from hotloop.plain import Figures, number
from hotloop.runs import statistics
from hotloop.spec import Spec
from hotloop.spec.schedules import AnySchedule
from hotloop.standing import Standing
from hotloop.stopping import Stop

ON_EVERY_SESSION = {"evaluate", "log"}
"""Stages that say nothing of a pipeline: where there are no others, a line of metrics has none."""


def line_of(spec: Spec, host: Reading, seconds: float, rates: Rates) -> Figures:
    """What a line of metrics says: means over the members, and with several of them each one's own."""
    totals = host.totals
    loss, grad_norm, q, applied = totals.update.T
    ratio = statistics.ratio
    each = {
        "updates": host.updates,
        "skipped": host.skipped,
        "episodes": host.episodes,
        "ep_return_mean": ratio(totals.episode_return, totals.episodes),
        "ep_length_mean": ratio(totals.episode_length, totals.episodes),
        "loss": ratio(loss, applied),
        "grad_norm": ratio(grad_norm, applied),
        "q_mean": ratio(q, applied),
    }
    explore = "epsilon" if spec.exploration.kind == "epsilon_greedy" else "temperature"
    figures: Figures = {
        "seconds": round(seconds, 3),
        "env_steps_per_s": round(rates.env_steps, 1),
        "updates_per_s": round(rates.updates, 1),
        **{name: statistics.mean(values) for name, values in each.items()},
        explore: _at(spec.exploration_schedule, host.env_steps),
        "learning_rate": _at(spec.optimizer.learning_rate, _rate_counts(spec, host)),
    }
    members = spec.members
    if members.are_many:
        figures[members.by] = {name: [statistics.plain(value) for value in values] for name, values in each.items()}
    return figures


def stages_of(lap: dict[str, float]) -> Figures:
    """What a line of metrics says of the stages, for pipelines whose stages run on the host."""
    return {"stage_seconds": lap} if set(lap) - ON_EVERY_SESSION else {}


def shown_of(line: Figures, standing: Standing) -> Figures:
    """The few figures of a live line."""
    evaluation = standing.evaluation
    return {
        "steps/s": line["env_steps_per_s"],
        "updates/s": line["updates_per_s"],
        "return": evaluation["return_mean"] if evaluation else line["ep_return_mean"],
        "ε": line.get("epsilon"),
        "temperature": line.get("temperature"),
        "loss": line["loss"],
    }


def result_of(spec: Spec, host: Reading, standing: Standing, clock: Clock, stop: Stop, seconds: float) -> Figures:
    """The run's figures. Counts are of one member (a mean, if they differ); speeds are of all together."""
    line, evaluation = line_of(spec, host, seconds, clock.speed), standing.evaluation or {}
    learned = host.first_update_at > 0
    # The block in which learning began counts: it was followed by updates.
    learned_steps = np.sum((host.steps - host.first_update_at + spec.block_plan.env_steps)[learned])
    steps, episodes = int(host.steps.sum()), int(host.episodes.sum())
    result = {
        "env_steps": statistics.mean(host.steps),
        "updates": line["updates"],
        "updates_per_step": round(host.attempts / int(learned_steps), 6) if learned.any() else 0.0,
        "env_steps_per_s": line["env_steps_per_s"],
        "updates_per_s": line["updates_per_s"],
        "seconds": line["seconds"],
        "compile_seconds": round(clock.compile_seconds, 3),
        "seconds_evaluating": round(clock.seconds_evaluating(), 3),
        "seconds_to_first_update": clock.seconds_to_first_update,
        "seconds_to_stop": clock.seconds_to_stop,
        "return_mean": evaluation.get("return_mean", line["ep_return_mean"]),
        "episodes_cut": evaluation.get("cut", 0),
        "episodes_endless": evaluation.get("endless", 0),
        "episodes": line["episodes"],
        "steps_per_episode": round(steps / episodes, 2) if episodes else None,
        "skipped": line["skipped"],
        "stopped": stop.sentence,
        "stopped_by": stop.kind,
    }
    members = standing.members
    if members.are_many:
        result[f"{members.kind}s"] = list(members.numbers)
        names = ("return_iqm", "return_interval", members.by)
        result |= {name: evaluation[name] for name in names if name in evaluation}
    return result


class Turn(NamedTuple):
    """One of several members that are trained one after the other, as it stands."""

    result: Figures
    evaluation: Figures | None
    """Its last one."""
    began_at: int | None
    """Env steps it had done when this session took it up; None if it left it alone."""


def result_in_turn(turns: Sequence[Turn], members: Members, stop: Stop, seconds: float) -> Figures:
    """The figures of a run whose members are trained one after the other, under the names of `result_of`.

    Counts are of one member (a mean, if they differ) of those that have begun; times and speeds are of this session.
    """
    results, driven = [turn.result for turn in turns], [turn for turn in turns if turn.began_at is not None]
    steps, episodes = (_total(results, name) for name in ("env_steps", "episodes"))
    attempts = {name: [number(each, name) for each in results] for name in ("updates", "skipped", "updates_per_step")}
    made = np.array(attempts["updates"]) + attempts["skipped"]
    learned = statistics.ratio(made, np.array(attempts["updates_per_step"]))  # env steps since learning began
    rates = _rates(driven)
    firsts = [each.result["seconds_to_first_update"] for each in driven]
    result: Figures = {
        "env_steps": _mean(results, "env_steps"),
        "updates": _mean(results, "updates"),
        "updates_per_step": round(float(made.sum() / np.nansum(learned)), 6) if made.any() else 0.0,
        "env_steps_per_s": round(rates.env_steps, 1),
        "updates_per_s": round(rates.updates, 1),
        "seconds": round(seconds, 3),
        "compile_seconds": round(_total([turn.result for turn in driven], "compile_seconds"), 3),
        "seconds_evaluating": round(_total([turn.result for turn in driven], "seconds_evaluating"), 3),
        "seconds_to_first_update": next((first for first in firsts if first is not None), None),
        "seconds_to_stop": driven[-1].result["seconds_to_stop"] if driven else since_process_start(),
        "return_mean": _mean(results, "return_mean"),
        "episodes_cut": int(_total(results, "episodes_cut")),
        "episodes_endless": int(_total(results, "episodes_endless")),
        "episodes": _mean(results, "episodes"),
        "steps_per_episode": round(steps / episodes, 2) if episodes else None,
        "skipped": _mean(results, "skipped"),
        "stopped": stop.sentence,
        "stopped_by": stop.kind,
        f"{members.kind}s": list(members.numbers),
    }
    evaluations = [turn.evaluation for turn in turns if turn.evaluation is not None]
    if len(evaluations) == len(members):
        summaries = [
            {name: value for name, value in each.items() if name != "env_steps" and isinstance(value, int | float)}
            for each in evaluations
        ]
        together = statistics.together(summaries, members)
        result |= {name: together[name] for name in ("return_iqm", "return_interval", members.by)}
    return result


def _rates(driven: Sequence[Turn]) -> Rates:
    """Rates of turns together: what was done in all of them, by the time it took."""
    steps = np.array([number(turn.result, "env_steps") - (turn.began_at or 0) for turn in driven])
    steps_per_s, updates_per_s = (
        np.array([number(turn.result, name) for turn in driven]) for name in ("env_steps_per_s", "updates_per_s")
    )
    seconds = np.nan_to_num(statistics.ratio(steps, steps_per_s))
    if not seconds.sum() > 0:
        return Rates()
    return Rates(*(float((rates * seconds).sum() / seconds.sum()) for rates in (steps_per_s, updates_per_s)))


def _total(results: Sequence[Figures], name: str) -> float:
    return sum(number(each, name) for each in results)


def _mean(results: Sequence[Figures], name: str) -> float | int | None:
    values = [each[name] for each in results]
    return statistics.mean(np.array([np.nan if value is None else value for value in values]))


def _rate_counts(spec: Spec, host: Reading) -> int:
    """What the schedule of the learning rate is read at: env steps, or turns of learning."""
    if spec.turns is None or spec.optimizer.schedule_in == "env_steps":
        return host.env_steps
    return host.attempts // spec.turns.updates


def _at(schedule: AnySchedule, env_steps: int) -> float:
    return float(schedules.value_at(env_steps, xp=schedules.Scalars, **schedule.model_dump()))
