"""How gradient steps are shared out over calls of a compiled program."""

from hypothesis import given
from hypothesis import strategies as st

from hotloop.engines.torch.compiled import portion_of


@given(batches=st.integers(1, 100), on_each=st.integers(1, 40), most=st.integers(1, 16))
def test_every_call_has_the_same_shape_and_no_more_steps_than_allowed(batches: int, on_each: int, most: int) -> None:
    portion = portion_of(batches, on_each, most)
    assert batches % portion.batches == 0
    assert on_each % portion.on_each == 0
    assert portion.batches * portion.on_each <= most
    assert portion.batches == 1 or portion.on_each == on_each, "a call has whole batches, or a part of one's steps"


def test_as_many_steps_as_divide_evenly_go_into_one_call() -> None:
    assert portion_of(64, 1) == (8, 1)
    assert portion_of(4, 8) == (1, 8)
    assert portion_of(6, 2) == (3, 2)
    assert portion_of(1, 12) == (1, 6)
    assert portion_of(7, 1) == (7, 1)
    assert portion_of(11, 1) == (1, 1)
