"""Who acts for a run: processes of their own, or all actors in the learner's process, as its spec says."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hotloop.engines.protocol import Engine
from hotloop.envs.gym_types import Make
from hotloop.pipelines.actor_process import duty_of, pack
from hotloop.pipelines.crew import Crew, Gone, Loss
from hotloop.pipelines.ways_to_act import by_engine, in_numpy
from hotloop.spec import Spec
from hotloop.transport.exchange import Exchange


class Brought(NamedTuple):
    """What the user brought along."""

    make: Make | None
    """Makes envs."""
    network: object


class Seats(NamedTuple):
    """What actors take part in, and how far the run is when they begin."""

    exchange: Exchange
    seed: int
    blocks: int
    learners: tuple[int, ...]
    """The seed of each learner."""


def crew_of(
    spec: Spec, seats: Seats, brought: Brought, engines: Sequence[Engine], act_in_numpy: Sequence[bool]
) -> "AnyCrew":
    """Actors that take part in an exchange, not started yet; of each learner its engine, and how it is acted for."""
    duty = duty_of(spec, brought.make, brought.network, act_in_numpy)
    if not spec.actors.here:
        return Crew(pack(duty), *seats, spec.actors.patience, spec.actors.tries)
    from hotloop.pipelines.crew_here import CrewHere

    ways = [in_numpy(spec) if numpy else by_engine(one) for one, numpy in zip(engines, act_in_numpy, strict=True)]
    return CrewHere(duty, *seats, ways)


class AnyCrew(Protocol):
    """The actors, wherever they are."""

    def start(self) -> None:
        """Have them begin."""

    def work(self) -> None:
        """Have those that are in this process take a turn."""

    def raise_if_lost(self) -> None:
        """Raise what ends the run, if it cannot go on with them."""

    def are_ready(self) -> bool:
        """Whether each has begun to act."""

    def made_by_the_dead(self) -> list[Gone]:
        """For each actor what processes that have ended made."""

    def pids(self) -> list[int | None]:
        """The process of each actor, if it has one."""

    def restarts_of(self) -> list[int]:
        """How many processes of each actor have ended."""

    def losses(self) -> list[Loss]:
        """Processes that have ended since this was last asked."""

    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""

    def stop(self) -> None:
        """Have all end."""
