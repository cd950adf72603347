"""A picture of a search: what it reached trial by trial, what mattered, and how each important value did."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.plain import Json
from hotloop.searching.study import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPLETED, PRUNED, BEST, SHARE = "#4a6076", "#b9c4ce", "#d6763e", "#9db4c8"
SCATTERS = 6
"""Parameters that get a picture of their own, the most important first."""
COLUMNS = 3
LOG_FROM = 20.0
"""Ratio of the largest value to the smallest from which on the axis is logarithmic."""


def draw_search(path: Path, name: str, records: Sequence[Record], importances: Mapping[str, float]) -> None:
    """Write the picture; records without a score are only counted."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    paths = [*importances, *(each for each in records[0].values if each not in importances)][:SCATTERS]
    columns = min(COLUMNS, len(paths))
    rows, span = math.ceil(len(paths) / columns), 6 // columns
    figure = plt.figure(figsize=(11, 3.4 + 2.7 * rows), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 6, height_ratios=[1.25, *[1] * rows])
    has_shares = bool(importances)
    _draw_course(figure.add_subplot(grid[0, :4] if has_shares else grid[0, :]), name, records)
    if has_shares:
        _draw_importances(figure.add_subplot(grid[0, 4:]), importances)
    for index, each in enumerate(paths):
        row, column = divmod(index, columns)
        axes = figure.add_subplot(grid[row + 1, span * column : span * (column + 1)])
        _draw_values(axes, each, records)
        if column == 0:
            axes.set_ylabel("score")
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_course(axes: "Axes", name: str, records: Sequence[Record]) -> None:
    """The score of each trial, and the best so far."""
    from matplotlib.ticker import MaxNLocator

    counts = {state: sum(record.state == state for record in records) for state in ("completed", "pruned", "failed")}
    axes.set_title(f"{name}: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}", loc="left")
    _points(axes, [(record.number, record) for record in records])
    completed = [record for record in records if record.state == "completed" and record.score is not None]
    best = list(accumulate((record.score or 0.0 for record in completed), max))
    numbers = [record.number for record in completed]
    axes.step(
        [*numbers, records[-1].number + 0.5], [*best, *best[-1:]], where="post", color=BEST, linewidth=1.6, zorder=1
    )
    axes.plot([], [], color=BEST, linewidth=1.6, label="best so far")
    failed = [record.number for record in records if record.state == "failed"]
    if failed:
        bottom = axes.get_xaxis_transform()
        axes.plot(failed, [0.02] * len(failed), "x", color="#a04040", transform=bottom, label="failed", clip_on=False)
    axes.set_xlabel("trial")
    axes.set_ylabel("score (return)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.2)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _draw_importances(axes: "Axes", importances: Mapping[str, float]) -> None:
    shown = list(importances.items())[:10]
    places = range(len(shown))
    axes.barh(places, [share for _, share in shown], color=SHARE, height=0.62)
    for place, (path, share) in zip(places, shown, strict=True):
        axes.text(0.01, place - 0.48, path, fontsize=8, va="center", transform=axes.get_yaxis_transform())
        axes.text(share + 0.01, place, f"{share:.0%}", fontsize=8, va="center", color="#404040")
    axes.set_ylim(len(shown) - 0.4, -0.8)
    axes.set_xlim(0, max(1e-9, *(share for _, share in shown)) * 1.15)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title("what sets the better half apart", loc="left", fontsize=10)


def _draw_values(axes: "Axes", path: str, records: Sequence[Record]) -> None:
    """The score of each trial over one of its values."""
    from matplotlib.ticker import NullFormatter

    values = [record.values.get(path) for record in records]
    numbers = [_as_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    title = path
    if len(known) == len(values) and not _are_few(values):
        _points(axes, list(zip(numbers, records, strict=True)))
        if any(isinstance(value, list) for value in values):
            title = f"{path}: units in all layers"
        if min(known) > 0 and max(known) > LOG_FROM * min(known):
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        options = sorted({json.dumps(value) for value in values}, key=_by_size)
        places = {option: place for place, option in enumerate(options)}
        _points(
            axes, [(places[json.dumps(record.values.get(path))] + _aside(record.number), record) for record in records]
        )
        axes.set_xticks(range(len(options)), [option.strip('"') for option in options], fontsize=8)
        axes.set_xlim(-0.5, len(options) - 0.5)
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.2)


def _points(axes: "Axes", placed: Sequence[tuple[float | None, Record]]) -> None:
    """Trials that have a score, the best on top."""
    scored = [(place, record) for place, record in placed if place is not None and record.score is not None]
    for state, color, face in (("pruned", PRUNED, "none"), ("completed", COMPLETED, COMPLETED)):
        label = f"{state}, as it stood" if state == "pruned" else state
        points = [(place, record.score) for place, record in scored if record.state == state]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=22, edgecolors=color, facecolors=face, linewidths=1.2, label=label, zorder=2)
    completed = [(place, record) for place, record in scored if record.state == "completed"]
    if completed:
        place, best = max(completed, key=lambda each: each[1].score or 0.0)
        axes.scatter([place], [best.score or 0.0], s=60, color=BEST, zorder=3, label="best")


def _as_number(value: Json) -> float | None:
    """Where a value stands on an axis; a list of widths by their sum."""
    if isinstance(value, list) and value and all(isinstance(width, int) for width in value):
        return float(sum(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _are_few(values: Sequence[Json]) -> bool:
    """Whether they are rather to be told apart by name than by size."""
    return len({json.dumps(value) for value in values}) <= min(6, max(2, len(values) // 2))


def _by_size(option: str) -> tuple[float, str]:
    size = _as_number(json.loads(option))
    return (math.inf if size is None else size, option)


def _aside(number: int) -> float:
    """A step aside, so that trials with the same value are seen beside each other."""
    return ((number * 0.618034) % 1 - 0.5) * 0.36
