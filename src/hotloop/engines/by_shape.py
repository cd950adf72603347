"""One engine for each shape of observation and number of actions: agents of the same shape share theirs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hotloop.engines.protocol import Engine
from hotloop.trees import Specs


class Shape(NamedTuple):
    """What an engine is made for."""

    obs: Specs
    num_actions: int


def engines_by_shape(make: Callable[[Specs, int], Engine], wanted: Sequence[Shape]) -> list[Engine]:
    """An engine for each of these, the same one for those that are alike."""
    found: list[Engine] = []
    for place, shape in enumerate(wanted):
        alike = wanted.index(shape)
        found.append(found[alike] if alike < place else make(*shape))
    return found
