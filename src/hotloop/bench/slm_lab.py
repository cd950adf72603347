"""SLM-Lab's six benchmark specs: frames per second beside its own way of training them, from the same first update on.

A round trains each spec for the same frames in turn by a loop in SLM-Lab's manner, by the same loop improved by hand,
and by `hotloop.train` with the lines of metrics it writes. After as many frames all have taken the same gradient steps.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.bench.slm_lab_loop import SlmLabLoop
from hotloop.bench.slm_lab_settings import SETTINGS, START, in_slm_lab_form
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.spec.slm_lab import translated

FRAMES, ROUNDS = 4_000, 3
ORIGINAL, TUNED, HOTLOOP = "its manner", "its manner, improved by hand", "hotloop"
Measured = tuple[float, int]
"""Frames per second from the first gradient step on, and gradient steps in all."""


def run(reporter: Reporter) -> Result:
    """All six, one after the other."""
    torch.set_num_threads(1)
    result = Result("slm_lab", {**machine(), "torch threads": 1, "frames": FRAMES, "rounds": ROUNDS})
    result.settings["timed"] = (
        "from the first gradient step on; hotloop writes its metrics; without compiling and checkpoints"
    )
    for place, name in enumerate(SETTINGS, 1):
        result.rows += rows_of(name, FRAMES, ROUNDS, reporter)
        reporter.show(place, len(SETTINGS), {"specs": name})
    return result


def rows_of(name: str, frames: int, rounds: int, reporter: Reporter) -> list[Row]:
    """A row for each way to train one spec."""
    cases: dict[str, Callable[[int], Measured]] = {
        ORIGINAL: lambda seed: by_loop(name, frames, is_tuned=False, seed=seed),
        TUNED: lambda seed: by_loop(name, frames, is_tuned=True, seed=seed),
        HOTLOOP: lambda seed: by_hotloop(name, frames, seed),
    }
    speed: dict[str, list[float]] = {case: [] for case in cases}
    for number in range(rounds):
        steps = {}
        for case in list(cases) if number % 2 == 0 else reversed(cases):
            with reporter.busy(f"{name}, {frames:,} frames by {case} ({number + 1} of {rounds})"):
                fps, steps[case] = cases[case](number)
            speed[case].append(fps)
        if len(set(steps.values())) > 1:
            raise ValueError(f"{name}: not the same work: gradient steps after {frames:,} frames are {steps}")
    rows = []
    for case, rates in speed.items():
        row = Row(f"{name}/{case}", statistics.median(rates), "frames/s")
        if case != ORIGINAL:
            row.against = f"{name}/{ORIGINAL}"
            row.ratio, row.spread = paired_ratio(rates, speed[ORIGINAL])
        frames_in_all = SETTINGS[name].frames
        row.columns = {
            "gradient steps": steps[case],
            "minutes of a session": round(frames_in_all / row.value / 60, 1),
        }
        rows.append(row)
    best = Row(f"{name}/{HOTLOOP}", rows[-1].value, "frames/s", against=f"{name}/{TUNED}", columns=rows[-1].columns)
    best.ratio, best.spread = paired_ratio(speed[HOTLOOP], speed[TUNED])
    return [*rows, best]


def by_loop(name: str, frames: int, *, is_tuned: bool, seed: int = 0) -> Measured:
    """By a loop in SLM-Lab's manner."""
    loop = SlmLabLoop(SETTINGS[name], is_tuned=is_tuned, seed=seed)
    loop.advance(START)
    started = time.perf_counter()
    loop.advance(frames - START)
    seconds = time.perf_counter() - started
    loop.close()
    return (frames - START) / seconds, loop.gradient_steps


def by_hotloop(name: str, frames: int, seed: int) -> Measured:
    """By a run of `hotloop.train`, without evaluations."""
    import hotloop

    spec = load_spec(spec_of(name), {"stop.steps": frames, "evaluation.every": 0, "seeds": 1, "seed": seed})
    with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
        done = hotloop.train(spec, out=Path(folder) / "run")
    return done.env_steps_per_s, done.updates + done.skipped


def spec_of(name: str) -> Spec:
    """One of the six in our words, as `hotloop train FILE NAME` reads it."""
    return load_spec(translated(name, in_slm_lab_form(name)).spec)
