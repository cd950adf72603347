"""Is the doctor right? Planted slow runs, each looked at by the command itself in a process of its own.

| figure | from |
|---|---|
| verdicts that name what was planted | cases on which no threshold was set |
| error of "without this stage": by its seconds, against the run with a stand-in | stages of at least a tenth |
| error of settings: predicted from stages, against trainings in turns | the settings that were tried |
| best setting first | cases in which two or more were tried |

An error is |predicted / measured - 1|. The picture shows every pair (`bench-doctor.png` in the current folder).
"""

import contextlib
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hotloop.bench.measure import Result, Row, machine
from hotloop.bench.planted import CASES, Case
from hotloop.plain import Figures, inner, number
from hotloop.progress import Reporter
from hotloop.spec.reading import as_given, load_spec

MINUTES = 1.0
"""Of the doctor's time for each case."""
PATIENCE = 240.0
WORTH_COMPARING = 0.1
"""Share of the time from which a stage's prediction counts: below, both are 1."""
PICTURE = Path("bench-doctor.png")


@dataclass
class Outcome:
    """What the doctor said of a case."""

    case: Case
    verdict: str
    first_three: list[str]
    stages: list[tuple[float, float]] = field(default_factory=list)
    """Predicted and measured speed-ups without a stage."""
    settings: list[tuple[float, float]] = field(default_factory=list)
    """Predicted and measured speed-ups by settings that learn the same, the most promising first."""
    said: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the verdict names what was planted."""
        return self.verdict in self.case.truth


def run(reporter: Reporter, cases: Sequence[Case] = CASES, minutes: float = MINUTES) -> Result:
    """One case after the other."""
    outcomes = []
    for index, case in enumerate(cases):
        with reporter.busy(f"{index + 1} of {len(cases)}: {case.name}"), busy_beside(case.burners):
            outcomes.append(ask(case, minutes))
        is_right = "right" if outcomes[-1].is_right else "WRONG"
        reporter.say(f"{case.name}: {outcomes[-1].verdict} ({is_right})")
    rows = [*_summary(outcomes), *(_row(outcome) for outcome in outcomes)]
    from hotloop.bench.doctor_picture import draw

    draw(outcomes, PICTURE)
    return Result("doctor", {**machine(), "minutes": minutes, "picture": str(PICTURE)}, rows)


def ask(case: Case, minutes: float) -> Outcome:
    """Have the doctor look at a case, as a user would."""
    with tempfile.TemporaryDirectory(prefix="hotloop-planted-") as folder:
        path = Path(folder) / "slow.yaml"
        path.write_text(as_given(load_spec({"name": "slow"}, case.spec)), encoding="utf-8")
        command = [sys.executable, "-m", "hotloop", "doctor", str(path), "--json", "--minutes", str(minutes)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            return Outcome(case, "none", [], said=f"it took more than {PATIENCE:.0f} s")
    if done.returncode:
        return Outcome(case, "none", [], said=(done.stderr.strip().splitlines() or ["nothing"])[-1])
    return outcome_of(case, json.loads(done.stdout.splitlines()[-1]))


def outcome_of(case: Case, report: Figures) -> Outcome:
    """What of a report is compared."""
    verdict = inner(report, "verdict")
    causes = _dicts(report, "causes")
    stages = [
        (number(each, "predicted_speedup"), number(each, "measured_speedup"))
        for each in causes
        if number(each, "share") >= WORTH_COMPARING and _has_both(each)
    ]
    remedies = [each for each in _dicts(report, "remedies") if _has_both(each)]
    settings = [(number(each, "predicted_speedup"), number(each, "measured_speedup")) for each in remedies]
    named = [str(each["cause"]) for each in causes[:3]]
    return Outcome(case, str(verdict["cause"]), named, stages, settings, str(verdict["sentence"]))


def _dicts(report: Figures, name: str) -> list[Figures]:
    found = report[name]
    assert isinstance(found, list)
    return [each for each in found if isinstance(each, dict)]


def _has_both(figures: Figures) -> bool:
    return figures.get("predicted_speedup") is not None and figures.get("measured_speedup") is not None


def errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """|predicted / measured - 1|, in order."""
    return sorted(abs(predicted / measured - 1) for predicted, measured in pairs)


def best_first(settings: Sequence[tuple[float, float]], level: float = 0.97) -> bool:
    """Whether the most promising setting was the best, or about as good."""
    return settings[0][1] >= level * max(measured for _, measured in settings)


def _summary(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    for half in ("asked", "set"):
        of_half = [outcome for outcome in outcomes if outcome.case.half == half]
        if not of_half:
            continue
        right = sum(outcome.is_right for outcome in of_half)
        within = sum(bool(set(outcome.first_three) & outcome.case.truth) or outcome.is_right for outcome in of_half)
        note = f"{right} of {len(of_half)}; what was planted is among the first three in {within}"
        used = "" if half == "asked" else " (cases that set thresholds)"
        yield Row(f"verdict right{used}", 100 * right / len(of_half), "%", note=note)
        for kind, pairs in (
            ("a stage replaced", [pair for outcome in of_half for pair in outcome.stages]),
            ("a setting", [pair for outcome in of_half for pair in outcome.settings]),
        ):
            if pairs:
                found = errors(pairs)
                ninety = found[min(len(found) - 1, int(0.9 * len(found)))]
                note = f"p90 {ninety:.1%}, largest {found[-1]:.1%}, {len(found)} predictions"
                yield Row(f"median error of {kind}{used}", 100 * statistics.median(found), "%", note=note)
        several = [outcome for outcome in of_half if len(outcome.settings) > 1]
        if several:
            first = sum(best_first(outcome.settings) for outcome in several)
            yield Row(f"best setting first{used}", 100 * first / len(several), "%", note=f"{first} of {len(several)}")


def _row(outcome: Outcome) -> Row:
    planted = " or ".join(sorted(outcome.case.truth))
    note = f"planted {planted}; said {outcome.verdict}: {outcome.said}"
    row = Row(outcome.case.name, float(outcome.is_right), "right", note=note)
    row.columns = {
        "half": outcome.case.half,
        "stages": [[round(a, 2), round(b, 2)] for a, b in outcome.stages],
        "settings": [[round(a, 2), round(b, 2)] for a, b in outcome.settings],
    }
    return row


@contextlib.contextmanager
def busy_beside(processes: int) -> Iterator[None]:
    """Within, so many processes use a core each."""
    context = multiprocessing.get_context("spawn")
    burning = [context.Process(target=_burn, daemon=True) for _ in range(processes)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.terminate()
            process.join()


def _burn() -> None:
    while True:
        sum(range(10_000))
