"""From an observation to features. Images are (B, H, W, C) between layers, as in every engine."""

import torch
import torch.nn.functional as functional

from hotloop.engines.networks import require_image, require_room
from hotloop.engines.torch.modules import (
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
    widened,
)
from hotloop.spec import Cnn, Impala, Mlp
from hotloop.trees import leaves


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


def flat_features(obs_B: Inputs) -> torch.Tensor:
    """All numbers of each observation in one row, (B, F)."""
    flat = [_wide(leaf).reshape(leaf.shape[0], -1) for leaf in leaves(obs_B)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _image(obs_B: torch.Tensor, spec: Cnn | Impala) -> torch.Tensor:
    """Images (B, H, W, C) of numbers around one."""
    require_image(obs_B, spec)
    scaled = _wide(obs_B)
    scaled = scaled / 255 if obs_B.dtype == torch.uint8 else scaled
    return scaled.permute(0, 2, 3, 1) if spec.layout == "CHW" else scaled


def _convolutions(spec: Cnn, scheme: str) -> Functions:
    nonlinear, norm = ACTIVATIONS[spec.activation], NORMALIZATIONS[spec.normalization]
    layers = list(zip(spec.channels, spec.kernels, spec.strides, strict=True))

    def init(random: torch.Generator, obs_B: torch.Tensor) -> Params:
        _, height, width, fan = _image(obs_B, spec).shape
        require_room(spec, height, width)
        params = {}
        for i, (channels, kernel, _) in enumerate(layers):
            params[f"conv_{i}"] = _init_convolution(random, kernel, fan, channels, scheme)
            if norm is not None:
                del params[f"conv_{i}"]["bias"]
                params[f"norm_{i}"] = norm.init(channels)
            fan = channels
        return params

    def apply(params: Params, obs_B: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        x_BHWC = _image(obs_B, spec)
        for i, (_, _, stride) in enumerate(layers):
            x_BHWC = _convolve(x_BHWC, params[f"conv_{i}"], stride, is_padded=spec.padding == "same")
            if norm is not None:
                x_BHWC = norm.apply(params[f"norm_{i}"], x_BHWC, mode)
            x_BHWC = nonlinear(x_BHWC)
        return x_BHWC

    return Functions(init, apply)


def _residual_stages(spec: Impala, scheme: str) -> Functions:
    """Per stage: convolution, max-pooling of 3x3 with stride 2, then blocks x + conv(f(conv(f(x))))."""
    nonlinear, norm = ACTIVATIONS[spec.activation], NORMALIZATIONS[spec.normalization]
    within = [f"block_{block}_{half}" for block in range(spec.blocks) for half in (0, 1)]

    def init(random: torch.Generator, obs_B: torch.Tensor) -> Params:
        fan, params = _image(obs_B, spec).shape[3], {}
        for i, channels in enumerate(spec.channels):
            stage = {"conv": _init_convolution(random, 3, fan, channels, scheme)}
            for name in within:
                stage[name] = _init_convolution(random, 3, channels, channels, scheme)
                if norm is not None:
                    del stage[name]["bias"]
                    stage[f"norm_{name}"] = norm.init(channels)
            params[f"stage_{i}"], fan = stage, channels
        return params

    def block(stage: Params, x_BHWC: torch.Tensor, number: int, mode: Mode) -> torch.Tensor:
        out = x_BHWC
        for half in (0, 1):
            name = f"block_{number}_{half}"
            out = _convolve(nonlinear(out), stage[name], 1, is_padded=True)
            out = out if norm is None else norm.apply(stage[f"norm_{name}"], out, mode)
        return x_BHWC + out

    def apply(params: Params, obs_B: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        x_BHWC = _image(obs_B, spec)
        for i in range(len(spec.channels)):
            stage = params[f"stage_{i}"]
            x_BHWC = _max_pool(_convolve(x_BHWC, stage["conv"], 1, is_padded=True))
            for number in range(spec.blocks):
                x_BHWC = block(stage, x_BHWC, number, mode)
        return x_BHWC

    return Functions(init, apply)


def _init_convolution(random: torch.Generator, kernel: int, fan: int, channels: int, scheme: str) -> Params:
    return init_layer(random, (kernel, kernel, fan, channels), kernel * kernel * fan, scheme)


def _convolve(x_BHWC: torch.Tensor, layer: Params, stride: int, *, is_padded: bool) -> torch.Tensor:
    """A convolution with a kernel (H, W, in, out); torch takes the axes in another order, without a copy."""
    kernel = layer["kernel"]
    x_BCHW = widened(x_BHWC, kernel).permute(0, 3, 1, 2)
    if is_padded:
        x_BCHW = functional.pad(x_BCHW, _same(x_BCHW, kernel.shape[0], stride))
    out_BCHW = functional.conv2d(x_BCHW, kernel.permute(3, 2, 0, 1), layer.get("bias"), stride)
    return out_BCHW.permute(0, 2, 3, 1)


def _max_pool(x_BHWC: torch.Tensor) -> torch.Tensor:
    """Largest of each 3x3 window, every second pixel."""
    x_BCHW = x_BHWC.permute(0, 3, 1, 2)
    padded = functional.pad(x_BCHW, _same(x_BCHW, 3, 2), value=-torch.inf)
    return functional.max_pool2d(padded, 3, 2).permute(0, 2, 3, 1)


def _same(x_BCHW: torch.Tensor, kernel: int, stride: int) -> list[int]:
    """Padding that gives an output for every `stride`-th pixel; what is odd goes to the end."""
    pads: list[int] = []
    for size in reversed(x_BCHW.shape[2:]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return pads
