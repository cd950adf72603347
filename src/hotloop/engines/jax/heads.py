"""From features to an estimate of each action's return: its mean, or its distribution as atoms or quantiles."""

import math

import jax
import jax.numpy as jnp

from hotloop.engines.jax.modules import ACTING, Functions, Mode, Params, dense_layers
from hotloop.engines.networks import HeadOutput, fractions_by_pass
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
    return streams._replace(apply=lambda *args: HeadOutput(streams.apply(*args), _midpoints(spec.quantiles)))


def iqn(spec: IqnHead, num_actions: int, scheme: str = "default") -> Functions:
    """Quantiles at drawn fractions: features times a dense layer of cos(π i τ), then the usual layers."""
    streams = dense_streams(spec, num_actions, 1, scheme)
    counts = fractions_by_pass(spec)

    def embedding(width: int) -> Functions:
        return dense_layers([width], "relu", activate_last=True, scheme=scheme)

    def init(key: jax.Array, features_BF: jax.Array) -> Params:
        embedding_key, streams_key = jax.random.split(key)
        cosines = jnp.zeros((1, spec.cosines))
        return {
            "embedding": embedding(features_BF.shape[-1]).init(embedding_key, cosines),
            "streams": streams.init(streams_key, features_BF),
        }

    def apply(params: Params, features_BF: jax.Array, mode: Mode = ACTING) -> HeadOutput[jax.Array]:
        (batch, width), count = features_BF.shape, counts[mode.role]
        tau_BN = mode.uniform((batch, count)) if mode.is_random else jnp.broadcast_to(_midpoints(count), (batch, count))
        cosines = cosines_of_pi(tau_BN.reshape(-1, 1) * jnp.arange(spec.cosines, dtype=jnp.float32))
        embedded = embedding(width).apply(params["embedding"], cosines)
        mixed_BNF = features_BF[:, None] * embedded.reshape(batch, count, width)
        if mode.role == "act" and spec.noise is not None:
            # One fraction at a time, so that an env has one draw of noise for all its fractions.
            def of_fraction(x_BF: jax.Array) -> jax.Array:
                values_BA1: jax.Array = streams.apply(params["streams"], x_BF, mode.part(1))
                return values_BA1[..., 0]

            return HeadOutput(jax.vmap(of_fraction, in_axes=1, out_axes=2)(mixed_BNF), tau_BN)
        values = streams.apply(params["streams"], mixed_BNF.reshape(batch * count, width), mode.part(1))
        return HeadOutput(values.reshape(batch, count, num_actions).swapaxes(1, 2), tau_BN)

    return Functions(init, apply)


def cosines_of_pi(x: jax.Array) -> jax.Array:
    """cos(πx), error below 1e-6. XLA calls its own cosine once per number on a CPU; a polynomial runs in vectors."""
    if x.dtype == jnp.float64:  # to be compared with another engine
        return jnp.cos(math.pi * x)
    near = x - 2.0 * jnp.round(0.5 * x)  # within [-1, 1], exactly
    square, sine = near * near, jnp.float32(0.0)  # of half the angle, by Taylor
    for power in (11, 9, 7, 5, 3, 1):
        sine = sine * square + (-1) ** (power // 2) * (math.pi / 2) ** power / math.factorial(power)
    return 1.0 - 2.0 * (sine * near) ** 2


def _midpoints(count: int) -> jax.Array:
    return (jnp.arange(count, dtype=jnp.float32) + 0.5) / count


def dense_streams(spec: Head, num_actions: int, atoms: int, scheme: str) -> Functions:
    """Features to (B, A, atoms), as `trunk`, `hidden`, `dueling` and `noise` say: a trunk, if any, then streams."""
    streams = _streams(spec, num_actions, atoms, scheme)
    if not spec.trunk:
        return streams
    trunk = dense_layers(spec.trunk, "relu", activate_last=True, noise=spec.noise, scheme=scheme)

    def init(key: jax.Array, features_BF: jax.Array) -> Params:
        trunk_key, streams_key = jax.random.split(key)
        params = trunk.init(trunk_key, features_BF)
        shared_BF = trunk.apply(params, features_BF, ACTING)
        return {"trunk": params, **streams.init(streams_key, shared_BF)}

    def apply(params: Params, features_BF: jax.Array, mode: Mode = ACTING) -> jax.Array:
        return streams.apply(params, trunk.apply(params["trunk"], features_BF, mode.part(0)), mode.part(1))

    return Functions(init, apply)


def _streams(spec: Head, num_actions: int, atoms: int, scheme: str) -> Functions:
    """Features to (B, A, atoms): one stack of layers, or a value and centred advantages."""

    def layers(outputs: int) -> Functions:
        widths = [*spec.hidden, outputs]
        return dense_layers(widths, "relu", activate_last=False, noise=spec.noise, scheme=scheme)

    def shaped(x: jax.Array, actions: int) -> jax.Array:
        return x.reshape(x.shape[0], actions, atoms)

    every = layers(num_actions * atoms)
    if not spec.dueling:
        return Functions(
            every.init, lambda params, x_BF, mode=ACTING: shaped(every.apply(params, x_BF, mode), num_actions)
        )
    value, advantage = layers(atoms), every

    def init(key: jax.Array, features_BF: jax.Array) -> Params:
        value_key, advantage_key = jax.random.split(key)
        return {
            "value": value.init(value_key, features_BF),
            "advantage": advantage.init(advantage_key, features_BF),
        }

    def apply(params: Params, features_BF: jax.Array, mode: Mode = ACTING) -> jax.Array:
        advantage_BAN = shaped(advantage.apply(params["advantage"], features_BF, mode.part(0)), num_actions)
        value_B1N = shaped(value.apply(params["value"], features_BF, mode.part(1)), 1)
        return value_B1N + advantage_BAN - advantage_BAN.mean(1, keepdims=True)

    return Functions(init, apply)
