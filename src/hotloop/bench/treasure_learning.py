"""Do five agents find gems? Three seeds of `treasure` beside scripted players and the gems that there are.

Gems per agent and epoch (50 turns), over the same number of epochs that training never saw.
"""

import tempfile
from pathlib import Path

import numpy as np

from hotloop.bench.measure import Result, Row, machine
from hotloop.plain import inner, number, numbers
from hotloop.progress import Reporter
from hotloop.runs import statistics

FIRST_SEED, SEEDS, EPOCHS = 100, 3, 500
NEW_EPOCHS = 10_000
"""Seed of epochs that training never saw."""


def run(reporter: Reporter) -> Result:
    """Train, then play all."""
    import hotloop
    from hotloop.envs import treasure_scripts as scripts
    from hotloop.envs.treasure import Treasure

    env = Treasure()
    result = Result("treasure_learning", {**machine(), "seeds": f"{FIRST_SEED} to {FIRST_SEED + SEEDS - 1}"})
    by_chance, greedy = (
        float(scripts.gems_per_epoch(env, script, EPOCHS).mean()) for script in (scripts.random, scripts.greedy)
    )
    result.rows += [
        Row("all gems that grow", scripts.supply_per_epoch(env), "gems", note="were each taken at once"),
        Row("script: random", by_chance, "gems"),
        Row("script: nearest visible gem", greedy, "gems"),
    ]
    scores = []
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
            with reporter.busy(f"training seed {seed}"):
                done = hotloop.train("treasure", out=Path(folder) / "run", seed=seed)
            figures = hotloop.load(done, which="last").evaluate(EPOCHS, seed=NEW_EPOCHS + seed)
        scores.append(number(figures, "gems_mean"))
        each = ", ".join(f"{gems:.1f}" for gems in numbers(inner(figures, "by_agent"), "gems_mean"))
        row = Row(f"treasure/seed {seed}", scores[-1], "gems", scores[-1] / greedy, "script: nearest visible gem")
        row.means, row.note = "times the gems of", f"agents: {each}; {done.seconds:.0f} s"
        result.rows.append(row)
    found = statistics.estimate(np.array(scores))
    note = f"IQM of {SEEDS} seeds, {found.low:.2f}–{found.high:.2f}"
    result.rows.append(Row("treasure", found.iqm, "gems", found.iqm / greedy, "script: nearest visible gem", note=note))
    result.rows[-1].means = "times the gems of"
    return result
