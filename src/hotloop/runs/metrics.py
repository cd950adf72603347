"""Metrics of a run: one JSON object per line, and the same for TensorBoard under SB3's tag names."""

import json
import math
from pathlib import Path

from hotloop.plain import Figures, Json, number
from hotloop.runs.events import EventFile

TAGS = {
    "ep_return_mean": "rollout/ep_rew_mean",
    "ep_length_mean": "rollout/ep_len_mean",
    "epsilon": "rollout/exploration_rate",
    "temperature": "rollout/temperature",
    "env_steps_per_s": "time/fps",
    "updates_per_s": "time/updates_per_s",
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "q_mean": "train/q_mean",
    "learning_rate": "train/learning_rate",
    "updates": "train/n_updates",
    "skipped": "train/skipped_updates",
    "return_mean": "eval/mean_reward",
    "length_mean": "eval/mean_ep_length",
}


class Metrics:
    """Appends lines; opens its files on the first one."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """`resumed_at` drops what an interrupted run had written beyond its checkpoint."""
        if resumed_at is not None:
            _trim(folder / "metrics.jsonl", resumed_at)
        self._lines = (folder / "metrics.jsonl").open("a")
        self._events = EventFile(folder, resumed_at)

    def write(self, kind: str, env_steps: int, values: Figures) -> None:
        """Write one line; values that are not finite become null."""
        values = {name: finite(value) for name, value in values.items()}
        self._lines.write(json.dumps({"kind": kind, "env_steps": env_steps, **values}) + "\n")
        self._lines.flush()
        scalars = {
            TAGS[name]: value for name, value in values.items() if name in TAGS and isinstance(value, int | float)
        }
        self._events.scalars(env_steps, scalars)
        self._events.flush()

    def close(self) -> None:
        """Finish both files."""
        self._lines.close()
        self._events.close()


def read(path: Path) -> list[Figures]:
    """All whole lines of a metrics file."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:  # a line that was being written when the process died
            continue
        if isinstance(row, dict) and isinstance(row.get("env_steps"), int) and "kind" in row:
            rows.append(row)
    return rows


def _trim(path: Path, last_step: int) -> None:
    kept = [row for row in read(path) if number(row, "env_steps") <= last_step]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def finite(value: Json) -> Json:
    """The same data for JSON that every language reads: a number that is not finite becomes null."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
