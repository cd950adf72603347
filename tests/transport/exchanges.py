"""What the tests of the transport have in common: a small form, parcels that show whose they are, processes."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hotloop.transport.form import Form
from hotloop.trees import Arrays, ArraySpec, leaves

PATIENCE = 20.0
"""Seconds after which a test fails that waits for another process."""


class Rows(NamedTuple):
    obs: dict[str, ArraySpec | np.ndarray]
    reward: ArraySpec | np.ndarray
    used: ArraySpec | np.ndarray


PARCEL = Rows(
    obs={"picture": ArraySpec((6, 5, 3), np.uint8), "place": ArraySpec((4, 2), np.float32)},
    reward=ArraySpec((4,), np.float64),
    used=ArraySpec((), np.int64),
)
WEIGHTS = {"torso/w": ArraySpec((7, 3), np.float32), "head/b": ArraySpec((5,), np.float32)}


def small_form(*, actors: int = 1, slots: int = 3) -> Form:
    return Form(actors=actors, slots=slots, parcel=PARCEL, weights=WEIGHTS)


def parcel_of(number: int) -> Rows:
    """Every value of every array is the number (modulo 256 where it is a byte)."""
    return Rows(
        {"picture": np.full((6, 5, 3), number % 256, np.uint8), "place": np.full((4, 2), number, np.float32)},
        np.full(4, number, np.float64),
        np.array(number, np.int64),
    )


def holds(arrays: Arrays, number: int) -> bool:
    """Whether all arrays are those of `parcel_of(number)`."""
    expected = leaves(parcel_of(number))
    return all(np.array_equal(one, other) for one, other in zip(leaves(arrays), expected, strict=True))


def weights_of(version: int) -> dict[str, np.ndarray]:
    return {name: np.full(spec.shape, version, spec.dtype) for name, spec in WEIGHTS.items()}


def spawned(target: Callable[..., None], *arguments: object) -> BaseProcess:
    process = get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def killed_by(process: BaseProcess) -> int | None:
    """The signal that ended it, None if it ended by itself."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "the process goes on"
    return -process.exitcode if process.exitcode < 0 else None


def dies_at(step: str) -> Callable[[str], None]:
    """A hook that kills the process the first time it comes to that step."""

    def reached(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only what is left of it for its parent to see."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
