"""Memory between torso and head, step by step or over a whole sequence. Gates are PyTorch's (LSTMCell, GRUCell).

A carry is what a network remembers: float32 (B, H), of an LSTM a pair of them. Zeros are the start of an episode.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.engines.jax.modules import Params, add_bias, init_layer
from hotloop.spec import Core

Carry = Any
"""An array, or a pair of them: each core knows its own."""


Cell = Callable[[Params, Carry, jax.Array], tuple[Carry, jax.Array]]


class RecurrentModule(NamedTuple):
    """A recurrent module: four pure functions."""

    init: Callable[[jax.Array, jax.Array], Params]
    """`init(key, x_BF) -> params`."""
    first: Callable[[int], Carry]
    """`first(batch) -> carry` at the start of an episode."""
    step: Callable[[Params, Carry, jax.Array], tuple[Carry, jax.Array]]
    """`step(params, carry, x_BF) -> carry, y_BH`."""
    unroll: Callable[[Params, Carry, jax.Array, jax.Array], tuple[Carry, jax.Array]]
    """`unroll(params, carry, x_TBF, first_TB) -> carry, y_TBH`; where `first` is true an episode starts before that
    step, and the carry is forgotten."""


def lstm(spec: Core, scheme: str = "default") -> RecurrentModule:
    """Long short-term memory; carry (h, c), gates input, forget, cell, output."""

    def cell(params: Params, carry: Carry, input_BG: jax.Array) -> tuple[Carry, jax.Array]:
        h_BH, c_BH = carry
        gates_BG = (input_BG + _product(h_BH, params["recurrent"])).astype(jnp.float32)
        i_BH, f_BH, g_BH, o_BH = jnp.split(gates_BG, 4, axis=-1)
        c_BH = jax.nn.sigmoid(f_BH) * c_BH + jax.nn.sigmoid(i_BH) * jnp.tanh(g_BH)
        h_BH = jax.nn.sigmoid(o_BH) * jnp.tanh(c_BH)
        return (h_BH, c_BH), h_BH

    def first(batch: int) -> Carry:
        return jnp.zeros((batch, spec.size)), jnp.zeros((batch, spec.size))

    return _core(4, spec.size, scheme, cell, first)


def gru(spec: Core, scheme: str = "default") -> RecurrentModule:
    """Gated recurrent unit; carry h, gates reset, update, new."""

    def cell(params: Params, h_BH: Carry, input_BG: jax.Array) -> tuple[Carry, jax.Array]:
        own_BG = _product(h_BH, params["recurrent"]).astype(jnp.float32)
        input_BG = input_BG.astype(jnp.float32)
        both_B2H = jax.nn.sigmoid(input_BG[:, : 2 * spec.size] + own_BG[:, : 2 * spec.size])
        r_BH, z_BH = jnp.split(both_B2H, 2, axis=-1)
        # The reset gate acts on what the memory says of the new state, with a bias of its own.
        own_BH = own_BG[:, 2 * spec.size :] + params["recurrent_bias"].astype(jnp.float32)
        n_BH = jnp.tanh(input_BG[:, 2 * spec.size :] + r_BH * own_BH)
        h_BH = (1.0 - z_BH) * n_BH + z_BH * h_BH
        return h_BH, h_BH

    core = _core(3, spec.size, scheme, cell, lambda batch: jnp.zeros((batch, spec.size)))

    def init(key: jax.Array, x_BF: jax.Array) -> Params:
        bias_key, key = jax.random.split(key)
        return core.init(key, x_BF) | {"recurrent_bias": _init_part(bias_key, spec.size, spec.size, scheme)["bias"]}

    return core._replace(init=init)


def forget(carry: Carry, where_B: jax.Array) -> Carry:
    """The carry with zeros where an episode starts."""
    return jax.tree.map(lambda leaf: jnp.where(where_B[:, None], 0.0, leaf), carry)


def _core(gates: int, size: int, scheme: str, cell: Cell, first: Callable[[int], Carry]) -> RecurrentModule:
    """A core of its cell: `cell(params, carry, input_BG)`, with the product of the input already made."""

    def init(key: jax.Array, x_BF: jax.Array) -> Params:
        parts = [
            [_init_part(part_key, fan_in, size, scheme) for part_key in jax.random.split(half_key, gates)]
            for half_key, fan_in in zip(jax.random.split(key), (x_BF.shape[-1], size), strict=True)
        ]
        return {
            "kernel": jnp.concatenate([part["kernel"] for part in parts[0]], axis=1),
            "recurrent": jnp.concatenate([part["kernel"] for part in parts[1]], axis=1),
            "bias": jnp.concatenate([part["bias"] for part in parts[0]]),
        }

    def entered(params: Params, x_BF: jax.Array) -> jax.Array:
        return add_bias(_product(x_BF, params["kernel"]), params["bias"])

    def step(params: Params, carry: Carry, x_BF: jax.Array) -> tuple[Carry, jax.Array]:
        return cell(params, carry, entered(params, x_BF))

    def unroll(params: Params, carry: Carry, x_TBF: jax.Array, first_TB: jax.Array) -> tuple[Carry, jax.Array]:
        # The input does not depend on the memory: one product for all steps, only the recurrent one is repeated.
        input_TBG = entered(params, x_TBF.reshape(-1, x_TBF.shape[-1])).reshape(*x_TBF.shape[:2], -1)

        def one(carry: Carry, inputs: tuple[jax.Array, jax.Array]) -> tuple[Carry, jax.Array]:
            input_BG, first_B = inputs
            return cell(params, forget(carry, first_B), input_BG)

        return jax.lax.scan(one, carry, (input_TBG, first_TB))

    return RecurrentModule(init, first, step, unroll)


def _init_part(key: jax.Array, fan_in: int, size: int, scheme: str) -> Params:
    """First weights of one gate; PyTorch's are uniform within 1 / sqrt(size), whatever the fan-in."""
    return init_layer(key, (fan_in, size), size if scheme == "default" else fan_in, scheme, is_activated=False)


def _product(x_BF: jax.Array, kernel_FG: jax.Array) -> jax.Array:
    """In the precision of the kernel."""
    return x_BF.astype(kernel_FG.dtype) @ kernel_FG


CORES: dict[str, Callable[..., RecurrentModule]] = {"lstm": lstm, "gru": gru}
