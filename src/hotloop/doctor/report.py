"""What the doctor says: a box of three lines and a table for people, one object for programs."""

from typing import TYPE_CHECKING

from hotloop.doctor.causes import LISTED, WORDS, Cause, as_figures, causes_of, verdict_of
from hotloop.doctor.diagnosis import Diagnosis, Tried
from hotloop.doctor.race import NO_TIME
from hotloop.plain import Figures, Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTHING = "nothing-wrong"
TITLES = ("stage", "of an env step", "share", "without it: predicted", "measured", "what to do")


def figures_of(diagnosis: Diagnosis) -> Figures:
    """The whole report as plain data."""
    seen = diagnosis.seen
    causes = causes_of(seen)
    verdict, whole = verdict_of(causes), seen.seconds
    stages: dict[str, Json] = {name: stage.seconds for name, stage in seen.stages.items()}
    stages |= {name: occasion.per_env_step for name, occasion in seen.occasions.items()}
    return {
        "kind": "spec",
        "verdict": {
            "cause": NOTHING if verdict is None else verdict.cause,
            "share": 0.0 if verdict is None else round(verdict.share, 4),
            "confidence": _confidence(causes, verdict),
            "sentence": sentence(causes),
        },
        "causes": [as_figures(cause) for cause in causes],
        "remedies": [_remedy(tried) for tried in diagnosis.remedies],
        "stages": stages,
        "coverage": round(1 - seen.between / whole, 4),
        "env_steps_per_s": round(1 / whole, 1),
        "updates_per_s": round(seen.spec.replay_ratio / whole, 1),
        "pipeline": seen.pipeline,
        "machine": dict(seen.machine),
        "rounds": seen.rounds,
        "beside": [name for name, stage in seen.stages.items() if stage.is_beside],
        "notices": [*seen.notices],
    }


def _remedy(tried: Tried) -> Figures:
    remedy, ratio = tried.remedy, tried.measured
    return {
        "options": remedy.options,
        "changes": {**remedy.changes},
        "predicted_speedup": round(remedy.predicted, 3),
        "measured_speedup": None if ratio is None else round(ratio.value, 3),
        "interval": None if ratio is None else ratio.interval,
        "how_measured": "trainings in turns" if ratio is not None else tried.why_not,
    }


def _confidence(causes: list[Cause], verdict: Cause | None) -> str:
    """How far ahead of the next one the verdict is."""
    if verdict is None:
        return "medium"
    others = [cause.share for cause in causes if cause is not verdict]
    ahead = verdict.share - max(others, default=0.0)
    return "high" if ahead > 0.2 else "medium" if ahead > 0.05 else "low"


def verdict_named(causes: list[Cause]) -> tuple[str, str]:
    """Its id, and in words."""
    verdict = verdict_of(causes)
    named = NOTHING if verdict is None else verdict.cause
    return named, WORDS[named]


def sentence(causes: list[Cause]) -> str:
    """Why the verdict is what it is."""
    verdict = verdict_of(causes)
    if verdict is None:
        return "no stage takes a fifth of the time"
    return f"{WORDS[verdict.cause]}: {verdict.share:.0%} of the time; {'; '.join(verdict.evidence)}"


def print_report(diagnosis: Diagnosis, console: "Console") -> None:
    """A box, a table of what takes the time, and one of what would help."""
    from rich.panel import Panel

    seen = diagnosis.seen
    causes = causes_of(seen)
    named, words = verdict_named(causes)
    lines = [
        f"[bold]verdict[/bold]  {named}: {words}",
        f"[bold]why[/bold]      {sentence(causes)}",
        f"[bold]next[/bold]     {next_step(diagnosis)}",
    ]
    console.print(Panel("\n".join(lines), expand=False))
    console.print(_table_of_causes(diagnosis, causes))
    if diagnosis.remedies:
        console.print(_table_of_remedies(diagnosis))
    threads = ", ".join(f"{name} {value}" for name, value in seen.machine.items())
    speed = f"{1 / seen.seconds:,.0f} env steps/s, pipeline {seen.pipeline}"
    console.print("; ".join([speed, f"{seen.rounds} rounds", threads, *seen.notices]), style="dim")


def next_step(diagnosis: Diagnosis) -> str:
    """What was measured to be best, else what is predicted to be, else what makes the run learn differently."""
    measured = [tried for tried in diagnosis.remedies if tried.measured is not None and tried.measured.low > 1]
    if measured:
        best = max(measured, key=lambda tried: tried.measured.value if tried.measured else 0.0)
        assert best.measured is not None
        return f"{best.remedy.options}: {best.measured.value:.2f}x as fast, measured"
    untried = [tried for tried in diagnosis.remedies if not tried.remedy.can_be_raced or tried.why_not == NO_TIME]
    if untried:
        return f"{untried[0].remedy.options}: {untried[0].remedy.predicted:.2f}x as fast, predicted"
    verdict = verdict_of(causes_of(diagnosis.seen))
    if verdict is not None and verdict.remedy:
        return marked(verdict)
    return "nothing that leaves what is learned as it is"


def cells_of(cause: Cause) -> tuple[str, ...]:
    """A row of the table, below TITLES."""
    return (
        cause.where,
        f"{cause.seconds * 1e6:,.3g} µs",
        f"{cause.share:.0%}",
        "" if cause.predicted is None else f"{cause.predicted:.2f}x",
        str(cause.measured or ""),
        marked(cause),
    )


def _table_of_causes(diagnosis: Diagnosis, causes: list[Cause]) -> "Table":
    from rich.table import Table

    seen = diagnosis.seen
    table = Table(title="where the time goes", title_justify="left", show_edge=False)
    for title in TITLES:
        table.add_column(title, justify="left" if title in (TITLES[0], TITLES[-1]) else "right")
    for cause in causes:
        table.add_row(*cells_of(cause))
    table.add_row("between stages", f"{seen.between * 1e6:,.3g} µs", f"{seen.between / seen.seconds:.0%}", "", "", "")
    return table


def _table_of_remedies(diagnosis: Diagnosis) -> "Table":
    from rich.table import Table

    table = Table(title="settings that learn the same", title_justify="left", show_edge=False)
    for title in ("setting", "predicted", "measured", ""):
        table.add_column(title, justify="left" if title in ("setting", "") else "right")
    for remedy, ratio, why_not in diagnosis.remedies:
        table.add_row(remedy.options, f"{remedy.predicted:.2f}x", str(ratio or ""), why_not)
    return table


def marked(cause: Cause) -> str:
    """What to do about a cause worth naming, and whether that changes what is learned."""
    if cause.share < LISTED:
        return ""
    return f"{cause.remedy} (learns differently)" if cause.changes_algorithm else cause.remedy
