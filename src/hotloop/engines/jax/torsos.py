"""From an observation to features."""

import jax
import jax.numpy as jnp

from hotloop.engines.jax.modules import (
    ACTING,
    ACTIVATIONS,
    NORMALIZATIONS,
    Functions,
    Inputs,
    Mode,
    Params,
    dense_layers,
    init_layer,
    sequential,
    stateless,
)
from hotloop.engines.networks import require_image, require_room
from hotloop.spec import Cnn, Impala, Mlp


def mlp(spec: Mlp, scheme: str = "default") -> Functions:
    """Dense layers over all of the observation's numbers."""
    return sequential(flat=stateless(flat_features), layers=_dense(spec, scheme))


def cnn(spec: Cnn, scheme: str = "default") -> Functions:
    """Convolutions over one image, then dense layers."""
    return sequential(conv=_convolutions(spec, scheme), flat=stateless(flat_features), layers=_dense(spec, scheme))


def impala(spec: Impala, scheme: str = "default") -> Functions:
    """Residual stages over one image, then dense layers."""
    nonlinear = ACTIVATIONS[spec.activation]
    return sequential(
        stages=_residual_stages(spec, scheme),
        flat=stateless(lambda x_BHWC: flat_features(nonlinear(x_BHWC))),
        layers=_dense(spec, scheme),
    )


def _dense(spec: Mlp | Cnn | Impala, scheme: str) -> Functions:
    return dense_layers(
        spec.hidden, spec.activation, activate_last=True, normalization=spec.normalization, scheme=scheme
    )


def flat_features(obs_B: Inputs) -> jax.Array:
    """All numbers of each observation in one row, (B, F)."""
    leaves = [_wide(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(obs_B)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _image(obs_B: jax.Array, spec: Cnn | Impala) -> jax.Array:
    """Images (B, H, W, C) of numbers around one."""
    require_image(obs_B, spec)
    scaled = _wide(obs_B) / 255 if obs_B.dtype == jnp.uint8 else _wide(obs_B)
    return scaled.transpose(0, 2, 3, 1) if spec.layout == "CHW" else scaled


def _convolutions(spec: Cnn, scheme: str) -> Functions:
    nonlinear, norm = ACTIVATIONS[spec.activation], NORMALIZATIONS[spec.normalization]
    layers = list(zip(spec.channels, spec.kernels, spec.strides, strict=True))

    def init(key: jax.Array, obs_B: jax.Array) -> Params:
        _, height, width, fan = _image(obs_B, spec).shape
        require_room(spec, height, width)
        params = {}
        for i, (channels, kernel, _) in enumerate(layers):
            params[f"conv_{i}"] = _init_convolution(jax.random.fold_in(key, i), kernel, fan, channels, scheme)
            if norm is not None:
                del params[f"conv_{i}"]["bias"]
                params[f"norm_{i}"] = norm.init(channels)
            fan = channels
        return params

    def apply(params: Params, obs_B: jax.Array, mode: Mode = ACTING) -> jax.Array:
        x_BHWC = _image(obs_B, spec)
        for i, (_, _, stride) in enumerate(layers):
            x_BHWC = _convolve(x_BHWC, params[f"conv_{i}"], stride, spec.padding.upper())
            if norm is not None:
                x_BHWC = norm.apply(params[f"norm_{i}"], x_BHWC, mode)
            x_BHWC = nonlinear(x_BHWC)
        return x_BHWC

    return Functions(init, apply)


def _residual_stages(spec: Impala, scheme: str) -> Functions:
    """Per stage: convolution, max-pooling of 3x3 with stride 2, then blocks x + conv(f(conv(f(x))))."""
    nonlinear, norm = ACTIVATIONS[spec.activation], NORMALIZATIONS[spec.normalization]
    within = [f"block_{block}_{half}" for block in range(spec.blocks) for half in (0, 1)]

    def init(key: jax.Array, obs_B: jax.Array) -> Params:
        fan, params = _image(obs_B, spec).shape[3], {}
        for i, channels in enumerate(spec.channels):
            keys = jax.random.split(jax.random.fold_in(key, i), 1 + len(within))
            stage = {"conv": _init_convolution(keys[0], 3, fan, channels, scheme)}
            for name, block_key in zip(within, keys[1:], strict=True):
                stage[name] = _init_convolution(block_key, 3, channels, channels, scheme)
                if norm is not None:
                    del stage[name]["bias"]
                    stage[f"norm_{name}"] = norm.init(channels)
            params[f"stage_{i}"], fan = stage, channels
        return params

    def block(stage: Params, x_BHWC: jax.Array, number: int, mode: Mode) -> jax.Array:
        out = x_BHWC
        for half in (0, 1):
            name = f"block_{number}_{half}"
            out = _convolve(nonlinear(out), stage[name], 1, "SAME")
            out = out if norm is None else norm.apply(stage[f"norm_{name}"], out, mode)
        return x_BHWC + out

    def apply(params: Params, obs_B: jax.Array, mode: Mode = ACTING) -> jax.Array:
        x_BHWC = _image(obs_B, spec)
        for i in range(len(spec.channels)):
            stage = params[f"stage_{i}"]
            x_BHWC = _max_pool(_convolve(x_BHWC, stage["conv"], 1, "SAME"))
            for number in range(spec.blocks):
                x_BHWC = block(stage, x_BHWC, number, mode)
        return x_BHWC

    return Functions(init, apply)


def _max_pool(x_BHWC: jax.Array) -> jax.Array:
    """Largest of each 3x3 window, every second pixel; a maximum of shifted copies, for the reason `_convolve` gives."""
    pads = jax.lax.padtype_to_pads(x_BHWC.shape[1:3], (3, 3), (2, 2), "SAME")
    padded = jnp.pad(x_BHWC, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    copies = _shifted(padded, 3, 3, 2)
    best = copies[0]
    for copy in copies[1:]:
        best = jnp.maximum(best, copy)
    return best


def _init_convolution(key: jax.Array, kernel: int, fan: int, channels: int, scheme: str) -> Params:
    return init_layer(key, (kernel, kernel, fan, channels), kernel * kernel * fan, scheme)


def _convolve(x_BHWC: jax.Array, layer: Params, stride: int, padding: str) -> jax.Array:
    """A convolution; on the CPU as one matrix product over shifted copies of the image.

    XLA's own gradient of a convolution takes 7 to 44 times as long as that inside a loop on the CPU.
    """
    kernel, bias = layer["kernel"], layer.get("bias")
    x_BHWC = x_BHWC.astype(kernel.dtype)
    strides, axes = (stride, stride), ("NHWC", "HWIO", "NHWC")
    if jax.default_backend() != "cpu":
        out = jax.lax.conv_general_dilated(x_BHWC, kernel, strides, padding, dimension_numbers=axes)
        return out if bias is None else out + bias
    high, wide, _, channels = kernel.shape
    pads = jax.lax.padtype_to_pads(x_BHWC.shape[1:3], (high, wide), strides, padding)
    shifted = _shifted(jnp.pad(x_BHWC, ((0, 0), *pads, (0, 0))), high, wide, stride)
    out = jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, channels)
    return out if bias is None else out + bias


def _shifted(x_BHWC: jax.Array, high: int, wide: int, stride: int) -> list[jax.Array]:
    """What each place of a window of `high` x `wide` sees while the window moves over the image."""
    out_h, out_w = ((size - k) // stride + 1 for size, k in zip(x_BHWC.shape[1:3], (high, wide), strict=True))
    return [
        x_BHWC[:, i : i + (out_h - 1) * stride + 1 : stride, j : j + (out_w - 1) * stride + 1 : stride]
        for i in range(high)
        for j in range(wide)
    ]
