"""From an observation to features."""

from typing import Any

import jax
import jax.numpy as jnp

from hotloop.engines.jax.modules import ACTIVATIONS, Functions, Params, dense_layers, init_layer, sequential
from hotloop.spec import Cnn, Mlp


def mlp(spec: Mlp) -> Functions:
    """Dense layers over all of the observation's numbers."""
    return sequential(
        flat=_stateless(_flat_features),
        layers=dense_layers(spec.hidden, spec.activation, activate_last=True),
    )


def cnn(spec: Cnn) -> Functions:
    """Convolutions over one image, then dense layers."""
    return sequential(
        conv=_convolutions(spec),
        flat=_stateless(_flat_features),
        layers=dense_layers(spec.hidden, spec.activation, activate_last=True),
    )


def _stateless(function: Any) -> Functions:
    return Functions(lambda key, inputs: {}, lambda params, inputs: function(inputs))


def _flat_features(obs_B: Any) -> jax.Array:
    leaves = [leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in jax.tree.leaves(obs_B)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves, axis=-1)


def _convolutions(spec: Cnn) -> Functions:
    nonlinear = ACTIVATIONS[spec.activation]
    layers = list(zip(spec.channels, spec.kernels, spec.strides, strict=True))

    def image(obs_B: jax.Array) -> jax.Array:
        if obs_B.ndim != 4:
            raise ValueError(f"the cnn torso needs images with 3 axes ({spec.layout}), got shape {obs_B.shape[1:]}")
        scaled = obs_B.astype(jnp.float32) / 255 if obs_B.dtype == jnp.uint8 else obs_B.astype(jnp.float32)
        return scaled.transpose(0, 2, 3, 1) if spec.layout == "CHW" else scaled

    def init(key: jax.Array, obs_B: jax.Array) -> Params:
        shape = image(obs_B).shape
        height, width, fan = shape[1], shape[2], shape[3]
        params = {}
        for i, (channels, kernel, stride) in enumerate(layers):
            if spec.padding == "valid":
                height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
                if min(height, width) < 1:
                    raise ValueError(
                        f"network.torso: convolution {i} with kernel {kernel} leaves nothing of a "
                        f"{shape[1]}x{shape[2]} image; use smaller kernels or strides, or padding: same"
                    )
            params[f"conv_{i}"] = init_layer(
                jax.random.fold_in(key, i), (kernel, kernel, fan, channels), kernel * kernel * fan
            )
            fan = channels
        return params

    def apply(params: Params, obs_B: jax.Array) -> jax.Array:
        x_BHWC = image(obs_B)
        for i, (_, _, stride) in enumerate(layers):
            layer = params[f"conv_{i}"]
            x_BHWC = nonlinear(_convolve(x_BHWC, layer["kernel"], stride, spec.padding.upper()) + layer["bias"])
        return x_BHWC

    return Functions(init, apply)


def _convolve(x_BHWC: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """A convolution; on the CPU as one matrix product over shifted copies of the image.

    XLA's own gradient of a convolution takes 7 to 44 times as long as that inside a loop on the CPU.
    """
    strides, axes = (stride, stride), ("NHWC", "HWIO", "NHWC")
    if jax.default_backend() != "cpu":
        return jax.lax.conv_general_dilated(x_BHWC, kernel, strides, padding, dimension_numbers=axes)
    high, wide, _, channels = kernel.shape
    pads = jax.lax.padtype_to_pads(x_BHWC.shape[1:3], (high, wide), strides, padding)
    x_BHWC = jnp.pad(x_BHWC, ((0, 0), *pads, (0, 0)))
    out_h, out_w = ((size - k) // stride + 1 for size, k in zip(x_BHWC.shape[1:3], (high, wide), strict=True))
    shifted = [
        x_BHWC[:, i : i + (out_h - 1) * stride + 1 : stride, j : j + (out_w - 1) * stride + 1 : stride]
        for i in range(high)
        for j in range(wide)
    ]
    return jnp.concatenate(shifted, axis=-1) @ kernel.reshape(-1, channels)
