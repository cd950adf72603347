"""A network is a pair of pure functions, `init` and `apply`: the shape that flax and haiku modules have too.

So a user's own flax module drops in as it is, and our own networks, a few dozen lines, need no module library.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from hotloop.engines.draws import Draw, Wanted
from hotloop.engines.networks import EPSILON, MOMENTUM, RUNNING, each_noisy_layer
from hotloop.trees import Tree

Params = Any
"""A network's own tree of weights: ours are dicts of dicts of arrays, a user's are what their module makes."""
Inputs = Tree[jax.Array]
"""What a network, or a part of one, is given: observations, features, what is remembered."""
Numbers = jax.typing.DTypeLike


class Module(Protocol):
    """Anything with these two functions is a network."""

    @property
    def init(self) -> Callable[..., Params]:
        """`init(key, inputs_B) -> params`, float32."""

    @property
    def apply(self) -> Callable[..., jax.Array]:
        """`apply(params, inputs_B) -> outputs_B`."""


Given = Mapping[str, jax.Array] | Wanted | None


class Mode(NamedTuple):
    """What a forward pass is for, and where its randomness comes from; without a key there is none."""

    role: str = "act"
    """act, learn (the pass that is differentiated), target, or choose (Double's choice of an action)."""
    key: jax.Array | None = None
    noise: jax.Array | None = None
    """What was drawn for all noisy layers, for a batch in common (see `perturbed`)."""
    given: Given = None
    """In place of a key: what was drawn outside, by the path of the part that wants it."""
    path: str = ""

    @property
    def is_random(self) -> bool:
        """Whether there is chance in this pass."""
        return self.key is not None or self.given is not None

    def uniform(self, shape: tuple[int, ...]) -> jax.Array:
        """Numbers in 0 … 1 for this part."""
        if self.key is not None:
            return jax.random.uniform(self.key, shape)
        return self._given(Draw("uniform", shape))

    def factors(self, shape: tuple[int, ...], dtype: Numbers) -> jax.Array:
        """Factors of noise for this part."""
        if self.key is not None:
            return factors(self.key, shape, dtype)
        return self._given(Draw("factors", shape)).astype(dtype)

    def _given(self, wanted: Draw) -> jax.Array:
        if isinstance(self.given, Wanted):
            self.given[self.path] = wanted
            return jnp.zeros(wanted.shape)
        if self.given is None:
            raise ValueError("this pass has no source of chance")
        return self.given[self.path]

    def part(self, number: int) -> "Mode":
        """The mode for one of several parts, with a key or a path of its own."""
        if self.given is not None:
            return self._replace(path=f"{self.path}/{number}")
        if self.key is None:
            return self
        # Another key by plain arithmetic: what is drawn by it is hashed anyway, and each hash takes time to compile.
        data = jax.random.key_data(self.key) * jnp.uint32(0x9E3779B1) + jnp.uint32(2 * number + 1)
        return self._replace(key=jax.random.wrap_key_data(data, impl=jax.random.key_impl(self.key)))


ACTING = Mode()


class Functions(NamedTuple):
    """A module of ours: `apply(params, inputs, mode)`."""

    init: Callable[[jax.Array, Any], Params]
    apply: Callable[..., Any]


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "tanh": jnp.tanh,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


def sequential(**parts: Functions) -> Functions:
    """Feed each part's output to the next; parameters are kept under the parts' names."""

    def init(key: jax.Array, inputs: Inputs) -> Params:
        params = {}
        for (name, part), part_key in zip(parts.items(), jax.random.split(key, len(parts)), strict=True):
            params[name] = part.init(part_key, inputs)
            inputs = part.apply(params[name], inputs, ACTING)
        return params

    def apply(params: Params, inputs: Inputs, mode: Mode = ACTING) -> Inputs:
        for number, (name, part) in enumerate(parts.items()):
            inputs = part.apply(params[name], inputs, mode.part(number))
        return inputs

    return Functions(init, apply)


def stateless(function: Callable[[Any], jax.Array]) -> Functions:
    """A module without parameters."""
    return Functions(lambda key, inputs: {}, lambda params, inputs, mode: function(inputs))


def dense_layers(
    widths: Sequence[int],
    activation: str | None,
    *,
    activate_last: bool,
    normalization: str = "none",
    noise: float | None = None,
    scheme: str = "default",
) -> Functions:
    """Dense layers with an activation between them, and after the last one if asked.

    `normalization` stands before each activation, `noise` is the σ₀ of noisy layers, `scheme` makes the first weights.
    """
    nonlinear = ACTIVATIONS[activation] if activation else lambda x: x
    depth, norm = len(widths), NORMALIZATIONS[normalization]

    def is_activated(i: int) -> bool:
        return activate_last or i < depth - 1

    def init(key: jax.Array, x_BI: jax.Array) -> Params:
        params = {}
        fan_in = x_BI.shape[-1]
        for i, (width, layer_key) in enumerate(zip(widths, jax.random.split(key, max(depth, 1)), strict=False)):
            layer = init_layer(layer_key, (fan_in, width), fan_in, scheme, is_activated(i))
            if noise is not None:
                spread = noise * fan_in**-0.5
                layer |= {"kernel_noise": jnp.full((fan_in, width), spread), "bias_noise": jnp.full((width,), spread)}
            if norm is not None and is_activated(i):
                layer = {name: leaf for name, leaf in layer.items() if not name.startswith("bias")}
                params[f"norm_{i}"] = norm.init(width)
            params[f"dense_{i}"] = layer
            fan_in = width
        return params

    def apply(params: Params, x_BI: jax.Array, mode: Mode = ACTING) -> jax.Array:
        for i in range(depth):
            x_BI = dense(params[f"dense_{i}"], x_BI, mode.part(i))
            if is_activated(i):
                if norm is not None:
                    x_BI = norm.apply(params[f"norm_{i}"], x_BI, mode)
                x_BI = nonlinear(x_BI)
        return x_BI

    return Functions(init, apply)


def dense(layer: Params, x_BI: jax.Array, mode: Mode) -> jax.Array:
    """One dense layer, in the precision of its kernel; noisy if it has learned how much."""
    kernel, bias = layer["kernel"], layer.get("bias")
    x_BI = x_BI.astype(kernel.dtype)
    if "kernel_noise" not in layer or not mode.is_random or mode.role != "act":
        out_BO = x_BI @ kernel
        return out_BO if bias is None else add_bias(out_BO, bias)
    noise_BT = mode.factors((x_BI.shape[0], sum(kernel.shape)), kernel.dtype)  # each env that acts has its own
    in_BI, out_BO = noise_BT[:, : kernel.shape[0]], noise_BT[:, kernel.shape[0] :]
    y_BO = x_BI @ kernel + ((x_BI * in_BI) @ layer["kernel_noise"]) * out_BO
    return y_BO if bias is None else y_BO + bias + layer["bias_noise"] * out_BO


def factors(key: jax.Array, shape: tuple[int, ...], dtype: Numbers = jnp.float32) -> jax.Array:
    """Factorised noise: sign(x) sqrt|x| of Gaussians, one for each input and output of a layer."""
    drawn = jax.random.normal(key, shape, dtype)
    return jnp.sign(drawn) * jnp.sqrt(jnp.abs(drawn))


def perturbed(params: Params, noise_T: jax.Array) -> Params:
    """The network with its noise in the weights: a batch is then one product per layer, as without noise.

    The factors are drawn beforehand: drawn in here, XLA would draw them again for every weight.
    """
    return each_noisy_layer(params, noise_T, _perturbed_layer)


def _perturbed_layer(layer: Params, noise_T: jax.Array) -> Params:
    kernel = layer["kernel"]
    in_I, out_O = jnp.split(noise_T.astype(kernel.dtype), [kernel.shape[0]])
    noisy = {"kernel": kernel + layer["kernel_noise"] * (in_I[:, None] * out_O)}
    return noisy if "bias" not in layer else noisy | {"bias": layer["bias"] + layer["bias_noise"] * out_O}


@jax.custom_vjp
def add_bias(x_BF: jax.Array, bias_F: jax.Array) -> jax.Array:
    """Add a bias to each row; its gradient is summed by a matrix product, which XLA does faster than a reduction."""
    return x_BF + bias_F


add_bias.defvjp(
    lambda x_BF, bias_F: (x_BF + bias_F, None),
    lambda _, g_BF: (g_BF, jnp.ones(g_BF.shape[:1], g_BF.dtype) @ g_BF),
)


def init_layer(
    key: jax.Array, kernel_shape: tuple[int, ...], fan_in: int, scheme: str = "default", is_activated: bool = True
) -> Params:
    """Kernel and bias by `scheme`; default is PyTorch's, both uniform within 1 / sqrt(fan_in)."""
    kernel_key, bias_key = jax.random.split(key)
    width = kernel_shape[-1]
    if scheme == "default":
        bound = fan_in**-0.5
        return {
            "kernel": jax.random.uniform(kernel_key, kernel_shape, jnp.float32, -bound, bound),
            "bias": jax.random.uniform(bias_key, (width,), jnp.float32, -bound, bound),
        }
    gain = 2**0.5 if is_activated else 1.0
    if scheme == "he":
        kernel = gain * fan_in**-0.5 * jax.random.normal(kernel_key, kernel_shape)
    else:
        kernel = jax.nn.initializers.orthogonal(gain)(kernel_key, kernel_shape, jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros((width,), jnp.float32)}


# -- normalization: (x - mean) / deviation, then a learned scale and offset ------------------------------------


class Normalization(NamedTuple):
    """`init(width)` and `apply(params, x, mode)`."""

    init: Callable[[int], Params]
    apply: Callable[[Params, jax.Array, Mode], jax.Array]


def _scale_and_offset(width: int) -> Params:
    return {"scale": jnp.ones((width,), jnp.float32), "offset": jnp.zeros((width,), jnp.float32)}


def _normalized(params: Params, x: jax.Array, mean: jax.Array, variance: jax.Array, like: Numbers) -> jax.Array:
    factor = jax.lax.rsqrt(variance + EPSILON) * _wide(params["scale"])
    return ((x - mean) * factor + _wide(params["offset"])).astype(like)


def _wide(x: jax.Array) -> jax.Array:
    """Means and variances take more than half precision."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _layer_norm(params: Params, x: jax.Array, mode: Mode) -> jax.Array:
    del mode
    wide = _wide(x)
    mean, variance = jnp.mean(wide, -1, keepdims=True), jnp.var(wide, -1, keepdims=True)
    return _normalized(params, wide, mean, variance, x.dtype)


def _batch_norm(params: Params, x: jax.Array, mode: Mode) -> jax.Array:
    wide, running = _wide(x), [_wide(params[name]) for name in RUNNING]
    if mode.role != "learn":
        return _normalized(params, wide, running[0], running[1], x.dtype)
    axes = tuple(range(x.ndim - 1))
    mean, variance = jnp.mean(wide, axes), jnp.var(wide, axes)
    count = wide.size // wide.shape[-1]
    unbiased = variance * (count / max(count - 1, 1))
    out = _normalized(params, wide, mean, variance, x.dtype)
    for old, seen in zip(running, (mean, unbiased), strict=True):
        out = out + _follow(old, jax.lax.stop_gradient(seen)).astype(x.dtype)
    return out


@jax.custom_vjp
def _follow(running: jax.Array, seen: jax.Array) -> jax.Array:
    """Zero. Its "gradient" by `running` is the step that running average takes, which the engine takes as it is."""
    del running, seen
    return jnp.zeros(())


_follow.defvjp(
    lambda running, seen: (jnp.zeros(()), (running, seen)),
    lambda kept, _: (MOMENTUM * (kept[0] - kept[1]), jnp.zeros_like(kept[1])),
)

NORMALIZATIONS: dict[str, Normalization | None] = {
    "none": None,
    "layer": Normalization(_scale_and_offset, _layer_norm),
    "batch": Normalization(
        lambda width: _scale_and_offset(width) | dict(zip(RUNNING, (jnp.zeros(width), jnp.ones(width)), strict=True)),
        _batch_norm,
    ),
}
