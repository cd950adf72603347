"""Priorities on the device: a sum tree as pure functions, for the compiled loop.

Every node has 16 children that lie side by side; a million leaves are five steps from the root. A draw goes down with a
random number of its own at each step: one float32 for the whole way would tell only eight million places apart, and so
favour some of a million leaves by a tenth. Sums are always recomputed from the children: they do not drift.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FAN_OUT = 16
LARGEST = 1e30
"""Priorities up to here can be summed: a million of them are still a float32."""
_UP_TO = np.triu(np.ones((FAN_OUT, FAN_OUT), np.float32))  # a product with it gives running sums


class Tree(NamedTuple):
    """`sums[0]` are the priorities in groups of 16, each level above the sums of the groups below it."""

    sums: tuple[jax.Array, ...]
    largest: jax.Array  # priority ever given: new transitions get it


def empty(capacity: int) -> Tree:
    """All priorities zero."""
    return Tree(tuple(jnp.zeros((groups, FAN_OUT), jnp.float32) for groups in _groups(capacity)), jnp.float32(1.0))


def num_bytes(capacity: int) -> int:
    """Memory of a tree, before it is allocated."""
    return 4 * FAN_OUT * sum(_groups(capacity))


def total(tree: Tree) -> jax.Array:
    """Sum of all priorities."""
    return jnp.sum(tree.sums[-1])


def priorities(tree: Tree, places: jax.Array) -> jax.Array:
    """Priorities of places, in their shape."""
    return tree.sums[0].at[places // FAN_OUT, places % FAN_OUT].get(mode="promise_in_bounds")


def draw(tree: Tree, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Places drawn in proportion to their priorities, independently; never one of priority zero."""
    count = int(np.prod(shape))
    luck = jax.random.uniform(key, (len(tree.sums), count))
    at = jnp.zeros((count,), jnp.int32)
    for level in reversed(range(len(tree.sums))):
        children_S = tree.sums[level].at[at].get(mode="promise_in_bounds")
        running_S = jnp.matmul(children_S, _UP_TO, precision=jax.lax.Precision.HIGHEST)
        possible_S = children_S > 0
        passed_S = possible_S & (running_S > luck[level][:, None] * running_S[:, -1:])
        last_S = FAN_OUT - 1 - jnp.argmax(possible_S[:, ::-1], axis=-1)  # where rounding lets no sum pass
        child = jnp.where(jnp.any(passed_S, axis=-1), jnp.argmax(passed_S, axis=-1), last_S)
        at = at * FAN_OUT + child.astype(jnp.int32)
    return at.reshape(shape)


def change(tree: Tree, places: jax.Array, new: jax.Array) -> Tree:
    """Give places new priorities, two arrays of one shape; a place that occurs twice gets the larger."""
    places, new = places.reshape(-1), new.reshape(-1)
    group, child = places // FAN_OUT, places % FAN_OUT
    leaves = tree.sums[0].at[group, child].set(0.0, mode="promise_in_bounds")
    leaves = leaves.at[group, child].max(new, mode="promise_in_bounds")
    return Tree(_summed_again((leaves, *tree.sums[1:]), group), jnp.maximum(tree.largest, jnp.max(new)))


def fill(tree: Tree, start: jax.Array, count: int) -> Tree:
    """Give `count` places from `start` on, which lie within the tree, the largest priority."""
    leaves, groups = tree.sums[0], tree.sums[0].shape[0]
    fresh = jnp.broadcast_to(tree.largest, (count,))
    filled = jax.lax.dynamic_update_slice(leaves.reshape(-1), fresh, (start,)).reshape(leaves.shape)
    touched = jnp.minimum(start // FAN_OUT + jnp.arange(count // FAN_OUT + 2), groups - 1)
    return Tree(_summed_again((filled, *tree.sums[1:]), touched), tree.largest)


def check(tree: Tree, size: int) -> None:
    """Raise ValueError for a loaded tree that draws what is not there, or whose sums are not those of its leaves."""
    leaves = np.asarray(tree.sums[0])
    if not np.isfinite(leaves).all() or leaves.min() < 0 or not np.isfinite(tree.largest) or tree.largest <= 0:
        raise ValueError("the checkpoint's priorities are not all finite and positive; it is damaged")
    if leaves.reshape(-1)[size:].any() or not leaves.reshape(-1)[:size].all():
        raise ValueError(f"the checkpoint's priorities are not those of its {size} transitions; it is damaged")
    for below, above in zip(tree.sums[:-1], tree.sums[1:], strict=True):
        sums = np.zeros(above.size)
        sums[: len(below)] = np.asarray(below, np.float64).sum(axis=-1)  # behind them is nothing that could be drawn
        if not np.allclose(np.asarray(above).reshape(-1), sums, rtol=1e-5, atol=0):
            raise ValueError("the checkpoint's sums of priorities do not fit its priorities; it is damaged")


def _groups(capacity: int) -> list[int]:
    """Groups of 16 in each level, from the leaves to the one of the root's children."""
    groups = [-(-capacity // FAN_OUT)]
    while groups[-1] > 1:
        groups.append(-(-groups[-1] // FAN_OUT))
    return groups


def _summed_again(sums: tuple[jax.Array, ...], group: jax.Array) -> tuple[jax.Array, ...]:
    """Recompute the sums above changed groups of leaves, level by level."""
    below, *above = sums
    levels = [below]
    for level in above:
        if below.shape[0] <= group.shape[0]:  # all of a narrow level is less work than a sum for each change
            every = jnp.sum(below, axis=-1)
            padded = jnp.zeros((level.size,), jnp.float32).at[: every.shape[0]].set(every)
            below = padded.reshape(level.shape)
        else:
            changed = jnp.sum(below.at[group].get(mode="promise_in_bounds"), axis=-1)
            below = level.at[group // FAN_OUT, group % FAN_OUT].set(changed, mode="promise_in_bounds")
        group = group // FAN_OUT
        levels.append(below)
    return tuple(levels)
