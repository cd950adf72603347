"""Optimisers on the flat vector; the formulas and what is remembered are those of the JAX engine."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hotloop.spec import Optimizer

Moments = Any
"""What an optimiser remembers: a tree of tensors, with the names that optax has for them."""
Rate = Any
"""A learning rate: a number, or a tensor without axes."""
Step = Callable[[torch.Tensor, torch.Tensor, Moments, Rate, torch.Tensor], tuple[torch.Tensor, Moments]]


class Stepper(NamedTuple):
    """`init(params) -> moments` and `step(params, gradient, moments, learning_rate, finite) -> (params, moments)`.

    Where `finite`, a tensor, is false, both stay what they are: nobody waits for it.
    """

    init: Callable[[torch.Tensor], Moments]
    step: Step


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


def stepper(spec: Optimizer, *, in_place: bool) -> Stepper:
    """Follow a (clipped) gradient; PyTorch's conventions.

    `in_place` may change the weights and moments it is given, and is faster operation by operation; else it is a pure
    function, as a compiler wants it.
    """
    if spec.kind == "adam":
        return _adam(spec, 0.0, in_place)
    if spec.kind == "adamw":
        adam = _adam(spec, spec.weight_decay, in_place)

        def step(
            params: torch.Tensor, gradient: torch.Tensor, moments: Moments, rate: Rate, finite: torch.Tensor
        ) -> tuple[torch.Tensor, Moments]:
            params, moved = adam.step(params, gradient, moments[0], rate, finite)
            return params, (moved,)

        return Stepper(lambda params: (adam.init(params),), step)
    return _rmsprop(spec) if spec.kind == "rmsprop" else _sgd(spec.momentum)


def _adam(spec: Optimizer, weight_decay: float, in_place: bool) -> Stepper:
    def init(params: torch.Tensor) -> AdamState:
        steps = torch.zeros((), dtype=torch.int32, device=params.device)
        return AdamState(steps, torch.zeros_like(params), torch.zeros_like(params))

    return Stepper(init, _fused_adam(spec, weight_decay) if in_place else _pure_adam(spec, weight_decay))


def _fused_adam(spec: Optimizer, weight_decay: float) -> Step:
    """One kernel that reads and writes everything once, and skips it all by itself."""
    kernel = torch._fused_adamw_ if weight_decay else torch._fused_adam_

    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: AdamState, learning_rate: Rate, finite: torch.Tensor
    ) -> tuple[torch.Tensor, AdamState]:
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
        return params, moments

    return step


def _pure_adam(spec: Optimizer, weight_decay: float) -> Step:
    """The same written out, with both bias corrections folded into two scalars."""

    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: AdamState, learning_rate: Rate, finite: torch.Tensor
    ) -> tuple[torch.Tensor, AdamState]:
        steps = moments.steps + 1
        mean = spec.beta1 * moments.mean + (1 - spec.beta1) * gradient
        square = spec.beta2 * moments.square + (1 - spec.beta2) * gradient * gradient
        t = steps.to(torch.float64)
        root, first = torch.sqrt(1 - spec.beta2**t), 1 - spec.beta1**t
        scale, root = (root / first).to(params.dtype), root.to(params.dtype)
        direction = scale * mean / (torch.sqrt(square) + spec.eps * root)
        if weight_decay:
            direction = direction + weight_decay * params
        moved = AdamState(
            torch.where(finite, steps, moments.steps),
            torch.where(finite, mean, moments.mean),
            torch.where(finite, square, moments.square),
        )
        return torch.where(finite, params - learning_rate * direction, params), moved

    return step


def _rmsprop(spec: Optimizer) -> Stepper:
    moving = _sgd(spec.momentum)

    def init(params: torch.Tensor) -> Moments:
        root = RmsState(torch.zeros_like(params))
        return (root, moving.init(params)) if spec.momentum else root

    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: Moments, learning_rate: Rate, finite: torch.Tensor
    ) -> tuple[torch.Tensor, Moments]:
        root, trace = moments if spec.momentum else (moments, ())
        nu = spec.decay * root.nu + (1 - spec.decay) * gradient * gradient
        params, trace = moving.step(params, gradient / (torch.sqrt(nu) + spec.eps), trace, learning_rate, finite)
        root = RmsState(torch.where(finite, nu, root.nu))
        return params, ((root, trace) if spec.momentum else root)

    return Stepper(init, step)


def _sgd(momentum: float) -> Stepper:
    def step(
        params: torch.Tensor, gradient: torch.Tensor, moments: Moments, learning_rate: Rate, finite: torch.Tensor
    ) -> tuple[torch.Tensor, Moments]:
        if momentum:
            gradient = gradient + momentum * moments.trace
            moments = TraceState(torch.where(finite, gradient, moments.trace))
        return torch.where(finite, params - learning_rate * gradient, params), moments

    return Stepper(lambda params: TraceState(torch.zeros_like(params)) if momentum else (), step)
