"""The Q-loss ladder: a slow Q-loss, each piece of advice for it alone, what really helps, and hotloop's engines.

Each row is the training step of SLM-Lab's `dqn_cartpole` at equal data: 4 batches, 8 passes over each (8 and 4 where 8
are joined). Whether a row gives the original's weights is measured, not claimed. A row that takes fewer optimiser steps
is another algorithm, and its time is that of the same passes. Time per gradient step is the whole of it (forward, loss,
way back, clipping, optimiser, its share of the draw), interleaved in this process; what the real loop does with it
(calls, shares, FPS, memory) is measured in a process per row.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import torch

from hotloop.bench import qloss_picture
from hotloop.bench.measure import FASTER, Result, Row, interleave, machine, paired_ratio
from hotloop.bench.qloss_hotloop import EngineCase, EngineLearner, learned_by
from hotloop.bench.qloss_loop import Task, in_child
from hotloop.bench.qloss_original import BATCHES, CAPACITY, STEPS_PER_CALL, QLearner, Setting, Switches
from hotloop.bench.qloss_replay import Batch, Memory, Transition
from hotloop.plain import Figures, Json, number
from hotloop.progress import Reporter

ORIGINAL = "original"
SWITCHED: dict[str, Switches] = {
    ORIGINAL: Switches(),
    "combined forward": Switches(combined_forward=True),
    "pre-allocated buffers": Switches(buffers=True),
    "mega-batch of 2": Switches(mega_batch=2),
    "mega-batch of 4": Switches(mega_batch=4),
    "mega-batch of 8": Switches(mega_batch=8),
    "prefetched batches": Switches(prefetch=True),
    "accumulation over 4": Switches(accumulate=4),
    "lazy log": Switches(lazy_log=True),
    "no duplicate forward": Switches(no_duplicate_forward=True),
    "targets once per batch": Switches(targets_once=True),
    "array replay": Switches(array_replay=True),
    "fused optimiser": Switches(fused_optimizer=True),
    "these five together": Switches(
        lazy_log=True, no_duplicate_forward=True, targets_once=True, array_replay=True, fused_optimizer=True
    ),
}
COMPILED, XLA = "hotloop: torch compiled", "hotloop: XLA"
ENGINES: dict[str, EngineCase] = {
    "hotloop: torch eager": EngineCase("torch", "eager"),
    COMPILED: EngineCase("torch", "compiled"),
    XLA: EngineCase("jax"),
}


class Ladder(NamedTuple):
    """A setting, rounds of timing, and frames of its real loops."""

    name: str
    setting: Setting
    rounds: int
    frames: int


LADDERS = (
    Ladder("cartpole", Setting(), rounds=15, frames=500),
    Ladder("cartpole-128", Setting(batch_size=128), rounds=9, frames=200),
    Ladder("acrobot", Setting("Acrobot-v1", 6, 3), rounds=9, frames=200),
)
SECONDS_PER_TURN = 0.06
"""A fast case makes as many train calls in its turn as take so long."""
COMPARED_CALLS = 2
NEAR = 1e-3
"""Weights agree when they are apart by less than this share of the way they have gone. Rounding alone makes 1e-6, where
it meets a kink 1e-3; another algorithm makes 0.3 and more."""
WHOLE_FRAMES, WHOLE_STEPS = 10_000, 79_744
PICTURE = Path("bench-qloss.png")


def run(reporter: Reporter) -> Result:
    """All ladders, then whole trainings, then the picture."""
    torch.set_num_threads(1)
    rows: list[Row] = []
    kinds: dict[str, str] = {}
    for ladder in LADDERS:
        of_ladder, of_kind = climb(ladder, reporter)
        rows += of_ladder
        kinds |= of_kind
    whole = end_to_end(reporter)
    first = [row for row in rows if row.case.startswith(f"{LADDERS[0].name}/")]
    picture = qloss_picture.draw(first, kinds, whole, PICTURE)
    return Result("qloss", {**machine(), **_settings(), "picture": str(picture.resolve())}, [*rows, *whole])


def climb(ladder: Ladder, reporter: Reporter) -> tuple[list[Row], dict[str, str]]:
    """The rows of one setting, and what kind of thing each case is."""
    pool = transitions(ladder.setting, CAPACITY)
    with reporter.busy(f"{ladder.name}: which rows give the original's weights?"):
        engines = {name: EngineLearner(ladder.setting, case, CAPACITY) for name, case in ENGINES.items()}
        off = deviations(ladder.setting, pool, engines)
    seconds = _timed(ladder, pool, engines, reporter)
    for engine in engines.values():
        engine.close()
    rows, kinds = [], {}
    for place, (name, times) in enumerate(seconds.items(), 1):
        reporter.show(place, len(seconds), {f"{ladder.name}, a real loop by": name})
        task = Task(ladder.setting, ladder.frames, SWITCHED.get(name), ENGINES.get(name))
        is_same, figures = off[name] <= NEAR, in_child(task)
        row = Row(f"{ladder.name}/{name}", statistics.median(times) / STEPS_PER_CALL * 1e6, "us/step")
        if name != ORIGINAL:
            row.against, row.means = f"{ladder.name}/{ORIGINAL}", FASTER
            row.ratio, row.spread = paired_ratio(seconds[ORIGINAL], times)
        row.columns, row.note = _columns(off[name], is_same, figures), _note(name)
        kinds[row.case] = _kind(name, is_same)
        rows.append(row)
    return rows, kinds


def end_to_end(reporter: Reporter) -> list[Row]:
    """All of `dqn_cartpole` by the original's loop and by hotloop, before it and after it, each in a fresh process."""
    setting = LADDERS[0].setting
    tasks = {name: Task(setting, WHOLE_FRAMES, engine=ENGINES[name], whole=True) for name in (COMPILED, XLA)}
    tasks[ORIGINAL] = Task(setting, WHOLE_FRAMES, Switches(), whole=True)
    found: dict[str, list[Figures]] = {name: [] for name in tasks}
    order = [XLA, COMPILED, ORIGINAL, ORIGINAL, COMPILED, XLA]
    for place, name in enumerate(order, 1):
        with reporter.busy(f"{WHOLE_FRAMES:,} frames by {name} ({place} of {len(order)})"):
            found[name].append(in_child(tasks[name]))
    for name, runs in found.items():
        for figures in runs:
            if number(figures, "gradient_steps") != WHOLE_STEPS:
                raise ValueError(f"{name} took {figures['gradient_steps']} gradient steps, expected {WHOLE_STEPS:,}")
    originals = [number(figures, "seconds") for figures in found[ORIGINAL]]
    baseline = f"end to end/{ORIGINAL}"
    note = f"{WHOLE_FRAMES:,} frames, {len(originals)} runs: mean"
    rows = [Row(baseline, statistics.mean(originals), "s", note=note)]
    rows[0].columns = {"peak MB": found[ORIGINAL][0]["peak_mb"]}
    for name in (COMPILED, XLA):
        for what, field in (("without compile", "seconds_without_compile"), ("with compile", "seconds")):
            seconds = [number(figures, field) for figures in found[name]]
            ratios = [before / after for before in originals for after in seconds]
            row = Row(f"end to end/{name}, {what}", statistics.mean(seconds), "s", statistics.mean(ratios), baseline)
            row.spread = min(ratios), max(ratios)
            row.columns = {"peak MB": max(number(figures, "peak_mb") for figures in found[name])}
            row.note = f"{len(seconds)} runs: mean, lowest, highest of all pairs; it writes its files"
            rows.append(row)
    return rows


def transitions(setting: Setting, count: int) -> list[Transition]:
    """Steps of the env under random actions."""
    env, random, kept = gymnasium.make(setting.env_id), np.random.default_rng(0), []
    obs = env.reset(seed=0)[0]
    for _ in range(count):
        action = int(random.integers(setting.num_actions))
        after, reward, terminated, truncated, _ = env.step(action)
        kept.append(Transition(obs, action, float(reward), after, bool(terminated)))
        obs = env.reset()[0] if terminated or truncated else after
    env.close()
    return kept


def deviations(
    setting: Setting, pool: list[Transition], engines: Mapping[str, EngineLearner] | None = None
) -> dict[str, float]:
    """How far each case's weights are from the original's after the same train calls on the same batches.

    As a share of how far those have moved, both as Euclidean distances: where rounding puts one sample on the other
    side of selu's kink, one unit takes another step, and the largest difference would say no more than that.
    """
    start = QLearner(setting).weights()
    expected = learned_by_original(setting, Switches(), pool, start)
    found = {
        name: _deviation(learned_by_original(setting, switches, pool, start), expected, start)
        for name, switches in SWITCHED.items()
    }
    for name, learner in (engines or {}).items():
        start, learned = learned_by(learner.engine, _batches_of_calls(setting, pool))
        found[name] = _deviation(learned, learned_by_original(setting, Switches(), pool, start), start)
    return found


def learned_by_original(
    setting: Setting, switches: Switches, pool: list[Transition], start: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Weights after COMPARED_CALLS train calls, each with a move of the target net."""
    learner = QLearner(setting, switches)
    learner.start_from(start)
    for transition in pool:
        learner.insert(transition)
    for _ in range(COMPARED_CALLS):
        learner.train_call()
        learner.move_target()
    return learner.weights()


def _batches_of_calls(setting: Setting, pool: list[Transition]) -> list[list[Batch]]:
    """The batches that the original learns from in `learned_by_original`."""
    memory = Memory("replay", CAPACITY, setting.obs_size)
    for transition in pool:
        memory.insert(transition)
    size = setting.batch_size
    return [[memory.gather(memory.draw(size)) for _ in range(BATCHES)] for _ in range(COMPARED_CALLS)]


def _deviation(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], start: Mapping[str, np.ndarray]
) -> float:
    off, moved = (
        np.sqrt(sum(float(np.square(each[name] - other[name]).sum()) for name in expected))
        for each, other in ((found, expected), (expected, start))
    )
    return float(off / moved) if np.isfinite(off) else float("inf")


def _timed(
    ladder: Ladder, pool: list[Transition], engines: Mapping[str, EngineLearner], reporter: Reporter
) -> dict[str, list[float]]:
    """Seconds of a train call by each case in each round."""
    calls: dict[str, Callable[[], None]] = {}
    for name, switches in SWITCHED.items():
        learner = QLearner(ladder.setting, switches)
        for transition in pool:
            learner.insert(transition)
        calls[name] = learner.train_call
    calls |= {name: engine.train_call for name, engine in engines.items()}
    times = {name: _calls_in_a_turn(call) for name, call in calls.items()}
    turns = {name: _repeated(call, times[name]) for name, call in calls.items()}
    seconds = interleave(turns, rounds=ladder.rounds, reporter=reporter)
    return {name: [second / times[name] for second in each] for name, each in seconds.items()}


def _calls_in_a_turn(call: Callable[[], None]) -> int:
    call()
    started = time.perf_counter()
    call()
    return max(1, round(SECONDS_PER_TURN / (time.perf_counter() - started)))


def _repeated(call: Callable[[], None], times: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(times):
            call()

    return turn


def _columns(off: float, is_same: bool, figures: Figures) -> dict[str, Json]:
    """What is shown beside the time of a gradient step; of engines no Q-loss can be told apart from the rest of it."""
    return {
        "same result": "yes" if is_same else "no",
        "off by": off,
        "Q-loss calls": figures.get("q_loss_calls"),
        "ms per Q-loss": figures.get("q_loss_ms"),
        "Q-loss share": _share(figures.get("q_loss_share")),
        "learning share": _share(figures["learning_share"]),
        "FPS": round(number(figures, "fps")),
        "peak MB": figures["peak_mb"],
    }


def _share(value: Json) -> str | None:
    return f"{value:.0%}" if isinstance(value, float) else None


def _note(name: str) -> str:
    if name in ENGINES:
        return "Q-loss not separable"
    together = SWITCHED[name].together
    shortened = "; prints of over 1,000 numbers are shortened" if together == 8 else ""  # from batch 128 on
    return f"1/{together} of the optimiser steps{shortened}" if together > 1 else ""


def _kind(name: str, is_same: bool) -> str:
    if name in SWITCHED and not SWITCHED[name].is_exact:
        return qloss_picture.OTHER_ALGORITHM
    if not is_same:
        return qloss_picture.OTHER_RESULT
    return qloss_picture.HOTLOOP if name in ENGINES else qloss_picture.EXACT


def _settings() -> Figures:
    return {
        "settings": "dqn_cartpole: net 4-64-2 (Acrobot 6-64-3) selu, MSE, Adam 0.02, clip 0.5, 4 batches x 8 steps",
        "torch threads": torch.get_num_threads(),
        "frames of the real loops": ", ".join(f"{ladder.name} {ladder.frames}" for ladder in LADDERS),
        "end to end": f"{WHOLE_STEPS:,} gradient steps; without imports, and without programs compiled before",
        "same result": f"after {COMPARED_CALLS * STEPS_PER_CALL} gradient steps on the same batches weights are off by "
        f"at most {NEAR:g} of the way they have gone",
        "peak MB": "resident memory above what is there after all imports; engines of the ladder find what they "
        "compile in a cache, end to end they do not",
    }
