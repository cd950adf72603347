"""Does `hotloop tune` bring what it says? The command on slow and on fast specs, then both specs trained in turns anew.

The gain that counts is the second one: trainings that know nothing of the search, as long as its own were. Where it
changes nothing, nothing can be gained or lost.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hotloop.bench.measure import FASTER, Result, Row, machine
from hotloop.bench.planted import CASES, Case
from hotloop.doctor.race import race
from hotloop.doctor.slices import Ratio
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.spec.reading import as_given, load_spec

MINUTES, SECONDS_TO_CHECK = 1.5, 60.0
PLANTED = (
    "a search in Python, 8 envs in turn",
    "an env that waits, 8 in turn",
    "cheap envs in processes",
    "small steps by eager PyTorch, dueling Double",
    "sixteen threads for a small net",
    "wide layers",
)
PRESETS = ("cartpole", "lunar")


def subjects() -> list[Case]:
    """Planted cases, and presets as they are, of which little is to be gained."""
    planted = [case for case in CASES if case.name in PLANTED]
    return [*planted, *(Case(f"preset {name}", "asked", frozenset(), {"base": name}) for name in PRESETS)]


def run(reporter: Reporter, cases: Sequence[Case] | None = None, minutes: float = MINUTES) -> Result:
    """One after the other."""
    rows = []
    for case in subjects() if cases is None else cases:
        with reporter.busy(f"tuning: {case.name}"):
            rows.append(_row(case, minutes, reporter))
        reporter.say(f"{case.name}: {rows[-1].note}")
    settings = {**machine(), "minutes": minutes, "checked for": f"{SECONDS_TO_CHECK:g} s, in turns"}
    return Result("tune", settings, rows)


def _row(case: Case, minutes: float, reporter: Reporter) -> Row:
    base = {"base": case.spec["base"]} if "base" in case.spec else {"name": "slow"}
    spec = load_spec(base, {name: value for name, value in case.spec.items() if name != "base"})
    with tempfile.TemporaryDirectory(prefix="hotloop-tune-") as folder:
        path, tuned = Path(folder) / "slow.yaml", Path(folder) / "tuned.yaml"
        path.write_text(as_given(spec), encoding="utf-8")
        command = ["tune", str(path), "--json", "--minutes", str(minutes), "--out", str(tuned)]
        done = subprocess.run([sys.executable, "-m", "hotloop", *command], capture_output=True, text=True, check=False)
        if done.returncode:
            return Row(case.name, 0.0, "x", note=(done.stderr.strip().splitlines() or ["nothing"])[-1])
        found: Figures = json.loads(done.stdout.splitlines()[-1])
        if not tuned.exists():
            return Row(case.name, 1.0, "x", note="no gain: nothing is changed")
        changed = found["changed"]
        assert isinstance(changed, dict)
        (checked,) = race(spec, [changed], time.monotonic() + SECONDS_TO_CHECK, {}, reporter)
    said = f"{', '.join(f'{name}: {value}' for name, value in changed.items())}; tune measured {found['speedup']}x"
    if not isinstance(checked, Ratio):
        return Row(case.name, 0.0, "x", note=f"{said}; checked: {checked}")
    row = Row(case.name, checked.value, "x", checked.value, "the spec as it was", (checked.low, checked.high))
    row.means, row.note = FASTER, said
    return row
