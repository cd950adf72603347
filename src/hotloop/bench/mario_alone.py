"""Each piece of the document's advice alone against the loop without it, on the side that it is for, interleaved.

Whether a piece leaves the result as it was is checked, not claimed: the same turns and batches in a fixed order, then
weights and actions are compared. What many collectors do to each other is in `mario_playing.py`.
"""

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from typing import Literal, NamedTuple

import numpy as np

from hotloop.bench.mario_original import (
    NUM_ACTIONS,
    OPTIMIZED,
    Channel,
    Collector,
    Learner,
    Sender,
    Sizes,
    Switches,
    new_network,
    threads_of,
)
from hotloop.bench.mario_original_network import Weights, weights_of
from hotloop.bench.mario_original_replay import Experience
from hotloop.bench.measure import FASTER, Row, interleave, paired_ratio
from hotloop.plain import Json
from hotloop.progress import Reporter

SIZES, BATCH = Sizes(), 32
"""Of what is timed: a whole batch of 256 takes seconds without a GPU."""
ROUNDS, TURNS, EXPERIENCES, BATCHES, EPOCHS = 7, 20, 32, 4, 15
STORED = 256
CHECKED, CHECKED_BATCH = Sizes(picture=64, idle_steps=10), 16
"""Of what is compared: short episodes, so that epochs pass."""
CHECKED_ROUNDS, CHECKED_TURNS, CHECKED_EPISODES = 6, 32, 1
NEAR = 1e-3
"""Weights agree but for rounding when they are apart by less than this share of the way they have gone."""
ORIGINAL = "original"
Side = Literal["collector", "hand-over", "gradient step", "sync"]
UNITS: dict[Side, str] = {
    "collector": "ms/turn",
    "hand-over": "ms/experience",
    "gradient step": "ms/sample",
    "sync": "ms/8 episodes",
}


class Advice(NamedTuple):
    """One piece of it; the batch counts as a multiple of the original one."""

    side: Side
    switches: Switches
    says: str = ""
    """What the document expects of it."""
    changes: str = ""
    """How it is another algorithm, if it is; or why it brings what it brings here."""


ADVICE: dict[str, Advice] = {
    "in-place ReLU when acting": Advice("collector", Switches(in_place=True), "saves memory"),
    "BatchNorm, He, no bias when acting": Advice("collector", Switches(normalised=True), changes="another network"),
    "one thread when acting": Advice("collector", Switches(threads=1), "less contention"),
    "a queue per collector": Advice("hand-over", Switches(own_queues=True), "50 -> 5 ms, 85 % less contention"),
    f"a queue per collector, {OPTIMIZED.together} at once": Advice(
        "hand-over", Switches(own_queues=True, together=OPTIMIZED.together), "50 -> 5 ms, 85 % less contention"
    ),
    f"{OPTIMIZED.together} at once, with the lock": Advice("hand-over", Switches(together=OPTIMIZED.together)),
    "batch 512": Advice(
        "gradient step", Switches(batch=512), "60 -> 85 % utilisation", "half the steps on as many samples"
    ),
    "accumulation of 4": Advice(
        "gradient step", Switches(accumulates=4), "stable gradients", "a quarter of the steps on as many samples"
    ),
    "pre-allocated batches": Advice("gradient step", Switches(preallocated=True), "less allocation"),
    "uint8 converted after the transfer": Advice(
        "gradient step", Switches(converts_after=True), "not named", "there is no transfer here, only the conversion"
    ),
    "torch.compile": Advice("gradient step", Switches(compiled=True), "10-15 % forward"),
    "bfloat16 autocast": Advice("gradient step", Switches(bfloat16=True), "30-40 % forward, 25-30 % backward"),
    "BatchNorm, He, no bias": Advice(
        "gradient step", Switches(normalised=True), "faster convergence", "another network"
    ),
    "in-place ReLU": Advice("gradient step", Switches(in_place=True), "saves memory"),
    "one thread": Advice("gradient step", Switches(threads=1), "less contention"),
    "cache cleared every 4 batches": Advice(
        "gradient step", Switches(clears_every=4), "less fragmentation", "garbage of Python; there is no other cache"
    ),
    "weights every epoch": Advice("sync", Switches(sync_every=1), changes="collectors act with newer weights"),
    "weights every 5 epochs": Advice(
        "sync", Switches(sync_every=5), "80 % less than every epoch", "collectors act with older weights"
    ),
    "16 episodes per epoch": Advice("sync", Switches(episodes=16), changes="collectors act with older weights"),
}


class Outcome(NamedTuple):
    """What a loop came to in a fixed order of turns and batches."""

    learned: Weights
    acting: list[Weights]
    """Those of the collector, after each round: when it took them counts."""
    actions: list[int]


# -- results ----------------------------------------------------------------------------------------------


def same_or_not() -> dict[str, str]:
    """For each piece whether the loop comes to the same with it: `bits`, `rounding` or `no`, by how much."""
    expected = outcome_of(Switches())
    return {name: verdict(outcome_of(piece.switches), expected) for name, piece in ADVICE.items()}


def outcome_of(switches: Switches) -> Outcome:
    """Turns of a collector, then batches of the learner, again and again; experiences go through the queue."""
    switches = scaled(replace(switches, episodes=CHECKED_EPISODES * switches.episodes // 8), CHECKED_BATCH)
    channel, learner = Channel(get_context("spawn"), CHECKED, switches), Learner(CHECKED, switches)
    sender = Sender(channel, 0)
    collector, acting = Collector(CHECKED, switches, sender.send), list[Weights]()
    with threads_of(switches):
        for _ in range(CHECKED_ROUNDS):
            for _ in range(CHECKED_TURNS):
                collector.turn()
            sender.flush()
            learner.store(channel.take_exactly(CHECKED_TURNS))
            for _ in range(BATCHES * CHECKED_BATCH // switches.batch):
                learner.learn(learner.draw())
            if (weights := learner.weights_if_due()) is not None:
                collector.take(weights)
            acting.append(weights_of(collector.model))
    outcome = Outcome(weights_of(learner.online), acting, collector.actions)
    collector.close()
    return outcome


def verdict(found: Outcome, expected: Outcome) -> str:
    """In a word."""
    if found.learned.keys() != expected.learned.keys():
        return "no: another network"
    start = weights_of(new_network(CHECKED, Switches()))
    moved = _norm(expected.learned, start)
    pairs = [(found.learned, expected.learned), *zip(found.acting, expected.acting, strict=True)]
    off = max(_norm(one, other) for one, other in pairs) / moved
    if found.actions == expected.actions and off < NEAR:
        return "bits" if off == 0 else "rounding"
    return f"no: off by {off:.2g}"


def _norm(found: Weights, expected: Weights) -> float:
    return float(np.sqrt(sum(np.square(found[name] - expected[name]).sum() for name in expected)))


# -- time -------------------------------------------------------------------------------------------------


def alone_rows(verdicts: dict[str, str], reporter: Reporter) -> list[Row]:
    """A row for each piece, and for each side of the loop without any."""
    rows: list[Row] = []
    for side, unit in UNITS.items():
        pieces = {name: piece for name, piece in ADVICE.items() if piece.side == side}
        cases = {ORIGINAL: _case(side, Switches())}
        cases |= {name: _case(side, piece.switches) for name, piece in pieces.items()}
        with reporter.busy(f"{side}: the loop as it was, and each piece of advice"):
            seconds = interleave({name: run for name, (run, _) in cases.items()}, rounds=ROUNDS, reporter=reporter)
        for _, close in cases.values():
            close()
        for name, times in seconds.items():
            row = Row(f"{side}/{name}", statistics.median(times) / COUNTS[side]() * 1e3, unit)
            if name != ORIGINAL:
                row.against, row.means, row.note = f"{side}/{ORIGINAL}", FASTER, pieces[name].changes
                row.ratio, row.spread = paired_ratio(seconds[ORIGINAL], times)
                row.columns = _columns(pieces[name], verdicts[name])
            rows.append(row)
    return rows


def settings() -> dict[str, object]:
    """Without which the rows mean nothing."""
    return {
        "alone": f"stacks {SIZES.shape}, batch {BATCH} in place of 256 ({BATCH * SIZES.gflop:.2g} GFLOP), "
        f"{os.cpu_count()} threads unless said otherwise",
        "same result": f"bits of weights and actions after {CHECKED_ROUNDS * CHECKED_TURNS} turns and "
        f"{CHECKED_ROUNDS * BATCHES} batches of {CHECKED_BATCH} in a fixed order, stacks {CHECKED.shape}; rounding: "
        f"off by less than {NEAR:g} of the way the weights have gone",
    }


def scaled(switches: Switches, batch: int) -> Switches:
    """The same with `batch` where the original has its own, and a buffer that holds what is stored."""
    return replace(switches, batch=batch * switches.batch // Switches().batch, buffer=max(STORED, 2 * batch))


def random_experiences(count: int, sizes: Sizes) -> list[Experience]:
    """Pictures that are noise; one in fifty ends an episode."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (count + 1, *sizes.shape), dtype=np.uint8)
    return [
        Experience(
            pictures[n],
            int(random.integers(NUM_ACTIONS)),
            float(random.normal()),
            pictures[n + 1],
            terminated=n % 50 == 49,
            ended=n % 50 == 49,
        )
        for n in range(count)
    ]


def _columns(piece: Advice, said: str) -> dict[str, Json]:
    return {"same result": said, "document says": piece.says or "–"}


Case = tuple[Callable[[], None], Callable[[], None]]
"""What is timed, and what ends it."""


def _case(side: Side, switches: Switches) -> Case:
    return CASES[side](scaled(switches, BATCH))


def _acting(switches: Switches) -> Case:
    collector = Collector(SIZES, switches, lambda experience: None)

    def act() -> None:
        with threads_of(switches):
            for _ in range(TURNS):
                collector.turn()

    return act, collector.close


def _handing_over(switches: Switches) -> Case:
    """Sent and taken in this process: pickled, written, read, unpickled."""
    channel, experiences = Channel(get_context("spawn"), SIZES, switches), random_experiences(EXPERIENCES, SIZES)
    sender = Sender(channel, 0)

    def hand_over() -> None:
        for experience in experiences:
            sender.send(experience)
        sender.flush()
        channel.take_exactly(EXPERIENCES)

    def close() -> None:
        for each in channel.queues:
            each.close()

    return hand_over, close


def _learning(switches: Switches) -> Case:
    learner = Learner(SIZES, switches)
    learner.store(random_experiences(STORED, SIZES))

    def learn() -> None:
        with threads_of(switches):
            for _ in range(BATCHES * BATCH // switches.batch):
                learner.learn(learner.draw())

    return learn, lambda: None


def _syncing(switches: Switches) -> Case:
    """The weights of so many epochs of 8 episodes, on their way to one collector."""
    learner, way = Learner(SIZES, switches), get_context("spawn").Queue(1)
    model = Collector(SIZES, switches, lambda experience: None)

    def sync() -> None:
        for _ in range(EPOCHS):
            learner.episodes += Switches().episodes
            if (weights := learner.weights_if_due()) is not None:
                way.put(weights)
                model.take(way.get())

    def close() -> None:
        model.close()
        way.close()

    return sync, close


CASES: dict[Side, Callable[[Switches], Case]] = {
    "collector": _acting,
    "hand-over": _handing_over,
    "gradient step": _learning,
    "sync": _syncing,
}
COUNTS: dict[Side, Callable[[], int]] = {
    "collector": lambda: TURNS,
    "hand-over": lambda: EXPERIENCES,
    "gradient step": lambda: BATCHES * BATCH,
    "sync": lambda: EPOCHS,
}
"""Of what each case does, in the words of its unit."""
