"""The picture of `hotloop bench actors`: each piece of advice alone, and phases of it in two processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.bench.measure import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAME, OTHER, BEYOND = "same result", "another result", "not in the document"
COLOURS = {SAME: "#4f8a5b", OTHER: "#dfa53a", BEYOND: "#3f6f9e"}
INK, QUIET, SHADE = "#2b2f33", "#5c6670", "#d9dde1"
ESTIMATES = {"actor": (1.15, 1.30), "learner": (1.20, 1.40), "both": (1.20, 1.35)}
"""By the document, of phases 1 and 2."""


def draw(alone: Sequence[Row], pairs: Sequence[Row], path: Path) -> Path:
    """Write the picture."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(14.5, 7.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    pieces = [row for row in alone if row.ratio is not None]
    _bars(left, pieces, [row.case for row in pieces], [_kind(row) for row in pieces])
    left.set_title("Each piece of advice alone, on the side that it is for", loc="left", fontsize=11)
    left.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items()], frameon=False, loc="best"
    )
    together = [row for row in pairs if row.ratio is not None]
    names = [row.case.removeprefix("two processes/") for row in together]
    for place, name in enumerate(names):
        if name.endswith("phases 1 + 2"):
            low, high = ESTIMATES[name.partition(",")[0]]
            right.barh(place, high - low, left=low, height=0.95, color=SHADE, zorder=0)
    kinds = [BEYOND if name.endswith("not in the document") else OTHER if "phase" in name else SAME for name in names]
    _bars(right, together, names, kinds)
    right.set_title("In two processes (grey: the document's estimate)", loc="left", fontsize=11)
    figure.savefig(path, dpi=130)
    return path


def _bars(axes: "Axes", rows: Sequence[Row], names: Sequence[str], kinds: Sequence[str]) -> None:
    for place, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        ratio, (low, high) = row.ratio or 1.0, row.spread or (1.0, 1.0)
        axes.barh(place, ratio - 1, left=1, height=0.6, color=COLOURS[kind])
        axes.plot([low, high], [place, place], color=INK, linewidth=1.1)
        axes.text(max(high, ratio, 1.0) + 0.012, place, f"{ratio:.2f} x", va="center", fontsize=9, color=INK)
    axes.axvline(1, color=QUIET, linewidth=1)
    axes.set_yticks(range(len(rows)), names, fontsize=9)
    axes.invert_yaxis()
    lowest, highest = min((row.spread or (1, 1))[0] for row in rows), max((row.spread or (1, 1))[1] for row in rows)
    axes.set_xlim(min(0.9, lowest - 0.03), max(1.15, highest + 0.12))
    axes.set_xlabel("times as fast as the loop without it (black line: quartiles)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _kind(row: Row) -> str:
    if row.columns.get("document says") == "not named":
        return BEYOND
    return SAME if row.columns.get("same result") in ("bits", "rounding") else OTHER
