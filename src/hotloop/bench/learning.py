"""Does it learn? CartPole until solved; Snake until its reference scores, and the same policies on other grids."""

import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.bench.measure import Result, Row, machine
from hotloop.progress import Reporter

CARTPOLE_SEEDS = 5
SNAKE_SEEDS, SNAKE_STEPS, SNAKE_EVERY = 4, 200_000, 10_000
NEW_EPISODES = 10_000
"""Seeds from here on are for episodes that training never saw."""


class Reference(NamedTuple):
    """Mean scores that were reached elsewhere: after 3,000 episodes, and by that policy on other grids."""

    score: float
    grids: dict[int, float]


SNAKE = {
    "snake": Reference(25.4, {8: 20.0, 10: 26.4, 15: 45.1, 20: 52.3}),
    "snake_basic": Reference(16.8, {}),
}


def run(reporter: Reporter) -> Result:
    """Train each preset, then play 100 greedy episodes that training never saw."""
    result = Result("learning", {})
    with tempfile.TemporaryDirectory() as folder:
        _cartpole(result, Path(folder), reporter)
        for preset, reference in SNAKE.items():
            _snake(result, preset, reference, Path(folder), reporter)
    result.settings = machine()
    return result


def _cartpole(result: Result, folder: Path, reporter: Reporter) -> None:
    import hotloop

    solved, steps = 0, []
    goal = hotloop.load_spec("cartpole").stop.return_at_least
    for seed in range(CARTPOLE_SEEDS):
        done = hotloop.train("cartpole", out=folder / str(seed), seed=seed)
        score = hotloop.load(done).evaluate(episodes=100, seed=NEW_EPISODES + seed)["return_mean"]
        solved += "solved" in done.stopped
        steps.append(done.env_steps)
        note = f"{done.stopped}; best weights on 100 new episodes: {score:.1f}; {done.seconds:.1f} s"
        result.rows.append(Row(f"cartpole/seed-{seed}", done.env_steps, "env steps", note=note))
        reporter.show(seed + 1, CARTPOLE_SEEDS, {"solved": solved})
    note = f"{solved} of {CARTPOLE_SEEDS} seeds reach {goal:g}"
    result.rows.append(Row("cartpole/median", statistics.median(steps), "env steps", note=note))


def _snake(result: Result, preset: str, reference: Reference, folder: Path, reporter: Reporter) -> None:
    """All seeds in one program; of each, when it first reached the reference score."""
    import hotloop
    from hotloop.runs import metrics

    overrides = {"seeds": SNAKE_SEEDS, "stop.steps": SNAKE_STEPS, "evaluation.every": SNAKE_EVERY}
    with reporter.busy(f"training {preset}"):
        done = hotloop.train(preset, out=folder / preset, **overrides)
    rows = [row for row in metrics.read(done.path / "metrics.jsonl") if row["kind"] == "eval"]
    for index, seed in enumerate(done.seeds):
        reached = _first(rows, index, reference.score)
        last = hotloop.load(done, which=f"seed-{seed}").evaluate(episodes=100, seed=NEW_EPISODES + seed)
        when = f"first reached {reference.score} after {reached:,} env steps" if reached else "never reached it"
        note = f"foods in 100 new episodes after {SNAKE_STEPS:,} env steps; reference {reference.score}; {when}"
        result.rows.append(Row(f"{preset}/seed-{seed}", last["score_mean"], "foods", note=note))
    figures = f"IQM over {SNAKE_SEEDS} seeds {rows[-1]['score_iqm']:.1f}, interval "
    figures += "–".join(f"{bound:.1f}" for bound in rows[-1]["score_interval"])
    result.rows.append(Row(f"{preset}/all", rows[-1]["score_mean"], "foods", note=f"{figures}; {done.seconds:.0f} s"))
    for grid, score in reference.grids.items():
        agent = hotloop.load(done, **{"env.options.grid": grid})
        seen = agent.evaluate(episodes=100, seed=NEW_EPISODES)["score_mean"]
        result.rows.append(Row(f"{preset}/grid-{grid}", seen, "foods", note=f"best weights; reference {score}"))


def _first(rows: list[dict[str, Any]], index: int, score: float) -> int | None:
    return next((row["env_steps"] for row in rows if row["by_seed"]["score_mean"][index] >= score), None)
