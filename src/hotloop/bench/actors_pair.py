"""The actor and the learner of `actors_original.py` in two processes, which share buffer, model and locks.

Asked to, each does so many turns or batches and says how long they took; it goes on until the other is done too, so
that both were hindered all the while. In between they rest.
"""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch
from torch import multiprocessing

from hotloop.bench.actors_original import Actor, Learner, Shared, Switches
from hotloop.interrupts import interrupts_held_back
from hotloop.transport.lifeline import end_with_parent

PATIENCE = 600.0


class Took(NamedTuple):
    """Seconds of each."""

    actor: float
    learner: float

    @property
    def both(self) -> float:
        """Until the slower one was done."""
        return max(self)


class Pair:
    """Two processes."""

    def __init__(self, switches: Switches) -> None:
        context = multiprocessing.get_context("spawn")
        self._shared, self._processes, self._ends = Shared(context, switches), list[BaseProcess](), list[Connection]()
        for target in (_act, _learn):
            here, there = context.Pipe()
            process = context.Process(target=target, args=(there, self._shared, switches), daemon=True)
            with interrupts_held_back():
                process.start()
            there.close()
            self._processes.append(process)
            self._ends.append(here)

    def run(self, turns: int, batches: int) -> Took:
        """So many turns of the actor beside so many batches of the learner."""
        for end, count in zip(self._ends, (turns, batches), strict=True):
            end.send(count)
        took = Took(*(self._receive(end) for end in self._ends))
        for end in self._ends:
            end.send(0)
        for end in self._ends:
            self._receive(end)  # it rests
        while not self._shared.log.empty():
            self._shared.log.get()
        return took

    def close(self) -> None:
        """End both."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(PATIENCE)

    def _receive(self, end: Connection) -> float:
        if not end.poll(PATIENCE):
            raise TimeoutError(f"a process of this benchmark said nothing for {PATIENCE:.0f} s")
        return float(end.recv())


def _act(end: Connection, shared: Shared, switches: Switches) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    actor = Actor(shared, switches)

    def turn() -> int:
        actor.turn()
        return 1

    _serve(end, turn)


def _learn(end: Connection, shared: Shared, switches: Switches) -> None:
    end_with_parent()
    torch.set_num_threads(1)
    learner = Learner(shared, switches)

    def turn() -> int:
        return switches.batches_per_turn if learner.turn() else 0

    _serve(end, turn)


def _serve(end: Connection, turn: Callable[[], int]) -> None:
    """Work whenever it is asked for, until the pipe is closed."""
    try:
        while True:
            wanted, done, began = int(end.recv()), 0, time.perf_counter()
            while done < wanted:
                done += turn()
            end.send(time.perf_counter() - began)
            while not end.poll():
                turn()
            end.recv()
            end.send(0.0)
    except EOFError:
        return
