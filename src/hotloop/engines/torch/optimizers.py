"""Optimisers on the flat vector, in place; the formulas and what is remembered are those of the JAX engine."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hotloop.spec import Optimizer

Moments = Any
"""What an optimiser remembers: a tree of tensors, with the names that optax has for them."""


class Stepper(NamedTuple):
    """`init(params) -> moments` and `step(params, gradient, moments, learning_rate, finite)`.

    A step changes weights and moments in place, or neither of them where `finite`, a tensor, is false: nobody waits
    for it.
    """

    init: Callable[[torch.Tensor], Moments]
    step: Callable[[torch.Tensor, torch.Tensor, Moments, float, torch.Tensor], None]


class AdamState(NamedTuple):
    """Steps taken, mean gradient and mean squared gradient."""

    steps: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor


class RmsState(NamedTuple):
    """Mean squared gradient."""

    nu: torch.Tensor


class TraceState(NamedTuple):
    """Momentum."""

    trace: torch.Tensor


def stepper(spec: Optimizer) -> Stepper:
    """Follow a (clipped) gradient; PyTorch's conventions."""
    if spec.kind == "adam":
        return _adam(spec)
    if spec.kind == "adamw":
        adam = _adam(spec, spec.weight_decay)
        return Stepper(
            lambda params: (adam.init(params),),
            lambda params, gradient, moments, rate, finite: adam.step(params, gradient, moments[0], rate, finite),
        )
    return _rmsprop(spec) if spec.kind == "rmsprop" else _sgd(spec.momentum)


def _adam(spec: Optimizer, weight_decay: float = 0.0) -> Stepper:
    """One kernel that reads and writes everything once, and skips it all by itself."""
    kernel = torch._fused_adamw_ if weight_decay else torch._fused_adam_

    def init(params: torch.Tensor) -> AdamState:
        steps = torch.zeros((), dtype=torch.int32, device=params.device)
        return AdamState(steps, torch.zeros_like(params), torch.zeros_like(params))

    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: AdamState, learning_rate: float, finite: torch.Tensor
    ) -> None:
        kernel(
            [params],
            [gradient],
            [moments.mean],
            [moments.square],
            [],
            [(moments.steps + 1).to(torch.float32)],
            lr=learning_rate,
            beta1=spec.beta1,
            beta2=spec.beta2,
            weight_decay=weight_decay,
            eps=spec.eps,
            amsgrad=False,
            maximize=False,
            found_inf=torch.logical_not(finite).to(torch.float32),
        )
        moments.steps.add_(finite)

    return Stepper(init, step)


def _rmsprop(spec: Optimizer) -> Stepper:
    moving = _sgd(spec.momentum)

    def init(params: torch.Tensor) -> Moments:
        root = RmsState(torch.zeros_like(params))
        return (root, moving.init(params)) if spec.momentum else root

    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: Moments, learning_rate: float, finite: torch.Tensor
    ) -> None:
        root, trace = moments if spec.momentum else (moments, ())
        nu = spec.decay * root.nu + (1 - spec.decay) * gradient * gradient
        moving.step(params, gradient / (torch.sqrt(nu) + spec.eps), trace, learning_rate, finite)
        _take(root.nu, nu, finite)

    return Stepper(init, step)


def _sgd(momentum: float) -> Stepper:
    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: Moments, learning_rate: float, finite: torch.Tensor
    ) -> None:
        if momentum:
            gradient = gradient + momentum * moments.trace
            _take(moments.trace, gradient, finite)
        _take(params, params - learning_rate * gradient, finite)

    return Stepper(lambda params: TraceState(torch.zeros_like(params)) if momentum else (), step)


def _take(old: torch.Tensor, new: torch.Tensor, finite: torch.Tensor) -> None:
    old.copy_(torch.where(finite, new, old))
