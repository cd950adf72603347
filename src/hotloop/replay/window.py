"""n-step on the device: a delay line that takes one vector step in and gives the one of n - 1 steps ago out.

What comes out has the rewards of up to n steps, fewer where its episode ended, and bootstraps from where they end.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hotloop.experience import Item


class Window(NamedTuple):
    """The last n - 1 vector steps (n - 1, N, …), oldest first, each with what has been added up for it so far."""

    items: Item[jax.Array]
    is_open: jax.Array  # whether its episode still runs


def empty(steps: int, item_N: Item[jax.Array]) -> Window:
    """A window for `steps` steps; what it gives out before it has been filled is nothing to keep."""
    items = jax.tree.map(lambda leaf: jnp.zeros((steps - 1, *leaf.shape), leaf.dtype), item_N)
    return Window(items, jnp.zeros((steps - 1, *item_N.r_t.shape), bool))


def push(window: Window, item_N: Item[jax.Array], done_N: jax.Array) -> tuple[Window, Item[jax.Array]]:
    """Add a step to all that are still open; returns the window and the oldest, which is now complete."""
    steps = window.is_open.shape[0] + 1
    zeros, ones = jnp.zeros_like(item_N.r_t), jnp.ones_like(item_N.discount_t)
    newest = item_N._replace(r_t=zeros, discount_t=ones)  # its own step is added below, as to all the others
    items = jax.tree.map(lambda old, new: jnp.concatenate([old, new[None]]), window.items, newest)
    is_open = jnp.concatenate([window.is_open, jnp.ones((1, *done_N.shape), bool)])

    def if_open(new_N: jax.Array, old_nN: jax.Array) -> jax.Array:
        shape = (*is_open.shape, *[1] * (old_nN.ndim - 2))
        return jnp.where(is_open.reshape(shape), new_N, old_nN)

    items = items._replace(
        r_t=items.r_t + jnp.where(is_open, items.discount_t * item_N.r_t, 0.0),
        discount_t=if_open(items.discount_t * item_N.discount_t, items.discount_t),
        s_t=jax.tree.map(if_open, item_N.s_t, items.s_t),
        legal_t=jax.tree.map(if_open, item_N.legal_t, items.legal_t),
    )
    oldest = jax.tree.map(lambda leaf: leaf[0], items)
    newer = jax.tree.map(lambda leaf: leaf[1:steps], items)
    return Window(newer, (is_open & ~done_N)[1:]), oldest
