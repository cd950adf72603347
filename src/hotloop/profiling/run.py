"""Profile a run that has ended: time its stages on its last state, read its course, write both down."""

import json

from hotloop.assembly import Assembly
from hotloop.errors import SpecError
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.plain import Figures
from hotloop.profiling import report, show, stages
from hotloop.profiling.figures import FusedProfile
from hotloop.progress import Reporter
from hotloop.replay.plan import readable
from hotloop.run_plan import memory_plan
from hotloop.runs import metrics
from hotloop.runs.folder import RunFolder

COPIES = 3
"""Of a run's memory: its own, and what the insert and the fused loop work on."""


def profile_run(
    assembly: Assembly, state: FusedState, result: Figures, folder: RunFolder, reporter: Reporter
) -> FusedProfile:
    """`state` is the last state of one seed; leaves profile.json and profile.png in the run's folder."""
    plan = memory_plan(assembly)
    if COPIES * plan.total > plan.available:
        raise SpecError(
            f"the run is saved, but its profile needs {readable(COPIES * plan.total)} and {readable(plan.available)} "
            "is available; lower replay.capacity for a profile"
        )
    pipeline = assembly.pipeline
    assert isinstance(pipeline, Fused)  # of which those around a replay are, on the device
    timed = stages.measure(pipeline, state, reporter)
    found = report.build(assembly.spec, timed, result, metrics.read(folder.metrics_file))
    found["machine"] = assembly.machine
    try:
        (folder.path / "profile.json").write_text(json.dumps(found, indent=1) + "\n")
        with reporter.busy("drawing"):
            show.draw(found, assembly.spec.name, folder.path / "profile.png")
    except OSError as error:
        result["disk_error"] = said = f"the profile could not be written: {error}"
        reporter.warn(said)
    return found
