"""A buffer of 10,000 or 50,000: its memory with whole stacks and with each frame once; what a draw from it takes."""

import statistics
from collections.abc import Callable

import numpy as np

from hotloop.bench.mario_alone import random_experiences
from hotloop.bench.mario_original import Sizes
from hotloop.bench.mario_original_replay import Priorities, StackedReplay, bytes_of, bytes_of_frames
from hotloop.bench.measure import COST, Row, interleave, paired_ratio
from hotloop.bench.replay import filled
from hotloop.progress import Reporter
from hotloop.replay.host import HostReplay
from hotloop.spec import Prioritized, Replay
from hotloop.trees import ArraySpec

SIZES, BUFFERS, BATCH = Sizes(), (10_000, 50_000), 256
STORED, ROUNDS = 1_000, 31
"""Transitions that pictures are drawn from: a quarter of a GiB of whole stacks, which is in no cache."""
ENVS = 8
GIB = 2**30


def memory_rows() -> list[Row]:
    """By shapes; nothing is allocated."""
    rows = []
    stack, size = SIZES.stack, SIZES.picture
    for capacity in BUFFERS:
        whole, once = bytes_of(capacity, stack, size), bytes_of_frames(capacity, size)
        spec = Replay(capacity=capacity, stacked_frames=stack, sampling=Prioritized(kind="prioritized"))
        ours = HostReplay(spec, 0.95, ArraySpec(SIZES.shape, np.uint8), ENVS).num_bytes()
        against = f"buffer {capacity:,}/whole stacks, uint8"
        first = Row(against, whole / GIB, "GiB")
        first.note = f"2 x {stack} x {size}² bytes a transition; float32 would take {4 * whole / GIB:.3g} GiB"
        second = Row(f"buffer {capacity:,}/each frame once (hotloop)", ours / GIB, "GiB", ours / whole, against)
        second.means = "times the memory of"
        second.note = (
            f"{size}² bytes a transition are {once / GIB:.2g} GiB; the rest: rows, priorities, first stacks of episodes"
        )
        rows += [first, second]
    return rows


def drawing_rows(reporter: Reporter) -> list[Row]:
    """Draws by priority among few and many; then the pictures of a batch."""
    random = np.random.default_rng(0)
    by_priority: dict[str, Callable[[], None]] = {
        f"buffer {capacity:,}/{BATCH} places drawn by priority": _draws(capacity, random) for capacity in BUFFERS
    }
    stacked = StackedReplay(STORED, SIZES.shape)
    for experience in random_experiences(STORED, SIZES):
        stacked.add(experience)
    once = filled(Replay(capacity=STORED, stacked_frames=SIZES.stack), ArraySpec(SIZES.shape, np.uint8))
    pictures: dict[str, Callable[[], None]] = {
        f"{BATCH} transitions drawn/whole stacks": lambda: _ignore(stacked.sample(BATCH, random)),
        f"{BATCH} transitions drawn/each frame once (hotloop)": lambda: _ignore(once.sample(random, (1, BATCH))),
    }
    rows = []
    for cases, note in (
        (by_priority, "cumulative sums; hotloop bench sum_tree has trees"),
        (pictures, "stacks are rebuilt from frames"),
    ):
        seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
        first, second = cases
        rows.append(Row(first, statistics.median(seconds[first]) * 1e3, "ms"))
        row = Row(second, statistics.median(seconds[second]) * 1e3, "ms", against=first, means=COST, note=note)
        row.ratio, row.spread = paired_ratio(seconds[second], seconds[first])
        rows.append(row)
    return rows


def _draws(capacity: int, random: np.random.Generator) -> Callable[[], None]:
    priorities = Priorities(capacity)
    priorities.update(np.arange(capacity), random.normal(size=capacity))

    def draw() -> None:
        places, _ = priorities.draw(BATCH, capacity, random)
        priorities.update(places, random.normal(size=BATCH))

    return draw


def _ignore(_: object) -> None:
    """What was drawn."""
