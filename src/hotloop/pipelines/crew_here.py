"""The actors of a run in the learner's own process, turn by turn: the serial twin, for a debugger and for tests."""

import contextlib
from collections.abc import Sequence

from hotloop.pipelines.actor_loop import ActorLoop, Place
from hotloop.pipelines.actor_process import Duty, collector_of
from hotloop.pipelines.crew import Gone, Loss
from hotloop.pipelines.ways_to_act import Way
from hotloop.transport.exchange import Exchange


class CrewHere:
    """As `crew.Crew`; nothing is watched over, as nothing runs by itself."""

    def __init__(
        self, duty: Duty, exchange: Exchange, seed: int, blocks: int, learners: tuple[int, ...], ways: Sequence[Way]
    ) -> None:
        """`ways` are how each learner is acted for."""
        self._open = contextlib.ExitStack()
        self.loops: list[ActorLoop] = []
        count = exchange.form.actors
        for index in range(count):
            place = Place(index, count, 0, 0, seed, blocks, learners)
            end = exchange.actor_seat(index).open()
            self._open.callback(end.close)
            collector = collector_of(duty, place, lambda _: ways)
            self._open.callback(collector.envs.close)
            self.loops.append(ActorLoop(duty.spec, place, collector, end))

    def start(self) -> None:
        """Begin an episode in every env."""
        for loop in self.loops:
            loop.begin()

    def work(self) -> None:
        """A turn of each actor that is allowed one."""
        for loop in self.loops:
            if loop.end.transitions_left:
                loop.turn()

    def are_ready(self) -> bool:
        """From the start on."""
        return True

    def made_by_the_dead(self) -> list[Gone]:
        """Nothing: none has died."""
        return [Gone()] * len(self.loops)

    def pids(self) -> list[int | None]:
        """None has a process of its own."""
        return [None] * len(self.loops)

    def restarts_of(self) -> list[int]:
        """None has ended."""
        return [0] * len(self.loops)

    def raise_if_lost(self) -> None:
        """Nothing is lost without an exception here."""

    def losses(self) -> list[Loss]:
        """None."""
        return []

    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        failed = [loop.collector.envs for loop in self.loops if loop.collector.envs.failures]
        return failed[-1].last_failure if failed else ""

    def stop(self) -> None:
        """Close the envs."""
        self._open.close()
