"""What a user waits for: help, compilation, the first update of a second start, and solved CartPole."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hotloop.bench.measure import Result, Row, machine
from hotloop.plain import Figures, number
from hotloop.progress import Reporter


def run(reporter: Reporter) -> Result:
    """Seconds of whole commands in fresh processes; the first run has an empty compilation cache."""
    result = Result("startup", machine())
    help_times = [_timed(["--help"], Path.cwd(), {})[0] for _ in range(6)][1:]
    result.rows.append(Row("help", statistics.median(help_times), "s"))
    with tempfile.TemporaryDirectory() as folder:
        cache = {"HOTLOOP_CACHE": str(Path(folder) / "cache")}
        command = ["train", "cartpole", "--json"]
        for case in ("first start", "second start"):
            reporter.say(f"{case}: hotloop {' '.join(command)}")
            seconds, out = _timed(command, Path(folder), cache)
            figures: Figures = json.loads(out.splitlines()[-1])
            note = f"{figures['stopped']} after {number(figures, 'env_steps'):,} env steps"
            result.rows.append(Row(f"{case}/compile", number(figures, "compile_seconds"), "s"))
            result.rows.append(Row(f"{case}/to first update", number(figures, "seconds_to_first_update"), "s"))
            result.rows.append(Row(f"{case}/shell to solved", number(figures, "seconds_to_stop"), "s", note=note))
            result.rows.append(Row(f"{case}/shell to prompt", seconds, "s", note="with pictures and recording"))
    return result


def _timed(command: list[str], folder: Path, extra: dict[str, str]) -> tuple[float, str]:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "hotloop.cli", *command],
        cwd=folder,
        env={**os.environ, **extra},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - started, done.stdout
