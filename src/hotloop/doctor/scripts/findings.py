"""From what was seen of a script to causes: shares of its training thread's time, lines, evidence and what to do."""

import linecache
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hotloop.cores import usable_cores
from hotloop.doctor.causes import ARITHMETIC, MANY_UPDATES, Cause, in_time
from hotloop.doctor.losses import NEVER, of_machine
from hotloop.doctor.scripts.arithmetic import products_of, timed
from hotloop.doctor.scripts.attach import HOOK, Attended, Process
from hotloop.doctor.scripts.remedies import Remedy, remedy_of
from hotloop.doctor.scripts.stacks import Frame, busiest_thread
from hotloop.doctor.scripts.stages import ACT, OTHER, TRAINS, UPDATE, reader_of, seen_as
from hotloop.engines.products import Products
from hotloop.profiling.figures import Line

SHOWN_LINES = 8
IN_TURN = ("/gymnasium/vector/sync_vector_env.py", "/vec_env/dummy_vec_env.py")
COLLECTS = 0.05
"""Share of the time from which on garbage collection is a cause."""
LONGER = 1.5
"""Times as many steps of an episode at the end as at first that are more."""


class Shares(NamedTuple):
    """Of the time of the thread that trains."""

    by_cause: dict[str, float]
    lines: dict[str, Counter[Frame]]
    """Samples of each cause by the user's own line."""
    samples: int
    in_turn: float
    """Share that is in steps of envs which a vector env steps one after the other."""


class Found(NamedTuple):
    """All that is said of a script."""

    attended: Attended
    learner: Process | None
    causes: list[Cause]
    products: Products | None
    coverage: float
    overhead: float | None
    unnamed: tuple[Line, ...] = ()
    """Lines that take most of what has no name."""


def learner_of(attended: Attended) -> Process | None:
    """The process that learns; else the one that steps envs; else the first."""
    processes = list(attended.processes.values())
    for name in ("gradient_steps", "env_steps"):
        best = max(processes, key=lambda process: process.counts.get(name, 0.0), default=None)
        if best is not None and best.counts.get(name, 0.0):
            return best
    return max(processes, key=lambda process: sum(stack.samples for stack in process.stacks), default=None)


def shares_of(process: Process) -> Shares:
    """What its training thread was seen to do."""
    thread = busiest_thread(process.stacks, TRAINS)
    samples: Counter[str] = Counter()
    lines: dict[str, Counter[Frame]] = defaultdict(Counter)
    in_turn, reader = 0, reader_of(process.stacks, is_users)
    for stack in process.stacks:
        if stack.thread != thread:
            continue
        cause, at = seen_as(stack.frames, reader, _text)
        samples[cause] += stack.samples
        if at is not None:
            lines[cause][at] += stack.samples
        if cause == "env-step" and any(frame.file.endswith(IN_TURN) for frame in stack.frames):
            in_turn += stack.samples
    whole = max(1, samples.total())
    return Shares({name: number / whole for name, number in samples.items()}, lines, samples.total(), in_turn / whole)


def findings_of(attended: Attended) -> Found:
    """Causes in the order of their shares."""
    learner = learner_of(attended)
    if learner is None or not learner.stacks:
        return Found(attended, learner, [], None, 0.0, None)
    shares = shares_of(learner)
    products = _products(learner)
    seconds = _seconds_of_step(attended)
    found = [
        _cause(name, share, shares, attended, learner, products, seconds)
        for name, share in shares.by_cause.items()
        if name != OTHER
    ]
    found += _of_memory(attended, learner, seconds)
    found += _of_machine(attended, learner, seconds)
    found += _of_episodes(attended)
    found.sort(key=lambda cause: -cause.share)
    covered = 1 - shares.by_cause.get(OTHER, 0.0)
    unnamed = tuple(_lines(shares.lines.get(OTHER, Counter()), shares.samples))
    return Found(attended, learner, found, products, covered, overhead_of(attended), unnamed)


def overhead_of(attended: Attended) -> float | None:
    """What the sampler costs: speed of windows without it against those with it."""
    for name in ("gradient_steps", "env_steps"):
        plain, sampled = (attended.per_second(name, is_sampled=each) for each in (False, True))
        if plain and sampled:
            return max(0.0, plain / sampled - 1)
    return None


def _seconds_of_step(attended: Attended) -> float:
    """Of an env step; of a gradient step where no env was seen."""
    steps = attended.total("env_steps") or attended.total("gradient_steps")
    return attended.steady_seconds / steps if steps else attended.steady_seconds


def _products(process: Process) -> Products | None:
    """Of a gradient step, run here as the script runs them; None where it does so elsewhere."""
    learning = process.learning or {}
    recorded, steps = learning.get("products"), learning.get("steps")
    if not isinstance(recorded, list) or not recorded or learning.get("devices") != ["cpu"]:
        return None
    found = timed(products_of(recorded), _threads(process))
    several = max(1, steps) if isinstance(steps, int) else 1
    return Products(found.number / several, found.flops / several, found.seconds / several)


def _cause(
    stage: str,
    share: float,
    shares: Shares,
    attended: Attended,
    learner: Process,
    products: Products | None,
    seconds: float,
) -> Cause:
    arithmetic = None
    evidence = [f"{share:.0%} of {shares.samples:,} samples of the training thread"]
    if stage == UPDATE and (steps := attended.total("gradient_steps")):
        each = share * attended.steady_seconds / steps
        evidence.append(f"a gradient step takes {in_time(each)}, {steps / attended.steady_seconds:,.0f} a second")
        if products is not None:
            arithmetic = min(1.0, products.seconds / each)
            evidence.append(f"its {products.number:.0f} matrix products alone take {in_time(products.seconds)} here")
    cause = _named(stage, attended, learner, shares, arithmetic)
    remedy = remedy_of(cause, attended, learner, arithmetic)
    evidence += remedy.evidence
    lines = tuple(_lines(shares.lines.get(stage, Counter()), shares.samples))
    where = f"{lines[0]['file']}:{lines[0]['line']} {lines[0]['function']}" if lines else stage
    return Cause(
        cause,
        share,
        share * seconds,
        where,
        evidence,
        remedy.text,
        remedy.changes_algorithm,
        _speedup(share, remedy),
        None,
        arithmetic,
        UPDATE if stage == UPDATE else stage,
        lines,
    )


def _speedup(share: float, remedy: Remedy) -> float:
    return 1 / max(1 - share * (1 - remedy.leaves), 1e-3)


def _named(stage: str, attended: Attended, learner: Process, shares: Shares, arithmetic: float | None) -> str:
    """A stage's cause, with what else is known."""
    if stage == ACT:
        return "act-one-at-a-time"
    several = learner.counts.get("envs", 0.0) > 1 and usable_cores() > 1
    if stage == "env-step" and shares.in_turn > 0.5 * shares.by_cause[stage] and several:
        each = shares.by_cause[stage] * attended.steady_seconds / max(1.0, attended.total("env_steps"))
        return "env-one-at-a-time" if each > COSTLY else stage
    if stage != UPDATE:
        return stage
    largest = max(shares.by_cause, key=lambda name: shares.by_cause[name])
    steps, updates = attended.total("env_steps"), attended.total("gradient_steps")
    if arithmetic is not None and arithmetic < ARITHMETIC and _threads(learner) > usable_cores():
        return "threads"
    if largest == UPDATE and steps and updates / steps > CLEARLY_MORE * MANY_UPDATES:
        return "update-count"
    return "update-arithmetic" if arithmetic is None or arithmetic >= ARITHMETIC else "update-dispatch"


def _threads(learner: Process) -> int:
    threads = (learner.learning or {}).get("threads")
    return threads if isinstance(threads, int) else 1


CLEARLY_MORE = 1.5
"""Times: what is counted in windows is one more or less."""
COSTLY = 2e-4
"""Seconds from which on a step of an env is costly."""


def _text(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line).strip()


def _lines(seen: Mapping[Frame, int], samples: int) -> list[Line]:
    most = sorted(seen.items(), key=lambda each: -each[1])[:SHOWN_LINES]
    return [
        {
            "file": Path(frame.file).name,
            "line": frame.line,
            "function": frame.name,
            "share": round(number / max(1, samples), 4),
            "text": _text(frame),
        }
        for frame, number in most
    ]


def _of_memory(attended: Attended, learner: Process, seconds: float) -> list[Cause]:
    """Garbage collection in the process that learns."""
    share = learner.collecting / max(attended.steady_seconds, 1e-9)
    if share < COLLECTS:
        return []
    evidence = [f"garbage collection takes {share:.0%} of the time"]
    remedy = "gc.freeze() after set-up and gc.set_threshold(100_000), or fewer objects in the replay"
    said = ("gc", evidence, remedy, False, 1 / (1 - min(share, 0.99)), None, None, "gc")
    return [Cause("memory", share, share * seconds, *said)]


def _of_machine(attended: Attended, learner: Process, seconds: float) -> list[Cause]:
    """Other processes, and a limit of cores; no verdict where it is not known how long the script waited for one."""
    if attended.watched is None:
        return []
    waited = None if learner.waited is None else min(1.0, learner.waited / max(attended.steady_seconds, 1e-9))
    return [
        Cause(
            loss.cause,
            loss.share,
            loss.share * seconds,
            loss.where,
            loss.evidence,
            loss.remedy,
            changes_algorithm=False,
            predicted=1 / max(1 - loss.share, 1e-3),
            measured=None,
            stage=loss.where,
            is_verdict=NEVER if waited is None and loss.where == "other processes" else loss.is_verdict,
            is_loss=True,
        )
        for loss in of_machine(attended.watched._replace(waited=waited))
    ]


def _of_episodes(attended: Attended) -> list[Cause]:
    """Whether episodes last longer at the end than at first, and steps do not."""
    third = len(attended.windows) // 3
    if third == 0:
        return []
    ends = attended.windows[:third], attended.windows[-third:]
    steps, episodes = (
        [sum(window.counts.get(name, 0.0) for window in end) for end in ends] for name in ("env_steps", "episodes")
    )
    if min(episodes) < 5:
        return []
    before, after = steps[0] / episodes[0], steps[1] / episodes[1]
    if after < LONGER * before:
        return []
    evidence = [f"an episode has {after:.0f} steps at the end, {before:.0f} at first"]
    text = "count env steps, not episodes: a step costs the same"
    # No time that can be won, and whether the script counts episodes is not known: said, and never the verdict.
    return [
        Cause("longer-episodes", 0.0, 0.0, "episodes", evidence, text, False, None, None, None, "episodes", (), NEVER)
    ]


@lru_cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether it is neither of Python nor of a package that was installed."""
    inside = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>", "<__array_function__")
    is_elsewhere = any(part in file for part in inside) or file.startswith((*_installed(), str(HOOK)))
    return file.endswith(".py") and not is_elsewhere
