"""The pipeline of `mario_original.py` in processes: collectors in spawned ones, the learner in this one.

It can rest: collectors stop between two turns until they are asked to go on, so that several pipelines take turns.
"""

import contextlib
import queue
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from typing import NamedTuple

from hotloop.bench.mario_original import (
    Channel,
    Collector,
    Handed,
    Learner,
    Sender,
    Sizes,
    Switches,
    set_threads,
    threads_of,
)
from hotloop.bench.mario_original_network import Weights
from hotloop.interrupts import interrupts_held_back
from hotloop.transport.lifeline import end_with_parent

START_SECONDS, END_SECONDS = 120.0, 10.0
NAP_SECONDS = 0.001


class Ran(NamedTuple):
    """What a piece of a pipeline came to, of all its pieces together."""

    seconds: float = 0.0
    taken: int = 0
    """Experiences that the learner has got."""
    batches: int = 0
    episodes: int = 0
    learning_seconds: float = 0.0
    """Of the learner: gradient steps."""
    syncs: int = 0
    handed: int = 0
    dropped: int = 0
    lock_seconds: float = 0.0
    handing_seconds: float = 0.0

    def and_then(self, other: "Ran") -> "Ran":
        """Both."""
        return Ran(**{name: getattr(self, name) + getattr(other, name) for name in self._fields})


class Pipeline:
    """Collectors that play when they are asked to, and a learner that may be idle."""

    def __init__(self, sizes: Sizes, switches: Switches, *, learns: bool = True) -> None:
        context = get_context("spawn")
        self.switches, self.learner = switches, Learner(sizes, switches) if learns else None
        self._channel = Channel(context, sizes, switches)
        self._going, self._processes = context.Event(), list[BaseProcess]()
        self._weights: list[Queue[Weights]] = [context.Queue(1) for _ in range(switches.collectors)]
        self._counts = [context.Array("d", len(Handed._fields)) for _ in range(switches.collectors)]
        self._ready = [context.Event() for _ in range(switches.collectors)]
        for number in range(switches.collectors):
            ends = self._channel, self._weights[number], self._going, self._ready[number], self._counts[number]
            process = context.Process(target=_collect, args=(sizes, switches, number, *ends), daemon=True)
            with interrupts_held_back():
                process.start()
            self._processes.append(process)

    def wait_until_ready(self) -> None:
        """All collectors have their game."""
        until = time.monotonic() + START_SECONDS
        for number, ready in enumerate(self._ready):
            if not ready.wait(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"collector {number} of this benchmark has not begun in {START_SECONDS:.0f} s")

    def warm_up(self) -> None:
        """Until the learner has made its first optimiser step, and what is compiled is."""
        learner = self.learner
        assert learner is not None
        with threads_of(self.switches), self._playing():
            while not learner.can_learn:
                learner.store(self._channel.take())
                self._nap()
        with threads_of(self.switches):  # collectors rest: a compiler wants all cores
            while learner.batches < self.switches.accumulates:
                learner.learn(learner.draw())

    def run(self, seconds: float, fewest_batches: int = 0) -> Ran:
        """For so long, until so many batches are done, and the one that was begun: what came of fewer says nothing."""
        learner, left = self.learner, self._channel.take()
        if learner:
            learner.store(left)  # sent while all came to rest, and not counted
        before, syncs = self._handed(), 0
        batches, episodes = (learner.batches, learner.episodes) if learner else (0, 0)
        taken, learning = 0, 0.0
        with threads_of(self.switches), self._playing():
            began = time.perf_counter()
            while time.perf_counter() - began < seconds or (learner and learner.batches - batches < fewest_batches):
                came, spent, synced = self._turn()
                taken, learning, syncs = taken + came, learning + spent, syncs + synced
            passed, after = time.perf_counter() - began, self._handed()
        if learner:
            batches, episodes = learner.batches - batches, learner.episodes - episodes
        ran = Ran(passed, taken, batches, episodes, learning, syncs)
        return ran._replace(
            handed=after.experiences - before.experiences,
            dropped=after.dropped - before.dropped,
            lock_seconds=after.lock_seconds - before.lock_seconds,
            handing_seconds=after.seconds - before.seconds,
        )

    def close(self) -> None:
        """End all collectors."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(END_SECONDS)
        for each in (*self._channel.queues, *self._weights):
            each.cancel_join_thread()
            each.close()

    def _turn(self) -> tuple[int, float, int]:
        """Take what has come, learn from a batch, hand out weights; how many, how long, and whether it did."""
        experiences = self._channel.take()
        if self.learner is None:
            if not experiences:
                self._nap()
            return len(experiences), 0.0, 0
        self.learner.store(experiences)
        if not self.learner.can_learn:
            self._nap()
            return len(experiences), 0.0, 0
        drawn, began = self.learner.draw(), time.perf_counter()
        self.learner.learn(drawn)
        spent, weights = time.perf_counter() - began, self.learner.weights_if_due()
        if weights is None:
            return len(experiences), spent, 0
        for each in self._weights:
            with contextlib.suppress(queue.Empty):  # older ones that its collector has not looked at
                each.get_nowait()
            with contextlib.suppress(queue.Full):
                each.put_nowait(weights)
        return len(experiences), spent, 1

    def _nap(self) -> None:
        for number, process in enumerate(self._processes):
            if not process.is_alive():
                raise ValueError(f"collector {number} of this benchmark ended early; its error is above")
        time.sleep(NAP_SECONDS)

    def _handed(self) -> Handed:
        counts = [each[:] for each in self._counts]
        experiences, dropped, *seconds = (sum(column) for column in zip(*counts, strict=True))
        return Handed(int(experiences), int(dropped), *seconds)

    @contextlib.contextmanager
    def _playing(self) -> Iterator[None]:
        self._going.set()
        try:
            yield
        finally:
            self._going.clear()


def _collect(
    sizes: Sizes,
    switches: Switches,
    number: int,
    channel: Channel,
    weights: "Queue[Weights]",
    going: Event,
    ready: Event,
    counts: "SynchronizedArray[float]",
) -> None:
    """Play whenever it is asked for, until the process is ended."""
    end_with_parent()
    set_threads(switches)
    sender = Sender(channel, number)
    sender.leave()
    collector = Collector(sizes, switches, sender.send, number)
    ready.set()
    while going.wait():
        with contextlib.suppress(queue.Empty):
            collector.take(weights.get_nowait())
        collector.turn()
        counts[:] = sender.handed
