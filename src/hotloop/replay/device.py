"""What a program on the device asks of its replay: pure functions of what is stored. `transitions.py` is the usual one,
`sequences.py` that of networks with a memory."""

from typing import Generic, NamedTuple, Protocol, TypeVar

import jax

from hotloop.replay.device_tree import Tree
from hotloop.replay.ring import Ring, Rows

Batches = TypeVar("Batches")
"""Samples with axes (K, B, …): transitions (`Item`), or `Sequences` of steps."""
Priorities = Tree | tuple[()]
"""Empty where all rows are as likely."""


class Storage(NamedTuple, Generic[Rows]):
    """All that a replay holds."""

    ring: Ring[Rows]
    priorities: Priorities = ()


class Drawn(NamedTuple, Generic[Batches]):
    """Batches drawn at once; with priorities also where they lie and what each sample weighs."""

    batches: Batches
    places: jax.Array | None = None
    weight_KB: jax.Array | None = None


class DeviceReplay(Protocol[Rows, Batches]):
    """Holds shapes and choices, never state."""

    capacity: int
    has_priorities: bool

    @property
    def row_bytes(self) -> int:
        """Memory of one sample in a batch."""

    def num_bytes(self) -> int:
        """Device memory of what it holds, before it is allocated."""

    def empty(self) -> Storage[Rows]:
        """Before the first block."""

    def insert(self, storage: Storage[Rows], rows: Rows) -> Storage[Rows]:
        """Store a block's rows."""

    def sample(self, storage: Storage[Rows], key: jax.Array, env_steps: jax.Array) -> Drawn[Batches]:
        """Draw the batches of a portion of a block's updates: of all of them, unless priorities move meanwhile."""

    def learned(
        self, priorities: Priorities, drawn: Drawn[Batches], td_KB: jax.Array, is_learning: jax.Array
    ) -> Priorities:
        """Priorities by the new TD errors; where one is not finite, or nothing was learned, the old ones."""

    def check(self, storage: Storage[Rows]) -> None:
        """Raise ValueError for a loaded storage, of one member or several, whose numbers point outside of it."""
