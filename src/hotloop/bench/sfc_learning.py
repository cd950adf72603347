"""Does it place more service chains than the heuristics? Three seeds of `sfc`, on 2, 4, 6 and 8 data centres.

Every policy plays as many episodes (untrained networks a quarter of them), on data centres drawn alike; requests depend
on how many decisions were taken, so they are not the same ones. Acceptance, by service too, delay and CPU use are means
over them; ± is the standard error of a mean over episodes, a range the 95 % bootstrap interval over the seeds.
"""

import tempfile
from pathlib import Path

import numpy as np

from hotloop.bench.measure import Result, Row, machine
from hotloop.plain import Json
from hotloop.progress import Reporter
from hotloop.runs import statistics

FIRST_SEED, SEEDS, EPISODES = 100, 3, 256
UNTRAINED_EPISODES = 64
DCS = (2, 4, 6, 8)
UNTRAINED = {"stop.steps": 1, "evaluation.every": 0}
"""A block without gradient steps: what legal actions alone are worth."""


def run(reporter: Reporter) -> Result:
    """Train, then play all policies."""
    import hotloop
    from hotloop.api import load_with

    result = Result("sfc_learning", {**machine(), "seeds": f"{FIRST_SEED} to {FIRST_SEED + SEEDS - 1}"})
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        fresh, done = [], []
        for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
            with reporter.busy(f"training seed {seed}"):  # one after the other: a replay is too large to be moved about
                fresh.append(hotloop.train("sfc", out=Path(folder) / f"fresh-{seed}", seed=seed, **UNTRAINED))
                done.append(hotloop.train("sfc", out=Path(folder) / f"run-{seed}", seed=seed))
        for dcs in DCS:
            with reporter.busy(f"playing {EPISODES} episodes on {dcs} DCs"):
                heuristics = played_by_heuristics(dcs)
                agents = {
                    name: [
                        load_with(run, {"env.options": {"dcs": dcs}}, which="last").evaluate(episodes, seed=dcs)
                        for run in runs
                    ]
                    for name, runs, episodes in (
                        ("untrained network", fresh, UNTRAINED_EPISODES),
                        ("sfc (DQN)", done, EPISODES),
                    )
                }
            greedy = heuristics["greedy"]["acceptance_mean"]
            for name, figures in heuristics.items():
                row = _row(f"{dcs} DCs/{name}", figures, greedy)
                row.note = f"± {figures['acceptance_error']:.3f}"
                result.rows.append(row)
            for name, played in agents.items():
                each = np.array([one["acceptance_mean"] for one in played])
                means = _means(played)
                row, found = _row(f"{dcs} DCs/{name}", means, greedy), statistics.estimate(each)
                row.note = f"{SEEDS} seeds: {', '.join(f'{one:.3f}' for one in each)}; {found.low:.3f}–{found.high:.3f}"
                result.rows.append(row)
    seconds = ", ".join(f"{run.seconds:.0f}" for run in done)
    result.settings["training"] = f"{done[0].env_steps:,} env steps each, {seconds} s"
    return result


def played_by_heuristics(dcs: int) -> dict[str, dict[str, float]]:
    """The figures of each heuristic, under the names that an evaluation has, and the standard error of acceptance."""
    import jax

    from hotloop.envs.sfc import Sfc
    from hotloop.envs.sfc_heuristics import POLICIES, play

    found = {}
    for name, policy in POLICIES.items():
        played = jax.jit(lambda key, policy=policy: play(Sfc(dcs=dcs), policy, EPISODES, key))(jax.random.key(dcs))
        figures = {f"{key}_mean": float(np.nanmean(values)) for key, values in played.figures.items()}
        acceptance = np.asarray(played.figures["acceptance"])
        error = float(np.nanstd(acceptance, ddof=1) / np.sqrt(np.count_nonzero(~np.isnan(acceptance))))
        found[name] = {"return_mean": float(np.mean(played.episode_return)), **figures, "acceptance_error": error}
    return found


def _means(played: "list[dict[str, float]]") -> dict[str, float]:
    """Of each figure over the agents that have it: one that completes no chain has no delay."""
    names = dict.fromkeys(name for one in played for name in one)
    return {name: float(np.mean([one[name] for one in played if name in one])) for name in names}


def _row(case: str, figures: dict[str, float], greedy: float) -> Row:
    columns: dict[str, Json] = {"against greedy": f"{figures['acceptance_mean'] / greedy - 1:+.1%}"}
    columns |= {
        name.removeprefix("acceptance_").removesuffix("_mean"): round(value, 3)
        for name, value in figures.items()
        if name.startswith("acceptance_") and name.endswith("_mean") and name != "acceptance_mean"
    }
    columns["delay ms"] = round(figures["delay_ms_mean"], 1) if "delay_ms_mean" in figures else None
    columns["CPU use"] = round(figures["cpu_use_mean"], 2)
    columns["return"] = round(figures["return_mean"])
    return Row(case, figures["acceptance_mean"], "acceptance", columns=columns)
