"""Does it learn? The family on CartPole until solved; Snake until its reference scores, and on other grids.

Seeds are ones that no preset was tuned on. The picture of all curves is written to `learning.png` in the folder the
benchmark was started in.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hotloop.bench.measure import Result, Row, machine
from hotloop.plain import Figures, inner, number, numbers
from hotloop.progress import Reporter
from hotloop.runs import statistics

if TYPE_CHECKING:
    from hotloop.api import Run

FIRST_SEED = 100
"""Presets were chosen by looking at seeds 0 to 9."""
SEEDS = 10
FAMILY = ("dqn", "double", "dueling", "per", "c51", "qrdqn", "iqn", "rainbow", "munchausen", "pqn", "cartpole_memory")
SNAKE_EVERY = 20_000
PICTURE = "learning.png"
NEW_EPISODES = 10_000
"""Seeds from here on are for episodes that training never saw."""


class Reference(NamedTuple):
    """Mean scores that were reached elsewhere: after 3,000 episodes, and by that policy on other grids."""

    score: float
    steps: int  # how long ours is trained for it
    grids: dict[int, float]


class Curve(NamedTuple):
    """What the evaluations of a preset said: the interquartile mean over seeds and its interval."""

    env_steps: list[float]
    middle: list[float]
    interval: list[list[float]]


SNAKE = {
    "snake": Reference(25.4, 200_000, {8: 20.0, 10: 26.4, 15: 45.1, 20: 52.3}),
    "snake_basic": Reference(16.8, 200_000, {}),
    "snake_rainbow": Reference(37.2, 300_000, {}),
}


def run(reporter: Reporter) -> Result:
    """Train each preset with several seeds, then play 100 greedy episodes that training never saw."""
    result = Result("learning", {})
    curves: dict[str, Curve] = {}
    with tempfile.TemporaryDirectory() as folder:
        for done, preset in enumerate(FAMILY, 1):
            curves[preset] = _cartpole(result, preset, Path(folder), reporter)
            reporter.show(done, len(FAMILY), {"presets on CartPole": preset})
        for preset, reference in SNAKE.items():
            curves[preset] = _snake(result, preset, reference, Path(folder), reporter)
    _draw(curves, Path(PICTURE))
    result.settings = {**machine(), "seeds": f"{FIRST_SEED} to {FIRST_SEED + SEEDS - 1}", "picture": PICTURE}
    return result


def _cartpole(result: Result, preset: str, folder: Path, reporter: Reporter) -> Curve:
    """All seeds in one program, until their interquartile mean is solved; of each, when it first was."""
    import hotloop

    goal = hotloop.load_spec(preset).stop.return_at_least or 0.0
    with reporter.busy(f"training {preset} on CartPole"):
        done = hotloop.train(preset, out=folder / preset, seed=FIRST_SEED, seeds=SEEDS)
    rows = _evaluations(done)
    reached = [_first(rows, index, "return_mean", goal) for index in range(SEEDS)]
    new = [_on_new_episodes(done, seed)["return_mean"] for seed in done.seeds]
    note = f"{done.stopped}; {sum(map(bool, reached))} of {SEEDS} seeds reach {goal:g}, after "
    note += ", ".join(f"{steps // 1000}k" if steps else "never" for steps in reached)
    note += f"; last weights of each seed on 100 new episodes: {', '.join(f'{score:.0f}' for score in new)}; "
    note += f"{done.seconds:.0f} s for all seeds, compiling included"
    result.rows.append(Row(f"cartpole/{preset}", done.env_steps / 1000, "thousand env steps", note=note))
    return _curve(rows, "return")


def _snake(result: Result, preset: str, reference: Reference, folder: Path, reporter: Reporter) -> Curve:
    """All seeds in one program; of each, when it first reached the reference score."""
    import hotloop

    overrides = {"seed": FIRST_SEED, "seeds": SEEDS, "stop.steps": reference.steps, "evaluation.every": SNAKE_EVERY}
    with reporter.busy(f"training {preset}"):
        done = hotloop.train(hotloop.load_spec(preset, overrides), out=folder / preset)
    rows = _evaluations(done)
    for index, seed in enumerate(done.seeds):
        reached = _first(rows, index, "score_mean", reference.score)
        when = f"first reached {reference.score} after {reached:,} env steps" if reached else "never reached it"
        note = f"last weights, 100 new episodes, {reference.steps:,} env steps; reference {reference.score}; {when}"
        result.rows.append(Row(f"{preset}/seed-{seed}", _on_new_episodes(done, seed)["score_mean"], "foods", note=note))
    curve = _curve(rows, "score")
    low, high = curve.interval[-1]
    figures = f"interval over {SEEDS} seeds {low:.1f}–{high:.1f}; {done.seconds:.0f} s"
    result.rows.append(Row(f"{preset}/IQM", curve.middle[-1], "foods", note=figures))
    for grid, score in reference.grids.items():
        seen = np.array([_on_new_episodes(done, seed, {"env.options.grid": grid})["score_mean"] for seed in done.seeds])
        middle = statistics.estimate(seen)
        note = f"IQM of the last weights of {SEEDS} seeds ({middle.low:.1f}–{middle.high:.1f}), each between "
        note += f"{seen.min():.1f} and {seen.max():.1f}; reference {score}"
        result.rows.append(Row(f"{preset}/grid-{grid}", middle.iqm, "foods", note=note))
    return curve


def _evaluations(done: "Run") -> list[Figures]:
    from hotloop.runs import metrics

    assert done.path is not None
    return [row for row in metrics.read(done.path / "metrics.jsonl") if row["kind"] == "eval"]


def _on_new_episodes(done: "Run", seed: int, elsewhere: dict[str, int] | None = None) -> dict[str, float]:
    """What the last weights of a seed reach in episodes that no evaluation has played; perhaps on another grid."""
    from hotloop.api import load_with

    agent = load_with(done, elsewhere or {}, which=f"seed-{seed}")
    return agent.evaluate(episodes=100, seed=NEW_EPISODES + seed)


def _curve(rows: list[Figures], figure: str) -> Curve:
    return Curve(
        [number(row, "env_steps") for row in rows],
        [number(row, f"{figure}_iqm") for row in rows],
        [numbers(row, f"{figure}_interval") for row in rows],
    )


def _first(rows: list[Figures], index: int, figure: str, goal: float) -> float | None:
    reached = (number(row, "env_steps") for row in rows if numbers(inner(row, "by_seed"), figure)[index] >= goal)
    return next(reached, None)


def _draw(curves: dict[str, Curve], path: Path) -> None:
    """A small picture for each preset, all CartPoles to one scale."""
    from matplotlib.figure import Figure

    columns, rows = 5, -(-len(curves) // 5)
    figure = Figure(figsize=(13, 2.6 * rows), layout="constrained")
    for place, (name, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        steps = [step / 1000 for step in curve.env_steps]
        low, high = ([bounds[end] for bounds in curve.interval] for end in (0, 1))
        axes.fill_between(steps, low, high, alpha=0.25, linewidth=0)
        axes.plot(steps, curve.middle)
        goal, top = (SNAKE[name].score, None) if name in SNAKE else (475, 510)
        axes.axhline(goal, color="grey", linewidth=0.8, linestyle=":")
        axes.set_title(name, fontsize=10)
        axes.set_ylim(0, top)
    figure.supxlabel("thousand env steps", fontsize=10)
    figure.supylabel("return, or foods of Snake: IQM over seeds and its interval", fontsize=10)
    figure.savefig(path, dpi=110)
