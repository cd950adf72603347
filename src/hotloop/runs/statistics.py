"""What several seeds say together: the interquartile mean, and how sure one may be of it."""

from typing import NamedTuple

import numpy as np

RESAMPLES = 2_000
CONFIDENCE = 0.95


class Estimate(NamedTuple):
    """An interquartile mean and its bootstrap interval."""

    iqm: float
    low: float
    high: float


def estimate(values: np.ndarray) -> Estimate:
    """Interquartile mean over seeds with a 95 % percentile bootstrap interval; the same numbers, the same answer."""
    from scipy.stats import bootstrap, trim_mean

    values = np.asarray(values, np.float64)
    middle = float(trim_mean(values, 0.25))
    if len(values) < 2 or np.ptp(values) == 0 or not np.isfinite(values).all():
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
