"""The network of the pixel pipeline in eager PyTorch, and the arithmetic of a gradient step on it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

CHANNELS, KERNELS, STRIDES, HIDDEN = (32, 64, 64), (8, 4, 3), (4, 2, 1), 512
Weights = dict[str, np.ndarray]
"""Parameters and running statistics by name, as they travel."""


class Layer(NamedTuple):
    """What a layer multiplies for one picture."""

    multiplications: int
    is_first: bool
    """Nobody asks for the gradient of its input."""


class PictureNetwork(nn.Module):
    """From stacked pictures (B, stack, size, size) of 0 … 1 to Q-values (B, actions).

    `normalised`: BatchNorm behind each convolution, which has no bias then, and He initialisation. `in_place`: a ReLU
    overwrites what it is given.
    """

    def __init__(
        self, stack: int, size: int, actions: int, *, normalised: bool = False, in_place: bool = False
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, stride in zip((stack, *CHANNELS), CHANNELS, KERNELS, STRIDES, strict=False):
            layers.append(nn.Conv2d(inputs, outputs, kernel, stride, bias=not normalised))
            if normalised:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU(inplace=in_place))
        features = CHANNELS[-1] * sizes_of(size)[-1] ** 2
        layers += [nn.Flatten(), nn.Linear(features, HIDDEN), nn.ReLU(inplace=in_place), nn.Linear(HIDDEN, actions)]
        self.layers = nn.Sequential(*layers)
        if normalised:
            self.apply(_he)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Q-values."""
        q_values: torch.Tensor = self.layers(pictures)
        return q_values


def weights_of(network: nn.Module) -> Weights:
    """A copy of all of them; of a network that was compiled, give the one inside: its names have no prefix."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


def load_weights(network: nn.Module, weights: Weights) -> None:
    """Take them."""
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})


def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Mix a share of the online net into the target net, its running statistics too, weight by weight."""
    with torch.no_grad():
        for behind, ahead in zip(target.state_dict().values(), online.state_dict().values(), strict=True):
            behind.copy_(tau * ahead + (1.0 - tau) * behind if behind.is_floating_point() else ahead)


def sizes_of(size: int) -> tuple[int, ...]:
    """Width of a picture of this width after each convolution."""
    sizes = []
    for kernel, stride in zip(KERNELS, STRIDES, strict=True):
        size = (size - kernel) // stride + 1
        sizes.append(size)
    return tuple(sizes)


def gflop_of_sample(stack: int, size: int, actions: int) -> float:
    """Of a gradient step with a Double target, for each sample: three forward passes and one backward, in 1e9."""
    layers = layers_of(stack, size, actions)
    forward = sum(layer.multiplications for layer in layers)
    backward = 2 * forward - sum(layer.multiplications for layer in layers if layer.is_first)
    return 2 * (3 * forward + backward) / 1e9


def layers_of(stack: int, size: int, actions: int) -> Sequence[Layer]:
    """The products of each."""
    layers, sizes = list[Layer](), sizes_of(size)
    for inputs, outputs, kernel, width in zip((stack, *CHANNELS), CHANNELS, KERNELS, sizes, strict=False):
        layers.append(Layer(width**2 * outputs * inputs * kernel**2, is_first=not layers))
    features = CHANNELS[-1] * sizes[-1] ** 2
    return [*layers, Layer(features * HIDDEN, is_first=False), Layer(HIDDEN * actions, is_first=False)]


def _he(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
