"""How the head and the torso of `own_kinds` are built in JAX: pairs of `init` and `apply`."""

import math

import jax
import jax.numpy as jnp
from own_kinds import FourierTorso, TwoHotHead

from hotloop.engines.jax.heads import dense_streams
from hotloop.engines.jax.modules import ACTING, Functions, Mode, Params
from hotloop.engines.networks import HeadOutput


def two_hot(spec: TwoHotHead, num_actions: int, scheme: str) -> Functions:
    """Logits (B, A, bins); `hidden`, `dueling` and `noise` are those of every head."""
    streams = dense_streams(spec, num_actions, spec.bins, scheme)
    return streams._replace(apply=lambda *args: HeadOutput(streams.apply(*args)))


def fourier(spec: FourierTorso, scheme: str) -> Functions:
    """Features (B, 2 waves) of an observation (B, …)."""
    del scheme

    def flat(obs_B: jax.Array) -> jax.Array:
        return obs_B.reshape(obs_B.shape[0], -1).astype(jnp.float32)

    def init(key: jax.Array, obs_B: jax.Array) -> Params:
        return {"directions": math.pi * jax.random.normal(key, (flat(obs_B).shape[-1], spec.waves))}

    def apply(params: Params, obs_B: jax.Array, mode: Mode = ACTING) -> jax.Array:
        del mode
        angles_BW = flat(obs_B) @ params["directions"]
        return jnp.concatenate([jnp.sin(angles_BW), jnp.cos(angles_BW)], axis=-1)

    return Functions(init, apply)
