"""The picture of `hotloop bench processes`: each training of a case against its sync, targets and ceiling beside it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.bench.measure import Row

if TYPE_CHECKING:
    from hotloop.bench.processes import Target

OURS, OTHER, INK, QUIET, ASKED = "#3f6f9e", "#a9b4bd", "#2b2f33", "#5c6670", "#c0504d"


def draw(rows: Sequence[Row], targets: Mapping[str, "Target | None"], path: Path) -> Path:
    """Write the picture; the first row is the ceiling."""
    from matplotlib.figure import Figure

    top, shown = rows[0], [row for row in rows[1:] if row.ratio is not None]
    figure = Figure(figsize=(10.5, 0.8 + 0.36 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(shown):
        ratio, (low, high) = row.ratio or 1.0, row.spread or (1.0, 1.0)
        axes.barh(place, ratio, height=0.66, color=OURS if "/processes" in row.case else OTHER)
        axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
        axes.text(max(ratio, high) + 0.04, place, f"{ratio:.2f} x ({row.value:,.0f} steps/s)", va="center", fontsize=9)
        target = targets.get(row.case)
        if target is not None and not target.is_of_faster:
            axes.plot([target.at_least] * 2, [place - 0.42, place + 0.42], color=ASKED, linewidth=2)
    axes.axvline(1, color=QUIET, linewidth=1)
    axes.axvline(top.ratio or 2.0, color=QUIET, linewidth=1, linestyle="--")
    axes.text(top.ratio or 2.0, -0.8, " two processes that only work", color=QUIET, fontsize=9, va="center")
    axes.set_yticks(range(len(shown)), [row.case for row in shown])
    axes.set_ylim(len(shown) - 0.4, -1.2)
    axes.set_xlim(0, max(row.ratio or 1.0 for row in shown) * 1.3)
    axes.set_xlabel("env steps per second, relative to pipeline sync (black line: quartiles; red: what was aimed at)")
    axes.set_title("Envs in processes of their own, at equal work", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=130)
    return path
