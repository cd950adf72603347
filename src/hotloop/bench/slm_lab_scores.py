"""SLM-Lab's six benchmark specs to their end, four sessions each: scores beside those that SLM-Lab publishes.

The score is SLM-Lab's: the mean return of training episodes at the end. Minutes are of the four sessions, one after the
other, evaluations included; beside them what a loop in SLM-Lab's manner would take at the speed of its first frames.
"""

import tempfile
from pathlib import Path

import torch

from hotloop.bench.measure import Result, Row, machine
from hotloop.bench.slm_lab import by_loop, spec_of
from hotloop.bench.slm_lab_settings import SESSIONS, SETTINGS
from hotloop.plain import number, numbers
from hotloop.progress import Reporter
from hotloop.runs.slm_figures import figures_of, lines_of, sessions_of

LOOP_FRAMES = 2_000
"""Frames by which the loop's speed is measured, before each spec."""


def run(reporter: Reporter) -> Result:
    """Train all six; 40 minutes and more."""
    torch.set_num_threads(1)
    settings = {**machine(), "sessions": f"{SESSIONS}, seeds 0 to {SESSIONS - 1}", "loop timed on frames": LOOP_FRAMES}
    result = Result("slm_lab_scores", settings)
    for place, name in enumerate(SETTINGS, 1):
        result.rows.append(_scored(name, reporter))
        reporter.show(place, len(SETTINGS), {"specs": name})
    return result


def _scored(name: str, reporter: Reporter) -> Row:
    import hotloop

    spec = spec_of(name)
    with reporter.busy(f"{name}: the speed of a loop in its manner"):
        fps, _ = by_loop(name, LOOP_FRAMES, is_tuned=False)
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder, reporter.busy(f"{name}: {SESSIONS} sessions"):
        done = hotloop.train(spec, out=Path(folder) / "run")
        assert done.path is not None
        found = figures_of(sessions_of(done.path, lines_of(spec.env)), spec.env.id)
    low, high = numbers(found, "total_reward_ma_interval")
    row = Row(name, number(found, "total_reward_ma"), "return")
    row.columns = {
        "published": SETTINGS[name].published,
        "IQM": round(number(found, "total_reward_ma_iqm"), 1),
        "interval": f"{low:.0f} to {high:.0f}",
        "by session": ", ".join(f"{score:.0f}" for score in numbers(found, "total_reward_ma_by_session")),
        "minutes": round(done.seconds / 60, 1),
        "minutes in its manner": round(SESSIONS * SETTINGS[name].frames / fps / 60, 1),
    }
    return row
