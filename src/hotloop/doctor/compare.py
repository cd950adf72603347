"""Two reports of the doctor beside each other: what a change has brought, and what takes the time now."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.errors import SpecError
from hotloop.plain import Figures, inner

if TYPE_CHECKING:
    from rich.console import Console

SPEEDS = {"env_steps_per_s": "env steps/s", "updates_per_s": "gradient steps/s"}


def compared(before: Path, after: Path) -> Figures:
    """Speeds, verdicts, and each cause's seconds of an env step in both; what is in one alone is null in the other."""
    first, second = (_read(path) for path in (before, after))
    seconds = [_seconds(report) for report in (first, second)]
    causes = sorted({*seconds[0], *seconds[1]}, key=lambda cause: -max(each.get(cause, 0.0) for each in seconds))
    return {
        "before": str(before),
        "after": str(after),
        "speedup": {name: _ratio(second.get(name), first.get(name)) for name in SPEEDS},
        "speeds": {name: [first.get(name), second.get(name)] for name in SPEEDS},
        "verdicts": [inner(report, "verdict")["cause"] for report in (first, second)],
        "causes": [{"cause": cause, "seconds": [each.get(cause) for each in seconds]} for cause in causes],
        "same_kind": first.get("kind") == second.get("kind"),
    }


def print_compared(found: Figures, console: "Console") -> None:
    """As a table."""
    from rich.table import Table

    from hotloop.doctor.causes import in_time

    table = Table(title="before and after", title_justify="left", show_edge=False)
    for column in ("", "before", "after", "times"):
        table.add_column(column, justify="right" if column else "left")
    speeds, causes, verdicts = found["speeds"], found["causes"], found["verdicts"]
    assert isinstance(speeds, dict)
    assert isinstance(causes, list)
    assert isinstance(verdicts, list)
    for name, words in SPEEDS.items():
        pair = speeds[name]
        assert isinstance(pair, list)
        table.add_row(words, *(_number(each) for each in pair), _times(_ratio(pair[1], pair[0])))
    for each in causes:
        assert isinstance(each, dict)
        pair = each["seconds"]
        assert isinstance(pair, list)
        said = [in_time(one) if isinstance(one, float | int) else "–" for one in pair]
        table.add_row(f"{each['cause']}, of an env step", *said, _times(_ratio(pair[1], pair[0])))
    table.add_row("verdict", str(verdicts[0]), str(verdicts[1]), "")
    console.print(table)
    if not found["same_kind"]:
        console.print("one is of a spec, the other of a script: their causes are not measured alike", style="dim")


def _read(path: Path) -> Figures:
    path = path / "doctor.json" if path.is_dir() else path
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        report = None
    if not isinstance(report, dict) or not {"verdict", "causes", "env_steps_per_s"} <= set(report):
        raise SpecError(f"{path} is no report of the doctor; expected doctor.json of --out, or what --json prints")
    return report


def _seconds(report: Figures) -> dict[str, float]:
    """Of an env step, by cause; what is no time is left out."""
    causes, found = report["causes"], dict[str, float]()
    assert isinstance(causes, list)
    for each in causes:
        if isinstance(each, dict) and isinstance(seconds := each.get("seconds"), float | int) and seconds:
            found[str(each["cause"])] = found.get(str(each["cause"]), 0.0) + seconds
    return found


def _ratio(new: object, old: object) -> float | None:
    is_known = isinstance(new, float | int) and isinstance(old, float | int) and old
    return round(new / old, 3) if is_known else None  # type: ignore[operator]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _number(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float | int) else "–"
