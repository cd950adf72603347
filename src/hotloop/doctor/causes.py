"""What is the matter with a run: causes by their ids, with share, evidence and what to do."""

from typing import NamedTuple

from hotloop.doctor.examination import Examined, Stage
from hotloop.doctor.losses import BY_SHARE, FIRST, VERDICT, Loss, losses_of
from hotloop.doctor.slices import Ratio
from hotloop.doctor.what_to_do import better_threads, what_to_do
from hotloop.plain import Figures
from hotloop.profiling.figures import Line
from hotloop.profiling.show import place_of
from hotloop.spec import Prioritized

NOTHING = "nothing-wrong"
MANY_UPDATES = 1.0
"""Gradient steps of an env step from which on they are called many."""
ARITHMETIC, AT_LIMIT = 0.5, 0.85
"""Share of a gradient step that its matrix products are from which on arithmetic binds it, and nothing is wrong."""
MOSTLY_TRANSPORT, COSTLY_STEP = 0.5, 2e-4
"""Share of a stage below which it is not envs in processes that take it; seconds from which on an env's step is costly.
"""
WORDS = {
    "env-step": "the env's own step",
    "env-one-at-a-time": "costly envs that step one after the other",
    "env-transport": "the way to envs in processes of their own, and back",
    "act-one-at-a-time": "asking the network for actions",
    "replay-insert": "storing transitions",
    "replay-sample": "drawing batches",
    "priorities": "drawing batches by priority",
    "conversion": "bringing batches to the device",
    "pickling": "handing experience or weights to other processes",
    "update-arithmetic": "the arithmetic of gradient steps",
    "update-dispatch": "what gradient steps take around their arithmetic",
    "update-count": "very many gradient steps for each env step",
    "threads": "gradient steps on too many threads, or too few",
    "host-sync": "values pulled out of tensors one by one",
    "repeated-forward": "the same network asked the same thing twice",
    "debug-work": "work that only debugging needs",
    "target-copy": "copying weights to the target network",
    "waiting": "waiting for locks, queues or sleep",
    "logging": "lines of metrics",
    "evaluation": "greedy evaluations",
    "checkpointing": "checkpoints",
    "rendering": "drawing the env",
    "machine": "what else the machine does",
    "memory": "memory",
    "longer-episodes": "episodes that last longer",
    "nothing-wrong": "nothing stands out that could be faster here",
}
RENDERS = 0.5
"""Share of an env's step from which on it is drawing that takes the time."""
OF_STAGE = {"select": "act-one-at-a-time", "insert": "replay-insert", "transfer": "conversion"}
OF_STAGE |= {"hand over": "pickling", "publish": "pickling"}
OF_OCCASION = {"log": "logging", "evaluate": "evaluation", "checkpoint": "checkpointing"}


class Cause(NamedTuple):
    """One thing that a run's time goes to."""

    cause: str
    share: float
    seconds: float
    """Of an env step."""
    where: str
    """A stage, a field of the spec, or a line of the user's own code: `file.py:12 function`."""
    evidence: list[str]
    remedy: str
    """What makes it less; empty where settings that learn the same are all there is."""
    changes_algorithm: bool
    predicted: float | None
    """Times as fast as it is that the whole run would be if it cost nothing, by the model."""
    measured: Ratio | None
    at_limit: float | None = None
    """How much of it is the least that this machine takes for it; None where that is not known."""
    stage: str = ""
    """The stage that it is of, or the field of the spec, or what else takes the time."""
    lines: tuple[Line, ...] = ()
    """Of the user's own code, that take most of it."""
    is_verdict: str = BY_SHARE
    """When it may be the verdict, as `losses.py` has it."""
    is_beside: bool = False
    """Whether it goes on while something longer does: its share is what the run gains without it."""
    is_loss: bool = False
    """Whether it happens within stages: its share is a part of theirs."""


def causes_of(seen: Examined) -> list[Cause]:
    """In the order of their shares."""
    found = [_of_stage(seen, name, stage) for name, stage in seen.stages.items()]
    found += [_of_occasion(seen, name) for name in seen.occasions]
    found += [_of_loss(seen, loss) for loss in losses_of(seen)]
    found.sort(key=lambda cause: -cause.share)
    largest = next((place for place, cause in enumerate(found) if cause.is_verdict == BY_SHARE), None)
    if largest is None or seen.spec.replay_ratio < MANY_UPDATES:
        return found
    if found[largest].stage == "update" and found[largest].cause != "threads":
        remedy, changes = what_to_do(seen, "update-count")
        found[largest] = found[largest]._replace(cause="update-count", remedy=remedy, changes_algorithm=changes)
    return found


def verdict_of(causes: list[Cause]) -> Cause | None:
    """The first that is large enough, `nothing-wrong` if that is at the machine's limit; None if nothing stands out.

    What makes all other figures doubtful comes first."""
    large = [cause for cause in causes if cause.share >= VERDICT]
    before = [cause for cause in large if cause.is_verdict == FIRST]
    verdict = next(iter([*before, *(cause for cause in large if cause.is_verdict == BY_SHARE)]), None)
    at_limit = 0.0 if verdict is None or verdict.cause == "threads" else verdict.at_limit or 0.0
    if verdict is not None and verdict.stage == "update" and at_limit >= AT_LIMIT:
        return verdict._replace(cause=NOTHING)
    return verdict


def as_figures(cause: Cause) -> Figures:
    """As JSON has it."""
    ratio = cause.measured
    return {
        "cause": cause.cause,
        "share": round(cause.share, 4),
        "seconds": cause.seconds,
        "where": cause.where,
        "stage": cause.stage,
        "lines": [{**line} for line in cause.lines],  # type: ignore[dict-item]  # a TypedDict's values are objects
        "evidence": [*cause.evidence],
        "remedy": cause.remedy,
        "changes_algorithm": cause.changes_algorithm,
        "predicted_speedup": None if cause.predicted is None else round(cause.predicted, 3),
        "interval": None if ratio is None else ratio.interval,
        "measured_speedup": None if ratio is None else round(ratio.value, 3),
        "how_measured": None if ratio is None else "the stage replaced by a stand-in that costs nothing, in turns",
        "at_limit": None if cause.at_limit is None else round(cause.at_limit, 4),
    }


def _of_stage(seen: Examined, name: str, stage: Stage) -> Cause:
    spec, limits, at_limit, arithmetic = seen.spec, seen.limits, None, None
    evidence = [f"{name} takes {in_time(stage.seconds)} of the {in_time(seen.seconds)} of an env step"]
    share, measured = stage.seconds / seen.seconds, None
    if stage.measured is not None:
        measured = Ratio(*(seen.of_whole_run(bound) for bound in stage.measured))
        evidence.append(f"with {name} at no cost the run is {measured} as fast")
    evidence += stage.evidence
    if stage.is_beside:
        evidence.append("it goes on beside what takes longer")
        share = 0.0 if measured is None else max(0.0, 1 - 1 / measured.value)
    if limits is not None:
        at_limit, arithmetic = limits.share(name, stage.seconds), limits.arithmetic(stage.seconds)
        if name == "step" and limits.bare_step is not None:
            at_once = f", and {limits.at_once} step at the same time" if limits.at_once > 1 else ""
            evidence.append(f"a step of one env by itself takes {in_time(limits.bare_step)}{at_once}")
        evidence += [words for words in [limits.in_words(name, stage.seconds)] if words]
    if name == "update":
        evidence.append(_bound_by(arithmetic))
    cause = _cause_of_stage(seen, name, arithmetic if name == "update" else at_limit)
    if cause == "threads" and (better := better_threads(seen)) is not None:
        evidence.append(f"with {better.threads} thread(s) it takes {better.factor:.2f}x the time, by itself")
    predicted = None if stage.predicted is None else seen.of_whole_run(stage.predicted)
    if cause == "act-one-at-a-time":
        evidence.append(f"{spec.env.num_envs} observation(s) at a time")
    evidence += _grown(seen, name)
    where, lines = name, tuple[Line, ...]()
    if name == "step" and seen.env_code is not None:
        lines = tuple(seen.env_code["lines"])
        where = place_of(lines[0]) if lines else name
        if cause == "rendering":
            evidence.append(f"drawing takes {seen.env_code['rendering']:.0%} of it")
        if lines:
            evidence.append(f"{lines[0]['share']:.0%} of it at {where}: {lines[0]['text']}")
    remedy, changes = what_to_do(seen, cause)
    said = (where, evidence, remedy, changes, predicted, measured, at_limit, name, lines)
    return Cause(cause, share, stage.seconds, *said, is_beside=stage.is_beside)


def _bound_by(arithmetic: float | None) -> str:
    """What holds a gradient step up."""
    if arithmetic is None:
        return "whether arithmetic or overhead binds it was not measured"
    return "arithmetic binds it" if arithmetic >= ARITHMETIC else "overhead binds it"


def _grown(seen: Examined, name: str) -> list[str]:
    """Whether it is this stage that has become slower; not where the machine has."""
    course, machine = seen.course, seen.watched.slower
    if course is None or course.grew != name or (machine is not None and course.slower < 1.3 * machine):
        return []
    times = course.last.stages[name] / max(course.first.stages[name], 1e-12)
    return [f"an env step took {course.slower:.2f}x as long at the end as at first: {name} took {times:.2f}x as long"]


def _cause_of_stage(seen: Examined, name: str, least: float | None) -> str:
    """`least` is how much of the stage the machine takes at any rate."""
    if name == "step" and seen.env_code is not None and seen.env_code["rendering"] >= RENDERS:
        return "rendering"
    if name == "update" and better_threads(seen) is not None:
        return "threads"
    if name == "update":
        return "update-arithmetic" if least is None or least >= ARITHMETIC else "update-dispatch"
    if name == "step":
        return _cause_of_step(seen, least)
    if name == "sample":
        return "priorities" if isinstance(seen.spec.replay.sampling, Prioritized) else "replay-sample"
    return OF_STAGE[name]


def _cause_of_step(seen: Examined, at_limit: float | None) -> str:
    limits, env = seen.limits, seen.spec.env
    if limits is None or limits.bare_step is None:
        return "env-step"
    if env.vectorization == "async" and at_limit is not None and at_limit < MOSTLY_TRANSPORT:
        return "env-transport"
    is_in_turn = limits.are_in_turn and env.num_envs > 1 and seen.pipeline in ("sync", "concurrent")
    return "env-one-at-a-time" if is_in_turn and limits.cores > 1 and limits.bare_step >= COSTLY_STEP else "env-step"


def _of_occasion(seen: Examined, name: str) -> Cause:
    occasion = seen.occasions[name]
    note = f" ({occasion.note})" if occasion.note else ""
    evidence = [f"one takes {in_time(occasion.seconds)}{note}, every {occasion.every:,} env steps"]
    per_step = occasion.per_env_step
    predicted = seen.seconds / (seen.seconds - per_step)
    share = per_step / seen.seconds
    return Cause(
        OF_OCCASION[name], share, per_step, occasion.field, evidence, "", False, predicted, None, None, occasion.field
    )


def _of_loss(seen: Examined, loss: Loss) -> Cause:
    """Growth is no matter of time, and what a GPU would bring is not known: the share is no time that can be won."""
    is_time = loss.where not in ("growth", "GPU")
    predicted = 1 / max(1 - loss.share, 1e-3) if is_time and loss.cause != "longer-episodes" else None
    seconds = loss.share * seen.seconds if is_time else 0.0
    said = (loss.where, loss.evidence, loss.remedy, False, predicted, None, None, loss.where)
    return Cause(loss.cause, loss.share, seconds, *said, is_verdict=loss.is_verdict, is_loss=True)


def in_time(seconds: float) -> str:
    """In the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
