"""The usual replay on the device: transitions in a ring, drawn evenly or by priority."""

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.experience import Item
from hotloop.learning import schedules
from hotloop.replay import device_tree, ring
from hotloop.replay.device import Drawn, Priorities, Storage
from hotloop.spec import Prioritized, Spec
from hotloop.trees import ArraySpec

Transitions = Item[jax.Array]


class TransitionReplay:
    """A `replay.device.DeviceReplay`."""

    def __init__(self, spec: Spec, row: Item[ArraySpec], rows_per_block: int | None = None) -> None:
        """`row` has the shapes of one transition; a block brings as many as it has env steps, or `rows_per_block`."""
        self.row, self._rows_per_block = row, rows_per_block or spec.block_plan.env_steps
        self.capacity = ring.whole_blocks(spec.replay.capacity, self._rows_per_block)
        self._shape = (spec.batches_per_draw, spec.replay.batch_size)
        self._sampling = spec.replay.sampling if isinstance(spec.replay.sampling, Prioritized) else None
        self.has_priorities = self._sampling is not None

    @property
    def row_bytes(self) -> int:
        """Memory of one transition in a batch."""
        return ring.num_bytes(1, self.row)

    def num_bytes(self) -> int:
        """Device memory of rows and priorities, before it is allocated."""
        of_tree = device_tree.num_bytes(self.capacity) if self._sampling else 0
        return ring.num_bytes(self.capacity, self.row) + of_tree

    def empty(self) -> Storage[Transitions]:
        """Before the first block."""
        priorities = device_tree.empty(self.capacity) if self._sampling else ()
        return Storage(ring.empty(self.capacity, self.row), priorities)

    def insert(self, storage: Storage[Transitions], items: Transitions) -> Storage[Transitions]:
        """Store a block's transitions; new ones are as likely as the likeliest so far."""
        rows, priorities = storage
        if isinstance(priorities, device_tree.Tree):
            priorities = device_tree.fill(priorities, rows.position, self._rows_per_block)
        return Storage(ring.insert(rows, items), priorities)

    def sample(self, storage: Storage[Transitions], key: jax.Array, env_steps: jax.Array) -> Drawn[Transitions]:
        """Draw the batches of a portion of a block's updates: of all of them, unless priorities move meanwhile."""
        rows, priorities = storage
        if self._sampling is None or not isinstance(priorities, device_tree.Tree):
            return Drawn(ring.sample(rows, key, self._shape))
        places_KB = device_tree.draw(priorities, key, self._shape)
        priority_KB = device_tree.priorities(priorities, places_KB)
        beta = schedules.value_at(env_steps.astype(jnp.float32), xp=jnp, **self._sampling.beta.model_dump())
        # (size x probability)^-beta relative to the largest of each batch: size and total cancel out.
        weight_KB = (jnp.min(priority_KB, axis=-1, keepdims=True) / priority_KB) ** beta
        return Drawn(ring.gather(rows, places_KB), places_KB, weight_KB)

    def learned(
        self, priorities: Priorities, drawn: Drawn[Transitions], td_KB: jax.Array, is_learning: jax.Array
    ) -> Priorities:
        """Priorities by the new TD errors; where one is not finite, or nothing was learned, the old ones."""
        if self._sampling is None or not isinstance(priorities, device_tree.Tree) or drawn.places is None:
            return priorities
        new_KB = (jnp.abs(td_KB) + self._sampling.epsilon) ** self._sampling.alpha
        new_KB = jnp.minimum(new_KB, device_tree.LARGEST)
        old_KB = device_tree.priorities(priorities, drawn.places)
        new_KB = jnp.where(is_learning & jnp.isfinite(td_KB), new_KB, old_KB)
        return device_tree.change(priorities, drawn.places, new_KB)

    def check(self, storage: Storage[Transitions]) -> None:
        """Raise ValueError for a loaded storage whose numbers point outside the ring: nothing checks them later."""
        ring.check(storage.ring, self.capacity, self._rows_per_block)
        if self.has_priorities:
            sizes = np.asarray(storage.ring.size)  # one, or one per member
            for member in np.ndindex(sizes.shape):
                tree = jax.tree.map(lambda leaf, at=member: leaf[at], storage.priorities)
                device_tree.check(tree, int(sizes[member]))
