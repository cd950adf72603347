"""A trace by an engine's own profiler, moved to the clock of a timeline of processes.

Each profiler counts time in its own way. Both traces have the learner's stages, which tell how far they are apart.
"""

import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from hotloop.pipelines.timeline import Stretch
from hotloop.plain import Figures, inner, number

STAGE = "hotloop: "
"""What the names of the learner's stages begin with there."""
FIRST_PID = 10_000_000
"""Profilers number their processes as they like; no real one has such a number."""


def rows_of(path: Path) -> list[Figures]:
    """All of a Chrome trace."""
    with gzip.open(path) as file:
        return cast(list[Figures], json.load(file)["traceEvents"])


def moved(rows: Sequence[Figures], engine: str, stages: Sequence[Stretch], start_ns: int) -> list[Figures]:
    """The rows in microseconds since `start_ns`, with process numbers of their own; none if no stage tells when."""
    apart = _microseconds_apart(rows, stages)
    if apart is None:
        return []
    pids: dict[object, int] = {}
    found: list[Figures] = []
    for row in rows:
        if not row.get("ph") or "pid" not in row:
            continue
        pid = pids.setdefault(row["pid"], FIRST_PID + len(pids))
        there = {**row, "pid": pid}
        if "ts" in row:
            there["ts"] = round(number(row, "ts") + apart - start_ns / 1e3, 3)
        if row.get("name") == "process_sort_index":
            there["args"] = {"sort_index": pid}
        elif row.get("name") == "process_name":
            there["args"] = {"name": f"{engine} in the learner: {inner(row, 'args').get('name')}"}
        found.append(there)
    return found


def _microseconds_apart(rows: Sequence[Figures], stages: Sequence[Stretch]) -> float | None:
    """What is to be added to the rows' times: the middle of what the stages say that both have equally often."""
    differences: list[float] = []
    for name in {stage.name for stage in stages}:
        ours = sorted(stage.began_ns / 1e3 for stage in stages if stage.name == name)
        wanted = [row for row in rows if row.get("name") == STAGE + name and row.get("ph") == "X"]
        theirs = sorted(number(row, "ts") for row in wanted if not str(row.get("cat", "")).startswith("gpu"))
        if len(ours) == len(theirs):
            differences += [our - their for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(differences) if differences else None
