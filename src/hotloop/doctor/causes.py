"""What is the matter with a run: causes by their ids, with share, evidence and what to do."""

from typing import NamedTuple

from hotloop.doctor.examination import Examined, Stage
from hotloop.doctor.slices import Ratio
from hotloop.plain import Figures
from hotloop.spec import Prioritized, Spec

LISTED, VERDICT = 0.10, 0.20
"""Share of the time from which a cause is listed in full, and may be the verdict."""
MANY_UPDATES, FEW_OBSERVATIONS = 1.0, 4
"""Gradient steps of an env step from which on they are called many; envs up to which acting is called one at a time."""
WORDS = {
    "env-step": "the env's own step",
    "act-one-at-a-time": "asking the network for actions",
    "replay-insert": "storing transitions",
    "replay-sample": "drawing batches",
    "priorities": "drawing batches by priority",
    "conversion": "bringing batches to the device",
    "update-arithmetic": "gradient steps",
    "update-count": "very many gradient steps for each env step",
    "logging": "lines of metrics",
    "evaluation": "greedy evaluations",
    "checkpointing": "checkpoints",
    "nothing-wrong": "no stage stands out",
}
OF_STAGE = {"step": "env-step", "select": "act-one-at-a-time", "insert": "replay-insert", "transfer": "conversion"}
OF_OCCASION = {"log": "logging", "evaluate": "evaluation", "checkpoint": "checkpointing"}


class Cause(NamedTuple):
    """One thing that a run's time goes to."""

    cause: str
    share: float
    seconds: float
    """Of an env step."""
    where: str
    """A stage, or a field of the spec."""
    evidence: list[str]
    remedy: str
    """What makes it less; empty where settings that learn the same are all there is."""
    changes_algorithm: bool
    predicted: float | None
    """Times as fast as it is that the whole run would be if it cost nothing, by the model."""
    measured: Ratio | None


def causes_of(seen: Examined) -> list[Cause]:
    """In the order of their shares."""
    found = [_of_stage(seen, name, stage) for name, stage in seen.stages.items()]
    found += [_of_occasion(seen, name) for name in seen.occasions]
    return sorted(found, key=lambda cause: -cause.share)


def verdict_of(causes: list[Cause]) -> Cause | None:
    """The first that is large enough; None if nothing stands out."""
    return next((cause for cause in causes if cause.share >= VERDICT), None)


def as_figures(cause: Cause) -> Figures:
    """As JSON has it."""
    ratio = cause.measured
    return {
        "cause": cause.cause,
        "share": round(cause.share, 4),
        "seconds": cause.seconds,
        "where": cause.where,
        "evidence": [*cause.evidence],
        "remedy": cause.remedy,
        "changes_algorithm": cause.changes_algorithm,
        "predicted_speedup": None if cause.predicted is None else round(cause.predicted, 3),
        "interval": None if ratio is None else ratio.interval,
        "measured_speedup": None if ratio is None else round(ratio.value, 3),
        "how_measured": None if ratio is None else "the stage replaced by a stand-in that costs nothing, in turns",
    }


def _of_stage(seen: Examined, name: str, stage: Stage) -> Cause:
    spec, cause = seen.spec, _cause_of_stage(seen.spec, name)
    evidence = [f"{name} takes {_time(stage.seconds)} of the {_time(seen.seconds)} of an env step"]
    share, measured = stage.seconds / seen.seconds, None
    if stage.measured is not None:
        measured = Ratio(*(seen.of_whole_run(bound) for bound in stage.measured))
        evidence.append(f"with {name} at no cost the run is {measured} as fast")
    if stage.is_beside:
        evidence.append("it goes on beside what takes longer")
        share = 0.0 if measured is None else max(0.0, 1 - 1 / measured.value)
    predicted = None if stage.predicted is None else seen.of_whole_run(stage.predicted)
    if cause == "act-one-at-a-time":
        evidence.append(f"{spec.env.num_envs} observation(s) at a time")
    remedy, changes = _remedy(seen, cause)
    return Cause(cause, share, stage.seconds, name, evidence, remedy, changes, predicted, measured)


def _cause_of_stage(spec: Spec, name: str) -> str:
    if name == "update":
        return "update-count" if spec.replay_ratio >= MANY_UPDATES else "update-arithmetic"
    if name == "sample":
        return "priorities" if isinstance(spec.replay.sampling, Prioritized) else "replay-sample"
    return OF_STAGE[name]


def _remedy(seen: Examined, cause: str) -> tuple[str, bool]:
    """What to do, and whether that changes what is learned."""
    spec = seen.spec
    if cause == "env-step":
        if seen.env_busy is None:
            return "`hotloop profile SPEC` times the parts of a device env's step", False
        return f"`hotloop profile --env {spec.env.id}` names the functions that take the time", False
    if cause == "act-one-at-a-time" and spec.env.num_envs <= FEW_OBSERVATIONS:
        return f"--set env.num_envs={4 * spec.env.num_envs}: more at a time, at the same ratio", True
    if cause == "replay-sample":
        return f"--set replay.batch_size={max(1, spec.replay.batch_size // 2)}", True
    if cause == "priorities":
        return "--set replay.sampling.kind=uniform", True
    if cause in ("update-arithmetic", "update-count"):
        fewer = f"turns.updates={max(1, spec.turns.updates // 2)}" if spec.turns else ""
        fewer = fewer or f"updates_per_step={spec.updates_per_step / 2:g}"
        return f"--set {fewer}, a smaller network or replay.batch_size", True
    return "", False


def _of_occasion(seen: Examined, name: str) -> Cause:
    occasion = seen.occasions[name]
    note = f" ({occasion.note})" if occasion.note else ""
    evidence = [f"one takes {_time(occasion.seconds)}{note}, every {occasion.every:,} env steps"]
    per_step = occasion.per_env_step
    predicted = seen.seconds / (seen.seconds - per_step)
    share = per_step / seen.seconds
    return Cause(OF_OCCASION[name], share, per_step, occasion.field, evidence, "", False, predicted, None)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
