"""The figures by which users of SLM-Lab compare runs: strength, efficiency, stability, consistency.

They are made of the mean return of the last hundred training episodes at each line of metrics (of one env, of the
episodes since the last line; there it is the last one alone). Where training rewards are clipped, it is evaluations
instead. A session there is a seed here, a trial all seeds of a run; lines of seeds are compared in their order.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hotloop.errors import SpecError
from hotloop.members import is_member_name
from hotloop.plain import Figures, number
from hotloop.runs import metrics
from hotloop.runs.statistics import estimate
from hotloop.spec import Env

RANDOM_RETURNS = {
    "CartPole-v1": 22.97,
    "cartpole": 22.97,
    "Acrobot-v1": -499.86,
    "LunarLander-v3": -186.776,
    "MountainCar-v0": -200.0,
    "ALE/Pong-v5": -20.25,
    "ALE/Qbert-v5": 164.0,
}
"""Mean returns of random actions, as SLM-Lab has measured them (its `_random_baseline.json`); others count as 0."""
WINDOW = 100
"""Lines of metrics whose mean is the score at the end."""


class Session(NamedTuple):
    """One seed: env steps, gradient steps and mean return of each line of metrics in which episodes ended."""

    env_steps: np.ndarray
    updates: np.ndarray
    returns: np.ndarray


class Lines(NamedTuple):
    """Which lines of metrics count, their return and its episodes, and how many episodes back a mean looks."""

    kind: str = "train"
    score: str = "ep_return_mean"
    window: int = 100


def lines_of(env: Env) -> Lines:
    """As SLM-Lab has it: the mean of the last hundred episodes, with one env that of the last ones.

    Where training rewards are clipped, those of evaluations.
    """
    if env.options.get("reward_clipping"):
        return Lines("eval", "return_mean", 1)
    return Lines(window=100 if env.num_envs > 1 else 1)


def sessions_of(folder: Path, lines: Lines, by: str = "by_seed") -> list[Session]:
    """The seeds of a run: in folders of their own, side by side in its lines of metrics, or one alone."""
    seeds = sorted(
        path for path in folder.iterdir() if is_member_name(path.name) and (path / "metrics.jsonl").is_file()
    )
    if seeds:
        return [_session(metrics.read(path / "metrics.jsonl"), None, lines, by) for path in seeds]
    rows = metrics.read(folder / "metrics.jsonl")
    of_each = next((row[by] for row in rows if row["kind"] == lines.kind and by in row), None)
    if not isinstance(of_each, dict):
        return [_session(rows, None, lines, by)]
    scores = of_each[lines.score]
    return [_session(rows, index, lines, by) for index in range(len(scores) if isinstance(scores, list) else 0)]


def _session(rows: list[Figures], index: int | None, lines: Lines, by: str) -> Session:
    def of_seed(row: Figures, name: str) -> float:
        """A figure of the seed; 0 where there is none."""
        of_each = row.get(by)
        found = of_each.get(name, 0) if index is not None and isinstance(of_each, dict) else row.get(name, 0)
        found = found[index] if isinstance(found, list) and index is not None else found
        return float(found) if isinstance(found, int | float) else 0.0

    times: list[tuple[float, float]] = []
    means: list[float] = []
    episodes: list[float] = []
    updates = done = 0.0
    for row in rows:
        updates = of_seed(row, "updates") if row["kind"] == "train" else updates  # of the last line that counts them
        if row["kind"] != lines.kind:
            continue
        done, before = of_seed(row, "episodes"), done if lines.kind == "train" else 0.0
        times.append((number(row, "env_steps"), updates))
        means.append(of_seed(row, lines.score))
        episodes.append(max(0.0, done - before))
    first = next((i for i, count in enumerate(episodes) if count), len(episodes))
    recent = [_recent(means[: i + 1], episodes[: i + 1], lines.window) for i in range(first, len(episodes))]
    env_steps, of_updates = np.array(times, np.float64).reshape(-1, 2)[first:].T
    return Session(env_steps, of_updates, np.array(recent))


def _recent(means: list[float], episodes: list[float], window: float) -> float:
    """The mean of the last `window` episodes, of which each line knows the mean."""
    total = count = 0.0
    for mean, ended in zip(reversed(means), reversed(episodes), strict=True):
        taken = min(ended, window - count)
        total, count = total + taken * mean, count + taken
        if count >= window:
            break
    return total / count


def figures_of(sessions: list[Session], env_id: str) -> Figures:
    """Means over the seeds, and consistency, as SLM-Lab's formulas have them; None where there is too little to say."""
    if not all(len(session.returns) for session in sessions):
        raise SpecError("no episode has ended in this run yet, so there is nothing to compare")
    by_chance = RANDOM_RETURNS.get(env_id, 0.0)
    strengths = [session.returns - by_chance for session in sessions]
    with np.errstate(divide="ignore", invalid="ignore"):
        each = {
            "total_reward_ma": [session.returns[-WINDOW:].mean() for session in sessions],
            "strength": [strength.mean() for strength in strengths],
            "max_strength": [strength.max() for strength in strengths],
            "final_strength": [strength[-1] for strength in strengths],
            "sample_efficiency": [
                _efficiency(s, session.env_steps) for s, session in zip(strengths, sessions, strict=True)
            ],
            "training_efficiency": [
                _efficiency(s, session.updates) for s, session in zip(strengths, sessions, strict=True)
            ],
            "stability": [_stability(strength) for strength in strengths],
        }
        found: Figures = {name: _plain(_mean_of_known(values)) for name, values in each.items()}
        found["consistency"] = _plain(_consistency(strengths)) if len(sessions) > 1 else None
        scores = np.array(each["total_reward_ma"])
    together = estimate(scores)
    found["total_reward_ma_by_session"] = [_plain(score) for score in scores]
    found["total_reward_ma_iqm"] = _plain(together.iqm)
    found["total_reward_ma_interval"] = [_plain(together.low), _plain(together.high)]
    return {"sessions": len(sessions), "random_return": by_chance, **found}


def _efficiency(strength: np.ndarray, times: np.ndarray) -> float:
    """How early strength came: its mean of 1 / time, weighted by strength."""
    after_zero = times > 0
    return float((strength[after_zero] / times[after_zero]).sum() / strength.sum())


def _stability(strength: np.ndarray) -> float:
    """1 less the share of strength that was lost from one line to the next."""
    return (
        float(1 - abs(np.minimum(np.diff(strength), 0.0).sum() / strength[:-1].sum()))
        if len(strength) > 1
        else math.nan
    )


def _consistency(strengths: list[np.ndarray]) -> float:
    """1 less two standard deviations over the seeds, as a share of their mean."""
    shortest = min(map(len, strengths))
    table = np.stack([strength[:shortest] for strength in strengths])
    return float(1 - 2 * table.std(axis=0, ddof=1).sum() / table.mean(axis=0).sum())


def _mean_of_known(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
