"""Profile a run that has ended: time its stages on its last state, read its course, write both down."""

import json
from typing import Any

from hotloop.assembly import Assembly
from hotloop.profiling import report, show, stages
from hotloop.progress import Reporter
from hotloop.runs import metrics
from hotloop.runs.folder import RunFolder


def profile_run(
    assembly: Assembly, state: Any, result: dict[str, Any], folder: RunFolder, reporter: Reporter
) -> dict[str, Any]:
    """`state` is the last state of one seed; leaves profile.json and profile.png in the run's folder."""
    timed = stages.measure(assembly.pipeline, state, reporter)
    found = report.build(assembly.spec, timed, result, metrics.read(folder.metrics_file))
    found["machine"] = assembly.machine
    (folder.path / "profile.json").write_text(json.dumps(found, indent=1) + "\n")
    with reporter.busy("drawing"):
        show.draw(found, assembly.spec.name, folder.path / "profile.png")
    return found
