"""The matrix products of a gradient step by themselves: noted while one is taken, then called again alone.

What a call takes around a product of two numbers is taken off: that is the way to it, not the product.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.engines.products import Products, seconds_for_each, seconds_of, taps
from hotloop.engines.protocol import Lesson
from hotloop.engines.torch.engine import TorchEngine
from hotloop.engines.torch.gradient_steps import GradientSteps, LearnerState, Work

FILLED_WITH = 0.01
aten = torch.ops.aten


class Form(NamedTuple):
    """All of a tensor but its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Call(NamedTuple):
    """An operation, and what it was called with."""

    operation: Any
    given: tuple[Any, ...]
    """With a `Form` for each tensor."""


def seconds_of_products(engine: TorchEngine, lesson: Lesson[LearnerState]) -> Products:
    """Those of one gradient step, as it is taken operation by operation; of the lesson only shapes count."""
    found = products_of(engine, lesson)
    steps = lesson.items_KB.a_tm1.shape[0] * engine.spec.replay.updates_per_batch
    number = Form((1, 1), (1, 1), torch.float32, engine.device)
    around, each = _seconds(Call(aten.mm.default, (number, number)), seconds_for_each(1)), seconds_for_each(len(found))
    seconds = sum(times * max(0.0, _seconds(call, each) - around) for call, times in found.items())
    flops = sum(times * flops_of(call) for call, times in found.items())
    return Products(sum(times for times in found.values()) / steps, flops / steps, seconds / steps)


def products_of(engine: TorchEngine, lesson: Lesson[LearnerState]) -> dict[Call, int]:
    """The products of all gradient steps of a lesson, and how often each is done."""
    batches, weight_KB, draws = engine.put((lesson.items_KB, lesson.weight_KB, lesson.draws))
    work: Any = (batches, weight_KB, draws, lesson.learning_rate, engine.spec.replay.updates_per_batch)
    noted = _Noted()
    with noted:
        GradientSteps(engine.spec, engine.network, in_place=False)(lesson.state, Work(*work))
    return noted.calls


class _Noted(TorchDispatchMode):
    """Within, products are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Call, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FLOPS:
            call = Call(func, tuple(_form(each) for each in args))
            self.calls[call] = self.calls.get(call, 0) + 1
        return func(*args, **(kwargs or {}))


def _form(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return Form(tuple(given.shape), given.stride(), given.dtype, given.device)
    return tuple(given) if isinstance(given, list) else given


def flops_of(call: Call) -> int:
    """Multiplications and additions."""
    return FLOPS[call.operation](*call.given)


def _of_product(left: Form, right: Form) -> int:
    return 2 * prod(left.shape) * right.shape[-1]


def _of_added_product(added: Form, left: Form, right: Form) -> int:
    del added
    return _of_product(left, right)


def _of_convolution(
    image: Form, kernel: Form, bias: Any, stride: Any, padding: Any, dilation: Any, is_transposed: bool, *more: Any
) -> int:
    del bias, more
    batch, kernel_sizes, multiplied = image.shape[0], kernel.shape[2:], 1
    for i, (size, places) in enumerate(zip(image.shape[2:], kernel_sizes, strict=True)):
        along, before, apart = stride[i], padding[i], dilation[i]
        if is_transposed:  # as many as in the convolution that it turns around
            wide = (size - 1) * along - 2 * before + apart * (places - 1) + 1
            multiplied *= taps(wide, places, size, along, before, apart)
        else:
            outputs = (size + 2 * before - apart * (places - 1) - 1) // along + 1
            multiplied *= taps(size, places, outputs, along, before, apart)
    return 2 * multiplied * batch * kernel.shape[0] * kernel.shape[1]


def _of_way_back(gradient: Form, image: Form, kernel: Form, bias_sizes: Any, *more: Any) -> int:
    """As much for the image's gradient and for the kernel's as the way there took, each if it is asked for."""
    del gradient, bias_sizes
    *how, wanted = more
    return sum(wanted[:2]) * _of_convolution(image, kernel, None, *how)


FLOPS: dict[Any, Callable[..., int]] = {
    aten.mm.default: _of_product,
    aten.bmm.default: _of_product,
    aten.addmm.default: _of_added_product,
    aten.baddbmm.default: _of_added_product,
    aten.convolution.default: _of_convolution,
    aten.convolution_backward.default: _of_way_back,
}
"""What counts as a product, and how much it is."""


@torch.no_grad()
def _seconds(call: Call, seconds: float) -> float:
    """Of one such call."""
    given = [_tensor(each) if isinstance(each, Form) else each for each in call.given]
    waits = any(isinstance(each, Form) and each.device.type == "cuda" for each in call.given)

    def run(times: int) -> None:
        for _ in range(times):
            call.operation(*given)
        if waits:
            torch.cuda.synchronize()  # sync

    return seconds_of(run, seconds, on_processor=not waits)


def _tensor(form: Form) -> torch.Tensor:
    """One of this form, axes that share their numbers included."""
    room = 1 + sum((size - 1) * step for size, step in zip(form.shape, form.stride, strict=True))
    return torch.full((room,), FILLED_WITH, dtype=form.dtype, device=form.device).as_strided(form.shape, form.stride)
