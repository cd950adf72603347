"""A network is a pair of pure functions, `init` and `apply`: the shape that flax and haiku modules have too.

So a user's own flax module drops in as it is, and our own networks, a few dozen lines, need no module library.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

Params = Any


class Module(Protocol):
    """Anything with these two functions is a network."""

    @property
    def init(self) -> Callable[..., Params]:
        """`init(key, inputs_B) -> params`, float32."""

    @property
    def apply(self) -> Callable[..., jax.Array]:
        """`apply(params, inputs_B) -> outputs_B`."""


class Functions(NamedTuple):
    """A module made of two functions."""

    init: Callable[[jax.Array, Any], Params]
    apply: Callable[[Params, Any], jax.Array]


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "tanh": jnp.tanh,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


def sequential(**parts: Functions) -> Functions:
    """Feed each part's output to the next; parameters are kept under the parts' names."""

    def init(key: jax.Array, inputs: Any) -> Params:
        params = {}
        for (name, part), part_key in zip(parts.items(), jax.random.split(key, len(parts)), strict=True):
            params[name] = part.init(part_key, inputs)
            inputs = part.apply(params[name], inputs)
        return params

    def apply(params: Params, inputs: Any) -> jax.Array:
        for name, part in parts.items():
            inputs = part.apply(params[name], inputs)
        return inputs

    return Functions(init, apply)


def dense_layers(widths: Sequence[int], activation: str | None, *, activate_last: bool) -> Functions:
    """Dense layers with an activation between them, and after the last one if asked."""
    nonlinear = ACTIVATIONS[activation] if activation else lambda x: x

    def init(key: jax.Array, x_BI: jax.Array) -> Params:
        params = {}
        fan_in = x_BI.shape[-1]
        for i, (width, layer_key) in enumerate(zip(widths, jax.random.split(key, max(len(widths), 1)), strict=False)):
            params[f"dense_{i}"] = init_layer(layer_key, (fan_in, width), fan_in)
            fan_in = width
        return params

    def apply(params: Params, x_BI: jax.Array) -> jax.Array:
        for i in range(len(widths)):
            x_BI = add_bias(x_BI @ params[f"dense_{i}"]["kernel"], params[f"dense_{i}"]["bias"])
            if activate_last or i < len(widths) - 1:
                x_BI = nonlinear(x_BI)
        return x_BI

    return Functions(init, apply)


@jax.custom_vjp
def add_bias(x_BF: jax.Array, bias_F: jax.Array) -> jax.Array:
    """Add a bias to each row; its gradient is summed by a matrix product, which XLA does faster than a reduction."""
    return x_BF + bias_F


add_bias.defvjp(
    lambda x_BF, bias_F: (x_BF + bias_F, None),
    lambda _, g_BF: (g_BF, jnp.ones(g_BF.shape[:1], g_BF.dtype) @ g_BF),
)


def init_layer(key: jax.Array, kernel_shape: tuple[int, ...], fan_in: int) -> Params:
    """PyTorch's default: kernel and bias uniform within 1 / sqrt(fan_in)."""
    kernel_key, bias_key = jax.random.split(key)
    bound = fan_in**-0.5
    return {
        "kernel": jax.random.uniform(kernel_key, kernel_shape, jnp.float32, -bound, bound),
        "bias": jax.random.uniform(bias_key, (kernel_shape[-1],), jnp.float32, -bound, bound),
    }
