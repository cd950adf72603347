"""What several members of a run say together: the interquartile mean, and how sure one may be of it."""

import math
from bisect import bisect
from typing import NamedTuple

import numpy as np

from hotloop.members import Members
from hotloop.plain import Figures, number

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

    Agents of one env are no sample of anything: of them there are means alone.
    A figure that one does not have is left out; episodes that were cut or endless are counted over all.
    """
    counted = [name for name in COUNTS if any(name in summary for summary in summaries)]
    summaries = [{**dict.fromkeys(counted, 0), **summary} for summary in summaries]
    shared = [name for name in summaries[0] if all(name in summary for summary in summaries)]
    each = {name: [summary[name] for summary in summaries] for name in shared}
    figures: Figures = {name: float(np.mean(values)) for name, values in each.items()}
    figures["episodes"] = summaries[0]["episodes"]
    figures |= {name: each[name][0] if members.are_a_team else sum(each[name]) for name in counted}
    for name, values in each.items():
        if name.endswith("_mean") and not members.are_a_team:
            found = estimate(np.array(values))
            figures[name.replace("_mean", "_iqm")] = found.iqm
            figures[name.replace("_mean", "_interval")] = [found.low, found.high]
    return {**figures, members.by: each}


def lines_in_turn(lines: list[list[Figures]], have_ended: list[bool], members: Members, block: int) -> list[Figures]:
    """What the lines of metrics of members that were trained one after the other would say had they been side by side.

    Lines belong together that are less than `block` env steps apart: resets are no env steps, so that a period is over
    a little later for one than for another. There is one wherever each member has a line, or has ended before. A member
    that has ended stands, in evaluations, as it did in its last one; in training it is left out.
    """
    found: list[Figures] = []
    for kind in ("train", "eval"):
        of_each = [[row for row in rows if row["kind"] == kind] for rows in lines]
        if not all(of_each):
            continue
        starts = _starts([number(row, "env_steps") for rows in of_each for row in rows], block)
        at = [{starts[bisect(starts, number(row, "env_steps")) - 1]: row for row in rows} for rows in of_each]
        until = [max(rows) if ended else math.inf for rows, ended in zip(at, have_ended, strict=True)]
        for start in starts:
            here = [rows.get(start) for rows in at]
            if any(row is None and start < last for row, last in zip(here, until, strict=True)):
                continue
            if kind == "eval":
                standing = [row or rows[-1] for row, rows in zip(here, of_each, strict=True)]
                line = together([_own(row) for row in standing], members)
            else:
                line = _means([_own(row or {}) for row in here], members)
            found.append({"kind": kind, "env_steps": int(start), **line})
    return sorted(found, key=lambda line: (number(line, "env_steps"), line["kind"] == "eval"))


def _starts(steps: list[float], apart: int) -> list[float]:
    """The first of each group of numbers that lie less than `apart` from it."""
    starts: list[float] = []
    for step in sorted(steps):
        if not starts or step >= starts[-1] + apart:
            starts.append(step)
    return starts


def _own(line: Figures) -> dict[str, float]:
    """The numbers of a line of metrics; NaN where it has none."""
    rest = {name: math.nan if value is None else value for name, value in line.items() if name != "env_steps"}
    return {name: value for name, value in rest.items() if isinstance(value, int | float)}


def _means(each: list[dict[str, float]], members: Members) -> Figures:
    """Means over the members that have a value, and each one's own."""
    names = list(dict.fromkeys(name for figures in each for name in figures))
    values = {name: np.array([figures.get(name, math.nan) for figures in each]) for name in names}
    by_member = {name: [plain(value) for value in row] for name, row in values.items()}
    return {**{name: mean(row) for name, row in values.items()}, members.by: by_member}


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
