"""The family beside plain DQN: one update of each member on the same torso; priorities on the device; PQN."""

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.bench.update import K, hotloop_updates
from hotloop.progress import Reporter
from hotloop.spec.reading import load_spec

if TYPE_CHECKING:
    from hotloop.pipelines.fused import FusedState

ROUNDS, TRAINING_ROUNDS = 30, 9
HEADS: dict[str, dict[str, object]] = {
    "dqn": {},
    "double": {"target.rule": "double"},
    "munchausen": {"target.munchausen": {}},
    "dueling": {"network.head": {"dueling": True}},
    "noisy": {"network.head": {"noise": 0.5}},
    "c51": {"network.head": {"kind": "c51", "atoms": 51}},
    "qr": {"network.head": {"kind": "qr", "quantiles": 51}},
    "iqn": {"network.head": {"kind": "iqn", "taus": 8, "target_taus": 8}},
    "rainbow": {"network.head": {"kind": "c51", "dueling": True, "noise": 0.5}, "target.rule": "double"},
    "layer normalization": {"network.torso.normalization": "layer"},
    "batch normalization": {"network.torso.normalization": "batch"},
    "bfloat16": {"precision": "bfloat16"},
    "float16": {"precision": "float16"},
    "accumulate 4": {"optimizer.accumulate": 4},
}
CAPACITIES = {"100k": 100_000, "1M": 1_000_000}
DRAWN_EVERY = (64, 4, 1)
"""Beside the default; a block of 256 Snakes has 64 updates."""
SNAKE_BLOCKS, CARTPOLE_STEPS = 20, 40_960


def run(reporter: Reporter) -> Result:
    """Measure all cases, interleaved within each group."""
    from hotloop.engines.jax import setup

    base = {"network.torso.hidden": [128, 128], "replay.batch_size": 64}
    setup.start(load_spec({}, base))
    with reporter.busy("compiling an update of each member"):
        updates = {name: hotloop_updates(load_spec({}, {**base, **more})) for name, more in HEADS.items()}
    seconds = interleave(updates, rounds=ROUNDS, reporter=reporter)
    result = Result("family", {**machine(), "network": "MLP 128-128, 4 inputs, 2 actions", "batch": 64})
    for name, times in seconds.items():
        row = Row(f"update/{name}", statistics.median(times) / K * 1e6, "us/update")
        result.rows.append(_beside(row, times, seconds["dqn"], "update/dqn"))
    for title, capacity in CAPACITIES.items():
        _training(result, reporter, f"snake {title}", _snakes(capacity), "uniform")
    _training(result, reporter, "cartpole", _cartpoles(), "dqn at its usual ratio")
    return result


def _beside(row: Row, times: list[float], plain: list[float], against: str) -> Row:
    if row.case != against:
        row.against, row.means = against, COST
        row.ratio, row.spread = paired_ratio(times, plain)
    return row


def _training(
    result: Result, reporter: Reporter, group: str, cases: dict[str, tuple[Callable[[], None], int]], plain: str
) -> None:
    """Whole training steps: envs, acting, replay, updates."""
    calls = {name: call for name, (call, _) in cases.items()}
    seconds = interleave(calls, rounds=TRAINING_ROUNDS, reporter=reporter)
    per_step = {name: [time / cases[name][1] for time in times] for name, times in seconds.items()}
    for name, times in per_step.items():
        row = Row(f"{group}/{name}", 1 / statistics.median(times), "env steps/s")
        result.rows.append(_beside(row, times, per_step[plain], f"{group}/{plain}"))


def _snakes(capacity: int) -> dict[str, tuple[Callable[[], None], int]]:
    sampling: dict[str, dict[str, object]] = {"uniform": {"kind": "uniform"}, "prioritized": {"kind": "prioritized"}}
    if capacity == min(CAPACITIES.values()):
        for updates in DRAWN_EVERY:
            name = f"prioritized, drawn every {updates} updates"
            sampling[name] = {"kind": "prioritized", "updates_per_draw": updates}
    return {
        name: _trainer("snake", SNAKE_BLOCKS, {"replay.capacity": capacity, "replay.sampling": section})
        for name, section in sampling.items()
    }


def _cartpoles() -> dict[str, tuple[Callable[[], None], int]]:
    cases, same = {}, {"network.torso.hidden": [64, 64]}
    for name, preset in (("dqn at its usual ratio", "cartpole"), ("pqn", "pqn")):
        block = load_spec(preset).block_plan
        cases[name] = _trainer(preset, max(1, CARTPOLE_STEPS // block.env_steps), same)
    return cases


def _trainer(preset: str, blocks: int, overrides: Mapping[str, object]) -> tuple[Callable[[], None], int]:
    """Return a call that trains so many blocks, and their env steps. A replay counts as full from the start."""
    from hotloop.assembly import Assembly
    from hotloop.pipelines.device_session import DeviceSession
    from hotloop.trial import begun

    spec = load_spec(preset, {"evaluation.every": 0, "stop.return_at_least": None, "stop.steps": 10**9, **overrides})
    assembly = Assembly(spec)
    session, replay = begun(assembly), assembly.pipeline.replay
    session.advance(-(-spec.replay.start // spec.block_plan.env_steps))
    if replay is not None:
        assert isinstance(session, DeviceSession)
        session.state = _filled(session.state, replay.capacity)

    def call() -> None:
        session.advance(blocks)
        session.read()

    return call, blocks * spec.block_plan.env_steps


def _filled(state: "FusedState", capacity: int) -> "FusedState":
    """As if all rows of the replay had been written, with priorities of their own if it has any."""
    import jax
    import jax.numpy as jnp

    from hotloop.replay import device_tree

    ring, priorities = state.replay
    if isinstance(priorities, device_tree.Tree):
        drawn = jax.random.uniform(jax.random.key(1), (capacity,), minval=0.1)
        priorities = jax.jit(device_tree.change)(priorities, jnp.arange(capacity), drawn)
    return state._replace(
        replay=state.replay._replace(ring=ring._replace(size=jnp.int32(capacity)), priorities=priorities)
    )
