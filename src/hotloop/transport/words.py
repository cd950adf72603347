"""Single numbers in shared memory, and what may be relied on when one process writes them and another reads them.

Each word has one process that writes it. Beyond that, all of this package rests on three facts:

- A word is eight aligned bytes, and NumPy stores and loads an aligned int64 as one (it assigns a C `long`), so a reader
  sees the number before or the number after, never a mixture.
- x86 lets no store pass an earlier store, no load an earlier load, and no store an earlier load (total store order). So
  whoever sees a word that was stored after a copy sees the copy, and what was loaded before a word is stored was there.
  Large copies may use stores that do not keep that order; `memcpy` ends them with a fence of its own (`sfence`), so
  they never come after a later word. They may come before an *earlier* one: where that matters, `fence` is in between.
- A load may pass an earlier store. Where each side stores and then looks at what the other has stored, `fence` is
  needed too; nothing here does so, as bells are always rung (`bell.py`).

No compiler reorders any of this, as each load and store is a call of its own into NumPy; only the machine could, and
one that is not x86 would: it is refused (`memory.py`).
"""

import threading

import numpy as np

WORD_BYTES = 8


class Word:
    """One int64 in shared memory."""

    __slots__ = ("_cell",)

    def __init__(self, memory: np.ndarray, index: int) -> None:
        """The word at so many words from the start of `memory` (bytes)."""
        self._cell = memory[index * WORD_BYTES : (index + 1) * WORD_BYTES].view(np.int64)
        if not self._cell.flags.aligned:
            raise ValueError("a word must lie at a multiple of eight bytes, else it is not written at once")

    def load(self) -> int:
        """The number."""
        return int(self._cell.item())

    def store(self, value: int) -> None:
        """Replace it; only the one process that writes it does so."""
        self._cell[0] = value

    def add(self, value: int) -> None:
        """Increase it: not at once, but nobody else writes."""
        self._cell[0] = self._cell.item() + value


def fence() -> None:
    """Let no load and no store of this thread pass, in either direction.

    Python has no word for that, but to take a lock that is free is one locked instruction of x86, which is a barrier.
    """
    with _LOCK:
        pass


_LOCK = threading.Lock()
