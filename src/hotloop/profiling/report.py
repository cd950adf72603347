"""What a profile says: stages, Q-losses, episodes against env steps, and whether a step became slower.

The run itself is an ordinary one. Its course is read from the metrics it wrote, its stages are timed afterwards on
the state it ended in, so profiling changes neither the algorithm nor what comes out of it.
"""

from typing import Any

from hotloop.profiling.stages import Stages, median
from hotloop.spec import Spec

SEGMENTS = 8
NOTICEABLE = 1.25
"""A ratio beyond which a change is called one."""


def build(spec: Spec, stages: Stages, result: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole report as plain data: what `--json` prints and `profile.json` holds."""
    block = spec.block_plan
    fused = median(stages.fused)
    timed = {name: median(seconds) for name, seconds in stages.stages.items()}
    total = sum(timed.values())
    loss_seconds = (timed["target"] + timed["forward"]) / block.updates
    course = course_of(rows, spec)
    report = {
        "stages": [
            *(stage(name, seconds, fused, block.env_steps) for name, seconds in timed.items()),
            stage("rest", fused - total, fused, block.env_steps),
        ],
        "parts": [stage(name, median(times), fused, block.env_steps) for name, times in stages.parts.items()],
        "sum_of_stages_us": round(total * 1e6, 2),
        "update_us": round(median(stages.update) * 1e6, 2),
        "fused_us": round(fused * 1e6, 2),
        "sum_over_fused": round(total / fused, 3),
        "q_loss": {
            "calls": result["updates"] + result["skipped"],
            "mean_ms": round(loss_seconds * 1e3, 5),
            "mean_ms_with_gradient_and_step": round(
                (timed["target"] + timed["forward"] + timed["backward"] + timed["optimiser"]) / block.updates * 1e3, 5
            ),
        },
        **of_the_run(spec, result),
        "course": course,
    }
    report["says"] = [*_what_costs(report), *what_changed(course)]
    return report


def of_the_run(spec: Spec, result: dict[str, Any]) -> dict[str, Any]:
    """What every profile says of the run it is of: its block, its speed, its episodes."""
    block = spec.block_plan
    return {
        "block": {"env_steps": block.env_steps, "vector_steps": block.vector_steps, "updates": block.updates},
        **{name: result[name] for name in ("env_steps_per_s", "updates_per_s")},
        "episodes": {name: result[name] for name in ("env_steps", "episodes", "steps_per_episode")},
    }


def course_of(rows: list[dict[str, Any]], spec: Spec) -> list[dict[str, Any]]:
    """Speed per step and per episode in up to eight equal stretches of the run, from where learning began."""
    train = [row for row in rows if row["kind"] == "train"]
    pairs = [(a, b) for a, b in zip([_before_the_first(), *train], train, strict=False)]
    learning = [(a, b) for a, b in pairs if a["env_steps"] >= spec.replay.start and b["env_steps_per_s"]]
    count = min(SEGMENTS, len(learning))
    course = []
    for i in range(count):
        part = learning[i * len(learning) // count : (i + 1) * len(learning) // count]
        steps = part[-1][1]["env_steps"] - part[0][0]["env_steps"]
        seconds = sum((b["env_steps"] - a["env_steps"]) * spec.seeds / b["env_steps_per_s"] for a, b in part)
        episodes = part[-1][1]["episodes"] - part[0][0]["episodes"]
        course.append(
            {
                "env_steps": part[-1][1]["env_steps"],
                "us_per_step": round(seconds / (steps * spec.seeds) * 1e6, 3),
                "env_steps_per_s": round(steps * spec.seeds / seconds, 1),
                "episodes": episodes,
                "steps_per_episode": round(steps / episodes, 2) if episodes else None,
                "ms_per_episode": round(seconds / (episodes * spec.seeds) * 1e3, 4) if episodes else None,
            }
        )
    return course


def _before_the_first() -> dict[str, Any]:
    return {"env_steps": 0, "episodes": 0}


def stage(name: str, seconds: float, whole: float, env_steps: int) -> dict[str, Any]:
    """One row of the table: `seconds` of a block of `env_steps` that takes `whole` seconds."""
    return {
        "stage": name,
        "us_per_block": round(seconds * 1e6, 3),
        "us_per_env_step": round(seconds / env_steps * 1e6, 5),
        "share": round(seconds / whole, 4),
    }


def _what_costs(report: dict[str, Any]) -> list[str]:
    stages = sorted((s for s in report["stages"] if s["stage"] != "rest"), key=lambda stage: -stage["share"])
    first, second = stages[0], stages[1]
    learning = sum(s["share"] for s in stages if s["stage"] in ("target", "forward", "backward", "optimiser"))
    acting = sum(s["share"] for s in stages if s["stage"] in ("select", "env step", "insert", "sample", "priorities"))
    return [
        f"the costliest stage is {first['stage']} ({first['share']:.0%}), then {second['stage']} "
        f"({second['share']:.0%}); "
        f"learning takes {learning:.0%}, acting, the env and the replay {acting:.0%}",
        f"the stages alone add up to {report['sum_over_fused']:.2f} of the fused block",
    ]


def what_changed(course: list[dict[str, Any]]) -> list[str]:
    """Tell 'slower because the agent lives longer' from 'slower per step'."""
    known = [part for part in course if part["steps_per_episode"]]
    if len(known) < 2:
        return ["too few lines of metrics to see how speed moved: train longer, or set log.exact=true"]
    first, last = known[0], known[-1]
    step = last["us_per_step"] / first["us_per_step"]
    length = last["steps_per_episode"] / first["steps_per_episode"]
    episode = last["ms_per_episode"] / first["ms_per_episode"]
    said = (
        f"from the first to the last stretch an episode went from {first['ms_per_episode']:.3g} to "
        f"{last['ms_per_episode']:.3g} ms ({episode:.2f}x): it lasts {first['steps_per_episode']:.0f} to "
        f"{last['steps_per_episode']:.0f} steps ({length:.2f}x), and a step costs {step:.2f}x"
    )
    longer, slower = length >= NOTICEABLE, step >= NOTICEABLE
    if longer and slower:
        return [said, "episodes are slower for both reasons: the agent lives longer, and a step became slower"]
    if slower:
        return [said, "a step became slower: look at what grows with training, or at other load on this machine"]
    if longer:
        return [said, "episodes are slower because the agent lives longer; a step is not slower"]
    return [said, "neither episodes nor steps became noticeably slower"]
