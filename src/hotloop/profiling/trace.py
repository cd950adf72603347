"""The engine's own profiler on a run that has ended and is saved: a trace of a few blocks more, which nothing keeps."""

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from hotloop import registry
from hotloop.engines.tracing import Trace
from hotloop.pipelines.session import Session
from hotloop.pipelines.supply import InProcesses
from hotloop.pipelines.timeline import Timeline
from hotloop.plain import Figures
from hotloop.profiling.merging import STAGE
from hotloop.profiling.process_trace import Profiled, trace_processes
from hotloop.progress import Reporter
from hotloop.replay.plan import readable
from hotloop.runs.folder import RunFolder

FIRST = 2
"""Blocks of the first piece: in one alone, no gradient step may be due."""
GROWTH = 8
"""How many times as long the next piece is at most."""
SECONDS = 2.0
"""What a piece may take, with writing it: that takes ten times as long as the work where operations are small."""
MOST_BYTES = 32 << 20
"""What a trace may weigh, with all that its profiler writes."""

Tracer = Callable[[Path], AbstractContextManager[Trace]]
"""As `EngineRecord.trace` names it."""


class Piece(NamedTuple):
    """A traced piece of a run."""

    blocks: int
    env_steps: int
    seconds: float  # with writing it
    bytes: int
    path: Path  # of what Perfetto opens
    timeline: Timeline | None  # what learner and actors did meanwhile, if these are in processes of their own


def trace_run(session: Session, engine: str, folder: RunFolder, result: Figures, reporter: Reporter) -> Path | None:
    """Leave `trace/` in the run's folder; returns the file in it to open, or None: then it has said why."""
    piece = _trace_by_engine(session, engine, folder, result, reporter)
    path = None if piece is None else piece.path
    if not isinstance(session, InProcesses):
        return path
    profiled = None
    if piece is not None and piece.timeline is not None:
        profiled = Profiled(engine, piece.path, piece.timeline)
    return trace_processes(session, profiled, folder, result, reporter) or path


def _trace_by_engine(
    session: Session, engine: str, folder: RunFolder, result: Figures, reporter: Reporter
) -> Piece | None:
    """Leave what its profiler writes; None: then it has said why."""
    try:
        with (
            reporter.busy(f"tracing by the profiler of engine {engine}"),
            tempfile.TemporaryDirectory(prefix=".trace-", dir=folder.path, ignore_cleanup_errors=True) as drafts,
        ):
            tracer: Tracer = registry.imported(registry.ENGINES[engine].trace)
            piece, draft = _longest_piece(session, tracer, Path(drafts))
            place = draft.rename(folder.path / "trace")
    except OSError as error:
        result["disk_error"] = said = f"the trace could not be written: {error}"
        reporter.warn(said)
        return None
    except Exception as error:  # of a profiler that does not work here, or an env that fails now: the run is saved
        first_line = str(error).strip().partition("\n")[0]
        reporter.warn(f"no trace: {type(error).__name__}: {first_line}")
        return None
    reporter.say(f"traced {piece.blocks:,} blocks more than the run had: {readable(piece.bytes)} in {place}")
    return piece._replace(path=place / piece.path.relative_to(draft))


def _longest_piece(session: Session, tracer: Tracer, drafts: Path) -> tuple[Piece, Path]:
    """Trace longer and longer pieces, until the next would take too long or be too large, or a stop rule keeps them
    short; the last, and its folder."""
    blocks, before = FIRST, 0
    while True:
        draft = drafts / str(blocks)
        piece = _traced(session, tracer, draft, blocks)
        more = int(blocks * min(GROWTH, SECONDS / piece.seconds, MOST_BYTES / piece.bytes))
        if more < 2 * blocks or piece.env_steps <= before:
            return piece, draft
        shutil.rmtree(draft)
        blocks, before = more, piece.env_steps


def _traced(session: Session, tracer: Tracer, folder: Path, blocks: int) -> Piece:
    """Run so many blocks while the profiler looks on; its start, which may take seconds once, is not counted."""
    session.forget_episodes()
    before = session.read().env_steps
    recorded = session.supply.recorded() if isinstance(session, InProcesses) else nullcontext()
    with (
        tracer(folder) as trace,
        recorded as timeline,
        session.spans.marked(lambda stage: trace.region(STAGE + stage), keeps=timeline is not None),
    ):
        began = time.perf_counter()
        session.advance(blocks)
        env_steps = session.read().env_steps - before  # sync
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Piece(blocks, env_steps, seconds, size, trace.path, timeline)
