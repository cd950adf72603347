"""A profile of a run on the host: its own spans, which are always on, and what they add up to."""

import json
from itertools import pairwise
from statistics import fmean

from hotloop.assembly import PipelineChoice
from hotloop.errors import SpecError
from hotloop.plain import Figures, inner, number
from hotloop.profiling import show
from hotloop.profiling.figures import HostProfile
from hotloop.profiling.report import course_of, of_the_run, seconds_between, stage, what_changed
from hotloop.progress import Reporter
from hotloop.registry import PIPELINES, opens_envs_elsewhere
from hotloop.runs import metrics
from hotloop.runs.folder import RunFolder
from hotloop.spans import Spans
from hotloop.spec import Spec

ADVICE = {
    "step": "the env is what holds this run back: more envs at once, env.vectorization: async, or a faster env",
    "update": "learning is what holds this run back: a smaller network, batch_size or updates_per_step makes it do "
    "less; pipeline concurrent steps the envs meanwhile",
    "select": "acting is what holds this run back: more envs share one call",
    "insert": "storing is what holds this run back: more envs share one call",
    "sample": "drawing batches is what holds this run back: uniform sampling, or smaller batches",
    "redraw": "drawing by priorities within a block is what holds this run back: raise "
    "replay.sampling.updates_per_draw",
    "transfer": "the way to the device is what holds this run back: smaller batches, uint8 observations",
    "evaluate": "evaluations are what hold this run back: raise evaluation.every, or lower evaluation.episodes or "
    "evaluation.max_share",
    "wait": "the actors are what holds this run back: more of them (actors.count) or more envs of each, if there are "
    "cores left, or a faster env",
    "log": "saving and logging are what hold this run back: raise log.checkpoint_every or log.every",
}
LEARNER = ("redraw", "transfer", "update")
ACTORS_WORKS = ("env", "act", "hand_over", "wait")


def profile_host_run(
    spec: Spec, pipeline: PipelineChoice, spans: Spans, result: Figures, folder: RunFolder, reporter: Reporter
) -> HostProfile:
    """Leaves profile.json, profile.png and trace.json in the run's folder."""
    rows = metrics.read(folder.metrics_file)
    if sum(row["kind"] == "train" and number(row, "env_steps") >= spec.replay.start for row in rows) < 2:
        raise SpecError(
            f"the run is saved, but a profile needs two lines of metrics after learning began; train longer, or "
            f"set log.exact=true (log.every is {spec.log.every:,})"
        )
    found = build(spec, pipeline, rows, result)
    try:
        (folder.path / "profile.json").write_text(json.dumps(found, indent=1) + "\n")
        spans.write_trace(folder.path / "trace.json")
        with reporter.busy("drawing"):
            show.draw(found, spec.name, folder.path / "profile.png")
    except OSError as error:
        result["disk_error"] = said = f"the profile could not be written: {error}"
        reporter.warn(said)
    return found


def build(spec: Spec, pipeline: PipelineChoice, rows: list[Figures], result: Figures) -> HostProfile:
    """The stages of the lines of metrics that lie after the learning start, per block of env steps."""
    train = [row for row in rows if row["kind"] == "train" and "stage_seconds" in row]
    pairs = [(a, b) for a, b in pairwise(train) if number(a, "env_steps") >= spec.replay.start]
    steps = sum(number(b, "env_steps") - number(a, "env_steps") for a, b in pairs)
    seconds = sum(seconds_between(a, b) for a, b in pairs)
    blocks = steps / spec.block_plan.env_steps
    of_stages = [inner(b, "stage_seconds") for _, b in pairs]
    spent = {name: sum(number(each, name) for each in of_stages) for name in inner(train[-1], "stage_seconds")}
    record = PIPELINES[pipeline.name]
    is_concurrent = record.steps_meanwhile and not record.in_processes  # which has a stage for its waiting
    evaluate, log = spent.pop("evaluate"), spent.pop("log")
    beside = sum(spent[name] for name in LEARNER) if is_concurrent else 0.0
    wall = seconds + evaluate  # which the speed of a line of metrics leaves out
    rest = seconds - log - sum(spent.values()) + beside
    if is_concurrent:  # what is left of the loop's time is waiting for the learner
        spent["wait for the learner"], rest = max(0.0, rest), min(0.0, rest)
    rows_of_stages = [
        stage(name, value / blocks, wall / blocks, spec.block_plan.env_steps)
        for name, value in {**spent, "evaluate": evaluate, "log": log, "rest": rest}.items()
    ]
    report: HostProfile = {
        "pipeline": str(pipeline),
        "stages": rows_of_stages,
        "parts": [],
        "whole_us": round(wall / blocks * 1e6, 2),
        "outside_env_and_update": round(1 - (spent["step"] + spent["update"]) / wall, 4),
        **of_the_run(spec, result),
        "course": course_of(rows, spec),
        "says": [],
    }
    says = _who_waits([b for _, b in pairs], report) if record.in_processes else []
    report["says"] = [*(says or _what_costs(spec, report, is_concurrent)), *what_changed(report["course"])]
    return report


def _who_waits(lines: list[Figures], report: HostProfile) -> list[str]:
    """Actors that never wait for a learner that does: then they hold it back, whatever its costliest stage is."""
    spent = {work: fmean(number(line, f"actors_{work}_share") for line in lines) for work in ACTORS_WORKS}
    waits = next(row["share"] for row in report["stages"] if row["stage"] == "wait")
    if waits <= spent["wait"]:
        return []
    shares = ", ".join(f"{work.replace('_', ' ')} {share:.0%}" for work, share in spent.items())
    return [f"actors spend their time on: {shares}; the learner waits {waits:.0%} of its own; {ADVICE['wait']}"]


def _what_costs(spec: Spec, report: HostProfile, is_concurrent: bool) -> list[str]:
    named = [row for row in report["stages"] if row["stage"] in ADVICE]
    if is_concurrent:
        learner = sum(row["share"] for row in named if row["stage"] in LEARNER)
        acting = sum(row["share"] for row in named if row["stage"] not in LEARNER)
        side = "learner" if learner > acting else "host loop"
        busy, other = max(learner, acting), min(learner, acting)
        first = [f"the {side} takes longer: it is busy {busy:.0%} of the time, the other {other:.0%}"]
        named = [row for row in named if (row["stage"] in LEARNER) == (side == "learner")]
    else:
        first = []
    most = max(named, key=lambda row: row["share"])
    advice = ADVICE[most["stage"]]
    if most["stage"] == "update" and spec.turns is not None:
        advice = (
            "learning is what holds this run back: a smaller network or batch_size, or fewer turns, make it do less"
        )
    elif most["stage"] == "update" and (spec.agents is not None or opens_envs_elsewhere(spec.pipeline)):
        advice = advice.partition("; ")[0]  # there is none beside sync for several agents; the other has actors already
    said = f"the costliest stage is {most['stage']} ({most['share']:.0%}); {advice}"
    if most["stage"] == "update" and spec.engine == "torch" and spec.torch.mode == "eager":
        said += "; torch.mode: compiled, or engine: jax where the network allows it, take the same steps faster"
    return [*first, said]
