"""All that the doctor does with someone's command: run it, look at it, stop it, say what was seen."""

import sys
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

from hotloop.doctor.scripts.attach import attend
from hotloop.doctor.scripts.equivalent import Equivalent, equivalent_of
from hotloop.doctor.scripts.findings import Found, findings_of
from hotloop.doctor.scripts.verify import Verified, verify
from hotloop.interrupts import Interrupts, end_is_wanted
from hotloop.progress import Reporter

LOOKING = 0.4
"""Share of the time for looking, where remedies are verified as well."""
AFTERWARDS = 20.0
"""Seconds at most for stopping it, for its matrix products and for the same training here."""


class ScriptDiagnosis(NamedTuple):
    """What is the matter with a script, and what helps."""

    found: Found
    verified: Sequence[Verified] = ()
    equivalent: Equivalent | None = None
    """The same training in hotloop, where the script is of a known kind."""


def diagnose_script(
    command: Sequence[str],
    minutes: float,
    reporter: Reporter,
    *,
    log: IO[bytes] | None = None,
    beside_json: bool = False,
    verifies: bool = False,
) -> ScriptDiagnosis:
    """Run the command once, for about so many minutes in all; Ctrl-C ends it with what was seen by then.

    What it says goes to `log`, or is shown; beside JSON on standard error. To verify remedies it is run again, in the
    second half of the time.
    """
    began, seconds = time.monotonic(), 60 * minutes
    looking = seconds * (LOOKING if verifies else 1.0)
    output = log or (sys.stderr.fileno() if beside_json else None)
    with Interrupts():
        attended = attend(command, looking - min(AFTERWARDS, 0.3 * looking), reporter, output, errors=log)
        with reporter.busy("its matrix products by themselves"):
            found = findings_of(attended)
        equivalent = None if end_is_wanted() else equivalent_of(found, reporter)
        verified = verify(command, found, began + seconds, reporter) if verifies and not end_is_wanted() else []
    return ScriptDiagnosis(found, verified, equivalent)
