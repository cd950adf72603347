"""Stretches of consecutive steps out of a device ring, each with the memory the network had at its beginning.

The ring is that of `ring.py`: a vector step is N rows side by side, one per env, so the next step of an env lies N rows
further on. The memory is stored with every step: every step can then begin a stretch, with exactly the memory it was
played with, and inserts stay plain copies. That costs size x 4 bytes a step (an LSTM twice that), which the memory plan
counts; storing it every k steps would save most of it, at the price of stretches that begin at those steps only.
"""

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.experience import Sequences
from hotloop.replay import ring
from hotloop.replay.device import Drawn, Priorities, Storage
from hotloop.spec import Spec
from hotloop.trees import Form, HasShape, Shapes, Tree

A = TypeVar("A")


class Step(NamedTuple, Generic[A]):
    """One step of one env, as it is stored. γ and termination are folded into `discount_t`.

    There is no next observation: it is that of the next step of the env, unless the episode ended in between.
    """

    obs: Tree[A]
    action: A
    r_t: A
    discount_t: A
    first: A  # whether the step begins an episode
    truncated: A  # ended without being terminated: the observation to bootstrap from is lost
    memory: Tree[A]  # before the step


Steps = Step[jax.Array]


class SequenceReplay:
    """A `replay.device.DeviceReplay` without priorities."""

    has_priorities = False

    def __init__(self, spec: Spec, row: Step[HasShape], length: int, burn_in: int) -> None:
        """`row` has the shapes of one step; a gradient step learns `length` of them, after `burn_in` more."""
        self.row, self.length, self.burn_in, block = row, length, burn_in, spec.block_plan
        self._num_envs, self._rows_per_block = block.num_envs, block.env_steps
        self.capacity = ring.whole_blocks(spec.replay.capacity, block.env_steps)
        self._shape = (block.updates, spec.replay.batch_size)

    @property
    def row_bytes(self) -> int:
        """Memory of one sequence in a batch."""
        steps = ring.num_bytes(self.burn_in + self.length + 1, self.row._replace(memory=()))
        return steps + ring.num_bytes(1, self.row.memory)

    def num_bytes(self) -> int:
        """Device memory of the ring, before it is allocated."""
        return ring.num_bytes(self.capacity, self.row)

    def empty(self) -> Storage[Steps]:
        """Before the first block."""
        return Storage(ring.empty(self.capacity, self.row))

    def insert(self, storage: Storage[Steps], rows: Steps) -> Storage[Steps]:
        """Store a block's steps."""
        return Storage(ring.insert(storage.ring, rows))

    def sample(self, storage: Storage[Steps], key: jax.Array, env_steps: jax.Array) -> Drawn[Sequences[jax.Array]]:
        """Draw a block's batches of sequences."""
        del env_steps
        return Drawn(sample(storage.ring, key, self._shape, self._num_envs, self.length, self.burn_in))

    def learned(
        self, priorities: Priorities, drawn: Drawn[Sequences[jax.Array]], td_KB: jax.Array, is_learning: jax.Array
    ) -> Priorities:
        """There are none."""
        del drawn, td_KB, is_learning
        return priorities

    def check(self, storage: Storage[Steps]) -> None:
        """Raise ValueError for a loaded storage whose numbers point outside the ring: nothing checks them later."""
        ring.check(storage.ring, self.capacity, self._rows_per_block)


def row_example(obs: Shapes, memory: Shapes) -> Step[HasShape]:
    """Shapes and dtypes of one row, given those of one observation and one memory."""
    number, flag = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.bool_)
    return Step(obs, jax.ShapeDtypeStruct((), np.int32), number, number, flag, flag, memory)


def sample(
    stored: ring.Ring[Step[jax.Array]], key: jax.Array, shape: tuple[int, ...], num_envs: int, length: int, burn_in: int
) -> Sequences[jax.Array]:
    """Draw stretches uniformly, with replacement, among all that lie between the oldest and the newest step."""
    starts = jnp.maximum(stored.size // num_envs - (burn_in + length), 1)  # 0 before learning starts: drawn, not used
    draws = jax.random.bits(key, shape, jnp.uint32) % (starts * num_envs).astype(jnp.uint32)
    return gather(stored, draws.astype(jnp.int32), num_envs, length, burn_in)


def gather(
    stored: ring.Ring[Step[jax.Array]], start: jax.Array, num_envs: int, length: int, burn_in: int
) -> Sequences[jax.Array]:
    """Stretches that begin at rows `start`, counted from the oldest row of the ring."""
    rows = stored.rows
    capacity = rows.r_t.shape[0]
    begin = stored.position - stored.size + start + capacity  # of the ring; at least 0
    steps = jnp.arange(burn_in + length + 1, dtype=jnp.int32) * num_envs
    every = (begin[..., None] + steps) % capacity
    learned = every[..., burn_in:-1]

    def at(part: Form, index: jax.Array) -> Form:
        taken: Form = jax.tree.map(lambda leaf: leaf.at[index].get(mode="promise_in_bounds"), part)
        return taken

    return Sequences(
        obs=at(rows.obs, every),
        first=at(rows.first, every),
        a_tm1=at(rows.action, learned),
        r_t=at(rows.r_t, learned),
        discount_t=at(rows.discount_t, learned),
        truncated=at(rows.truncated, learned),
        memory=at(rows.memory, every[..., 0]),
    )
