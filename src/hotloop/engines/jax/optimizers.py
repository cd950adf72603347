"""Optimisers on the flat vector, as optax transformations without the learning rate (it is an input)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from hotloop.spec import Optimizer


def direction(spec: Optimizer) -> optax.GradientTransformation:
    """Map a (clipped) gradient to the step that the learning rate then scales; PyTorch's conventions."""
    if spec.kind == "adam":
        return scale_by_adam(spec.beta1, spec.beta2, spec.eps)
    if spec.kind == "adamw":
        return optax.chain(
            scale_by_adam(spec.beta1, spec.beta2, spec.eps),
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


def scale_by_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
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
        t = steps.astype(jnp.float32)
        root = jnp.sqrt(1 - beta2**t)
        step = (root / (1 - beta1**t)) * mean / (jnp.sqrt(square) + eps * root)
        return step, AdamState(steps, mean, square)

    return optax.GradientTransformation(init, update)
