"""The figures of a run: of a line of metrics, of the live line, and of its result."""

import numpy as np

from hotloop.clock import Clock, Rates
from hotloop.learning import schedules
from hotloop.pipelines.session import Reading
from hotloop.plain import Figures
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
        result |= {name: evaluation[name] for name in ("return_iqm", "return_interval", members.by) if evaluation}
    return result


def _rate_counts(spec: Spec, host: Reading) -> int:
    """What the schedule of the learning rate is read at: env steps, or turns of learning."""
    if spec.turns is None or spec.optimizer.schedule_in == "env_steps":
        return host.env_steps
    return host.attempts // spec.turns.updates


def _at(schedule: AnySchedule, env_steps: int) -> float:
    return float(schedules.value_at(env_steps, xp=schedules.Scalars, **schedule.model_dump()))
