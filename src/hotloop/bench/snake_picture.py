"""The picture of `hotloop bench snake`: what each remedy gains, and what fewer gradient steps cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.bench.measure import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = dict[str, tuple[list[float], list[list[float]]]]
"""Per line: env steps, and for each seed the scores at them."""

COLOURS = {
    "same result": "#4f8a5b",
    "same work, other games": "#3f6f9e",
    "less work": "#dfa53a",
    "other or wrong observations": "#b5523b",
    "another result": "#000000",
}
LINES = ("#3f6f9e", "#dfa53a", "#8c5a86")
INK, QUIET = "#2b2f33", "#5c6670"


def draw(rows: Sequence[Row], kinds: Mapping[str, str], curves: Curves, path: Path) -> Path:
    """Write the picture; `kinds` says of each case what it leaves as it was."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (bars, learning) = plt.subplots(1, 2, figsize=(13.5, 5.4), width_ratios=[1.3, 1], layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)  # type: ignore[union-attr, call-arg]
    _draw_bars(bars, rows, kinds)
    _draw_curves(learning, curves)
    for axes in (bars, learning):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_bars(axes: "Axes", rows: Sequence[Row], kinds: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, NullLocator

    ratios = [row.ratio or 1.0 for row in rows]
    spreads = [row.spread or (ratio, ratio) for row, ratio in zip(rows, ratios, strict=True)]
    least, most = min(low for low, _ in spreads), max(high for _, high in spreads)
    for place, (row, ratio, (low, high)) in enumerate(zip(rows, ratios, spreads, strict=True)):
        axes.barh(place, ratio - 1, left=1, height=0.68, color=COLOURS[kinds[row.case]])
        axes.plot([low, high], [place, place], color=INK, linewidth=1.2)
        axes.text(max(high, 1.0) * 1.07, place, f"{ratio:.3g} x", va="center", fontsize=10, color=INK)
    axes.set_xscale("log")
    axes.set_xlim(min(0.8, least / 1.1), most * 1.9)
    axes.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.axvline(1, color=QUIET, linewidth=1)
    axes.set_yticks(range(len(rows)), [row.case for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("env steps per second, relative to the slow baseline's pipeline (black line: quartiles)")
    axes.set_title("256 Snakes with flood-fill features: what each remedy gains", loc="left")
    used = [kind for kind in COLOURS if kind in {kinds[row.case] for row in rows}]
    patches = [Patch(color=COLOURS[kind], label=kind) for kind in used]
    axes.legend(handles=patches, frameon=False, fontsize=10, loc="upper right")
    axes.grid(axis="x", alpha=0.2)
    axes.set_axisbelow(True)


def _draw_curves(axes: "Axes", curves: Curves) -> None:
    for (label, (env_steps, scores)), colour in zip(curves.items(), LINES, strict=True):
        at_each = list(zip(*scores, strict=True))
        mean = [sum(values) / len(values) for values in at_each]
        low, high = [min(values) for values in at_each], [max(values) for values in at_each]
        axes.fill_between(env_steps, low, high, color=colour, alpha=0.14, linewidth=0)
        axes.plot(env_steps, mean, color=colour, linewidth=2, marker="o", markersize=4, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.set_xlabel("env steps")
    axes.set_ylabel("foods per game (mean of 100 greedy games)")
    axes.set_title("What fewer gradient steps cost (band: all seeds)", loc="left")
    axes.legend(fontsize=10, loc="lower right", edgecolor="none", framealpha=0.8)
    axes.grid(alpha=0.2)
