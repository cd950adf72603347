"""The loop of `bench actors` is honest: its buffer draws what was written, and advice changes what it is said to."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pytest

from hotloop.bench.actors import ADVICE, BEYOND, ORIGINAL, PAIRS, Outcome, outcome_of, verdict
from hotloop.bench.actors_buffer import AHEAD, Manner, SharedBuffer
from hotloop.bench.actors_original import Actor, Learner, Shared, Switches, new_model, weights_of
from hotloop.bench.actors_pair import Pair

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ROUNDS = 8
"""The actor takes weights that the learner has published before they end."""
EXACT = [
    name for name, piece in {**ADVICE, **BEYOND}.items() if not piece.changes and name != "fused optimiser and target"
]
CAPACITY, BATCH = 64, 8
MANNERS = [Manner(), Manner(index_lock=False), Manner(locked_size=True), Manner(preallocated=True)]


@cache
def original() -> Outcome:
    return outcome_of(Switches(), ROUNDS)


def buffer(manner: Manner, rows: int) -> SharedBuffer:
    """Row n: state n everywhere, action n, reward -n, done where n is a multiple of 5."""
    made = SharedBuffer(get_context("spawn"), CAPACITY, 3, BATCH, manner)
    for n in range(rows):
        made.add(np.full(3, n, np.float32), n, -float(n), n % 5 == 0)
    return made


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("rows", [20, CAPACITY, 3 * CAPACITY + 7])
def test_a_batch_has_rows_with_what_followed_them_and_none_near_the_write_head(manner: Manner, rows: int) -> None:
    made, random, seen = buffer(manner, rows), np.random.default_rng(0), set[int]()
    for _ in range(200):
        batch = made.sample(random)
        assert batch is not None
        numbers = batch.action
        np.testing.assert_array_equal(batch.state, np.repeat(numbers[:, None], 3, axis=1))
        np.testing.assert_array_equal(batch.next_state, batch.state + 1)
        np.testing.assert_array_equal(batch.reward, -numbers)
        np.testing.assert_array_equal(batch.done, numbers % 5 == 0)
        seen.update(numbers.tolist())
    oldest = 0 if rows < CAPACITY else rows - CAPACITY + AHEAD
    assert seen == set(range(oldest, rows - 1))


@pytest.mark.parametrize("manner", MANNERS)
def test_too_few_rows_give_no_batch(manner: Manner) -> None:
    assert buffer(manner, BATCH).sample(np.random.default_rng(0)) is None
    assert buffer(manner, BATCH + 1).sample(np.random.default_rng(0)) is not None


def test_the_original_learns_and_its_actor_takes_what_was_published() -> None:
    switches = Switches()
    shared = Shared(get_context("spawn"), switches)
    actor, learner, start = Actor(shared, switches), Learner(shared, switches), weights_of(new_model())
    assert not learner.turn()
    for _ in range(100):
        actor.turn()
    for _ in range(10):
        assert learner.turn()
    np.testing.assert_array_equal(weights_of(shared.model), weights_of(learner.online))
    assert (weights_of(actor.model) == start).all()
    actor.turn()
    np.testing.assert_array_equal(weights_of(actor.model), weights_of(learner.online))
    assert actor.apart_before > 0 == actor.apart_after
    assert not (weights_of(learner.online) == start).all()


def test_all_advice_that_is_said_to_change_nothing_together_gives_the_same_bits() -> None:
    together = Switches()
    for name in EXACT:
        switches = {**ADVICE, **BEYOND}[name].switches
        together = replace(together, **{key: on for key, on in vars(switches).items() if on != vars(Switches())[key]})
    assert verdict(outcome_of(together, ROUNDS), original()) == "bits"


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXACT)
def test_advice_that_is_said_to_change_nothing_gives_the_same_bits(name: str) -> None:
    piece = {**ADVICE, **BEYOND}[name]
    assert piece.switches != Switches()
    assert verdict(outcome_of(piece.switches, ROUNDS), original()) == "bits"


def test_fused_steps_differ_by_rounding_alone() -> None:
    assert verdict(outcome_of(Switches(fused_steps=True), ROUNDS), original()) in ("bits", "rounding")


@pytest.mark.parametrize("name", ["gradient clipping", "4 batches accumulated"])
def test_advice_that_is_another_algorithm_gives_other_weights(name: str) -> None:
    assert verdict(outcome_of(ADVICE[name].switches, ROUNDS), original()).startswith("no")


def test_clipping_a_loss_times_10000_clips_every_step() -> None:
    outcome = outcome_of(ADVICE["gradient clipping"].switches, 2)
    assert outcome.clipped == outcome.steps > 0


def test_phases_add_up() -> None:
    phases = [PAIRS[name] for name in ("phase 1", "phases 1 + 2", "phases 1 + 2 + 3")]
    assert PAIRS[ORIGINAL] == Switches()
    for before, after in pairwise(phases):
        changed = {name: value for name, value in vars(before).items() if value != vars(Switches())[name]}
        assert replace(after, **changed) == after != before


@pytest.mark.heavy
def test_a_pair_works_when_asked_and_ends() -> None:
    pair = Pair(PAIRS["phases 1 + 2 + 3"])
    assert min(pair.run(80, 3)) > 0
    assert pair.run(5, 2).both > 0
    pair.close()
    assert not any(process.is_alive() for process in pair._processes)
