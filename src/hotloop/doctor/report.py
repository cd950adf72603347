"""What the doctor says: a box of three lines and a table for people, one object for programs."""

from typing import TYPE_CHECKING

from hotloop.doctor.causes import LISTED, WORDS, Cause, as_figures, causes_of, verdict_of
from hotloop.doctor.examination import Examined
from hotloop.plain import Figures, Json

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = "nothing-wrong"


def figures_of(seen: Examined) -> Figures:
    """The whole report as plain data."""
    causes = causes_of(seen)
    verdict, whole = verdict_of(causes), seen.seconds
    stages: dict[str, Json] = {name: stage.seconds for name, stage in seen.stages.items()}
    stages |= {name: occasion.per_env_step for name, occasion in seen.occasions.items()}
    listed: list[Json] = [{**as_figures(cause)} for cause in causes]  # type: ignore[dict-item]
    return {
        "kind": "spec",
        "verdict": {
            "cause": NOTHING if verdict is None else verdict.cause,
            "share": 0.0 if verdict is None else round(verdict.share, 4),
            "confidence": _confidence(causes, verdict),
            "sentence": _sentence(verdict),
        },
        "causes": listed,
        "stages": stages,
        "coverage": round(1 - seen.between / whole, 4),
        "env_steps_per_s": round(1 / whole, 1),
        "updates_per_s": round(seen.spec.updates_per_step / whole, 1),
        "pipeline": seen.pipeline,
        "machine": dict(seen.machine),
        "rounds": seen.rounds,
    }


def _confidence(causes: list[Cause], verdict: Cause | None) -> str:
    """How far ahead of the next one the verdict is."""
    if verdict is None:
        return "medium"
    others = [cause.share for cause in causes if cause is not verdict]
    ahead = verdict.share - max(others, default=0.0)
    return "high" if ahead > 0.2 else "medium" if ahead > 0.05 else "low"


def _sentence(verdict: Cause | None) -> str:
    if verdict is None:
        return "no stage takes a fifth of the time"
    return f"{WORDS[verdict.cause]}: {verdict.share:.0%} of the time; {'; '.join(verdict.evidence)}"


def print_report(seen: Examined, console: "Console") -> None:
    """A box, and a table of what takes the time."""
    from rich.panel import Panel
    from rich.table import Table

    causes = causes_of(seen)
    verdict, whole = verdict_of(causes), seen.seconds
    named = NOTHING if verdict is None else verdict.cause
    lines = [f"[bold]verdict[/bold]  {named}: {WORDS[named]}"]
    lines.append(f"[bold]why[/bold]      {_sentence(verdict)}")
    todo = "" if verdict is None else verdict.remedy
    marked = " (learns differently)" if verdict is not None and verdict.changes_algorithm and todo else ""
    lines.append(f"[bold]next[/bold]     {todo or 'train'}{marked}")
    console.print(Panel("\n".join(lines), expand=False))
    table = Table(show_edge=False)
    for title in ("stage", "of an env step", "share", "predicted without it", "measured", "what to do"):
        table.add_column(title, justify="left" if title in ("stage", "what to do") else "right")
    for cause in causes:
        ratio = cause.measured
        table.add_row(
            cause.where,
            f"{cause.seconds * 1e6:,.3g} µs",
            f"{cause.share:.0%}",
            "" if cause.predicted is None else f"{cause.predicted:.2f}x",
            "" if ratio is None else f"{ratio.value:.2f}x ({ratio.low:.2f}–{ratio.high:.2f})",
            "" if cause.share < LISTED or not cause.remedy else _marked(cause),
        )
    table.add_row("between stages", f"{seen.between * 1e6:,.3g} µs", f"{seen.between / whole:.0%}", "", "", "")
    console.print(table)
    threads = ", ".join(f"{name} {value}" for name, value in seen.machine.items())
    console.print(
        f"{1 / whole:,.0f} env steps/s, pipeline {seen.pipeline}; {seen.rounds} rounds; {threads}", style="dim"
    )


def _marked(cause: Cause) -> str:
    return f"{cause.remedy} (learns differently)" if cause.changes_algorithm else cause.remedy
