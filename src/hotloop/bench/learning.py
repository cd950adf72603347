"""Does it learn? Five seeds of the preset: env steps and seconds until solved, and a fresh check of the score."""

import statistics
import tempfile
from pathlib import Path

from hotloop.bench.measure import Result, Row, machine
from hotloop.progress import Reporter

PRESET = "cartpole"
SEEDS = 5


def run(reporter: Reporter) -> Result:
    """Train each seed to its stop rule, then play 100 greedy episodes that training never saw."""
    import hotloop

    result = Result("learning", {})
    solved, steps = 0, []
    goal = hotloop.load_spec(PRESET).stop.return_at_least
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(SEEDS):
            done = hotloop.train(PRESET, out=Path(folder) / str(seed), seed=seed)
            score = hotloop.load(done).evaluate(episodes=100, seed=10_000 + seed)["return_mean"]
            is_solved = "solved" in done.stopped
            solved += is_solved
            steps.append(done.env_steps)
            note = f"{done.stopped}; best weights on 100 new episodes: {score:.1f}; {done.seconds:.1f} s"
            result.rows.append(Row(f"{PRESET}/seed-{seed}", done.env_steps, "env steps", note=note))
            reporter.show(seed + 1, SEEDS, {"solved": solved})
    note = f"solved (mean of 100 greedy episodes >= {goal:g}): {solved} of {SEEDS} seeds"
    result.rows.append(Row(f"{PRESET}/median", statistics.median(steps), "env steps", note=note))
    result.settings = machine()
    return result
