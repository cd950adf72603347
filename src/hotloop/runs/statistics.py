"""What several members of a run say together: the interquartile mean, and how sure one may be of it."""

import math
from typing import NamedTuple

import numpy as np

from hotloop.members import Members
from hotloop.plain import Figures

RESAMPLES = 2_000
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """An interquartile mean and its bootstrap interval."""

    iqm: float
    low: float
    high: float


def estimate(values: np.ndarray) -> Estimate:
    """Interquartile mean over members with a 95 % percentile bootstrap interval; the same numbers, the same answer.

    Of fewer than four values a quarter is none: it is then their mean.
    """
    from scipy.stats import bootstrap, trim_mean

    values = np.asarray(values, np.float64)
    middle = float(trim_mean(values, 0.25)) if np.isfinite(values).all() else math.nan
    if len(values) < 2 or math.isnan(middle) or np.ptp(values) == 0:
        return Estimate(middle, middle, middle)
    interval = bootstrap(
        (values,),
        lambda sample, axis: trim_mean(sample, 0.25, axis=axis),
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(middle, float(interval.low), float(interval.high))


COUNTS = ("cut", "endless")
"""Figures of a summary that are there only where there is something to count."""


def together(summaries: list[dict[str, float]], members: Members) -> Figures:
    """One summary of several members: means, interquartile means with intervals, and each one's own figures.

    A figure that one does not have is left out; episodes that were cut or endless are counted over all.
    """
    counted = [name for name in COUNTS if any(name in summary for summary in summaries)]
    summaries = [{**dict.fromkeys(counted, 0), **summary} for summary in summaries]
    shared = [name for name in summaries[0] if all(name in summary for summary in summaries)]
    each = {name: [summary[name] for summary in summaries] for name in shared}
    figures: Figures = {name: float(np.mean(values)) for name, values in each.items()}
    figures["episodes"] = summaries[0]["episodes"]
    figures |= {name: sum(each[name]) for name in counted}
    for name, values in each.items():
        if name.endswith("_mean"):
            found = estimate(np.array(values))
            figures[name.replace("_mean", "_iqm")] = found.iqm
            figures[name.replace("_mean", "_interval")] = [found.low, found.high]
    return {**figures, members.by: each}


def ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Means of sums; NaN where nothing was counted."""
    means: np.ndarray = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return means


def mean(values: np.ndarray) -> float | int | None:
    """Mean over the members that have a value; what is the same for all stays as it is."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    return plain(known[0]) if (known == known[0]).all() else float(np.mean(known))


def plain(value: np.integer | np.floating) -> float | int | None:
    """A NumPy number as a Python one; NaN as None."""
    number: float | int = value.item()
    return None if math.isnan(number) else number
