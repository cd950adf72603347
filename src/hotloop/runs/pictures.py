"""Pictures of a run: its learning curve, and a GIF of the agent."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.film import PAUSE_SECONDS
from hotloop.members import Members
from hotloop.plain import Figures, inner, number, numbers
from hotloop.runs import metrics
from hotloop.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from PIL.Image import Image

TRAINING, GREEDY, GOAL = "#9db4c8", "#d6763e", "#5a8f5a"


def draw_curve(folder: Path, spec: Spec) -> Path:
    """Write curve.png: return over env steps above, loss and Q-values below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = metrics.read(folder / "metrics.jsonl")
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval" and None not in row.values()]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 5.6), sharex=True, height_ratios=[2.4, 1], layout="constrained"
    )
    _plot(top, train, "ep_return_mean", color=TRAINING, linewidth=1.6, label="training episodes (exploring)")
    if evaluations:
        _plot_evaluations(top, evaluations, spec.members)
    if spec.stop.return_at_least is not None:
        top.axhline(spec.stop.return_at_least, color=GOAL, linestyle="--", linewidth=1, label="solved")
    top.set_ylabel("return")
    top.set_title(f"{spec.name}  ({spec.members}, {spec.replay_ratio:g} updates per step)", loc="left")
    if top.get_legend_handles_labels()[0]:
        top.legend(frameon=False, loc="best", fontsize=9)
    _plot(bottom, train, "loss", color="#4a6076", linewidth=1.4, label="loss")
    bottom.set_ylabel("loss")
    losses = [number(row, "loss") for row in train if row.get("loss")]
    if losses and max(losses) > 30 * min(losses):
        bottom.set_yscale("log")
    other = bottom.twinx()
    _plot(other, train, "q_mean", color="#8a6d9e", linewidth=1.4, label="mean Q")
    other.set_ylabel("mean Q")
    bottom.set_xlabel("env steps")
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    other.spines["top"].set_visible(False)
    lines = [*bottom.get_lines(), *other.get_lines()]
    bottom.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=9, loc="upper right")
    path = folder / "curve.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def write_gif(frames: "list[Image]", path: Path, fps: float) -> Path:
    """Write an endless GIF with one palette for all frames, so that colours do not flicker; the last one stands."""
    from PIL.Image import Dither

    path.parent.mkdir(parents=True, exist_ok=True)
    palette = frames[len(frames) // 2].quantize(128)
    small = [frame.quantize(palette=palette, dither=Dither.NONE) for frame in frames]
    pause = math.floor(PAUSE_SECONDS * fps)
    small[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=[*small[1:], *[small[-1]] * pause],
        duration=round(1000 / fps),
        loop=0,
    )
    return path


def _plot_evaluations(axes: "Axes", rows: list[Figures], members: Members) -> None:
    """Mean and spread of one member's episodes; of several the interquartile mean, its interval and each of them."""
    steps = [number(row, "env_steps") for row in rows]
    if not members.are_many:
        middle, spread = ([number(row, name) for row in rows] for name in ("return_mean", "return_std"))
        band = [[mean - std, mean + std] for mean, std in zip(middle, spread, strict=True)]
        label = "greedy evaluation ± std"
    elif members.are_a_team:
        middle = [number(row, "return_mean") for row in rows]
        each = [numbers(inner(row, members.by), "return_mean") for row in rows]
        band = [[min(row), max(row)] for row in each]
        label = f"greedy evaluation: mean of {len(members)} {members.kind}s, lowest to highest"
        axes.plot(steps, each, color=GREEDY, linewidth=0.8, alpha=0.45)
    else:
        middle = [number(row, "return_iqm") for row in rows]
        band = [numbers(row, "return_interval") for row in rows]
        label = f"greedy evaluation: IQM of {len(members)} {members.kind}s, 95 % bootstrap interval"
        each = [numbers(inner(row, members.by), "return_mean") for row in rows]
        axes.plot(steps, each, color=GREEDY, linewidth=0.8, alpha=0.45)
    low, high = zip(*band, strict=True)
    axes.fill_between(steps, low, high, color=GREEDY, alpha=0.18, linewidth=0)
    axes.plot(steps, middle, color=GREEDY, linewidth=2, marker="o", markersize=4, label=label)
    cut = [(step, value) for step, value, row in zip(steps, middle, rows, strict=True) if row.get("cut")]
    if cut:
        axes.plot(
            *zip(*cut, strict=True),
            linestyle="",
            marker="o",
            markersize=6,
            markerfacecolor="white",
            markeredgecolor=GREEDY,
            label="evaluation that was cut short",
        )


def _plot(axes: "Axes", rows: list[Figures], name: str, *, color: str, linewidth: float, label: str) -> None:
    known = [(number(row, "env_steps"), number(row, name)) for row in rows if row.get(name) is not None]
    if known:
        axes.plot(*zip(*known, strict=True), color=color, linewidth=linewidth, label=label)
