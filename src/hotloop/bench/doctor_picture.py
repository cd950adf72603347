"""What the doctor predicted against what was measured, for every planted case."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotloop.bench.doctor import Outcome

STAGE, SETTING = "#4a6076", "#d6763e"


def draw(outcomes: "Sequence[Outcome]", path: Path) -> None:
    """Speed-ups on logarithmic axes; on the line, both are the same. Filled: cases on which no threshold was set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 6), layout="constrained")
    most = 1.2
    for kind, colour, name in (("stages", STAGE, "without a stage"), ("settings", SETTING, "with another setting")):
        for half in ("set", "asked"):
            pairs = [pair for each in outcomes if each.case.half == half for pair in getattr(each, kind)]
            if not pairs:
                continue
            predicted, measured = zip(*pairs, strict=True)
            most = max(most, *predicted, *measured)
            label = name if half == "asked" else f"{name}, threshold set on it"
            fill = colour if half == "asked" else "none"
            axes.scatter(measured, predicted, s=36, facecolors=fill, edgecolors=colour, label=label)
    ends = [0.5, most * 1.2]
    axes.plot(ends, ends, color="#999999", linewidth=0.8)
    axes.fill_between(ends, [end / 1.15 for end in ends], [end * 1.15 for end in ends], color="#eeeeee", zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="measured, times as fast", ylabel="predicted", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)
