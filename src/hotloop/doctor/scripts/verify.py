"""Remedies that need no edit, tried: the script again with one of them, and as it is, in turns.

They run in a copy of the current folder, so that no file of the first run is overwritten (but for those that a script
writes by whole paths), and with online loggers offline. A remedy is applied by the hook; what the script itself asks
for in its place is dropped.
"""

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hotloop.cores import usable_cores
from hotloop.doctor.scripts.attach import WARM_SECONDS, attend
from hotloop.doctor.scripts.findings import Found
from hotloop.doctor.slices import Ratio, interval_of
from hotloop.interrupts import end_is_wanted
from hotloop.progress import Reporter, Silent

OFFLINE = {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": "file:mlruns", "COMET_MODE": "offline"}
LARGEST = 200 << 20
"""Bytes of a folder that is copied at most."""
SKIPPED = (".git", ".venv", "venv", "__pycache__", "node_modules")
NOT_COPIED = shutil.ignore_patterns(*SKIPPED)
LISTED = 0.1
LEAST_SECONDS = 8.0
"""Of training in each turn."""
MOST_PAIRS, LONGEST_TURN = 4, 3.0
"""Turns of both; times as long as the shortest that one is at most."""


class Trial(NamedTuple):
    """A remedy as the hook applies it."""

    cause: str
    words: str
    apply: Mapping[str, object]


class Verified(NamedTuple):
    """What came of it."""

    trial: Trial
    measured: Ratio | None
    why_not: str


def trials_of(found: Found) -> list[Trial]:
    """Remedies for what was seen, of causes that are worth it."""
    large = {cause.cause for cause in found.causes if cause.share >= LISTED}
    learning = (found.learner.learning if found.learner else None) or {}
    trials: list[Trial] = []
    threads = learning.get("threads")
    if large & {"update-dispatch", "update-count", "threads"} and isinstance(threads, int) and threads != 1:
        trials.append(Trial("threads", "one thread", {"threads": 1}))
    if large & {"update-arithmetic"} and threads == 1 and usable_cores() > 1:
        trials.append(Trial("threads", f"{usable_cores()} threads", {"threads": usable_cores()}))
    if learning.get("anomaly"):
        trials.append(Trial("debug-work", "anomaly detection off", {"anomaly": True}))
    if "rendering" in large:
        trials.append(Trial("rendering", "rendering off", {"rendering": True}))
    if "logging" in large:
        trials.append(Trial("logging", "logging off", {"logging": True, "prints": True}))
    if large & {"update-dispatch", "update-count"} and learning and not learning.get("several_at_once"):
        trials.append(Trial("update-dispatch", "the optimiser over all parameters at once", {"optimizer": True}))
    return trials


def verify(command: Sequence[str], found: Found, until: float, reporter: Reporter) -> list[Verified]:
    """Each remedy beside the script as it is, in turns, until `until`, as `time.monotonic` counts."""
    trials = trials_of(found)
    if not trials:
        return []
    begins = (found.attended.seconds_to_learn or 0.0) + WARM_SECONDS + LEAST_SECONDS
    size = _size(Path.cwd())
    if size > LARGEST:
        why = f"the current folder is larger than the {LARGEST >> 20} MiB that are copied to try it"
        return [Verified(trial, None, why) for trial in trials]
    verified: list[Verified] = []
    os.environ.update({name: value for name, value in OFFLINE.items() if name not in os.environ})
    with tempfile.TemporaryDirectory(prefix="hotloop-verify-") as scratch:
        try:
            folder = Path(shutil.copytree(Path.cwd(), Path(scratch) / "copy", symlinks=True, ignore=NOT_COPIED))
        except (OSError, shutil.Error) as error:
            return [Verified(trial, None, f"the current folder cannot be copied: {error}"[:200]) for trial in trials]
        for index, trial in enumerate(trials):
            left = (until - time.monotonic()) / (len(trials) - index)
            pairs = min(MOST_PAIRS, int(left / (2 * begins)))
            if pairs < 1 or end_is_wanted():
                verified.append(Verified(trial, None, "there was no time for it; give it more --minutes"))
                continue
            with reporter.busy(f"with {trial.words}, and as it is, in turns"):
                seconds = min(left / (2 * pairs), LONGEST_TURN * begins)
                verified.append(_tried(command, trial, pairs, seconds, folder))
    return verified


def _tried(command: Sequence[str], trial: Trial, pairs: int, seconds: float, folder: Path) -> Verified:
    ratios = []
    for turn in range(pairs):
        speeds = {}
        for applied in ({}, trial.apply) if turn % 2 == 0 else (trial.apply, {}):
            nowhere = subprocess.DEVNULL
            seen = attend(command, seconds, Silent(), nowhere, applied, folder, errors=nowhere, is_sampled=False)
            speeds[bool(applied)] = seen.per_second("gradient_steps") or seen.per_second("env_steps") or 0.0
        if min(speeds.values()) <= 0:
            return Verified(trial, None, "it did not train in its second run")
        ratios.append(speeds[True] / speeds[False])
    found = interval_of(ratios)
    return Verified(trial, found, "" if found.high < math.inf else "one turn only: no interval")


def _size(folder: Path) -> int:
    """Bytes of all files, as far as they are counted."""
    total = 0
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_size
        if total > LARGEST:
            break
    return total
