"""Gradient steps as one compiled program: traced once, down to single operations, and compiled by Inductor.

`torch.compile` would find the same program by reading Python. What is traced here holds no Python, and gradients are
already operations in it, so nothing has to be found or guarded in each call: on a CPU that takes longer than the steps.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from hotloop.engines.torch.gradient_steps import GradientSteps, LearnerState, Stepped, Work
from hotloop.trees import leaves, tree_map, with_leaves

STEPS_PER_CALL = 8
"""Gradient steps in one program, at most. They are unrolled: eight take 20 s to compile, and more bring little."""


class Portion(NamedTuple):
    """Batches of one call, and gradient steps on each; a batch with many steps has several calls."""

    batches: int
    on_each: int


def portion_of(batches: int, on_each: int, most: int = STEPS_PER_CALL) -> Portion:
    """How many of the batches, or of one batch's steps, go into one program: as many as divide evenly."""

    def largest_divisor(number: int, limit: int) -> int:
        return max(size for size in range(1, max(1, min(number, limit)) + 1) if number % size == 0)

    if on_each > most:
        return Portion(1, largest_divisor(on_each, most))
    return Portion(largest_divisor(batches, most // on_each), on_each)


class CompiledSteps:
    """`GradientSteps` by programs; one is compiled for every new set of shapes."""

    def __init__(self, steps: GradientSteps) -> None:
        """`steps` must be pure."""
        self._steps, self._device, self._numbers = steps, steps.network.device, steps.network.numbers
        self._programs: dict[object, Callable[[list[Any]], Stepped]] = {}

    def __call__(self, state: LearnerState, work: Work) -> Stepped:
        """As `GradientSteps`."""
        batches, weight_KB, draws_K, learning_rate, on_each = work
        count = batches.a_tm1.shape[0]
        size, each = portion_of(count, on_each)
        rate = torch.full((), float(learning_rate), dtype=self._numbers, device=self._device)
        errors: list[torch.Tensor] = []
        sums: torch.Tensor | None = None
        for first in range(0, count, size):
            rows = (batches, weight_KB) if size == count else _rows(first, size, (batches, weight_KB))
            for begin in range(0, on_each, each):
                draws = _rows(first * on_each + begin, size * each, draws_K)
                state, td_KB, added = self._one_call((state, *rows, draws, rate), each)
                sums = added if sums is None else sums + added
            errors.append(td_KB)
        assert sums is not None
        return Stepped(state, errors[0] if len(errors) == 1 else torch.cat(errors), sums)

    def _one_call(self, inputs: Any, on_each: int) -> Stepped:
        given: list[Any] = leaves(inputs)
        key = (on_each, *((leaf.shape, leaf.dtype) for leaf in given))
        if key not in self._programs:
            self._programs[key] = _compiled(partial(self._several, on_each), inputs, self._device)
        return self._programs[key](given)

    def _several(
        self, on_each: int, state: LearnerState, batches: Any, weight_KB: Any, draws_K: Any, rate: Any
    ) -> Stepped:
        """What is compiled: a function of tensors alone."""
        return self._steps(state, Work(batches, weight_KB, draws_K, rate, on_each))


def _compiled(function: Callable[..., Stepped], inputs: Any, device: torch.device) -> Callable[[list[Any]], Stepped]:
    """A function of trees of tensors as one program for inputs of these shapes; it takes the leaves of such."""
    from torch._inductor import compile as compile_graph
    from torch.fx.experimental.proxy_tensor import make_fx

    form: list[Stepped] = []

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        form[:] = [function(*with_leaves(inputs, tensors))]
        found: list[Any] = leaves(form[0])
        return found

    given: list[Any] = leaves(inputs)
    # Tensors without numbers: a network whose operations depend on them cannot be traced, and says so. What a network
    # holds beside its weights is a constant of the program.
    with torch.no_grad(), _quiet():
        graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
        program: Any = compile_graph(graph, given, options=_options(device))
    outputs = form[0]

    def call(given: list[Any]) -> Stepped:
        with torch.no_grad():
            made = program(*given)
        if device.type == "cuda":  # the memory of a CUDA graph is that of its next call
            made = [tensor.clone() for tensor in made]
        return with_leaves(outputs, made)

    return call


def _options(device: torch.device) -> dict[str, Any]:
    """On a GPU one launch for the whole program; on a CPU no Python between its kernels."""
    return {"triton.cudagraphs": True} if device.type == "cuda" else {"cpp_wrapper": True}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inductor's remarks are not for whoever trains an agent."""
    logger = logging.getLogger("torch._inductor")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _rows(first: int, count: int, tree: Any) -> Any:
    return tree_map(lambda leaf: leaf[first : first + count], tree)
