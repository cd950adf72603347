"""How long the matrix products of a gradient step take by themselves: what an engine says of that, and how it is timed.

Each engine finds its own products and runs them (`EngineRecord.floor`); a convolution is a product, too.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

SECONDS = 1.5
"""What timing all products of a gradient step takes, about."""
LONGEST, SHORTEST = 0.15, 0.03
"""Seconds for one product of them."""
FEWEST_ROUNDS, SECONDS_OF_ROUND = 3, 4e-3
MOST_AT_ONCE = 1 << 24


class Products(NamedTuple):
    """The matrix products and convolutions of one gradient step, a product of a matrix and a vector left out."""

    number: float
    """How many; one that serves several gradient steps is a part of one in each."""
    flops: float
    """Multiplications and additions, those with zeros beyond an image's edge left out."""
    seconds: float
    """By themselves, one after the other."""

    @property
    def flops_per_s(self) -> float:
        """What the machine reaches at these shapes."""
        return self.flops / max(self.seconds, 1e-12)


def seconds_for_each(number: int) -> float:
    """How long each of so many different products may be timed."""
    return min(LONGEST, max(SHORTEST, SECONDS / max(1, number)))


def seconds_of(run: Callable[[int], object], seconds: float, *, on_processor: bool) -> float:
    """Seconds of one of what `run` is told to do so many times, in about so many seconds.

    Rounds are short, and the fastest one counts: other work on the machine does not. What is done `on_processor` takes
    no longer than it uses it: the rest is waiting for others who do.
    """
    run(1)  # in which it may compile
    best, times, rounds, until = math.inf, 1, 0, time.perf_counter() + seconds
    while rounds < FEWEST_ROUNDS or time.perf_counter() < until:
        began, used = time.perf_counter(), time.process_time()
        run(times)
        passed, used = time.perf_counter() - began, time.process_time() - used
        best = min(best, (min(passed, used) if on_processor else passed) / times)
        if passed >= SECONDS_OF_ROUND / 2 or times == MOST_AT_ONCE:
            rounds += 1
        else:
            times = min(MOST_AT_ONCE, times * max(2, min(64, int(SECONDS_OF_ROUND / max(passed, 1e-9)))))
    return best


def taps(size: int, kernel: int, outputs: int, stride: int, before: int, apart: int = 1, spread: int = 1) -> int:
    """Multiplications of a convolution along one axis: places of the kernel that see a number, over all outputs.

    `before` is the padding, `apart` the dilation of the kernel, `spread` that of what it moves over.
    """
    seen = (o * stride + k * apart - before for o in range(outputs) for k in range(kernel))
    return sum(1 for place in seen if 0 <= place <= (size - 1) * spread and place % spread == 0)
