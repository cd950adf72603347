"""The network and the loss of the multi-agent workload, in eager PyTorch: noisy, dueling IQN with a Double target."""

import math
from typing import NamedTuple

import torch
from torch import nn

HIDDEN, COSINES, NOISE = 250, 64, 0.5
TRAINING_TAUS, ACTING_TAUS, KAPPA = 12, 256, 1.0


class Taus(NamedTuple):
    """The fractions of one gradient step, (B, 12) each: of the estimate, of choosing the next action, of the target."""

    online: torch.Tensor
    choice: torch.Tensor
    target: torch.Tensor


class Batch(NamedTuple):
    """B transitions over up to three turns; the discount is γ to the power of their number."""

    s_tm1: torch.Tensor
    a_tm1: torch.Tensor
    r_t: torch.Tensor
    s_t: torch.Tensor
    discount_t: torch.Tensor


class NoisyLinear(nn.Module):
    """A dense layer whose weights have factorised noise; `draw` makes new noise, which then stays."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound, sigma = 1 / math.sqrt(inputs), NOISE / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))
        self.register_buffer("noise_in", torch.zeros(inputs), persistent=False)
        self.register_buffer("noise_out", torch.zeros(outputs), persistent=False)

    def draw(self, random: torch.Generator) -> None:
        """New noise, sign(x) √|x| of normal numbers."""
        for noise in (self.noise_in, self.noise_out):
            normal = torch.randn(noise.shape, generator=random)
            noise.copy_(normal.sign() * normal.abs().sqrt())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(…, inputs) to (…, outputs)."""
        weight = self.weight + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return nn.functional.linear(x, weight, self.bias + self.bias_sigma * self.noise_out)


class IqnNetwork(nn.Module):
    """From observations (B, 625) and fractions (B, N) to quantiles (B, N, A)."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.torso, self.embedding = nn.Linear(obs_size, hidden), nn.Linear(COSINES, hidden)
        self.mixed = NoisyLinear(hidden, hidden)
        self.advantage, self.value = NoisyLinear(hidden, num_actions), NoisyLinear(hidden, 1)
        self.register_buffer("multiples", math.pi * torch.arange(COSINES), persistent=False)

    def draw_noise(self, random: torch.Generator) -> None:
        """New noise in all noisy layers."""
        for layer in (self.mixed, self.advantage, self.value):
            layer.draw(random)

    def forward(self, obs: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        """Quantiles (B, N, A)."""
        features = torch.relu(self.torso(obs))
        embedded = torch.relu(self.embedding(torch.cos(tau[:, :, None] * self.multiples)))
        mixed = torch.relu(self.mixed(features[:, None] * embedded))
        advantage = self.advantage(mixed)
        return self.value(mixed) + advantage - advantage.mean(-1, keepdim=True)


def loss_of(online: IqnNetwork, target: IqnNetwork, batch: Batch, taus: Taus) -> torch.Tensor:
    """The quantile Huber loss of a batch, by the noise that is in both networks."""
    quantiles = online(batch.s_tm1, taus.online)
    taken = quantiles.gather(2, batch.a_tm1[:, None, None].expand(-1, quantiles.shape[1], 1))[:, :, 0]
    with torch.no_grad():
        best = online(batch.s_t, taus.choice).mean(1).argmax(1)
        ahead = target(batch.s_t, taus.target)
        ahead = ahead.gather(2, best[:, None, None].expand(-1, ahead.shape[1], 1))[:, :, 0]
        goal = batch.r_t[:, None] + batch.discount_t[:, None] * ahead
    return quantile_huber(taken, taus.online, goal)


def quantile_huber(taken: torch.Tensor, tau: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """Quantiles (B, N) at fractions (B, N) against goals (B, M): sum over N, mean over M and B."""
    error = goal[:, None, :] - taken[:, :, None]
    size = error.abs()
    huber = torch.where(size <= KAPPA, 0.5 * error**2, KAPPA * (size - 0.5 * KAPPA))
    weight = (tau[:, :, None] - (error.detach() < 0).float()).abs()
    return (weight * huber / KAPPA).mean(2).sum(1).mean()
