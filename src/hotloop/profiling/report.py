"""What a profile says: stages, Q-losses, episodes against env steps, and whether a step became slower.

The run itself is an ordinary one. Its course is read from the metrics it wrote, its stages are timed afterwards on
the state it ended in, so profiling changes neither the algorithm nor what comes out of it.
"""

from hotloop.plain import Figures, number
from hotloop.profiling.figures import Episodes, FusedProfile, OfTheRun, Stage, Stretch, per_episode
from hotloop.profiling.stages import Stages, median
from hotloop.spec import Spec

SEGMENTS = 8
NOTICEABLE = 1.25
"""A ratio beyond which a change is called one."""


def build(spec: Spec, stages: Stages, result: Figures, rows: list[Figures]) -> FusedProfile:
    """The whole report as plain data: what `--json` prints and `profile.json` holds."""
    block = spec.block_plan
    fused = median(stages.fused)
    timed = {name: median(seconds) for name, seconds in stages.stages.items()}
    total = sum(timed.values())
    learners = len(spec.members) if spec.members.are_a_team else 1
    updates = learners * block.updates
    loss_seconds = (timed["target"] + timed["forward"]) / updates
    run, course = of_the_run(spec, result), course_of(rows, spec)
    report: FusedProfile = {
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
            "calls": learners * (number(result, "updates") + number(result, "skipped")),
            "mean_ms": round(loss_seconds * 1e3, 5),
            "mean_ms_with_gradient_and_step": round(
                (timed["target"] + timed["forward"] + timed["backward"] + timed["optimiser"]) / updates * 1e3, 5
            ),
        },
        "block": run["block"],
        "env_steps_per_s": run["env_steps_per_s"],
        "updates_per_s": run["updates_per_s"],
        "episodes": run["episodes"],
        "course": course,
        "says": [],
    }
    report["says"] = [*_what_costs(report), *what_changed(course)]
    return report


def of_the_run(spec: Spec, result: Figures) -> OfTheRun:
    """What every profile says of the run it is of: its block, its speed, its episodes."""
    block, lasts = spec.block_plan, result["steps_per_episode"]
    episodes: Episodes = {
        "env_steps": number(result, "env_steps"),
        "episodes": number(result, "episodes"),
        "steps_per_episode": None if lasts is None else number(result, "steps_per_episode"),
    }
    return {
        "block": {"env_steps": block.env_steps, "vector_steps": block.vector_steps, "updates": block.updates},
        "env_steps_per_s": number(result, "env_steps_per_s"),
        "updates_per_s": number(result, "updates_per_s"),
        "episodes": episodes,
    }


def course_of(rows: list[Figures], spec: Spec) -> list[Stretch]:
    """Speed per step and per episode in up to eight equal stretches of the run, from where learning began."""
    train = [row for row in rows if row["kind"] == "train"]
    pairs = [(a, b) for a, b in zip([_before_the_first(), *train], train, strict=False)]
    learning = [(a, b) for a, b in pairs if number(a, "env_steps") >= spec.replay.start and b["env_steps_per_s"]]
    count = min(SEGMENTS, len(learning))
    course: list[Stretch] = []
    for i in range(count):
        part = learning[i * len(learning) // count : (i + 1) * len(learning) // count]
        steps, episodes = (number(part[-1][1], name) - number(part[0][0], name) for name in ("env_steps", "episodes"))
        seconds = sum(seconds_between(a, b) * spec.seeds for a, b in part)
        course.append(
            {
                "env_steps": number(part[-1][1], "env_steps"),
                "us_per_step": round(seconds / (steps * spec.seeds) * 1e6, 3),
                "env_steps_per_s": round(steps * spec.seeds / seconds, 1),
                "episodes": episodes,
                "steps_per_episode": round(steps / episodes, 2) if episodes else None,
                "ms_per_episode": round(seconds / (episodes * spec.seeds) * 1e3, 4) if episodes else None,
            }
        )
    return course


def seconds_between(a: Figures, b: Figures) -> float:
    """From one line of metrics to the next, at the speed that the second says."""
    return (number(b, "env_steps") - number(a, "env_steps")) / number(b, "env_steps_per_s")


def _before_the_first() -> Figures:
    return {"env_steps": 0, "episodes": 0}


def stage(name: str, seconds: float, whole: float, env_steps: int) -> Stage:
    """One row of the table: `seconds` of a block of `env_steps` that takes `whole` seconds."""
    return {
        "stage": name,
        "us_per_block": round(seconds * 1e6, 3),
        "us_per_env_step": round(seconds / env_steps * 1e6, 5),
        "share": round(seconds / whole, 4),
    }


def _what_costs(report: FusedProfile) -> list[str]:
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


def what_changed(course: list[Stretch]) -> list[str]:
    """Tell 'slower because the agent lives longer' from 'slower per step'."""
    known = [(part["us_per_step"], *of_episodes) for part in course if (of_episodes := per_episode(part))]
    if len(known) < 2:
        return ["too few lines of metrics to see how speed moved: train longer, or set log.exact=true"]
    first, last = known[0], known[-1]
    step, length, episode = (now / before for before, now in zip(first, last, strict=True))
    said = (
        f"from the first to the last stretch an episode went from {first[2]:.3g} to {last[2]:.3g} ms "
        f"({episode:.2f}x): it lasts {first[1]:.0f} to {last[1]:.0f} steps ({length:.2f}x), "
        f"and a step costs {step:.2f}x"
    )
    longer, slower = length >= NOTICEABLE, step >= NOTICEABLE
    if longer and slower:
        return [said, "episodes are slower for both reasons: the agent lives longer, and a step became slower"]
    if slower:
        return [said, "a step became slower: look at what grows with training, or at other load on this machine"]
    if longer:
        return [said, "episodes are slower because the agent lives longer; a step is not slower"]
    return [said, "neither episodes nor steps became noticeably slower"]
