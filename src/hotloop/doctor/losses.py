"""What a run loses to no stage of its own: to the machine, to its memory, to episodes that become longer.

| loss | its share is | it is the verdict |
|---|---|---|
| other processes | the time a thread had no core, at most the others' share of cores | first (1), by share |
| a control group | the time it held the run back | first (1), by share |
| the processor's speed | what a fixed piece of work takes longer at the end | never: it happens to all stages |
| an idle GPU | that of the gradient steps | never: what it would bring is not known |
| swapping | the time that processes waited for memory | by share |
| garbage collection | the time it took | first (2), by share |
| growth of the process | env steps that the run will not come to | never: it is not slow |
| longer episodes | what an episode takes longer | by share where the run ends by stop.episodes |

(1) Where others took 40 % of the cores, or a group 40 % of the time, no other figure is to be trusted. (2) It is within
stages: where it is half of the largest one, that is no more than where it happens.
"""

from typing import NamedTuple

from hotloop.doctor.course import Course
from hotloop.doctor.examination import Examined
from hotloop.doctor.watch import Watched
from hotloop.replay.plan import readable

FIRST, BY_SHARE, NEVER = "first", "by share", "never"
"""When a loss is the verdict."""
LISTED, VERDICT = 0.10, 0.20
"""Share of the time from which a cause is listed in full, and may be the verdict."""
MANY, DOUBTFUL = 0.25, 0.40
"""Share of the cores that others take from which on they are told of, and no figure is to be trusted."""
SLOWED = 1.25
"""Times as long that a fixed piece of work takes at the end from which on the processor is called slower."""
FAULTS_PER_S, OF_FAULT = 20.0, 1e-4
"""Pages a second that must be waited for to be told of; seconds of one where the machine does not say."""


class Loss(NamedTuple):
    """One of them."""

    cause: str
    share: float
    where: str
    evidence: list[str]
    remedy: str
    is_verdict: str
    """FIRST, BY_SHARE or NEVER."""


def losses_of(seen: Examined) -> list[Loss]:
    """As far as there is something to say."""
    watched, shares = seen.watched, {name: stage.seconds / seen.seconds for name, stage in seen.stages.items()}
    found = [
        *of_machine(watched),
        *of_gpu(watched, seen.machine.get("backend", ""), shares.get("update", 0.0)),
        *of_memory(watched, seen.collecting, max(shares.values(), default=0.0)),
        *of_growth(watched, seen.growth, seen.spec.stop.steps, seen.spec.replay.capacity),
    ]
    if seen.course is not None:
        found += of_episodes(seen.course, counts_episodes=seen.spec.stop.episodes is not None)
    return found


def of_machine(watched: Watched) -> list[Loss]:
    """Other processes, a limit, a processor that becomes slower."""
    found: list[Loss] = []
    others, waited, throttled = watched.others, watched.waited, watched.throttled
    if others is not None:
        lost = others if waited is None else min(waited, others)
        if others >= MANY or lost >= LISTED:
            evidence = [f"other processes used {others:.0%} of the {watched.cores} core(s)"]
            evidence.append(_top(watched) or "they cannot be seen from here (another container, or the host)")
            known = "how long it waited for a core is not known"
            evidence.append(known if waited is None else f"the run waited {waited:.0%} of the time for a core")
            remedy = "end those that are yours and not needed, or wait; or keep apart by `taskset -c CORES`"
            first = others >= DOUBTFUL and lost >= VERDICT
            found.append(Loss("machine", lost, "other processes", evidence, remedy, FIRST if first else BY_SHARE))
    if throttled is not None and throttled >= LISTED:
        evidence = [f"its control group held the run back for {throttled:.0%} of the time: its share of cores was used"]
        remedy = "a larger limit of cores (docker run --cpus, resources.limits.cpu), or fewer threads"
        how = FIRST if throttled >= DOUBTFUL else BY_SHARE
        found.append(Loss("machine", throttled, "control group", evidence, remedy, how))
    if watched.slower is not None and watched.slower >= SLOWED:
        evidence = [f"a fixed piece of work took {watched.slower:.2f}x as long at the end as at first"]
        remedy = "look at the processor's heat and power settings, or at who else is on the host"
        found.append(Loss("machine", 1 - 1 / watched.slower, "processor speed", evidence, remedy, NEVER))
    return found


def of_gpu(watched: Watched, backend: str, updates: float) -> list[Loss]:
    """A GPU that is there while gradient steps, which take this share, are made without it."""
    if not watched.has_gpu or not backend.endswith("cpu") or updates < VERDICT:
        return []
    evidence = [f"the machine has a GPU, but the engine uses {backend}: gradient steps take {updates:.0%} of the time"]
    package = "torch with CUDA" if "torch" in backend else '`pip install "jax[cuda12]"`'
    remedy = f"{package}, and nothing in JAX_PLATFORMS or CUDA_VISIBLE_DEVICES that hides it"
    return [Loss("machine", updates, "GPU", evidence, remedy, NEVER)]


def of_memory(watched: Watched, collecting: float, largest: float) -> list[Loss]:
    """Swapping and garbage collection; `largest` is the share of the stage that takes most."""
    found: list[Loss] = []
    faults, seconds = watched.faults or 0, max(watched.seconds, 1e-9)
    if watched.swapped and faults / seconds >= FAULTS_PER_S:
        share, how = watched.stalled, "processes waited"
        if share is None:
            share, how = min(1.0, faults * OF_FAULT / seconds), "estimated at 0.1 ms each: the run waited"
        evidence = [
            f"{readable(watched.swapped)} went to or from the swap space, and the run waited for {faults:,} pages",
            f"{how} {share:.0%} of the time for memory",
        ]
        found.append(
            Loss("memory", share, "swapping", evidence, "less replay.capacity, or end what else holds memory", BY_SHARE)
        )
    if collecting >= LISTED:
        evidence = [f"Python's garbage collector took {collecting:.0%} of the time, within the stages"]
        remedy = (
            "make fewer objects that refer to each other in a circle; or `gc.freeze()` once all is made, or "
            "`gc.set_threshold(100_000)`"
        )
        first = collecting >= max(VERDICT, largest / 2)
        found.append(Loss("memory", collecting, "garbage collection", evidence, remedy, FIRST if first else BY_SHARE))
    return found


def of_growth(watched: Watched, growth: float | None, steps: int, capacity: int) -> list[Loss]:
    """Bytes of an env step that will not fit."""
    if growth is None or growth * steps <= watched.left:
        return []
    reached = int(watched.left / growth)
    evidence = [
        f"beside its replay the process grew by {readable(round(growth))} an env step: {readable(watched.left)} are "
        f"left, enough for {reached:,} of {steps:,} env steps"
    ]
    remedy = f"look for what the env or a callback keeps; --set replay.capacity={max(1, capacity // 2)} only delays it"
    return [Loss("memory", 1 - reached / steps, "growth", evidence, remedy, NEVER)]


def of_episodes(course: Course, *, counts_episodes: bool) -> list[Loss]:
    """Episodes that last longer while a step costs the same."""
    if not course.has_longer_episodes or course.longer is None:
        return []
    first, last = course.steps_per_episode
    evidence = [
        f"an episode had {first:,.0f} env steps at first and {last:,.0f} at the end ({course.longer:.2f}x)",
        f"an env step took {course.slower:.2f}x as long: the same, so the run is not slower",
    ]
    remedy = "count env steps instead of episodes (stop.steps), or limit them by the env's max_episode_steps"
    how = BY_SHARE if counts_episodes else NEVER
    return [Loss("longer-episodes", 1 - 1 / course.longer, "episodes", evidence, remedy, how)]


def say_machine(watched: Watched, losses: list[Loss]) -> str:
    """A line on the machine where there is something to say; empty where there is not."""
    said = [sentence for loss in losses if loss.cause in ("machine", "memory") for sentence in loss.evidence]
    if watched.missing:
        said.append(f"not known here: {', '.join(watched.missing)}")
    return "; ".join(said)


def _top(watched: Watched) -> str:
    return ", ".join(f"{other.name} ({other.pid}) {other.share:.0%}" for other in watched.top)
