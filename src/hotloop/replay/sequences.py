"""Stretches of consecutive steps out of a device ring, each with the memory the network had at its beginning.

The ring is that of `ring.py`: a vector step is N rows side by side, one per env, so the next step of an env lies N rows
further on. The memory is stored with every step: every step can then begin a stretch, with exactly the memory it was
played with, and inserts stay plain copies. That costs size x 4 bytes a step (an LSTM twice that), which the memory plan
counts; storing it every k steps would save most of it, at the price of stretches that begin at those steps only.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.replay import ring
from hotloop.replay.device import Drawn, Storage
from hotloop.spec import Spec


class Step(NamedTuple):
    """One step of one env, as it is stored. γ and termination are folded into `discount_t`.

    There is no next observation: it is that of the next step of the env, unless the episode ended in between.
    """

    obs: Any
    action: Any
    r_t: Any
    discount_t: Any
    first: Any  # whether the step begins an episode
    truncated: Any  # ended without being terminated: the observation to bootstrap from is lost
    memory: Any  # before the step


class Sequences(NamedTuple):
    """A batch of stretches of S = burn-in + L + 1 steps; the first L behind the burn-in are learned from.

    `obs` and `first` are (…, S), what belongs to the learned steps is (…, L), `memory` is that of the first step.
    """

    obs: Any
    first: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    truncated: Any
    memory: Any


class SequenceReplay:
    """A `replay.device.DeviceReplay` without priorities."""

    has_priorities = False

    def __init__(self, spec: Spec, row: Step, length: int, burn_in: int) -> None:
        """`row` has the shapes of one step; a gradient step learns `length` of them, after `burn_in` more."""
        self.row, self.length, self.burn_in, block = row, length, burn_in, spec.block_plan
        self._num_envs, self._rows_per_block = block.num_envs, block.env_steps
        self.capacity = ring.whole_blocks(spec.replay.capacity, block.env_steps)
        self._shape = (block.updates, spec.replay.batch_size)

    @property
    def row_bytes(self) -> int:
        """Memory of one sequence in a batch."""
        row: Any = self.row
        steps = ring.num_bytes(self.burn_in + self.length + 1, row._replace(memory=()))
        return steps + ring.num_bytes(1, row.memory)

    def num_bytes(self) -> int:
        """Device memory of the ring, before it is allocated."""
        row: Any = self.row
        return ring.num_bytes(self.capacity, row)

    def empty(self) -> Storage:
        """Before the first block."""
        row: Any = self.row
        return Storage(ring.empty(self.capacity, row))

    def insert(self, storage: Storage, items: Any) -> Storage:
        """Store a block's steps."""
        return Storage(ring.insert(storage.ring, items))

    def sample(self, storage: Storage, key: jax.Array, env_steps: jax.Array) -> Drawn:
        """Draw a block's batches of sequences."""
        del env_steps
        return Drawn(sample(storage.ring, key, self._shape, self._num_envs, self.length, self.burn_in))

    def learned(self, priorities: Any, drawn: Drawn, td_KB: jax.Array, is_learning: jax.Array) -> Any:
        """There are none."""
        del drawn, td_KB, is_learning
        return priorities

    def check(self, storage: Storage) -> None:
        """Raise ValueError for a loaded storage whose numbers point outside the ring: nothing checks them later."""
        ring.check(storage.ring, self.capacity, self._rows_per_block)


def row_example(obs: Any, memory: Any) -> Step:
    """Shapes and dtypes of one row, given those of one observation and one memory."""
    number, flag = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.bool_)
    return Step(obs, jax.ShapeDtypeStruct((), np.int32), number, number, flag, flag, memory)


def sample(
    kept: ring.Ring, key: jax.Array, shape: tuple[int, ...], num_envs: int, length: int, burn_in: int
) -> Sequences:
    """Draw stretches uniformly, with replacement, among all that lie between the oldest and the newest step."""
    starts = jnp.maximum(kept.size // num_envs - (burn_in + length), 1)  # 0 before learning starts: drawn, not used
    draws = jax.random.bits(key, shape, jnp.uint32) % (starts * num_envs).astype(jnp.uint32)
    return gather(kept, draws.astype(jnp.int32), num_envs, length, burn_in)


def gather(kept: ring.Ring, start: jax.Array, num_envs: int, length: int, burn_in: int) -> Sequences:
    """Stretches that begin at rows `start`, counted from the oldest row of the ring."""
    rows: Any = kept.rows
    capacity = rows.r_t.shape[0]
    begin = kept.position - kept.size + start + capacity  # of the ring; at least 0
    steps = jnp.arange(burn_in + length + 1, dtype=jnp.int32) * num_envs
    every = (begin[..., None] + steps) % capacity
    learned = every[..., burn_in:-1]

    def at(stored: Any, index: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf.at[index].get(mode="promise_in_bounds"), stored)

    return Sequences(
        obs=at(rows.obs, every),
        first=at(rows.first, every),
        a_tm1=at(rows.action, learned),
        r_t=at(rows.r_t, learned),
        discount_t=at(rows.discount_t, learned),
        truncated=at(rows.truncated, learned),
        memory=at(rows.memory, every[..., 0]),
    )
