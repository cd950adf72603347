"""How long gradient steps of a spec take by themselves, in a process of its own: engine and threads are chosen there.

python -m hotloop.doctor.gradient_steps ORDERS    # JSON: plain specs; a line of JSON for each
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

from hotloop.answers import answers_apart
from hotloop.assembly import Player
from hotloop.engines.draws import draw
from hotloop.engines.jax.setup import VARIABLES
from hotloop.engines.protocol import Lesson, State
from hotloop.envs.naming import look_in_current_folder
from hotloop.errors import HotloopError, said
from hotloop.experience import items_of, row_example
from hotloop.spec import Spec
from hotloop.spec.reading import given, load_spec
from hotloop.trainer_process import SHARES_A_GPU
from hotloop.trees import zeros_of

SECONDS = 0.5
"""Of gradient steps that are timed; more where one call takes longer."""
FEWEST_CALLS = 5
IN_A_PROGRAM = 16
"""Gradient steps of a call that stand for those within a program on the device: calling them costs next to nothing."""


def seconds_alone(specs: Sequence[Spec], variables: Mapping[str, str], patience: float) -> list[float | str]:
    """Seconds of a gradient step of each, or why there are none; all in one process, so of one engine and its threads.

    `variables` are those of the environment with which a run of the user's would begin.
    """
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    orders = json.dumps([given(spec) for spec in specs])
    command = [sys.executable, "-P", "-m", "hotloop.doctor.gradient_steps", orders]
    try:
        done = subprocess.run(
            command,
            env={**SHARES_A_GPU, **kept, **variables},
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        written = late.stdout or b""
        lines, words = written.decode() if isinstance(written, bytes) else written, "it took too long"
    else:
        lines = done.stdout
        words = (done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"])[-1]
    found: list[float | str] = [json.loads(line) for line in lines.splitlines()]
    return [*found, *[words] * (len(specs) - len(found))]


def seconds_of_gradient_step(spec: Spec) -> float:
    """Measured here, on batches of zeros in the spec's own shapes."""
    player = Player(spec)
    try:
        return _measured(player)
    finally:
        player.engine.close()


def _measured(player: Player) -> float:
    spec, engine, lesson = player.spec, player.engine, _lesson(player)
    engine.prepare(lesson.items_KB, lesson.weight_KB, lesson.draws, 1e9)
    updates = len(lesson.items_KB.r_t) * spec.replay.updates_per_batch
    state, seconds, began = lesson.state, list[float](), time.perf_counter()
    state = engine.update(*lesson).state
    while len(seconds) < FEWEST_CALLS or time.perf_counter() - began < SECONDS:
        called = time.perf_counter()
        state = engine.update(*lesson._replace(state=state)).state
        engine.counts(state)  # sync
        seconds.append(time.perf_counter() - called)
    return statistics.median(seconds) / updates


def _lesson(player: Player) -> Lesson[State]:
    from hotloop.envs.host_spaces import HostSpaces

    spec, engine, env, wanted = player.spec, player.engine, player.env, player.spec.batches_per_draw
    if isinstance(env, HostSpaces):
        obs = env.observations.shapes
    else:
        from hotloop.envs.device import obs_shapes
        from hotloop.envs.team import TeamSpaces

        assert not isinstance(env, TeamSpaces)  # several agents are not measured by themselves
        obs, wanted = obs_shapes(env), max(1, IN_A_PROGRAM // spec.replay.updates_per_batch)
    row = row_example(obs, engine.num_actions if spec.env.action_mask else None)
    shape = (wanted, spec.replay.batch_size)
    drawn = engine.wanted_to_learn(wanted * spec.replay.updates_per_batch, spec.replay.batch_size)
    draws = draw(drawn, np.random.default_rng(0)) if drawn else None
    weight = np.ones(shape, np.float32) if spec.beta_schedule else None
    return Lesson(engine.init(0), items_of(row, shape, zeros_of), weight, 0.0, 0, draws)


def _serve(orders: str) -> None:
    answers = answers_apart()
    for plain in json.loads(orders):
        found: float | str
        try:
            spec = load_spec(plain, imports_plugins=True)
            look_in_current_folder(spec.env.id)
            found = seconds_of_gradient_step(spec)
        except HotloopError as error:
            found = str(error)
        except Exception as error:  # whatever a user's own code raises
            found = said(error)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
