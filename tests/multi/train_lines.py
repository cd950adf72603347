"""A process that trains, resumes or interrupts agents on `Lines`: `python train_lines.py FOLDER JSON`."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from lines_env import Lines

import hotloop

SPEC: dict[str, Any] = {
    "name": "lines",
    "env": {"num_envs": 4},
    "updates_per_step": 0.25,
    "network": {"torso": {"hidden": [32]}},
    "target": {"every": 200},
    "replay": {"capacity": 2_000, "start": 64, "batch_size": 32},
    "stop": {"steps": 2_000},
    "evaluation": {"every": 1_000, "episodes": 16},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.1, "steps": 1_500}},
    "log": {"every": 500, "checkpoint_every": 1_000},
}


def main(folder: str, asked: dict[str, Any]) -> None:
    make = lambda **options: Lines(**options)  # noqa: E731
    if asked.get("resume"):
        run = hotloop.resume(folder, env=make, steps=asked.get("steps"))
    else:
        stop = asked.get("stop_at")
        heard = (lambda event: hotloop.STOP if event.env_steps >= stop else None) if stop else None
        run = hotloop.train(SPEC, env=make, out=folder, on_log=heard, **asked.get("set", {}))
    print(json.dumps(run.result))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
