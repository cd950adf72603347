"""What is the matter with a run: causes by their ids, with share, evidence and what to do."""

from typing import NamedTuple, TypedDict

from hotloop.doctor.examination import Examined, Stage
from hotloop.doctor.slices import Ratio
from hotloop.spec import Prioritized, Spec

LISTED, VERDICT = 0.10, 0.20
"""Share of the time from which a cause is listed in full, and may be the verdict."""
MANY_UPDATES = 1.0
"""Gradient steps of an env step from which on they are called many."""
WORDS = {
    "env-step": "the env's own step",
    "act-one-at-a-time": "asking the network for actions, few observations at a time",
    "replay-insert": "storing transitions",
    "replay-sample": "drawing batches",
    "priorities": "drawing batches by priority",
    "conversion": "bringing batches to the device",
    "update-arithmetic": "gradient steps",
    "update-count": "very many gradient steps for each env step",
    "waiting": "the learner waits for its actors",
    "logging": "lines of metrics",
    "evaluation": "greedy evaluations",
    "checkpointing": "checkpoints",
    "nothing-wrong": "no stage stands out",
}


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
    changes_algorithm: bool
    predicted: float | None
    """Times as fast as it is that the run would be if it cost nothing, by the model."""
    measured: Ratio | None


class CauseFigures(TypedDict):
    """A cause as JSON has it."""

    cause: str
    share: float
    seconds: float
    where: str
    evidence: list[str]
    remedy: str
    changes_algorithm: bool
    predicted_speedup: float | None
    interval: list[float] | None
    measured_speedup: float | None
    how_measured: str | None


def causes_of(seen: Examined) -> list[Cause]:
    """In the order of their shares."""
    found = [_of_stage(seen, name, stage) for name, stage in seen.stages.items()]
    found += [_of_occasion(seen, name) for name in seen.occasions]
    return sorted(found, key=lambda cause: -cause.share)


def verdict_of(causes: list[Cause]) -> Cause | None:
    """The first that is large enough; None if nothing stands out."""
    return next((cause for cause in causes if cause.share >= VERDICT), None)


def as_figures(cause: Cause) -> CauseFigures:
    """As JSON has it."""
    ratio = cause.measured
    return {
        "cause": cause.cause,
        "share": round(cause.share, 4),
        "seconds": cause.seconds,
        "where": cause.where,
        "evidence": cause.evidence,
        "remedy": cause.remedy,
        "changes_algorithm": cause.changes_algorithm,
        "predicted_speedup": None if cause.predicted is None else round(cause.predicted, 3),
        "interval": None if ratio is None else [round(ratio.low, 3), round(ratio.high, 3)],
        "measured_speedup": None if ratio is None else round(ratio.value, 3),
        "how_measured": None if ratio is None else "the stage replaced by a stand-in that costs nothing, in turns",
    }


def _of_stage(seen: Examined, name: str, stage: Stage) -> Cause:
    spec, share = seen.spec, stage.seconds / seen.seconds
    cause = _cause_of_stage(spec, name)
    evidence = [f"{name} takes {_time(stage.seconds)} of the {_time(seen.seconds)} of an env step"]
    if stage.is_beside:
        evidence.append("it goes on beside what takes longer, so without it the run is hardly faster")
        share = 0.0 if stage.measured is None else max(0.0, 1 - 1 / stage.measured.value)
    if stage.measured is not None:
        low, high = stage.measured.low, stage.measured.high
        evidence.append(f"with {name} at no cost the run is {stage.measured.value:.2f}x as fast ({low:.2f}–{high:.2f})")
    remedy, changes = _remedy_of_stage(spec, cause, seen.pipeline)
    return Cause(cause, share, stage.seconds, name, evidence, remedy, changes, stage.predicted, stage.measured)


def _cause_of_stage(spec: Spec, name: str) -> str:
    if name == "update":
        return "update-count" if spec.updates_per_step >= MANY_UPDATES else "update-arithmetic"
    if name in ("sample", "redraw"):
        return "priorities" if isinstance(spec.replay.sampling, Prioritized) else "replay-sample"
    return {
        "step": "env-step",
        "select": "act-one-at-a-time",
        "insert": "replay-insert",
        "transfer": "conversion",
        "wait": "waiting",
        "publish": "waiting",
    }[name]


def _remedy_of_stage(spec: Spec, cause: str, pipeline: str) -> tuple[str, bool]:
    """What to do, and whether that changes what is learned."""
    if cause == "env-step":
        if pipeline == "fused":
            return "the env's own functions: `hotloop profile SPEC` times its parts", False
        if pipeline != "processes":
            return (
                "--pipeline processes (envs in processes of their own); `hotloop profile --env ID` names functions",
                False,
            )
        return f"--actors {2 * (spec.actors.count or 1)}, while there are cores or envs that wait", False
    if cause == "act-one-at-a-time":
        return (
            f"--set env.num_envs={max(8, 2 * spec.env.num_envs)}: more observations at a time, at the same ratio",
            True,
        )
    if cause == "waiting":
        return f"--actors {2 * (spec.actors.count or 1)}, while there are cores or envs that wait", False
    if cause == "replay-sample":
        return f"--set replay.batch_size={max(1, spec.replay.batch_size // 2)}", True
    if cause == "priorities":
        return "--set replay.sampling.kind=uniform", True
    if cause in ("update-arithmetic", "update-count"):
        return f"--set updates_per_step={spec.updates_per_step / 2:g}, a smaller network or replay.batch_size", True
    return "", False


def _of_occasion(seen: Examined, name: str) -> Cause:
    occasion, cause = seen.occasions[name], {"log": "logging", "evaluate": "evaluation"}.get(name, "checkpointing")
    field = {"log": "log.every", "evaluate": "evaluation.every"}.get(name, "log.checkpoint_every")
    per_step, more = occasion.per_env_step, f" ({occasion.note})" if occasion.note else ""
    evidence = [f"one takes {_time(occasion.seconds)}{more}, every {occasion.every:,} env steps"]
    predicted = seen.seconds / (seen.seconds - per_step)
    remedy = f"--set {field}={10 * occasion.every}"
    return Cause(cause, per_step / seen.seconds, per_step, field, evidence, remedy, False, predicted, None)


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
