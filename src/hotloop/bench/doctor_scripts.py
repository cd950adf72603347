"""Is the doctor right about other people's scripts? Planted ones, and the same put right as the truth.

| figure | from |
|---|---|
| verdicts that name what was planted; those among the first three | cases on which no threshold was set |
| lines that are named | cases in which a line is slow |
| error of the predicted speed-up | the script put right, beside the slow one, in turns |
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotloop.bench.measure import Result, Row, machine
from hotloop.bench.planted_script_cases import SCRIPT_CASES, ScriptCase
from hotloop.doctor.scripts.attach import attend
from hotloop.plain import Figures, inner
from hotloop.progress import Reporter, Silent

MINUTES = 0.6
SECONDS_OF_TRUTH, TURNS = 14.0, 2
PATIENCE = 120.0


@dataclass
class ScriptOutcome:
    """What the doctor said of a script, and what came of putting it right."""

    case: ScriptCase
    verdict: str
    first_three: list[str]
    names_line: bool | None
    predicted: float | None
    truth: float | None
    said: str

    @property
    def is_right(self) -> bool:
        """Whether the verdict names what was planted."""
        return self.verdict in self.case.truth


def run(reporter: Reporter, cases: Sequence[ScriptCase] = SCRIPT_CASES, minutes: float = MINUTES) -> Result:
    """One script after the other."""
    outcomes = []
    for index, case in enumerate(cases):
        with reporter.busy(f"{index + 1} of {len(cases)}: {case.name}"):
            outcomes.append(ask(case, minutes))
        found = outcomes[-1]
        gains = f"predicted {found.predicted}, put right {found.truth}"
        reporter.say(f"{case.name}: {found.verdict} ({'right' if found.is_right else 'WRONG'}); {gains}")
    rows = [*_summary(outcomes), *(_row(outcome) for outcome in outcomes)]
    return Result("doctor_scripts", {**machine(), "minutes": minutes}, rows)


def ask(case: ScriptCase, minutes: float) -> ScriptOutcome:
    """Have the doctor look at a script, as a user would; then measure what putting it right brings."""
    command = [sys.executable, "-m", "hotloop", "doctor", "--json", "--quiet", "--minutes", str(minutes)]
    command += ["--", *case.command(sys.executable, is_fixed=False)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes + PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return ScriptOutcome(case, "none", [], None, None, None, "it took too long")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return ScriptOutcome(case, "none", [], None, None, None, last)
    return outcome_of(case, json.loads(done.stdout.splitlines()[-1]), gain_of(case))


def outcome_of(case: ScriptCase, report: Figures, truth: float | None) -> ScriptOutcome:
    """What of a report is compared."""
    verdict, causes = inner(report, "verdict"), report["causes"]
    assert isinstance(causes, list)
    named = [each for each in causes if isinstance(each, dict)]
    planted = next((each for each in named if each["cause"] in case.truth), None)
    lines, names_line = case.lines(), None
    if lines:
        found = planted["lines"] if planted is not None else []
        assert isinstance(found, list)
        top = [each for each in found[:2] if isinstance(each, dict)]
        names_line = any(each["line"] in lines and each["file"] == f"{case.script}.py" for each in top)
    predicted = planted.get("predicted_speedup") if planted is not None else None
    assert predicted is None or isinstance(predicted, float | int)
    three = [str(each["cause"]) for each in named[:3]]
    return ScriptOutcome(case, str(verdict["cause"]), three, names_line, predicted, truth, str(verdict["sentence"]))


def gain_of(case: ScriptCase) -> float | None:
    """How many times as fast the script is that was put right; None where one of both does not train."""
    if case.command("", is_fixed=True) == case.command("", is_fixed=False):
        return None
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(TURNS):
        for is_fixed in (False, True) if turn % 2 == 0 else (True, False):
            command = case.command(sys.executable, is_fixed=is_fixed)
            nowhere = subprocess.DEVNULL
            seen = attend(command, SECONDS_OF_TRUTH, Silent(), nowhere, errors=nowhere, is_sampled=False)
            speeds[is_fixed].append(seen.per_second(case.counts) or 0.0)
    slow, fast = (statistics.fmean(speeds[each]) for each in (False, True))
    return round(fast / slow, 3) if slow and fast else None


def _summary(outcomes: Sequence[ScriptOutcome]) -> Iterator[Row]:
    for half in ("asked", "set"):
        of_half = [outcome for outcome in outcomes if outcome.case.half == half]
        if not of_half:
            continue
        used = "" if half == "asked" else " (cases that set thresholds)"
        right = sum(outcome.is_right for outcome in of_half)
        within = sum(outcome.is_right or bool(set(outcome.first_three) & outcome.case.truth) for outcome in of_half)
        note = f"{right} of {len(of_half)}; what was planted is among the first three in {within}"
        yield Row(f"verdict right{used}", 100 * right / len(of_half), "%", note=note)
        lines = [outcome.names_line for outcome in of_half if outcome.names_line is not None]
        if lines:
            yield Row(f"line named{used}", 100 * sum(lines) / len(lines), "%", note=f"{sum(lines)} of {len(lines)}")
        errors = sorted(
            abs(outcome.predicted / outcome.truth - 1) for outcome in of_half if outcome.predicted and outcome.truth
        )
        if errors:
            note = f"largest {errors[-1]:.0%}, {len(errors)} predictions"
            yield Row(f"median error of a remedy{used}", 100 * statistics.median(errors), "%", note=note)


def _row(outcome: ScriptOutcome) -> Row:
    planted = " or ".join(sorted(outcome.case.truth))
    note = f"planted {planted}; said {outcome.verdict}: {outcome.said}"
    row = Row(outcome.case.name, float(outcome.is_right), "right", note=note)
    row.columns = {
        "half": outcome.case.half,
        "line": outcome.names_line,
        "predicted": outcome.predicted,
        "put right": outcome.truth,
    }
    return row
