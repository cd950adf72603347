"""Training 256 Snakes at equal work: a slow pipeline, each remedy for it alone and together, and hotloop.

Whether a remedy changes what is learned is measured, not claimed: after the same env steps from the same seed, a
hash of weights, optimiser and replay must equal the baseline's. Cheaper because it does less is marked as such, and
what fewer gradient steps cost in score is the second half of the picture.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hotloop.bench.flood import cache_errors
from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.bench.slow_baseline import DISCOUNT, EPSILON_END, EPSILON_START, EPSILON_STEPS, SlowTraining, Switches
from hotloop.bench.snake_games import Games
from hotloop.bench.snake_picture import Curves, draw
from hotloop.plain import Figures, number
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

ROUNDS = 7
ENVS = 256
COMPARED_STEPS = 12 * ENVS
"""Env steps after which results are compared: learning starts after 1,000."""
TIMED_STEPS = 5 * ENVS
HOTLOOP_SECONDS, WARM_UP_STEPS = 1.0, 4_096
PICTURE = Path("bench-snake.png")
CURVE_STEPS, CURVE_EVERY, CURVE_SEEDS = 400_000, 20_000, 3
GRADIENT_STEPS = (64, 16, 1)
"""Per vector step of 256 envs; the slow baseline has 64, the others are remedies proposed for it."""

EXACT, GAMES, LESS, SEES = "same result", "same work, other games", "less work", "other or wrong observations"


class Case(NamedTuple):
    """A remedy, and what it leaves as it was: EXACT is only what it should be, until it is measured."""

    switches: Switches
    kind: str = EXACT
    note: str = ""


CASES = {
    "baseline": Case(Switches()),
    "batched push": Case(Switches(push="batched")),
    "batched transfer": Case(Switches(transfer="batched")),
    "vectorised flood fill": Case(Switches(flood="vectorised")),
    "no logging": Case(Switches(logging=False)),
    "all exact remedies": Case(Switches(push="batched", transfer="batched", flood="vectorised", logging=False)),
    "16 gradient steps": Case(Switches(gradient_steps=16), LESS, "less work: 1/4 of the gradient steps"),
    "1 gradient step": Case(Switches(gradient_steps=1), LESS, "less work: 1/64 of the gradient steps"),
    "cached flood fill": Case(Switches(flood="cached"), SEES, "wrong features: "),
    "no flood fill": Case(Switches(flood="off"), SEES, "other observations: zeros"),
    "64 envs": Case(Switches(num_envs=64), GAMES, "same work per env step"),
    "32 envs": Case(Switches(num_envs=32), GAMES, "same work per env step"),
}


def run(reporter: Reporter) -> Result:
    """Compare results, time all cases interleaved, draw the picture."""
    from hotloop.engines.jax import setup

    setup.start(hotloop_spec())
    threads, thread_seconds = _choose_torch_threads()
    trainings = {name: SlowTraining(case.switches, audit=True) for name, case in CASES.items()}
    digests = {}
    for place, (name, training) in enumerate(trainings.items(), 1):
        training.advance(COMPARED_STEPS)
        digests[name] = training.digest()
        reporter.show(place, len(trainings), {"comparing results of": name})
    same = {name: digest == digests["baseline"] for name, digest in digests.items()}
    early = trainings["cached flood fill"].cache
    wrong = f"{early.wrong / early.found:.2%} of its answers on young snakes, {cache_errors(Games())}"
    for training in trainings.values():
        training.cache.audit = False
        training.forget_times()
    advance: dict[str, tuple[Callable[[int], None], int]] = {
        name: (training.advance, TIMED_STEPS) for name, training in trainings.items()
    }
    trainer = fused_program(hotloop_spec())
    advance["hotloop"] = (trainer, _steps_for(trainer, HOTLOOP_SECONDS))
    speed = _interleave(advance, reporter)
    result = Result("snake", {**machine(), **_settings(threads, thread_seconds), "same_result": same})
    result.settings["where the slow baseline's time goes"] = ", ".join(
        f"{stage} {share:.1%}" for stage, share in trainings["baseline"].shares().items()
    )
    kinds = {"hotloop": GAMES}
    for name, speeds in speed.items():
        row = Row(name, statistics.median(speeds), "steps/s")
        if name != "baseline":
            row.against = "baseline"
            row.ratio, row.spread = paired_ratio(speeds, speed["baseline"])
        if name == "baseline":
            row.note = "the baseline: eager PyTorch, a BFS on plain ints, Python loops over envs"
        elif name == "hotloop":
            row.note = "same work, its own random numbers; NaN guard on; no file is written on either side"
        else:
            case = CASES[name]
            kinds[name] = case.kind if case.kind != EXACT or same[name] else "another result"
            row.note = f"same result: {'yes' if same[name] else 'no'}"
            row.note += f"; {case.note}{wrong if case.switches.flood == 'cached' else ''}" if case.note else ""
        result.rows.append(row)
    curves = learning_curves(reporter)
    for label, (_, scores) in curves.items():
        final = [seed[-1] for seed in scores]
        note = f"greedy score after {CURVE_STEPS:,} env steps, {CURVE_SEEDS} seeds: {min(final):.1f}–{max(final):.1f}"
        result.rows.append(Row(f"learns with {label}", statistics.mean(final), "foods", note=note))
    result.settings["learning curves"] = {label: _means(scores) for label, (_, scores) in curves.items()}
    bars = [row for row in result.rows if row.ratio is not None]
    result.settings["picture"] = str(draw(bars, kinds, curves, PICTURE).resolve())
    return result


def fused_program(spec: Spec) -> Callable[[int], None]:
    """Return `advance(env_steps)` over the fused program, after a warm-up beyond the learning start."""
    from hotloop.assembly import Assembly
    from hotloop.trial import begun

    session = begun(Assembly(spec))

    def advance(env_steps: int) -> None:
        session.advance(env_steps // spec.block_plan.env_steps)
        session.read()  # sync

    advance(WARM_UP_STEPS)
    return advance


def hotloop_spec(gradient_steps: int = 64) -> Spec:
    """The slow baseline's training as a spec; its target copy falls on whole vector steps, 1024 for its 1000."""
    return load_spec(
        {},
        {
            "env.id": "snake",
            "env.num_envs": ENVS,
            "env.options": {"obs": "flood"},
            "updates_per_step": gradient_steps / ENVS,
            "discount": DISCOUNT,
            "network.torso.hidden": [128, 128],
            "replay": {"capacity": 100_000, "start": 1_000, "batch_size": 64},
            "target": {"rule": "target", "every": 1024},
            "loss.kind": "huber",
            "optimizer": {"kind": "adam", "learning_rate": 1e-3, "clip": 1.0},
            "exploration.epsilon": {
                "kind": "linear",
                "start": EPSILON_START,
                "end": EPSILON_END,
                "steps": EPSILON_STEPS,
            },
            "evaluation": {"every": CURVE_EVERY, "episodes": 100},
            "stop.steps": CURVE_STEPS,
            "log": {"every": CURVE_EVERY, "checkpoint_every": 2 * CURVE_STEPS},
        },
    )


def learning_curves(reporter: Reporter) -> Curves:
    """What fewer gradient steps cost: mean greedy score over env steps, per seed, trained by hotloop."""
    import hotloop
    from hotloop.runs import metrics

    curves: Curves = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in GRADIENT_STEPS:
            label = f"{count} gradient step{'s' if count > 1 else ''} per vector step"
            scores: list[list[float]] = []
            for seed in range(CURVE_SEEDS):
                spec = load_spec(hotloop_spec(count), {"seed": seed})
                out = Path(folder) / f"{count}-{seed}"
                hotloop.train(spec, out=out)
                rows = [row for row in metrics.read(out / "metrics.jsonl") if row["kind"] == "eval"]
                scores.append([number(row, "score_mean") for row in rows])
                curves[label] = ([number(row, "env_steps") for row in rows], scores)
                reporter.show(len(scores), CURVE_SEEDS, {"learning curves": label})
    return curves


def _interleave(advance: dict[str, tuple[Callable[[int], None], int]], reporter: Reporter) -> dict[str, list[float]]:
    """Env steps per second of each case in each round, in the order A B C, C B A, …"""
    speed: dict[str, list[float]] = {name: [] for name in advance}
    for turn in range(ROUNDS):
        for name in list(advance) if turn % 2 == 0 else list(reversed(advance)):
            case, env_steps = advance[name]
            started = time.perf_counter()
            case(env_steps)
            speed[name].append(env_steps / (time.perf_counter() - started))
            reporter.show(turn, ROUNDS, {"rounds": name})
    return speed


def _choose_torch_threads() -> tuple[int, dict[int, float]]:
    """Time some vector steps with one thread and with all, keep the faster, and say what was seen."""
    import torch

    training = SlowTraining(Switches(flood="vectorised"))
    training.advance(COMPARED_STEPS // 2)
    seconds: dict[int, list[float]] = {count: [] for count in {1, os.cpu_count() or 1}}
    for _ in range(3):
        for count, times in seconds.items():
            torch.set_num_threads(count)
            started = time.perf_counter()
            training.advance(2 * ENVS)
            times.append(time.perf_counter() - started)
    median = {count: statistics.median(times) / 2 for count, times in seconds.items()}
    fastest = min(median, key=lambda count: median[count])
    torch.set_num_threads(fastest)
    return fastest, median


def _steps_for(advance: Callable[[int], None], seconds: float) -> int:
    """Whole vector steps that take about so long."""
    trial = 80 * ENVS
    started = time.perf_counter()
    advance(trial)
    return max(1, int(80 * seconds / (time.perf_counter() - started))) * ENVS


def _settings(threads: int, seconds: dict[int, float]) -> Figures:
    tried = ", ".join(f"{count}: {second * 1e3:.0f} ms per vector step" for count, second in sorted(seconds.items()))
    return {
        "envs": ENVS,
        "net": "13-128-128-3",
        "batch": 64,
        "gradient steps per vector step": 64,
        "torch threads": f"{threads}, the faster of {tried}",
        "result compared after": f"{COMPARED_STEPS} env steps",
    }


def _means(scores: list[list[float]]) -> list[float]:
    return [round(statistics.mean(at), 1) for at in zip(*scores, strict=True)]
