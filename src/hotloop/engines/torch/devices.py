"""Several devices: each takes its share of every batch, and all take the same step.

The one who asks (`Team`) is the first of them; the others are processes with a copy of the state each. What
DistributedDataParallel does for the weights of a module, bucket by bucket, is one operation here: the gradient is one
vector, and its mean over the devices is what all of them follow. So their weights stay the same to the bit.
"""

import atexit
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as distributed

from hotloop import plugins
from hotloop.engines.torch.gradient_steps import GradientSteps, LearnerState, Slope, Stepped, Work, fresh_state
from hotloop.engines.torch.network import QNetwork
from hotloop.engines.torch.setup import DEVICE
from hotloop.errors import DeviceFailed, SpecError
from hotloop.interrupts import interrupts_held_back
from hotloop.spec import Spec
from hotloop.trees import Shapes, leaves, tree_map, with_leaves

PATIENCE = timedelta(minutes=5)
"""How long a device waits for the others at a gradient step."""
START_SECONDS = 120
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_INTERFACES = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
"""Devices of one machine: nothing listens to the network, whatever else is set for other programs."""


class Recipe(NamedTuple):
    """All that another process needs to make the same network."""

    spec: Spec
    obs: Shapes
    num_actions: int
    network: object
    numbers: torch.dtype

    def made_for(self, device: torch.device) -> QNetwork:
        """The network on a device."""
        return QNetwork(*self, device)


class Task(NamedTuple):
    """What another device is asked to do: leaves of the state that are new to it, and its share of the work."""

    changed: dict[int, np.ndarray]
    share: Work


class Team:
    """`GradientSteps` on several devices; the other processes start with the first step and end with `close`."""

    def __init__(self, recipe: Recipe, network: QNetwork) -> None:
        """`network` is that of this process."""
        self._recipe, self._network, self._count = recipe, network, recipe.spec.devices
        self._steps = GradientSteps(recipe.spec, network, in_place=True, reduce=self._mean)
        self._others: list[tuple[BaseProcess, Connection]] = []
        self._known: list[Any] = []  # leaves of the state that the others have
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._environment: dict[str, str | None] = {}  # as it was before

    def __call__(self, state: LearnerState, work: Work) -> Stepped:
        """As `GradientSteps`; batches, weights and draws are arrays on the host."""
        if not self._others:
            self._start()
        given: list[Any] = leaves(state)
        known = self._known or [None] * len(given)
        new = {i: leaf.cpu().numpy() for i, (leaf, old) in enumerate(zip(given, known, strict=True)) if leaf is not old}
        self._known = []  # until all have done it
        try:
            for rank, (_, pipe) in enumerate(self._others, 1):
                pipe.send(Task(new, _share(rank, self._count, work)))
            stepped = self._steps(state, _put(_share(0, self._count, work), self._network.device))
            errors = [stepped.td_KB, *(self._answer(rank) for rank in range(1, self._count))]
        except (OSError, EOFError, RuntimeError) as error:  # a pipe that broke, or a sum that nobody else came to
            raise self._failed(error) from error
        self._known = leaves(stepped.state)
        return stepped._replace(td_KB=torch.cat(errors, dim=1))

    def _answer(self, rank: int) -> torch.Tensor:
        answer = self._others[rank - 1][1].recv()
        if isinstance(answer, str):
            raise DeviceFailed(f"device {rank} failed: {answer}")
        return torch.from_numpy(answer).to(self._network.device)

    def _mean(self, slope: Slope) -> Slope:
        return _mean_over_devices(slope, self._count)

    def _failed(self, error: Exception) -> DeviceFailed:
        """Say who is gone, by what they said or by how they ended."""
        for rank, (process, pipe) in enumerate(self._others, 1):
            said = None
            with contextlib.suppress(OSError, EOFError):
                while said is None and pipe.poll(1):
                    answer = pipe.recv()
                    said = answer if isinstance(answer, str) else None
            process.join(1)
            if said is not None or not process.is_alive():
                how = said or f"its process ended with exit code {process.exitcode}"
                return DeviceFailed(f"device {rank} of {self._count} failed: {how}")
        return DeviceFailed(f"devices could not learn together: {type(error).__name__}: {error}")

    def _start(self) -> None:
        spec, device, seen = self._recipe.spec, self._network.device, torch.cuda.device_count()
        if device.index is not None:
            raise SpecError(f"devices is {spec.devices}, but {DEVICE} names one, {device}; use cuda, or cpu")
        if device.type == "cuda" and seen < spec.devices:
            raise SpecError(f"devices is {spec.devices}, but torch sees {seen} GPU(s); use at most that many")
        if distributed.is_initialized():
            raise SpecError("devices > 1: this process is already part of a torch.distributed group; use devices: 1")
        self._environment = {name: os.environ.get(name) for name in _INTERFACES}
        self._folder = tempfile.TemporaryDirectory(prefix="hotloop-devices-")
        meeting, context = Path(self._folder.name) / "meeting", get_context("spawn")
        with interrupts_held_back():
            for rank in range(1, self._count):
                here, there = context.Pipe()
                work = (rank, meeting, there, spec.plugins, torch.get_num_threads(), self._network.device.type)
                process = context.Process(target=_work, args=work, daemon=True, name=f"hotloop-device-{rank}")
                process.start()
                there.close()
                self._others.append((process, here))
        atexit.register(self.close)  # before multiprocessing's own end, which waits for them
        for _, pipe in self._others:
            try:
                pipe.send(self._recipe)
            except OSError:  # it is gone, which is found out below
                continue
            except Exception as error:  # whatever pickle raises about code of the user's own
                self.close()
                raise SpecError(
                    f"devices is {spec.devices}, but the network cannot travel to another process: {error}; define "
                    "it at the top of a module"
                ) from error
        for rank, (_, pipe) in enumerate(self._others, 1):
            try:
                said = pipe.recv() if pipe.poll(START_SECONDS) else f"it did not start within {START_SECONDS} s"
            except (EOFError, OSError):
                said = (
                    "its process ended while it started; a script that trains on several devices does so below "
                    "if __name__ == '__main__':, as others import it"
                )
            if said:
                self.close()
                raise SpecError(f"devices is {spec.devices}, but device {rank} cannot be used: {said}")
        try:
            _meet(0, self._count, meeting, self._network.device.type)
        except RuntimeError as error:  # someone else is gone meanwhile
            raise self._failed(error) from error

    def close(self) -> None:
        """End the other processes."""
        atexit.unregister(self.close)
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment = {}
        others, self._others, self._known = self._others, [], []
        for _, pipe in others:
            pipe.close()  # which ends whoever waits for work
        for process, _ in others:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        if others and distributed.is_initialized():
            distributed.destroy_process_group()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _work(rank: int, meeting: Path, pipe: Connection, plugin_names: tuple[str, ...], threads: int, kind: str) -> None:
    """What another process does, until nobody asks any more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the one who asks saves the run, and then asks no more
    try:
        torch.set_num_threads(threads)
        plugins.import_named(plugin_names)
        recipe: Recipe = pipe.recv()
        count, device = recipe.spec.devices, torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
        network = recipe.made_for(device)
        steps = GradientSteps(
            recipe.spec, network, in_place=True, reduce=lambda slope: _mean_over_devices(slope, count)
        )
        pipe.send("")
        _meet(rank, count, meeting, kind)
        _take_part(pipe, steps, fresh_state(recipe.spec, network, seed=0), device)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the one who asks is gone
    except Exception as error:
        with contextlib.suppress(OSError):
            pipe.send(f"{type(error).__name__}: {error}")


def _take_part(pipe: Connection, steps: Callable[..., Stepped], state: LearnerState, device: torch.device) -> None:
    while True:
        task: Task = pipe.recv()
        known: list[Any] = leaves(state)
        for i, array in task.changed.items():
            known[i] = torch.from_numpy(array).to(device)
        stepped = steps(with_leaves(state, known), _put(task.share, device))
        state = stepped.state
        pipe.send(stepped.td_KB.cpu().numpy())


def _meet(rank: int, count: int, meeting: Path, kind: str) -> None:
    os.environ.update(_INTERFACES)
    distributed.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=meeting.as_uri(),
        rank=rank,
        world_size=count,
        timeout=PATIENCE,
    )


@torch.no_grad()
def _mean_over_devices(slope: Slope, count: int) -> Slope:
    """The slope of the whole batch: the mean of those of its equal shares; TD errors stay where they are."""
    together = torch.cat([slope.gradient, slope.loss[None], slope.q[None]])
    distributed.all_reduce(together)
    together /= count
    return Slope(together[:-2], together[-2], slope.td_B, together[-1])


def _share(rank: int, count: int, work: Work) -> Work:
    """One device's rows of each batch: all arrays are (K, B, …), but noise, which is common to a batch."""

    def rows(array: np.ndarray) -> np.ndarray:
        size = array.shape[1] // count
        return array[:, rank * size : (rank + 1) * size]

    draws = work.draws_K
    given = None if draws is None else draws._replace(given=tree_map(rows, draws.given))
    return work._replace(batches=tree_map(rows, work.batches), weight_KB=tree_map(rows, work.weight_KB), draws_K=given)


def _put(work: Work, device: torch.device) -> Work:
    arrays = (work.batches, work.weight_KB, work.draws_K)
    batches, weight_KB, draws_K = tree_map(lambda array: torch.from_numpy(np.array(array)).to(device), arrays)
    return work._replace(batches=batches, weight_KB=weight_KB, draws_K=draws_K)
