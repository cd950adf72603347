"""The pictures that a run leaves in its folder when it ends: its learning curve, and a recording of its agent."""

from hotloop.assembly import Assembly
from hotloop.errors import SpecError
from hotloop.progress import Reporter
from hotloop.runs.store import InFolder
from hotloop.team import agent_of


def draw(assembly: Assembly, store: InFolder, reporter: Reporter, *, has_best: bool) -> None:
    """Draw both; `has_best`: an evaluation was whole, so there are best weights."""
    from hotloop.runs.pictures import draw_curve

    spec, folder = assembly.spec, store.folder
    with reporter.busy("drawing"):
        store.attempt("curve.png", lambda: draw_curve(folder.path, spec))
        if not has_best and spec.evaluation.every:
            reporter.say("no evaluation was whole: there are no best weights, and the recording shows the last")
        try:
            named, _ = folder.weights("best" if has_best else "last")
        except SpecError as error:
            reporter.warn(f"no recording: {error}")
            return
        agent = agent_of(assembly, named)
        try:
            if agent.can_record:
                store.attempt("recording.gif", lambda: agent.record(folder.recording, spec.seed))
        except Exception as error:  # whatever the user's own env raises; the run is saved
            reporter.warn(f"no recording: {type(error).__name__}: {error}")
