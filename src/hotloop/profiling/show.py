"""A profile for people: a table, and a picture of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.profiling.figures import AnyProfile, EnvProfile, Line, Stage, Stretch, per_episode

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table

STAGE, PART, REST = "#4a6076", "#9db4c8", "#d8d4ca"
STEP, EPISODE, LENGTH = "#4a6076", "#d6763e", "#5a8f5a"


def print_tables(report: AnyProfile, console: "Console") -> None:
    """Stages with their parts, the counts, and what follows from them."""
    from rich.table import Table

    block = report["block"]
    title = f"one block: {block['env_steps']} env steps, then {block['updates']} gradient steps"
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("stage")
    for column in ("us per block", "us per env step", "share of fused" if "fused_us" in report else "share"):
        table.add_column(column, justify="right")
    for row in report["stages"]:
        table.add_row(*_cells(row["stage"], row))
        if row["stage"] == "env step":
            for part in report["parts"]:
                table.add_row(*_cells(f"  {part['stage'].removeprefix('env step: ')}", part), style="dim")
    table.add_section()
    if "fused_us" in report:
        table.add_row("sum of stages", f"{report['sum_of_stages_us']:,.1f}", "", f"{report['sum_over_fused']:.1%}")
        table.add_row("all of learning in one loop", f"{report['update_us']:,.1f}", "", "")
        table.add_row("fused", f"{report['fused_us']:,.1f}", "", "100.0%")
    else:
        table.add_row("the whole loop", f"{report['whole_us']:,.1f}", "", "100.0%")
    console.print(table)
    episodes = report["episodes"]
    if "fused_us" in report:
        loss = report["q_loss"]
        console.print(
            f"Q-loss: {loss['calls']:,.0f} calls, {loss['mean_ms']:.4g} ms each (target and forward pass); with "
            f"gradient and optimiser {loss['mean_ms_with_gradient_and_step']:.4g} ms"
        )
    console.print(
        f"speed: {report['env_steps_per_s']:,.0f} env steps/s, {report['updates_per_s']:,.0f} updates/s; "
        f"{episodes['episodes']:,} episodes in {episodes['env_steps']:,} env steps = "
        f"{episodes['steps_per_episode'] or 0:,.1f} steps per episode"
    )
    if report["course"]:
        course = Table(title="during training", title_justify="left", show_edge=False)
        for column in ("env steps", "us per step", "steps per episode", "ms per episode"):
            course.add_column(column, justify="right")
        for stretch in report["course"]:
            of_episodes = per_episode(stretch)
            cells = (f"{of_episodes[0]:,.1f}", f"{of_episodes[1]:,.3g}") if of_episodes else ("", "")
            course.add_row(f"{stretch['env_steps']:,}", f"{stretch['us_per_step']:.2f}", *cells)
        console.print(course)
    for line in report["says"]:
        console.print(f"· {line}")


def print_functions(found: EnvProfile, console: "Console") -> None:
    """Python functions of an env by their own time."""
    from rich.table import Table

    title = f"{found['env']}: {found['us_per_step']:.1f} us per step ({found['steps_per_s']:,.0f} steps/s)"
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("function")
    for column in ("calls per step", "own us per step", "with callees", "share"):
        table.add_column(column, justify="right")
    for row in found["functions"]:
        cells = (
            f"{row['calls_per_step']:.2f}",
            f"{row['own_us_per_step']:.2f}",
            f"{row['with_callees_us_per_step']:.2f}",
            f"{row['share']:.1%}",
        )
        table.add_row(row["function"], *cells, style="bold" if row["yours"] else None)
    console.print(table)
    console.print(
        f"bold: your own code; under the profiler a step took {found['us_per_step_while_profiled']:.1f} us", style="dim"
    )
    if found["lines"]:
        console.print(table_of_lines(found["lines"]))


def table_of_lines(lines: Sequence[Line]) -> "Table":
    """`file.py:12 function`, its share, and what is written there."""
    from rich.table import Table
    from rich.text import Text

    title = "lines of your own code, with what they call (tracing slows them; shares are what counts)"
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in ("line", "share", ""):
        table.add_column(column, justify="right" if column == "share" else "left")
    for line in lines:
        table.add_row(place_of(line), f"{line['share']:.0%}", Text(line["text"]))
    return table


def place_of(line: Line) -> str:
    """`file.py:12 function`."""
    return f"{line['file']}:{line['line']} {line['function']}"


def draw(report: AnyProfile, name: str, path: Path) -> Path:
    """Stages as bars, in % of the whole block; beside them, time per step and per episode during training."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=[1.25, 1], layout="constrained")
    _bars(left, report)
    _course(right, report["course"])
    block, whole = report["block"], report["fused_us"] if "fused_us" in report else report["whole_us"]
    figure.suptitle(
        f"{name}: one block = {block['env_steps']} env steps + {block['updates']} updates, "
        f"{whole / 1e3:.3g} ms; {report['env_steps_per_s']:,.0f} env steps/s",
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _bars(axes: "Axes", report: AnyProfile) -> None:
    rows: list[tuple[str, Stage, str]] = []
    for stage in report["stages"]:
        rows.append((stage["stage"], stage, REST if stage["stage"] == "rest" else STAGE))
        if stage["stage"] == "env step":
            rows += [(f"  {p['stage'].removeprefix('env step: ')}", p, PART) for p in report["parts"]]
    places = range(len(rows))[::-1]
    axes.barh(places, [row["share"] * 100 for _, row, _ in rows], color=[colour for *_, colour in rows])
    axes.set_yticks(places, [label for label, *_ in rows])
    for place, (_, row, _) in zip(places, rows, strict=True):
        text = f" {row['share']:.1%}  {row['us_per_block']:,.0f} µs"
        axes.text(max(row["share"], 0) * 100, place, text, va="center", fontsize=8)
    axes.set_xlim(left=min(0, *(row["share"] * 100 for _, row, _ in rows)))
    axes.margins(x=0.3)
    axes.set_xlabel("% of the fused block" if "fused_us" in report else "% of the loop's time")
    axes.spines[["top", "right"]].set_visible(False)


def _course(axes: "Axes", course: list[Stretch]) -> None:
    known = [(part, *of_episodes) for part in course if (of_episodes := per_episode(part))]
    axes.set_title("relative to the first stretch of training", fontsize=10, loc="left")
    if len(known) > 1:
        steps = [part["env_steps"] for part, _, _ in known]
        for figures, label, colour in (
            ([part["us_per_step"] for part, _, _ in known], "time per step", STEP),
            ([lasts for _, lasts, _ in known], "steps per episode", LENGTH),
            ([takes for _, _, takes in known], "time per episode", EPISODE),
        ):
            values = [figure / figures[0] for figure in figures]
            axes.plot(steps, values, color=colour, marker="o", markersize=4, label=f"{label} ({values[-1]:.2f}x)")
        axes.legend(frameon=False, fontsize=9)
        axes.set_ylim(bottom=0)
    axes.set_xlabel("env steps")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.grid(alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _cells(label: str, row: Stage) -> tuple[str, ...]:
    return label, f"{row['us_per_block']:,.1f}", f"{row['us_per_env_step']:.4g}", f"{row['share']:.1%}"
