import re
from fractions import Fraction
from math import gcd

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hotloop.blocks import LONGEST_BLOCK, BlockPlan, plan_block

NUM_ENVS = st.integers(1, 512)


@pytest.mark.parametrize(
    ("updates_per_step", "num_envs", "vector_steps", "updates"),
    [
        (0.25, 16, 1, 4),
        (0.25, 4, 1, 1),
        (0.25, 1, 4, 1),
        (2, 1, 1, 2),
        (1.5, 1, 2, 3),
        (0.1, 1, 10, 1),
        (0.1, 16, 5, 8),
        (1 / 3, 3, 1, 1),
        (0.3333333, 1, 3, 1),
        (1 / 64, 1, 64, 1),
        (1000, 2, 1, 2000),
    ],
)
def test_a_ratio_becomes_the_block_one_would_write_down(
    updates_per_step: float, num_envs: int, vector_steps: int, updates: int
) -> None:
    block = plan_block(updates_per_step, num_envs)
    assert block == BlockPlan(num_envs, vector_steps, updates)
    assert block.env_steps == num_envs * vector_steps


@given(updates=st.integers(1, 200), vector_steps=st.integers(1, LONGEST_BLOCK), num_envs=NUM_ENVS)
def test_a_block_is_exact_and_in_lowest_terms(updates: int, vector_steps: int, num_envs: int) -> None:
    block = plan_block(updates / vector_steps / num_envs, num_envs)
    assert Fraction(block.updates, block.vector_steps) == Fraction(updates, vector_steps)
    assert gcd(block.updates, block.vector_steps) == 1
    assert block.num_envs == num_envs


@given(updates_per_step=st.floats(1e-6, 1e4), num_envs=NUM_ENVS)
def test_an_accepted_ratio_is_kept_to_a_millionth(updates_per_step: float, num_envs: int) -> None:
    try:
        block = plan_block(updates_per_step, num_envs)
    except ValueError:
        assume(False)
    assert 1 <= block.vector_steps <= LONGEST_BLOCK
    assert block.updates >= 1
    assert block.updates / block.env_steps == pytest.approx(updates_per_step, rel=1.1e-6)


@given(updates_per_step=st.floats(1e-9, 100), num_envs=NUM_ENVS)
def test_a_refusal_names_ratios_that_do_work(updates_per_step: float, num_envs: int) -> None:
    try:
        plan_block(updates_per_step, num_envs)
        assume(False)
    except ValueError as error:
        message = str(error)
    assert "\n" not in message
    offers = re.search(r"use (.+), or another env.num_envs", message)
    assert offers, message
    ratios = [float(offer) for offer in offers[1].split(" or ")]
    for ratio in ratios:
        block = plan_block(ratio, num_envs)
        assert block.updates / block.env_steps == pytest.approx(ratio, rel=1e-6)
    exact = updates_per_step * num_envs
    nearest = min(
        abs(p / q - exact) for q in range(1, LONGEST_BLOCK + 1) for p in (int(exact * q), int(exact * q) + 1) if p
    )
    assert abs(ratios[0] * num_envs - exact) <= nearest * (1 + 1e-6) + 1e-6 * exact, "the first offer is the nearest"


@pytest.mark.parametrize("updates_per_step", [1 / 65, 0.001, 0.7071067811865476, 1e-9])
def test_a_ratio_that_fits_no_block_is_refused_with_what_was_seen(updates_per_step: float) -> None:
    expected = f"updates_per_step {updates_per_step:g} with 1 env\\(s\\) .* no block of at most 64 vector steps"
    with pytest.raises(ValueError, match=expected):
        plan_block(updates_per_step, 1)


def test_a_block_may_be_longer_than_the_ratio_needs() -> None:
    assert plan_block(8, 1, learn_every=4) == BlockPlan(1, 4, 32)
    assert plan_block(0.25, 4, learn_every=8) == BlockPlan(4, 2, 2)
    assert plan_block(0.25, 4, learn_every=4) == plan_block(0.25, 4)


@pytest.mark.parametrize(("learn_every", "num_envs"), [(3, 4), (2, 1), (6, 1), (260, 1)])
def test_a_block_that_the_ratio_does_not_divide_or_that_is_too_long_is_refused(learn_every: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match=r"learn_every is \d+, .* a multiple of 4 env steps, at most (64|256)"):
        plan_block(0.25, num_envs, learn_every)
