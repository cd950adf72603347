"""From features to an estimate of each action's return: its mean, or its distribution as atoms or quantiles."""

import math

import torch

from hotloop.engines.draws import Draw
from hotloop.engines.networks import HeadOutput, fractions_by_pass
from hotloop.engines.torch.modules import ACTING, Functions, Mode, Params, dense_layers
from hotloop.spec import C51Head, Head, IqnHead, QuantileHead, ScalarHead


def scalar(spec: ScalarHead, num_actions: int, scheme: str = "default") -> Functions:
    """One Q-value per action."""
    streams = dense_streams(spec, num_actions, 1, scheme)
    return streams._replace(apply=lambda *args: HeadOutput(streams.apply(*args)[..., 0]))


def c51(spec: C51Head, num_actions: int, scheme: str = "default") -> Functions:
    """Logits of `atoms` fixed returns per action."""
    streams = dense_streams(spec, num_actions, spec.atoms, scheme)
    return streams._replace(apply=lambda *args: HeadOutput(streams.apply(*args)))


def qr(spec: QuantileHead, num_actions: int, scheme: str = "default") -> Functions:
    """Quantiles at fixed fractions per action."""
    streams = dense_streams(spec, num_actions, spec.quantiles, scheme)

    def apply(params: Params, features_BF: torch.Tensor, mode: Mode = ACTING) -> HeadOutput[torch.Tensor]:
        return HeadOutput(streams.apply(params, features_BF, mode), _midpoints(spec.quantiles, features_BF))

    return Functions(streams.init, apply)


def iqn(spec: IqnHead, num_actions: int, scheme: str = "default") -> Functions:
    """Quantiles at drawn fractions: features times a dense layer of cos(π i τ), then the usual layers."""
    streams = dense_streams(spec, num_actions, 1, scheme)
    counts = fractions_by_pass(spec)

    def embedding(width: int) -> Functions:
        return dense_layers([width], "relu", activate_last=True, scheme=scheme)

    def init(random: torch.Generator, features_BF: torch.Tensor) -> Params:
        return {
            "embedding": embedding(features_BF.shape[-1]).init(random, torch.zeros(1, spec.cosines)),
            "streams": streams.init(random, features_BF),
        }

    def apply(params: Params, features_BF: torch.Tensor, mode: Mode = ACTING) -> HeadOutput[torch.Tensor]:
        (batch, width), count = features_BF.shape, counts[mode.role]
        if mode.is_random:
            tau_BN = mode.drawn(Draw("uniform", (batch, count)), features_BF)
        else:
            tau_BN = _midpoints(count, features_BF).expand(batch, count)
        cosines = cosines_of_pi(tau_BN.reshape(-1, 1) * torch.arange(spec.cosines, device=tau_BN.device))
        embedded = embedding(width).apply(params["embedding"], cosines)
        mixed_BNF = features_BF[:, None] * embedded.reshape(batch, count, width)
        values_BNA = streams.apply(params["streams"], mixed_BNF, mode.part(1))[..., 0]
        return HeadOutput(values_BNA.transpose(1, 2), tau_BN)

    return Functions(init, apply)


def cosines_of_pi(x: torch.Tensor) -> torch.Tensor:
    """cos(πx), of a whole turn's rest, so that large x lose nothing."""
    return torch.cos(math.pi * (x - 2.0 * torch.round(0.5 * x)))


def _midpoints(count: int, like: torch.Tensor) -> torch.Tensor:
    return (torch.arange(count, dtype=torch.float32, device=like.device) + 0.5) / count


def dense_streams(spec: Head, num_actions: int, atoms: int, scheme: str) -> Functions:
    """Features to (B, …, A, atoms), as `trunk`, `hidden`, `dueling` and `noise` say: a trunk, if any, then streams."""
    streams = _streams(spec, num_actions, atoms, scheme)
    if not spec.trunk:
        return streams
    trunk = dense_layers(spec.trunk, "relu", activate_last=True, noise=spec.noise, scheme=scheme)

    def init(random: torch.Generator, features_BF: torch.Tensor) -> Params:
        params = trunk.init(random, features_BF)
        return {"trunk": params, **streams.init(random, trunk.apply(params, features_BF, ACTING))}

    def apply(params: Params, features_BF: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        return streams.apply(params, trunk.apply(params["trunk"], features_BF, mode.part(0)), mode.part(1))

    return Functions(init, apply)


def _streams(spec: Head, num_actions: int, atoms: int, scheme: str) -> Functions:
    """Features to (B, …, A, atoms): one stack of layers, or a value and centred advantages."""

    def layers(outputs: int) -> Functions:
        widths = [*spec.hidden, outputs]
        return dense_layers(widths, "relu", activate_last=False, noise=spec.noise, scheme=scheme)

    def shaped(x: torch.Tensor, actions: int) -> torch.Tensor:
        return x.reshape(*x.shape[:-1], actions, atoms)

    every = layers(num_actions * atoms)
    if not spec.dueling:
        return Functions(
            every.init, lambda params, x_BF, mode=ACTING: shaped(every.apply(params, x_BF, mode), num_actions)
        )
    value, advantage = layers(atoms), every

    def init(random: torch.Generator, features_BF: torch.Tensor) -> Params:
        return {"value": value.init(random, features_BF), "advantage": advantage.init(random, features_BF)}

    def apply(params: Params, features_BF: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        advantage_BAN = shaped(advantage.apply(params["advantage"], features_BF, mode.part(0)), num_actions)
        value_B1N = shaped(value.apply(params["value"], features_BF, mode.part(1)), 1)
        return value_B1N + advantage_BAN - advantage_BAN.mean(-2, keepdim=True)

    return Functions(init, apply)
