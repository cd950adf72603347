"""An actor and a learner that share a buffer, and each piece of a document's advice to make them faster, alone.

The loop (`actors_original.py`) is one such system with its mistakes corrected: eager PyTorch, an IQN of 625-250 with 12
quantiles to learn and 256 to act, batch 64. Each piece of advice is timed alone against the loop without it, on the
side that it is for, interleaved in one process. Whether it leaves the result as it was is checked, not claimed: the
same turns and batches in a fixed order, then weights and actions are compared. Locks and phases are timed once more in
two processes, where sides hinder each other.
"""

import queue
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from hotloop.bench import actors_picture
from hotloop.bench.actors_original import (
    CLIP,
    LOG_EVERY,
    PUBLISH_EVERY,
    SIGNIFICANT,
    SYNC_EVERY,
    TOGETHER,
    Actor,
    Learner,
    Shared,
    Switches,
    new_model,
    weights_of,
)
from hotloop.bench.actors_pair import Pair, Took
from hotloop.bench.measure import Result, Row, interleave, machine, paired_ratio
from hotloop.plain import Json
from hotloop.progress import Reporter

ROUNDS, PAIR_ROUNDS = 15, 7
TURNS, BATCHES = SYNC_EVERY, 2 * PUBLISH_EVERY
"""Of a piece that is timed: one sync and one report, two publications."""
PAIR_TURNS, PAIR_BATCHES = 300, 40
WARM_TURNS, COMPARED_ROUNDS = 70, 10
NEAR = 1e-3
"""Weights agree but for rounding when they are apart by less than this share of the way they have gone."""
WAITING_SECONDS = 1.0
PICTURE = Path("bench-actors.png")
ORIGINAL = "original"
Side = Literal["actor", "learner"]


class Advice(NamedTuple):
    """One piece of it."""

    side: Side
    switches: Switches
    says: str = ""
    """What the document expects of it."""
    changes: str = ""
    """How it is another algorithm, if it is."""


SCALED_AND_CLIPPED = Switches(clips=True)
ADVICE: dict[str, Advice] = {
    "no weight comparison on sync": Advice("actor", Switches(no_comparison=True), "10–50 % of sync"),
    "no lock around add": Advice("actor", Switches(no_lock_around_add=True), "5–10 % less blocking"),
    "no redundant local memory": Advice("actor", Switches(no_local_memory=True)),
    "states flat from the start": Advice("actor", Switches(flat_states=True), "< 1 %"),
    "log queue without blocking": Advice("actor", Switches(no_blocking_log=True), "no blocking when full"),
    "no state-dict clone on sync": Advice("actor", Switches(no_clone_on_sync=True)),
    "no index lock": Advice("actor", Switches(no_index_lock=True), "5–15 % less contention"),
    "event instead of 1 ms sleeps": Advice("learner", Switches(event_instead_of_sleep=True), "better CPU use"),
    "no lock around sample": Advice("learner", Switches(no_lock_around_sample=True)),
    "size read under its lock": Advice("learner", Switches(locked_size=True)),
    "pre-allocated sampling": Advice("learner", Switches(preallocated_sampling=True), "5–10 % of sampling"),
    "no unused clone": Advice("learner", Switches(no_unused_clone=True), "minimal"),
    "loss without x 10,000": Advice(
        "learner", Switches(no_loss_scale=True), "stability", "the smallest gradients count less in Adam"
    ),
    "gradient clipping": Advice(
        "learner", SCALED_AND_CLIPPED, "stability", "of a loss x 10,000: every step is clipped"
    ),
    "clipping, loss without x 10,000": Advice(
        "learner", Switches(clips=True, no_loss_scale=True), "stability", "large gradients are shortened"
    ),
    "publish if changed": Advice(
        "learner", Switches(publish="if changed"), "20–40 % of publishing", f"unless no weight moved {SIGNIFICANT:g}"
    ),
    "publish incrementally": Advice("learner", Switches(publish="incremental"), "20–40 % of publishing"),
    f"{TOGETHER} batches per turn": Advice(
        "learner", Switches(batches_per_turn=TOGETHER), changes="publishes at other times"
    ),
    f"{TOGETHER} batches accumulated": Advice(
        "learner",
        Switches(batches_per_turn=TOGETHER, accumulates=True),
        changes=f"1/{TOGETHER} of the optimiser steps",
    ),
}
BEYOND: dict[str, Advice] = {
    "frames sliced out of an array": Advice("actor", Switches(sliced_frames=True)),
    "publish in place": Advice("learner", Switches(publish="in place")),
    "fused optimiser and target": Advice("learner", Switches(fused_steps=True)),
}
"""What the document does not name."""
PHASE_1 = Switches(no_comparison=True, no_loss_scale=True, clips=True, no_unused_clone=True)
PHASE_2 = replace(
    PHASE_1, no_index_lock=True, event_instead_of_sleep=True, no_lock_around_add=True, no_lock_around_sample=True
)
PHASE_3 = replace(PHASE_2, publish="incremental", preallocated_sampling=True, no_clone_on_sync=True)
ALL_BEYOND = replace(PHASE_3, sliced_frames=True, publish="in place", fused_steps=True)
PAIRS: dict[str, Switches] = {
    ORIGINAL: Switches(),
    "no lock around add and sample": Switches(no_lock_around_add=True, no_lock_around_sample=True),
    "phase 1": PHASE_1,
    "phases 1 + 2": PHASE_2,
    "phases 1 + 2 + 3": PHASE_3,
    "and what is not in the document": ALL_BEYOND,
}
ESTIMATED = {"actor": "15–30 % faster", "learner": "20–40 % faster", "both": "20–35 % faster"}
"""By the document, for phases 1 and 2 together."""


class Outcome(NamedTuple):
    """What a loop came to in a fixed order of turns and batches."""

    weights: np.ndarray
    """Of the learner."""
    acting: np.ndarray
    """Those that the actor has at the end."""
    actions: list[int]
    clipped: int
    steps: int


def run(reporter: Reporter) -> Result:
    """Results, each piece of advice alone, waiting and full queues, then two processes; then the picture."""
    torch.set_num_threads(1)
    with reporter.busy("which pieces of advice leave the result as it was?"):
        verdicts = same_or_not({**ADVICE, **BEYOND})
    alone = alone_rows(verdicts, reporter)
    aside = [*waiting_rows(), *full_queue_rows()]
    pairs = pair_rows(reporter)
    picture = actors_picture.draw(alone, pairs, PICTURE)
    settings: dict[str, object] = {
        **machine(),
        "torch threads": torch.get_num_threads(),
        "loop": f"IQN 625-250, batch 64; sync every {SYNC_EVERY} turns, report every {LOG_EVERY}, publish every "
        f"{PUBLISH_EVERY} batches; one agent",
        "same result": "bits of weights and actions after a fixed order of turns and batches; rounding: off by less "
        f"than {NEAR:g} of the way the weights have gone",
        "not measured": "pinned memory, several GPUs: there is none here, and without one they are ordinary copies",
        "picture": str(picture.resolve()),
    }
    return Result("actors", settings, [*alone, *aside, *pairs])


# -- results ----------------------------------------------------------------------------------------------


def same_or_not(pieces: dict[str, Advice]) -> dict[str, tuple[str, Outcome]]:
    """For each piece whether the loop comes to the same with it: `bits`, `rounding` or `no`, by how much."""
    expected, found = outcome_of(Switches()), {}
    for name, piece in pieces.items():
        outcome = outcome_of(piece.switches)
        found[name] = verdict(outcome, expected), outcome
    return found


def outcome_of(switches: Switches, rounds: int = COMPARED_ROUNDS) -> Outcome:
    """Turns of the actor and batches of the learner one after the other, TOGETHER of each at a time."""
    shared = Shared(get_context("spawn"), switches)
    actor, learner = Actor(shared, switches), Learner(shared, switches)
    for _ in range(WARM_TURNS):
        actor.turn()
    for _ in range(rounds):
        for _ in range(TOGETHER):
            actor.turn()
        for _ in range(TOGETHER // switches.batches_per_turn):
            learner.turn()
    _empty(shared)
    steps = learner.batches // (switches.batches_per_turn if switches.accumulates else 1)
    return Outcome(weights_of(learner.online), weights_of(actor.model), actor.actions, learner.clipped, steps)


def verdict(found: Outcome, expected: Outcome) -> str:
    """In a word."""
    off = max(_off_by(found.weights, expected.weights), _off_by(found.acting, expected.acting))
    if found.actions == expected.actions and off < NEAR:
        return "bits" if off == 0 else "rounding"
    return f"no: off by {off:.2g}"


def _off_by(found: np.ndarray, expected: np.ndarray) -> float:
    """The distance of weights, as a share of the way that those expected have gone."""
    moved = np.linalg.norm(expected - weights_of(new_model()))
    return float(np.linalg.norm(found - expected) / moved)


# -- alone ------------------------------------------------------------------------------------------------


def alone_rows(verdicts: dict[str, tuple[str, Outcome]], reporter: Reporter) -> list[Row]:
    """A row for each piece, and for each side of the loop without any."""
    pieces = {**ADVICE, **BEYOND}
    cases: dict[str, Callable[[], None]] = {}
    sides: tuple[Side, ...] = ("actor", "learner")
    for side in sides:
        cases[f"{side}/{ORIGINAL}"] = _piece(side, Switches())
    for name, piece in pieces.items():
        cases[f"{piece.side}/{name}"] = _piece(piece.side, piece.switches)
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    rows = []
    for side, count, unit in (("actor", TURNS, "us/turn"), ("learner", BATCHES, "us/batch")):
        baseline = f"{side}/{ORIGINAL}"
        rows.append(Row(baseline, statistics.median(seconds[baseline]) / count * 1e6, unit))
        for name, piece in pieces.items():
            if piece.side != side:
                continue
            times, case = seconds[f"{side}/{name}"], f"{side}/{name}"
            row = Row(case, statistics.median(times) / count * 1e6, unit, against=baseline)
            row.ratio, row.spread = paired_ratio(seconds[baseline], times)
            row.columns, row.note = _columns(name, piece, *verdicts[name]), piece.changes
            rows.append(row)
    return rows


def _columns(name: str, piece: Advice, said: str, outcome: Outcome) -> dict[str, Json]:
    clipped = f"{outcome.clipped / outcome.steps:.0%} at {CLIP:g}" if piece.switches.clips else None
    in_document = piece.says or ("–" if name in ADVICE else "not named")
    return {"same result": said, "document says": in_document, "steps clipped": clipped}


def _piece(side: Side, switches: Switches) -> Callable[[], None]:
    """Turns or batches on a loop of its own, whose buffer holds enough."""
    shared = Shared(get_context("spawn"), switches)
    actor = Actor(shared, switches)
    for _ in range(WARM_TURNS + TURNS - WARM_TURNS % TURNS):
        actor.turn()
    _empty(shared)
    learner = Learner(shared, switches)

    def act() -> None:
        for _ in range(TURNS):
            actor.turn()

    def learn() -> None:
        for _ in range(BATCHES // switches.batches_per_turn):
            if not learner.turn():
                raise ValueError("the learner found no batch in a buffer that holds enough")

    return act if side == "actor" else learn


# -- waiting, and a full queue ----------------------------------------------------------------------------


def waiting_rows() -> list[Row]:
    """What a learner without data uses of a processor."""
    rows: list[Row] = []
    for name, switches in (("1 ms sleeps", Switches()), ("event", Switches(event_instead_of_sleep=True))):
        learner = Learner(Shared(get_context("spawn"), switches), switches)
        began, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < WAITING_SECONDS:
            learner.turn()
        share = (time.process_time() - used) / (time.perf_counter() - began)
        note = "only until the buffer holds a batch: the learner never waits after that" if not rows else ""
        rows.append(Row(f"learner without data/{name}", share * 100, "% of a core", note=note))
    return rows


def full_queue_rows() -> list[Row]:
    """How long an actor stands still at a full queue."""
    rows = []
    for name, how in (("blocking, as it was", False), ("without blocking", True)):
        switches = Switches(no_blocking_log=how)
        shared = Shared(get_context("spawn"), switches)
        actor = Actor(shared, switches)
        shared.log = get_context("spawn").Queue(1)
        shared.log.put({})
        began = time.perf_counter()
        try:
            actor._report()
        except queue.Full:
            note = "and then it raises queue.Full, which nobody caught"
        else:
            note = "the report is dropped and counted"
        rows.append(Row(f"report to a full queue/{name}", (time.perf_counter() - began) * 1e3, "ms", note=note))
        shared.log.get()
    return rows


# -- in two processes -------------------------------------------------------------------------------------


def pair_rows(reporter: Reporter) -> list[Row]:
    """Actor and learner side by side: each, and both."""
    with reporter.busy("starting actors and learners in processes of their own"):
        pairs = {name: Pair(switches) for name, switches in PAIRS.items()}
        for pair in pairs.values():
            pair.run(WARM_TURNS + PAIR_TURNS // 3, PAIR_BATCHES // 5)
    took: dict[str, list[Took]] = {name: [] for name in pairs}
    for number in range(PAIR_ROUNDS):
        for name in list(pairs) if number % 2 == 0 else reversed(pairs):
            took[name].append(pairs[name].run(PAIR_TURNS, PAIR_BATCHES))
        reporter.show(number + 1, PAIR_ROUNDS, {"rounds of": " | ".join(pairs)})
    for pair in pairs.values():
        pair.close()
    rows = []
    for what, count, unit in (
        ("actor", PAIR_TURNS, "turns/s"),
        ("learner", PAIR_BATCHES, "batches/s"),
        ("both", 0, "s"),
    ):
        seconds = {name: [float(getattr(each, what)) for each in runs] for name, runs in took.items()}
        baseline = f"two processes/{what}, {ORIGINAL}"
        for name, times in seconds.items():
            middle = statistics.median(times)
            row = Row(f"two processes/{what}, {name}", count / middle if count else middle, unit)
            if name != ORIGINAL:
                row.against, row.note = baseline, "clips gradients: another algorithm" if PAIRS[name].clips else ""
                row.ratio, row.spread = paired_ratio(seconds[ORIGINAL], times)
                row.columns = {"document says": ESTIMATED[what] if name == "phases 1 + 2" else None}
            elif not count:
                row.note = f"{PAIR_TURNS} turns and {PAIR_BATCHES} batches, until the slower side is done"
            rows.append(row)
    return rows


def _empty(shared: Shared) -> None:
    """Take all reports out of the queue."""
    time.sleep(0.01)  # its thread may still be handing one over
    while not shared.log.empty():
        shared.log.get()
