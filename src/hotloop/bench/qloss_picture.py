"""The picture of `hotloop bench qloss`: what each piece of advice gains, and how long a whole training takes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.bench.measure import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXACT, OTHER_ALGORITHM, OTHER_RESULT = "same result", "another algorithm: fewer optimiser steps", "another result"
HOTLOOP = "hotloop, same result"
COLOURS = {EXACT: "#4f8a5b", OTHER_ALGORITHM: "#dfa53a", HOTLOOP: "#3f6f9e", OTHER_RESULT: "#000000"}
INK, QUIET = "#2b2f33", "#5c6670"


def draw(ladder: Sequence[Row], kinds: Mapping[str, str], whole: Sequence[Row], path: Path) -> Path:
    """Write the picture; `kinds` says of each case of the ladder what it leaves as it was."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (steps, runs) = plt.subplots(1, 2, figsize=(13.5, 6.0), width_ratios=[1.4, 1], layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    _draw_ladder(steps, ladder, kinds)
    _draw_runs(runs, whole)
    for axes in (steps, runs):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.2)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_ladder(axes: "Axes", rows: Sequence[Row], kinds: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, NullLocator

    ratios = [row.ratio or 1.0 for row in rows]
    spreads = [row.spread or (ratio, ratio) for row, ratio in zip(rows, ratios, strict=True)]
    for place, (row, ratio, (low, high)) in enumerate(zip(rows, ratios, spreads, strict=True)):
        axes.barh(place, ratio - 1, left=1, height=0.68, color=COLOURS[kinds[row.case]])
        axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
        said = f"{ratio:.3g} x ({row.value:,.0f} µs)"
        axes.text(max(high, 1.0) * 1.07, place, said, va="center", fontsize=10, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(min(0.8, min(low for low, _ in spreads) / 1.1), max(high for _, high in spreads) * 4)
    axes.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50, 100]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axvline(1, color=QUIET, linewidth=1)
    axes.set_yticks(range(len(rows)), [row.case.partition("/")[2] for row in rows])
    axes.set_xlabel("gradient steps' worth of data per second, relative to the original (black line: quartiles)")
    axes.set_title("One gradient step, net 4-64-2, batch 32: what each piece of advice gains", loc="left")
    used = [kind for kind in COLOURS if kind in {kinds[row.case] for row in rows}]
    patches = [Patch(color=COLOURS[kind], label=kind) for kind in used]
    axes.legend(handles=patches, frameon=False, fontsize=10, loc="upper right")


def _draw_runs(axes: "Axes", rows: Sequence[Row]) -> None:
    longest = max(row.value for row in rows)
    for place, row in enumerate(rows):
        axes.barh(place, row.value, height=0.6, color=COLOURS[EXACT if row.ratio is None else HOTLOOP])
        ratio = "" if row.ratio is None else f" ({row.ratio:.3g} x)"
        said = f"{row.value:,.3g} s{ratio}"
        axes.text(row.value + 0.02 * longest, place, said, va="center", fontsize=10, color=INK)
    axes.set_xlim(0, longest * 1.3)
    axes.set_yticks(range(len(rows)), [row.case.partition("/")[2].replace(", ", ",\n") for row in rows])
    axes.set_xlabel("seconds")
    axes.set_title("All of dqn_cartpole (79,744 gradient steps)", loc="left")
