"""The host replay: what priorities cost a training step, what stacks rebuilt from single frames cost and save."""

from collections.abc import Callable, Mapping

import numpy as np

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.experience import VectorStep
from hotloop.progress import Reporter
from hotloop.replay.host import HostReplay
from hotloop.replay.plan import readable
from hotloop.spec import Replay
from hotloop.spec.reading import load_spec
from hotloop.trees import ArraySpec

ROUNDS = 15
BLOCKS = 300
BATCH = 32
STACKS = {"mario (8, 128, 128)": ((8, 128, 128), 50_000), "atari (4, 84, 84)": ((4, 84, 84), 1_000_000)}
STORED = 6_000
"""Transitions in the replay while stacks are drawn from it: hundreds of megabytes, so frames are not in a cache."""


def run(reporter: Reporter) -> Result:
    """Priorities against uniform draws; stacks against a plain copy of their bytes; memory against whole rows."""
    result = Result("replay", {})
    _priorities(result, reporter)
    for name, (shape, capacity) in STACKS.items():
        _stacks(result, name, shape, capacity, reporter)
    result.settings = {**machine(), "training": "CartPole-v1 x16, net 64-64, batch 64, 0.25 updates per step"}
    return result


def _priorities(result: Result, reporter: Reporter) -> None:
    kinds = {"uniform": {"kind": "uniform"}, "prioritized": {"kind": "prioritized"}}
    cases = {f"training step/{name}": _trainer(sampling) for name, sampling in kinds.items()}
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    plain, prioritised = cases
    for name, times in seconds.items():
        row = Row(name, sorted(times)[ROUNDS // 2] / BLOCKS * 1e6, "us per block")
        if name == prioritised:
            row.ratio, row.spread = paired_ratio(times, seconds[plain])
            row.against, row.means = plain, COST
        result.rows.append(row)


def _trainer(sampling: Mapping[str, object]) -> Callable[[], None]:
    from hotloop.assembly import Assembly
    from hotloop.trial import begun

    spec = load_spec(
        {},
        {
            "env": {"id": "CartPole-v1", "num_envs": 16},
            "updates_per_step": 0.25,
            "network.torso.hidden": [64, 64],
            "replay": {"capacity": 100_000, "start": 1_000, "batch_size": 64, "sampling": sampling},
        },
    )
    session = begun(Assembly(spec))
    session.advance(400)
    return lambda: session.advance(BLOCKS)


def _stacks(result: Result, name: str, shape: tuple[int, ...], capacity: int, reporter: Reporter) -> None:
    obs = ArraySpec(shape, np.uint8)
    full = filled(Replay(capacity=STORED, stacked_frames=shape[0]), obs)
    random = np.random.default_rng(0)
    source = np.random.default_rng(1).integers(0, 255, (2, BATCH, *shape), dtype=np.uint8)
    copy, draw = f"{name}/copy of the bytes", f"{name}/{BATCH} transitions drawn"

    def copy_both() -> None:
        source[0].copy()
        source[1].copy()

    def draw_both() -> None:
        full.sample(random, (1, BATCH))

    seconds = interleave({copy: copy_both, draw: draw_both}, rounds=101, reporter=reporter)
    result.rows.append(Row(copy, sorted(seconds[copy])[50] * 1e6, "us"))
    row = Row(draw, sorted(seconds[draw])[50] * 1e6, "us", against=copy, means=COST)
    row.ratio, row.spread = paired_ratio(seconds[draw], seconds[copy])
    result.rows.append(row)
    needed = HostReplay(Replay(capacity=capacity, stacked_frames=shape[0]), 0.99, obs, 8).num_bytes()
    whole = HostReplay(Replay(capacity=capacity, storage="whole"), 0.99, obs, 8).num_bytes()
    note = f"{readable(needed)} for {capacity:,} transitions; stored whole {readable(whole)}"
    row = Row(f"{name}/memory", needed / 1e9, "GB", needed / whole, "stored whole", means="times the memory")
    row.note = note
    result.rows.append(row)


def filled(spec: Replay, obs: ArraySpec) -> HostReplay:
    """A replay full of one env's stacks of random frames, in episodes of 500 steps."""
    replay = HostReplay(spec, 0.99, obs, 1)
    replay.allocate()
    random = np.random.default_rng(2)
    frames = random.integers(0, 255, (600, *obs.shape[1:]), dtype=np.uint8)
    stack, yes, no = obs.shape[0], np.ones(1, bool), np.zeros(1, bool)

    def seen(t: int) -> np.ndarray:
        return frames[t : t + stack][None]

    replay.begin(seen(0))
    for t in range(spec.capacity):
        at = t % 500
        ends = at == 499
        step = VectorStep(
            seen(0) if ends else seen(at + 1),
            seen(at + 1),
            np.zeros(1, np.int32),
            np.zeros(1, np.float32),
            no,
            yes if ends else no,
            yes,
            yes if ends else no,
        )
        replay.insert(step, random)
    return replay
