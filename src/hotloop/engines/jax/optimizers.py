"""Optimisers on the flat vector, as optax transformations without the learning rate (it is an input)."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.spec import Optimizer
from hotloop.trees import Tree

if TYPE_CHECKING:
    import optax

Moments = Tree[jax.Array]
"""What an optimiser remembers."""


class GradientTransform(NamedTuple):
    """`init(params) -> state` and `update(gradient, state, params) -> (step, state)`, as optax has them."""

    init: Callable[[jax.Array], Moments]
    update: Callable[..., tuple[jax.Array, Moments]]


def gradient_transform(spec: Optimizer) -> GradientTransform:
    """Map a (clipped) gradient to the step that the learning rate then scales; PyTorch's conventions."""
    if spec.kind == "adam":
        return scale_by_adam(spec.beta1, spec.beta2, spec.eps)
    return GradientTransform(*_from_optax(spec))


def _from_optax(spec: Optimizer) -> "optax.GradientTransformation":
    import optax  # a tenth of a second, which the usual run does not need

    if spec.kind == "adamw":
        return optax.chain(
            optax.GradientTransformation(*scale_by_adam(spec.beta1, spec.beta2, spec.eps)),
            optax.add_decayed_weights(spec.weight_decay),
        )
    if spec.kind == "rmsprop":
        scaled = optax.scale_by_rms(spec.decay, spec.eps, eps_in_sqrt=False)
        return optax.chain(scaled, optax.trace(spec.momentum)) if spec.momentum else scaled
    return optax.trace(spec.momentum) if spec.momentum else optax.identity()


class AdamState(NamedTuple):
    """Steps taken, mean gradient and mean squared gradient."""

    steps: jax.Array
    mean: jax.Array
    square: jax.Array


def scale_by_adam(beta1: float, beta2: float, eps: float) -> GradientTransform:
    """Adam with both bias corrections folded into two scalars.

    The same numbers as optax.scale_by_adam with one division per weight instead of three.
    """

    def init(params: jax.Array) -> AdamState:
        return AdamState(jnp.zeros((), jnp.int32), jnp.zeros_like(params), jnp.zeros_like(params))

    def update(gradient: jax.Array, state: AdamState, params: jax.Array | None = None) -> tuple[jax.Array, AdamState]:
        del params
        steps = state.steps + 1
        mean = beta1 * state.mean + (1 - beta1) * gradient
        square = beta2 * state.square + (1 - beta2) * gradient * gradient
        # Computed once and stored, instead of once more inside the loop that makes the step.
        mean, square = jax.lax.optimization_barrier((mean, square))
        t = steps.astype(gradient.dtype)
        root = jnp.sqrt(_rest(beta2, t))
        step = (root / _rest(beta1, t)) * mean / (jnp.sqrt(square) + eps * root)
        return step, AdamState(steps, mean, square)

    return GradientTransform(init, update)


def _rest(beta: float, t: jax.Array) -> jax.Array:
    """1 - beta^t, of which float32 would lose four digits for the first t: beta is near 1, and so is beta^t."""
    return -jnp.expm1(t * (math.log(beta) if beta else -math.inf))
