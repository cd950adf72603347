"""What the doctor says: a box of three lines and a table for people, one object for programs."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hotloop.doctor.causes import NOTHING, OF_OCCASION, WORDS, Cause, as_figures, causes_of, in_time, verdict_of
from hotloop.doctor.diagnosis import Diagnosis, Tried
from hotloop.doctor.examination import Examined
from hotloop.doctor.losses import FIRST, LISTED, NEVER, losses_of, say_machine
from hotloop.doctor.race import NO_TIME
from hotloop.plain import Figures, Json
from hotloop.profiling.show import table_of_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
            "confidence": confidence(causes, verdict),
            "sentence": sentence(causes),
        },
        "causes": [as_figures(cause) for cause in causes],
        "remedies": [figures_of_tried(tried) for tried in diagnosis.remedies],
        "less_work": [
            {"options": each.options, "changes": {**each.changes}, "predicted_speedup": round(each.predicted, 3)}
            for each in diagnosis.less_work
        ],
        "stages": stages,
        "coverage": round(1 - seen.between / whole, 4),
        "overhead": round(seen.overhead, 5),
        "env_steps_per_s": round(1 / whole, 1),
        "updates_per_s": round(seen.spec.replay_ratio / whole, 1),
        "hotloop": None,  # it is hotloop
        "pipeline": seen.pipeline,
        "machine": dict(seen.machine),
        "watched": _watched(seen),
        "rounds": seen.rounds,
        "beside": [name for name, stage in seen.stages.items() if stage.is_beside],
        "notices": [*seen.notices],
        "limits": None if seen.limits is None else seen.limits.as_figures(),
    }


def _watched(seen: Examined) -> Figures:
    """What could not be seen is null."""
    watched: Figures = {**seen.watched._asdict()}
    watched["top"] = [{**other._asdict()} for other in seen.watched.top]
    return {**watched, "collecting": seen.collecting, "bytes_per_env_step": seen.growth}


def figures_of_tried(tried: Tried) -> Figures:
    """A setting, and what came of it, as JSON has it."""
    remedy, ratio = tried.remedy, tried.measured
    return {
        "options": remedy.options,
        "changes": {**remedy.changes},
        "predicted_speedup": round(remedy.predicted, 3),
        "measured_speedup": None if ratio is None else round(ratio.value, 3),
        "interval": None if ratio is None else ratio.interval,
        "how_measured": "trainings in turns" if ratio is not None else tried.why_not,
    }


def confidence(causes: list[Cause], verdict: Cause | None) -> str:
    """How far ahead of the next one the verdict is."""
    if verdict is None:
        return "medium"
    if verdict.is_verdict == FIRST:
        return "high"
    if verdict.stage == "update" and verdict.at_limit is None:
        return "low"  # whether arithmetic or overhead binds it is not known
    others = [cause.share for cause in causes if cause.where != verdict.where and cause.is_verdict != NEVER]
    ahead = verdict.share - max(others, default=0.0)
    return "high" if ahead > 0.2 else "medium" if ahead > 0.05 else "low"


def verdict_line(causes: list[Cause], sure: str | None = None) -> str:
    """Its id, in words, and how sure it is."""
    verdict = verdict_of(causes)
    named = NOTHING if verdict is None else verdict.cause
    return f"{named}: {WORDS[named]} (confidence: {sure or confidence(causes, verdict)})"


def sentence(causes: list[Cause]) -> str:
    """Why the verdict is what it is."""
    verdict = verdict_of(causes)
    if verdict is None:
        return "no stage takes a fifth of the time"
    if verdict.cause == NOTHING:
        at = f"at {verdict.at_limit or 0.0:.0%} of the machine's limit"
        return f"{at}: {verdict.where} is {verdict.share:.0%} of the time; {'; '.join(verdict.evidence)}"
    return f"{WORDS[verdict.cause]}: {verdict.share:.0%} of the time; {'; '.join(verdict.evidence)}"


def at_limits(seen: Examined) -> str:
    """How near each stage is to what this machine can do, in a line; empty where nothing is known."""
    if seen.limits is None:
        return ""
    said = {name: seen.limits.in_words(name, stage.seconds) for name, stage in seen.stages.items()}
    return "; ".join(f"{name}: {words}" for name, words in said.items() if words)


def print_report(diagnosis: Diagnosis, console: "Console") -> None:
    """A box, a table of what takes the time, and one of what would help."""
    from rich.markup import escape
    from rich.panel import Panel

    seen = diagnosis.seen
    causes = causes_of(seen)
    lines = [
        f"[bold]verdict[/bold]  {verdict_line(causes)}",
        f"[bold]why[/bold]      {escape(sentence(causes))}",
        f"[bold]next[/bold]     {escape(next_step(diagnosis))}",
    ]
    console.print(Panel("\n".join(lines), expand=False))
    console.print(_table_of_causes(diagnosis, causes))
    if said := on_shares(causes):
        console.print(said, style="dim", markup=False, highlight=False)
    if said := at_limits(seen):
        console.print(said, style="dim")
    for cause in causes:
        if cause.lines:
            console.print(table_of_lines(cause.lines))
    if diagnosis.remedies:
        console.print(table_of_tried("settings that learn the same", diagnosis.remedies))
    if diagnosis.less_work:
        less = ", ".join(f"{each.options} {each.predicted:.2f}x" for each in diagnosis.less_work)
        console.print(f"less work, learns differently (predicted): {less}")
    if machine := machine_line(diagnosis):
        console.print(f"machine: {machine}", markup=False, highlight=False)
    threads = ", ".join(f"{name} {value}" for name, value in seen.machine.items())
    speed = f"{1 / seen.seconds:,.0f} env steps/s, pipeline {seen.pipeline}"
    console.print("; ".join([speed, f"{seen.rounds} rounds", threads, *seen.notices]), style="dim", markup=False)


def machine_line(diagnosis: Diagnosis) -> str:
    """What there is to say of the machine and the memory; empty if nothing."""
    return say_machine(diagnosis.seen.watched, losses_of(diagnosis.seen))


def next_step(diagnosis: Diagnosis) -> str:
    """What was measured to be best, else what is predicted to be, else what makes the run learn differently."""
    verdict = verdict_of(causes_of(diagnosis.seen))
    if verdict is not None and verdict.is_verdict == FIRST:
        return verdict.remedy
    measured = [tried for tried in diagnosis.remedies if tried.measured is not None and tried.measured.low > 1]
    if measured:
        best = max(measured, key=lambda tried: tried.measured.value if tried.measured else 0.0)
        assert best.measured is not None
        return f"{best.remedy.options}: {best.measured.value:.2f}x as fast, measured"
    is_occasion = verdict is not None and verdict.cause in OF_OCCASION.values()
    # Rarer lines, evaluations or checkpoints answer nothing unless they are what takes the time.
    untried = [
        tried
        for tried in diagnosis.remedies
        if (is_occasion and not tried.remedy.can_be_raced) or tried.why_not == NO_TIME
    ]
    if untried:
        return f"{untried[0].remedy.options}: {untried[0].remedy.predicted:.2f}x as fast, predicted"
    if verdict is not None and verdict.remedy:
        return marked(verdict)
    return "nothing that leaves what is learned as it is"


def cells_of(cause: Cause) -> tuple[str, ...]:
    """A row of the table, below TITLES."""
    return (
        _row_name(cause),
        in_time(cause.seconds),
        f"{cause.share:.0%}",
        "" if cause.predicted is None else f"{cause.predicted:.2f}x",
        str(cause.measured or ""),
        marked(cause),
    )


def _row_name(cause: Cause) -> str:
    """Marked where its share is not one of those that add up."""
    name = cause.stage or cause.where
    if cause.is_loss:
        return f"({name})"
    return f"{name} (beside)" if cause.is_beside else name


def on_shares(causes: list[Cause]) -> str:
    """Why shares do not add up, where they do not."""
    beside, losses = any(cause.is_beside for cause in causes), any(cause.is_loss for cause in causes)
    said = ["beside: goes on while something longer does; its share is what the run gains without it"] if beside else []
    return "; ".join([*said, *(["(in brackets): happens within the stages"] if losses else [])])


def _table_of_causes(diagnosis: Diagnosis, causes: list[Cause]) -> "Table":
    from rich.table import Table

    seen = diagnosis.seen
    table = Table(title="where the time goes", title_justify="left", show_edge=False)
    for title in TITLES:
        table.add_column(title, justify="left" if title in (TITLES[0], TITLES[-1]) else "right")
    for cause in causes:
        table.add_row(*cells_of(cause))
    between = max(0.0, seen.between)
    table.add_row("between stages", in_time(between), f"{between / seen.seconds:.0%}", "", "", "")
    return table


def table_of_tried(title: str, remedies: Iterable[Tried]) -> "Table":
    """Settings, predicted and measured."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_edge=False)
    for column in ("setting", "predicted", "measured", ""):
        table.add_column(column, justify="left" if column in ("setting", "") else "right")
    for remedy, ratio, why_not in remedies:
        table.add_row(remedy.options, f"{remedy.predicted:.2f}x", str(ratio or ""), escape(why_not))
    return table


def marked(cause: Cause) -> str:
    """What to do about a cause worth naming, and whether that changes what is learned."""
    if cause.share < LISTED:
        return ""
    return f"{cause.remedy} (learns differently)" if cause.changes_algorithm else cause.remedy
