"""What a program on the device asks of its replay: pure functions of what is stored. `transitions.py` is the usual one,
`sequences.py` that of networks with a memory."""

from typing import Any, NamedTuple, Protocol

import jax

from hotloop.replay.ring import Ring


class Storage(NamedTuple):
    """All that a replay holds."""

    ring: Ring
    priorities: Any = ()  # of a prioritised replay: a device_tree.Tree


class Drawn(NamedTuple):
    """Batches (K, B, …) drawn at once; with priorities also where they lie and what each sample weighs."""

    batches: Any
    places: Any = None
    weight_KB: Any = None


class DeviceReplay(Protocol):
    """Holds shapes and choices, never state."""

    capacity: int
    has_priorities: bool

    @property
    def row_bytes(self) -> int:
        """Memory of one sample in a batch."""

    def num_bytes(self) -> int:
        """Device memory of what it holds, before it is allocated."""

    def empty(self) -> Storage:
        """Before the first block."""

    def insert(self, storage: Storage, items: Any) -> Storage:
        """Store a block's rows."""

    def sample(self, storage: Storage, key: jax.Array, env_steps: jax.Array) -> Drawn:
        """Draw the batches of a portion of a block's updates: of all of them, unless priorities move meanwhile."""

    def learned(self, priorities: Any, drawn: Drawn, td_KB: jax.Array, is_learning: jax.Array) -> Any:
        """Priorities by the new TD errors; where one is not finite, or nothing was learned, the old ones."""

    def check(self, storage: Storage) -> None:
        """Raise ValueError for a loaded storage, of one member or several, whose numbers point outside of it."""
