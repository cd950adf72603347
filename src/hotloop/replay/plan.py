"""How much memory a run will need, said before it is allocated."""

import os
from typing import NamedTuple

import psutil

from hotloop.memory_left import left_by_groups
from hotloop.plain import Figures

MiB = 1 << 20


class MemoryPlan(NamedTuple):
    """Bytes of each part, and what the machine has to offer; `beside` is what lies in another memory, if there is one.

    A GPU has a memory of its own: the replay of a Gymnasium env stays on the host, weights and batches do not.
    """

    parts: dict[str, int]
    available: int
    remedies: tuple[str, ...] = ()
    largest_choice: str = "replay.capacity"
    where: str = "memory"
    beside: "MemoryPlan | None" = None

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def refusal(self) -> str | None:
        """One line when it does not fit, with remedies; None when it does."""
        if self.total <= self.available:
            return self.beside.refusal() if self.beside else None
        remedies = ", or ".join((f"lower {self.largest_choice}", *self.remedies))
        largest = max(self.parts, key=lambda name: self.parts[name])
        return (
            f"this run needs {readable(self.total)} of {self.where} ({largest}: {readable(self.parts[largest])}) "
            f"but {readable(self.available)} is available; {remedies}"
        )

    def as_json(self) -> Figures:
        """The figures; `beside` only where there is a second memory."""
        plan: Figures = {"parts": {**self.parts}, "total": self.total, "available": self.available}
        return {**plan, "beside": self.beside.as_json()} if self.beside else plan

    def __str__(self) -> str:
        """One line for people."""
        parts = ", ".join(f"{name} {readable(size)}" for name, size in self.parts.items())
        line = f"{self.where}: {parts}; total {readable(self.total)} of {readable(self.available)} available"
        return f"{line}; {self.beside}" if self.beside else line


def readable(size: int) -> str:
    """Bytes with a unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", MiB), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def available_host_memory() -> int:
    """Bytes that can be had without swapping, inside this process's container. Tests set HOTLOOP_MEMORY_LIMIT."""
    free = min([int(psutil.virtual_memory().available), *left_by_groups().values()])
    return min(free, int(os.environ.get("HOTLOOP_MEMORY_LIMIT", free)))
