"""How gradient steps are run: operation by operation (eager), or as a compiled program; by the spec, or as measured."""

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

from hotloop.engines.protocol import Choice
from hotloop.engines.torch.compiled import CompiledSteps
from hotloop.engines.torch.gradient_steps import GradientSteps, LearnerState, Stepped, Work
from hotloop.engines.torch.network import QNetwork
from hotloop.engines.torch.setup import WORTH_COMPILING
from hotloop.errors import SpecError
from hotloop.spec import Spec

FIELD = "torch.mode"
ROUNDS = 5
NEAR = {"float32": 0.01, "bfloat16": 0.3, "float16": 0.1}
"""How far apart weights may be that were learned in two ways, as a share of the way they have gone; by precision."""


class Steps(Protocol):
    """Runs gradient steps, as `GradientSteps`."""

    def __call__(self, state: LearnerState, work: Work, /) -> Stepped:
        """All of the work, from a state on."""


def eager_steps(spec: Spec, network: QNetwork) -> Steps:
    """Operation by operation."""
    return GradientSteps(spec, network, in_place=True)


def compiled_steps(spec: Spec, network: QNetwork) -> Steps:
    """As programs, which are compiled when they are first wanted."""
    return CompiledSteps(GradientSteps(spec, network, in_place=False))


def choose(
    spec: Spec, network: QNetwork, start: torch.Tensor, run: Callable[[Steps], Stepped], updates: float
) -> tuple[Steps, Choice]:
    """The faster of both for so many gradient steps, and why; `run` takes a block's from the weights `start` on."""
    eager = eager_steps(spec, network)
    seconds, expected = _timed(eager, run)
    in_all = seconds * updates / spec.updates_per_draw
    measured = f"{updates:,.0f} gradient steps take about {in_all:.0f} s"
    if in_all < WORTH_COMPILING:
        return eager, Choice(FIELD, "eager", f"{measured}, too little to be worth compiling")
    compiled = compiled_steps(spec, network)
    try:
        faster, got = _timed(compiled, run)
    except Exception as error:  # whatever a compiler and networks of someone else's raise
        return eager, Choice(FIELD, "eager", f"it could not be compiled: {_in_a_line(error)}")
    if not _is_same(got, expected, start, spec):
        return eager, Choice(FIELD, "eager", "compiled, it computes something else: does the network hold a state?")
    if faster >= seconds:
        return eager, Choice(FIELD, "eager", f"compiled it is no faster: {faster / seconds:.2f}x the time")
    return compiled, Choice(FIELD, "compiled", f"{measured} eager, {in_all * faster / seconds:.0f} s compiled")


def required(spec: Spec, network: QNetwork, run: Callable[[Steps], Stepped]) -> Steps:
    """What the spec asks for, tried once."""
    if spec.torch.mode != "compiled":
        eager = eager_steps(spec, network)
        run(eager)
        return eager
    steps = compiled_steps(spec, network)
    try:
        run(steps)
    except Exception as error:  # whatever a compiler and networks of someone else's raise
        raise SpecError(
            f"{FIELD} is compiled, but this cannot be compiled here: {_in_a_line(error)}; use {FIELD}=eager "
            "(hotloop resume: --torch-mode eager)"
        ) from error
    return steps


def _is_same(got: Stepped, expected: Stepped, start: torch.Tensor, spec: Spec) -> bool:
    """Whether two ways to take the same steps end nearly at the same place, with errors and sums nearly the same."""
    near = NEAR[spec.precision]
    apart, way = (got.state.params - expected.state.params).norm(), (expected.state.params - start).norm()
    is_near = [
        torch.allclose(one, other, rtol=near, atol=near)
        for one, other in ((got.td_KB, expected.td_KB), (got.sums, expected.sums))
    ]
    return bool(way > 0) and bool(apart <= near * way) and all(is_near)


def _timed(steps: Steps, run: Callable[[Steps], Stepped]) -> tuple[float, Stepped]:
    """Seconds of a block's gradient steps, and what they gave; the first time does not count."""
    stepped, seconds = run(steps), []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run(steps)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), stepped


def _in_a_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"
