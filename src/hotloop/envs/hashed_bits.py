"""Random bits for envs that draw many in every step: a hash of a key and a counter.

`jax.random.bits` gives better ones (threefry: 20 rounds) and takes most of such a step's time. Here a word goes twice
through a mixer of two multiplications in which each bit of the input turns each of the output with a chance of 0.5
(within 0.002), once with each half of the key, which itself comes from `jax.random`.
"""

import jax
import jax.numpy as jnp


def hashed_bits(key: jax.Array, count: int) -> jax.Array:
    """Bits uint32 (count,) that depend on all of the key."""
    # The golden ratio: no two counters are near.
    bits: jax.Array = jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(0x9E3779B9)
    for word in jax.random.key_data(key):  # two of them
        bits = _mixed(bits ^ word)
    return bits


def _mixed(word: jax.Array) -> jax.Array:
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)
