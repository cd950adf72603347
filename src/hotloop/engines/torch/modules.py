"""A network is a pair of functions, `init` and `apply`, of a tree of weights: the names and shapes of every engine.

Weights come in as views of one flat vector, so a module of torch, which owns its weights, would only be in the way.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional

from hotloop.engines.draws import Draw, Wanted
from hotloop.engines.networks import EPSILON, MOMENTUM, RUNNING, each_noisy_layer
from hotloop.trees import Tree

Params = Any
"""A network's own tree of weights: dicts of dicts of tensors."""
Inputs = Tree[torch.Tensor]
"""What a network, or a part of one, is given: observations, features."""
Given = Mapping[str, torch.Tensor] | Wanted | None


class Mode(NamedTuple):
    """What a forward pass is for, and what chance gives to it; without draws there is no chance in it."""

    role: str = "act"
    """act, learn (the pass that is differentiated), target, or choose (Double's choice of an action)."""
    noise: torch.Tensor | None = None
    """What was drawn for all noisy layers, for a batch in common (see `perturbed`)."""
    given: Given = None
    """What was drawn beside it, by the path of the part that wants it."""
    path: str = ""

    @property
    def is_random(self) -> bool:
        """Whether there is chance in this pass."""
        return self.given is not None

    def drawn(self, wanted: Draw, like: torch.Tensor) -> torch.Tensor:
        """What was drawn for this part; where passes are asked what they want, it is noted, and zeros are given."""
        if isinstance(self.given, Wanted):
            self.given[self.path] = wanted
            return like.new_zeros(wanted.shape)
        if self.given is None:
            raise ValueError("this pass has no source of chance")
        return self.given[self.path]

    def part(self, number: int) -> "Mode":
        """The mode for one of several parts, with a path of its own."""
        return self if self.given is None else self._replace(path=f"{self.path}/{number}")


ACTING = Mode()


class Functions(NamedTuple):
    """A module: `init(random, inputs)` makes a tree of first weights, `apply(params, inputs, mode)` is its output."""

    init: Callable[[torch.Generator, Any], Params]
    apply: Callable[..., Any]


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "selu": functional.selu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


def sequential(**parts: Functions) -> Functions:
    """Feed each part's output to the next; parameters are kept under the parts' names."""

    def init(random: torch.Generator, inputs: Inputs) -> Params:
        params = {}
        for name, part in parts.items():
            params[name] = part.init(random, inputs)
            inputs = part.apply(params[name], inputs, ACTING)
        return params

    def apply(params: Params, inputs: Inputs, mode: Mode = ACTING) -> Inputs:
        for number, (name, part) in enumerate(parts.items()):
            inputs = part.apply(params[name], inputs, mode.part(number))
        return inputs

    return Functions(init, apply)


def stateless(function: Callable[[Any], torch.Tensor]) -> Functions:
    """A module without parameters."""
    return Functions(lambda random, inputs: {}, lambda params, inputs, mode: function(inputs))


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

    def init(random: torch.Generator, x_BI: torch.Tensor) -> Params:
        params, fan_in = {}, x_BI.shape[-1]
        for i, width in enumerate(widths):
            layer = init_layer(random, (fan_in, width), fan_in, scheme, is_activated(i))
            if noise is not None:
                spread = noise * fan_in**-0.5
                layer |= {
                    "kernel_noise": torch.full((fan_in, width), spread),
                    "bias_noise": torch.full((width,), spread),
                }
            if norm is not None and is_activated(i):
                layer = {name: leaf for name, leaf in layer.items() if not name.startswith("bias")}
                params[f"norm_{i}"] = norm.init(width)
            params[f"dense_{i}"] = layer
            fan_in = width
        return params

    def apply(params: Params, x_BI: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        for i in range(depth):
            x_BI = dense(params[f"dense_{i}"], x_BI, mode.part(i))
            if is_activated(i):
                if norm is not None:
                    x_BI = norm.apply(params[f"norm_{i}"], x_BI, mode)
                x_BI = nonlinear(x_BI)
        return x_BI

    return Functions(init, apply)


def dense(layer: Params, x_BI: torch.Tensor, mode: Mode) -> torch.Tensor:
    """One dense layer, noisy if it has learned how much; between batch and inputs there may be another axis."""
    kernel, bias = layer["kernel"], layer.get("bias")
    x_BI = widened(x_BI, kernel)
    if "kernel_noise" not in layer or not mode.is_random or mode.role != "act":
        if bias is None:
            return x_BI @ kernel
        return torch.addmm(bias, x_BI, kernel) if x_BI.ndim == 2 else x_BI @ kernel + bias
    noise_BT = mode.drawn(Draw("factors", (x_BI.shape[0], sum(kernel.shape))), x_BI).to(kernel.dtype)
    noise_BT = noise_BT.reshape(noise_BT.shape[0], *[1] * (x_BI.ndim - 2), -1)  # each env that acts has its own
    in_BI, out_BO = noise_BT.split(list(kernel.shape), dim=-1)
    y_BO = x_BI @ kernel + ((x_BI * in_BI) @ layer["kernel_noise"]) * out_BO
    return y_BO if bias is None else y_BO + bias + layer["bias_noise"] * out_BO


def widened(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """In the numbers of the weights, unless autocast has taken half of the bits and will do so again."""
    return x if x.dtype in (torch.bfloat16, torch.float16) else x.to(kernel.dtype)


def perturbed(params: Params, noise_T: torch.Tensor) -> Params:
    """The network with its noise in the weights: a batch is then one product per layer, as without noise."""
    return each_noisy_layer(params, noise_T, _perturbed_layer)


def _perturbed_layer(layer: Params, noise_T: torch.Tensor) -> Params:
    kernel = layer["kernel"]
    in_I, out_O = noise_T.to(kernel.dtype).split(list(kernel.shape))
    noisy = {"kernel": torch.addcmul(kernel, layer["kernel_noise"], in_I[:, None] * out_O)}
    return noisy if "bias" not in layer else noisy | {"bias": layer["bias"] + layer["bias_noise"] * out_O}


def init_layer(
    random: torch.Generator,
    kernel_shape: tuple[int, ...],
    fan_in: int,
    scheme: str = "default",
    is_activated: bool = True,
) -> dict[str, torch.Tensor]:
    """Kernel and bias by `scheme`; default is PyTorch's, both uniform within 1 / sqrt(fan_in)."""
    width = kernel_shape[-1]
    if scheme == "default":
        bound = fan_in**-0.5
        return {
            "kernel": torch.empty(kernel_shape).uniform_(-bound, bound, generator=random),
            "bias": torch.empty(width).uniform_(-bound, bound, generator=random),
        }
    gain = 2**0.5 if is_activated else 1.0
    if scheme == "he":
        kernel = torch.empty(kernel_shape).normal_(0.0, gain * fan_in**-0.5, generator=random)
    else:
        rows = torch.nn.init.orthogonal_(torch.empty(width, fan_in), gain, generator=random)
        kernel = rows.T.reshape(kernel_shape)
    return {"kernel": kernel, "bias": torch.zeros(width)}


# -- normalization: (x - mean) / deviation, then a learned scale and offset ------------------------------------


class Normalization(NamedTuple):
    """`init(width)` and `apply(params, x, mode)`; features are the last axis."""

    init: Callable[[int], Params]
    apply: Callable[[Params, torch.Tensor, Mode], torch.Tensor]


def _scale_and_offset(width: int) -> Params:
    return {"scale": torch.ones(width), "offset": torch.zeros(width)}


def _layer_norm(params: Params, x: torch.Tensor, mode: Mode) -> torch.Tensor:
    del mode
    return functional.layer_norm(x, x.shape[-1:], params["scale"], params["offset"], EPSILON)


def _batch_norm(params: Params, x: torch.Tensor, mode: Mode) -> torch.Tensor:
    running_mean, running_variance = (params[name] for name in RUNNING)
    if mode.role != "learn":
        return _normalized(params, x, running_mean, running_variance)
    variance, mean = torch.var_mean(x, dim=tuple(range(x.ndim - 1)), correction=0)
    count = x.numel() // x.shape[-1]
    unbiased = variance * (count / max(count - 1, 1))
    out = _normalized(params, x, mean, variance)
    return _Follow.apply(out, running_mean, mean.detach(), running_variance, unbiased.detach())


def _normalized(params: Params, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return (x - mean) * (torch.rsqrt(variance + EPSILON) * params["scale"]) + params["offset"]


class _Follow(torch.autograd.Function):
    """The first input. The "gradient" by a running average is the step it takes, which the engine takes as it is."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        running_mean: torch.Tensor,
        mean: torch.Tensor,
        running_variance: torch.Tensor,
        variance: torch.Tensor,
    ) -> torch.Tensor:
        """Pass `x` on."""
        ctx.save_for_backward(running_mean, mean, running_variance, variance)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Steps of the running averages towards what was seen."""
        running_mean, mean, running_variance, variance = ctx.saved_tensors
        return slope, MOMENTUM * (running_mean - mean), None, MOMENTUM * (running_variance - variance), None


NORMALIZATIONS: dict[str, Normalization | None] = {
    "none": None,
    "layer": Normalization(_scale_and_offset, _layer_norm),
    "batch": Normalization(
        lambda width: (
            _scale_and_offset(width) | dict(zip(RUNNING, (torch.zeros(width), torch.ones(width)), strict=True))
        ),
        _batch_norm,
    ),
}
