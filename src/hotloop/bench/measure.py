"""Measuring A against B: interleaved in one process, median of paired ratios, spread beside it."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hotloop.plain import Figures, Json
from hotloop.progress import Reporter

FASTER = "times as fast as"
COST = "times the time of"
LEVEL = "no difference from"


@dataclass
class Row:
    """One case: its own figure, and its ratio to a baseline of the same run."""

    case: str
    value: float
    unit: str
    ratio: float | None = None
    against: str | None = None
    spread: tuple[float, float] | None = None
    means: str = FASTER
    note: str = ""
    columns: Mapping[str, Json] = field(default_factory=dict)
    """What else was measured of this case, by name: a column each."""

    @property
    def says(self) -> str:
        """What the ratio means; one whose quartiles lie on both sides of 1 says nothing."""
        is_level = self.spread is not None and self.spread[0] <= 1.0 <= self.spread[1]
        return LEVEL if is_level else self.means

    def as_json(self) -> Figures:
        """The five fields every benchmark has, what explains them, and columns of this benchmark's own, if any."""
        return {
            "case": self.case,
            "value": round(self.value, 3),
            "unit": self.unit,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "against": self.against,
            "spread": None if self.spread is None else [round(bound, 3) for bound in self.spread],
            "ratio_means": self.says if self.ratio is not None else None,
            "note": self.note,
            **({"columns": dict(self.columns)} if self.columns else {}),
        }


@dataclass
class Result:
    """All rows of a benchmark, and the settings without which they mean nothing."""

    name: str
    settings: dict[str, object]
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """One object."""
        return {"name": self.name, "settings": self.settings, "rows": [row.as_json() for row in self.rows]}

    def print_table(self) -> None:
        """A table for people."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title=f"hotloop bench {self.name}", title_justify="left", show_edge=False)
        table.add_column("case")
        table.add_column("value", justify="right")
        table.add_column("ratio", justify="right")
        table.add_column("against")
        more = list(dict.fromkeys(name for row in self.rows for name in row.columns))
        for name in more:
            table.add_column(name, justify="right")
        table.add_column("note")
        for row in self.rows:
            low, high = row.spread or (0.0, 0.0)
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
            if row.spread and row.ratio is not None:
                ratio += f" ({low:.3g}–{high:.3g})"
            against = "" if row.against is None else f"{row.says} {row.against}"
            cells = [_cell(row.columns.get(name)) for name in more]
            table.add_row(row.case, f"{row.value:,.4g} {row.unit}", ratio, against, *cells, row.note)
        console = Console() if sys.stdout.isatty() else Console(width=240 if more else 160)
        console.print(table)
        console.print("; ".join(f"{name} {value}" for name, value in self.settings.items()), style="dim")
        console.print(
            "ratios are medians over rounds in which all cases ran one after the other (quartiles), unless a note says "
            "otherwise",
            style="dim",
        )


def _cell(value: Json) -> str:
    if value is None:
        return "–"
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def interleave(cases: Mapping[str, Callable[[], None]], *, rounds: int, reporter: Reporter) -> dict[str, list[float]]:
    """Seconds of each case in each round, in the order A B C, C B A, …; one unmeasured round comes first."""
    for run in cases.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds):
        order = list(cases) if number % 2 == 0 else list(cases)[::-1]
        for name in order:
            started = time.perf_counter()
            cases[name]()
            seconds[name].append(time.perf_counter() - started)
        reporter.show(number + 1, rounds, {"rounds of": " | ".join(cases)})
    return seconds


def paired_ratio(numerator: list[float], denominator: list[float]) -> tuple[float, tuple[float, float]]:
    """Median and quartiles of the ratios taken round by round."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    if len(ratios) < 2:
        return ratios[0], (ratios[0], ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return middle, (low, high)


def machine() -> dict[str, object]:
    """What every figure is printed with."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "PJRT_NPROC": os.environ.get("PJRT_NPROC", ""),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "unset"),
    }


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
