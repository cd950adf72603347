"""What the doctor says of a script: the same box, table and JSON as of a run of ours."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotloop.doctor.causes import NOTHING, Cause, as_figures, verdict_of
from hotloop.doctor.losses import LISTED
from hotloop.doctor.report import TITLES, cells_of, confidence, marked, on_shares, sentence, verdict_line
from hotloop.doctor.scripts.diagnosis import ScriptDiagnosis
from hotloop.doctor.scripts.equivalent import Equivalent
from hotloop.doctor.scripts.findings import Found
from hotloop.doctor.scripts.verify import Verified
from hotloop.plain import Figures
from hotloop.profiling.show import table_of_lines

if TYPE_CHECKING:
    from rich.console import Console

TITLES_OF_SCRIPT = ("cause", "where", *TITLES[1:])


def figures_of(diagnosis: ScriptDiagnosis) -> Figures:
    """The whole report as plain data."""
    found, verified, equivalent = diagnosis
    verdict, attended = verdict_of(found.causes), found.attended
    return {
        "kind": "script",
        "command": [*attended.command],
        "verdict": {
            "cause": None if not found.causes else NOTHING if verdict is None else verdict.cause,
            "share": 0.0 if verdict is None else round(verdict.share, 4),
            "confidence": confidence_in(found),
            "sentence": why(found),
        },
        "causes": [_with_measured(as_figures(cause), verified) for cause in found.causes],
        "verified": [_verified(each) for each in verified],
        "stages": {cause.stage or cause.where: cause.seconds for cause in found.causes},
        "coverage": round(found.coverage, 4),
        "unnamed": [{**line} for line in found.unnamed],  # type: ignore[dict-item]  # a TypedDict's values are objects
        "overhead": None if found.overhead is None else round(found.overhead, 4),
        "env_steps_per_s": _rate(found, "env_steps"),
        "updates_per_s": _rate(found, "gradient_steps"),
        "hotloop": None if equivalent is None else _equivalent(equivalent),
        "seconds_to_learn": attended.seconds_to_learn,
        "steady_seconds": round(attended.steady_seconds, 1),
        "learning": None if found.learner is None else _learning(found.learner.learning),
        "processes": [_process(each.pid, each.about, each.processor_seconds) for each in attended.processes.values()],
        "exit_code": attended.exit_code,
        "notices": [*attended.notices],
    }


def confidence_in(found: Found) -> str:
    """Low where as much time has no name as the verdict takes."""
    verdict = verdict_of(found.causes)
    if not found.causes or 1 - found.coverage >= max(LISTED, 0.0 if verdict is None else verdict.share):
        return "low"
    return confidence(found.causes, verdict)


def why(found: Found) -> str:
    """The verdict in a sentence; or why there is none."""
    attended = found.attended
    if not attended.processes:
        return "no Python was seen: does the command start one that ignores PYTHONPATH (python -I, -E)?"
    if not found.causes:
        return f"nothing was seen of its training; {'; '.join(_why_nothing(found)) or 'let it run longer'}"
    return sentence(found.causes)


def _why_nothing(found: Found) -> Iterator[str]:
    attended = found.attended
    if attended.exit_code is not None:
        yield f"it ended by itself with exit code {attended.exit_code}"
    elif attended.seconds_to_learn is None:
        yield "it never came to a gradient step"
    yield from (notice for notice in attended.notices if "could not be sampled" in notice)


def print_report(diagnosis: ScriptDiagnosis, console: "Console") -> None:
    """A box, what takes the time, and the lines of the script."""
    found = diagnosis.found
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    lines = [
        f"[bold]verdict[/bold]  {verdict_line(found.causes, confidence_in(found)) if found.causes else 'none'}",
        f"[bold]why[/bold]      {escape(why(found))}",
        f"[bold]next[/bold]     {escape(next_step(found))}",
    ]
    console.print(Panel("\n".join(lines), expand=False))
    table = Table(title="where the time goes", title_justify="left", show_edge=False)
    for title in TITLES_OF_SCRIPT:
        table.add_column(title, justify="left" if title in ("cause", "where", TITLES[-1]) else "right")
    for cause in found.causes:
        table.add_row(*map(escape, row_of(cause)))
    if found.causes:
        console.print(table)
        if said := on_shares(found.causes):
            console.print(said, style="dim", markup=False, highlight=False)
    if (verdict := verdict_of(found.causes)) is not None and verdict.lines:
        console.print(table_of_lines(verdict.lines))
    if 1 - found.coverage >= LISTED and found.unnamed:
        console.print(f"{1 - found.coverage:.0%} of the time has no name, most of it here:", highlight=False)
        console.print(table_of_lines(found.unnamed))
    for line in tried_in_words(diagnosis):
        console.print(line, markup=False, highlight=False)
    console.print(footing(found), style="dim", markup=False)


def row_of(cause: Cause) -> tuple[str, ...]:
    """Of the table, below TITLES_OF_SCRIPT; where it happens instead of a stage."""
    name, *figures = cells_of(cause)
    return (cause.cause, name if cause.is_loss else cause.where, *figures)


def tried_in_words(diagnosis: ScriptDiagnosis) -> list[str]:
    """What was tried beside looking, a line each."""
    said = [_verified_in_words(each) for each in diagnosis.verified]
    if (same := diagnosis.equivalent) is not None:
        gain = f"{same.speedup:.1f}x, {same.env_steps_per_s:,.0f} env steps/s" if same.speedup else same.why_not
        where = "" if same.spec is None else " (its spec is in the JSON, and in --out as hotloop.yaml)"
        said.append(f"the same training in hotloop: {gain}{where}")
    return said


def _equivalent(same: Equivalent) -> Figures:
    speed, gain = same.env_steps_per_s, same.speedup
    return {
        "spec": same.text(),
        "env_steps_per_s": None if speed is None else round(speed, 1),
        "speedup": None if gain is None else round(gain, 2),
        "why_not": same.why_not,
    }


def _verified_in_words(each: Verified) -> str:
    """A remedy that was tried, or why it was not."""
    measured = f"{each.measured} as fast, measured in turns" if each.measured is not None else "not tried"
    return f"with {each.trial.words}: {measured}{f' ({each.why_not})' if each.why_not else ''}"


def _verified(each: Verified) -> Figures:
    return {
        "cause": each.trial.cause,
        "remedy": each.trial.words,
        "measured_speedup": None if each.measured is None else round(each.measured.value, 3),
        "interval": None if each.measured is None else each.measured.interval,
        "why_not": each.why_not,
    }


def _with_measured(cause: Figures, verified: Sequence[Verified]) -> Figures:
    """What was measured beside what was predicted, where a remedy of that cause was tried."""
    for each in verified:
        if each.trial.cause == cause["cause"] and each.measured is not None:
            how = f"the script with {each.trial.words}, and as it is, in turns"
            value, interval = round(each.measured.value, 3), each.measured.interval
            return {**cause, "measured_speedup": value, "interval": interval, "how_measured": how}
    return cause


def footing(found: Found) -> str:
    """Speeds, coverage, overhead and what could not be seen."""
    attended = found.attended
    said = [
        f"{rate:,.0f} {words}/s"
        for name, words in (("env_steps", "env steps"), ("gradient_steps", "gradient steps"))
        if (rate := attended.per_second(name))
    ]
    said += [f"{attended.steady_seconds:.0f} s looked at", f"{found.coverage:.0%} of the time has a name"]
    said += [] if found.overhead is None else [f"the sampler cost {found.overhead:.1%}"]
    return "; ".join([*said, *attended.notices])


def next_step(found: Found) -> str:
    """What to do first."""
    verdict = verdict_of(found.causes)
    if verdict is None:
        failed = found.attended.exit_code not in (None, 0)
        longer = "see what it said itself" if failed else "let it run longer (--minutes), or see its own output"
        return "nothing stands out" if found.causes else longer
    gain = "" if verdict.predicted is None else f": {verdict.predicted:.2f}x as fast, predicted"
    return f"{marked(verdict) or verdict.remedy} at {verdict.where}{gain}"


def _rate(found: Found, name: str) -> float | None:
    rate = found.attended.per_second(name)
    return None if rate is None else round(rate, 1)


def _learning(known: Figures | None) -> Figures | None:
    return None if known is None else {name: value for name, value in known.items() if name != "products"}


def _process(pid: int, about: Figures, seconds: float) -> Figures:
    return {
        "pid": pid,
        "argv": about.get("argv"),
        "python": about.get("python"),
        "processor_seconds": round(seconds, 2),
    }
