"""A process that is one actor: started with a duty, it makes parcels until it is asked to stop or its parent is gone.

It imports no engine where its network is small enough for NumPy. What the user brings along (a function that makes
envs, a network) travels by cloudpickle, by value where it is defined in a script: the script is not run again, and
needs no `if __name__ == "__main__":`.
"""

import contextlib
import faulthandler
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from hotloop import plugins, registry
from hotloop.engines.by_shape import Shape, engines_by_shape
from hotloop.engines.policies import one_blas_thread
from hotloop.envs.gym_types import Make
from hotloop.envs.host import HostEnvs, open_envs
from hotloop.envs.own import OwnEnvId
from hotloop.envs.team import TeamEnvs, agents_of_learners, open_team
from hotloop.errors import NotFinite, SpecError, said
from hotloop.pipelines.actor_loop import WAIT_SECONDS, ActorLoop, Place
from hotloop.pipelines.actor_parcels import shares_of
from hotloop.pipelines.collector import Collector, Collects, TeamCollector
from hotloop.pipelines.passing_on import packed, unpacked
from hotloop.pipelines.ways_to_act import Way, by_engine, in_numpy
from hotloop.runs import failpoints
from hotloop.spec import Spec
from hotloop.spec.reading import OWN_ENV
from hotloop.transport.actor_end import ActorSeat, SharedActorEnd
from hotloop.transport.form import Form
from hotloop.transport.lifeline import end_with

HOPELESS, BAD_INPUT = 3, 4
"""Exit codes of an actor that another process in its place would end like, too. Its last words begin with a line for
the user; a traceback may follow."""
ENV_RAISED = "an env raised "
"""What an actor's words begin with while it goes on: an env was built anew."""
STACKS: int = getattr(signal, "SIGUSR1", 0)  # which Windows has not, nor processes of this kind
"""Has an actor write down what all its threads are doing, even while it hangs."""


@dataclass(frozen=True)
class Duty:
    """All that an actor is told; the same for each but for its place."""

    spec: Spec
    env_id: str
    make: Make | None
    """Makes envs, where the user brought a function along."""
    act_in_numpy: Sequence[bool]
    """For each learner, whether its network is small enough to act without an engine."""
    network: object = None
    """The user's own, if there is one."""
    registration: EnvSpec | None = None
    """How Gymnasium makes the env: the script that registered it is not run in the actor's process."""


def duty_of(spec: Spec, make: Make | None, network: object, act_in_numpy: Sequence[bool]) -> Duty:
    """What the actors of a run are told."""
    return Duty(spec, spec.env.id, make, tuple(act_in_numpy), network, gym.registry.get(spec.env.id))


class Orders(NamedTuple):
    """What the process of an actor gets when it starts."""

    duty: bytes
    place: Place
    form: Form
    seat: tuple[int, int, int]
    """Descriptors (`ActorSeat.numbers`)."""
    words: int
    """Descriptor of a file for its last words."""
    parent: int
    path: Sequence[str]
    """Where modules are found."""


def pack(duty: Duty) -> bytes:
    """The duty as bytes, or SpecError if something of it cannot travel to another process."""
    travels = {
        "the function that makes envs": duty.make,
        "the network": duty.network,
        f"what was registered as {duty.env_id}": duty.registration,
    }
    for what, brought in travels.items():
        try:
            packed(brought)
        except Exception as error:  # whatever the user's own objects raise
            raise SpecError(
                f"pipeline processes: {what} cannot travel to another process ({said(error)}); make it from what can "
                "be pickled, or use pipeline sync"
            ) from error
    return packed(duty)


def collector_of(duty: Duty, place: Place, ways_of: Callable[[Sequence[Shape]], Sequence[Way]]) -> Collects:
    """Whoever steps an actor's share of the envs; `ways_of` says how to act for learners of these shapes."""
    spec, env, env_id = duty.spec, duty.spec.env, duty.env_id
    if duty.make is not None:
        env_id = OwnEnvId(env_id.removeprefix(OWN_ENV), duty.make)
    num_envs = shares_of(env.num_envs, place.of)[place.number]
    envs: HostEnvs | TeamEnvs
    if spec.agents is not None:
        envs = open_team(env_id, num_envs, env.options, env.vectorization, env.info, env.observe)
        each = [envs.spaces.each[agents[0]] for agents in agents_of_learners(envs.spaces, spec)]
    else:
        envs = open_envs(env_id, num_envs, env.options, env.vectorization, spec.info_of_steps, env.observe)
        each = [envs.spaces]
    try:
        if spec.agents is None and env.action_mask:
            assert isinstance(envs, HostEnvs)
            envs.mask_actions(env.id)
        ways = ways_of([Shape(one.observations.shapes, one.actions.size) for one in each])
        power, made = power_of(spec, place.number, place.of), place.made_before
        if isinstance(envs, HostEnvs):
            return Collector(spec, envs, ways[0], power, place.of, made)
        return TeamCollector(spec, envs, ways, power, place.of, made)
    except BaseException:
        envs.close()
        raise


def power_of(spec: Spec, number: int, actors: int) -> float:
    """To which an actor of so many raises ε."""
    return 1 + spec.actors.ladder * number / max(1, actors - 1)


def main(orders: int) -> NoReturn:
    """The process: `orders` is a descriptor of the file that holds them."""
    with os.fdopen(orders, "rb") as file:
        told = unpacked(file.read())
    assert isinstance(told, Orders)
    end_with(told.parent)
    sys.path[:] = told.path
    words = os.fdopen(told.words, "w", encoding="utf-8", errors="replace")
    faulthandler.enable(words)
    faulthandler.register(STACKS, words)
    _leave_signals_to_the_learner()
    try:
        _act(told, words)
    except (NotFinite, SpecError) as error:
        if told.place.incarnation and isinstance(error, SpecError):  # it did work before, and may do so again
            _leave(words, traceback.format_exc(), 1)
        trace = "" if error.__cause__ is None else f"\n{traceback.format_exc()}"
        code = BAD_INPUT if isinstance(error, SpecError) and not trace else HOPELESS
        _leave(words, f"{' '.join(str(error).split())}{trace}", code)
    except BaseException:
        _leave(words, traceback.format_exc(), 1)
    _leave(words, "", 0)


def _act(told: Orders, words: io.TextIOBase) -> None:
    duty = unpacked(told.duty)
    assert isinstance(duty, Duty)
    plugins.import_named(duty.spec.plugins)
    if duty.registration is not None:
        gym.registry.setdefault(duty.env_id, duty.registration)
    seat = ActorSeat.of_numbers(told.form, told.place.number, told.seat)
    fails = failpoints.is_set() and told.place.incarnation == 0  # who comes after it is to go on
    end = seat.open(reached=failpoints.reach if fails else None)
    with contextlib.ExitStack() as open_:
        open_.callback(end.close)
        collector = collector_of(duty, told.place, lambda shapes: _ways(duty, shapes))
        open_.callback(collector.envs.close)
        loop = ActorLoop(duty.spec, told.place, collector, end)
        open_.enter_context(one_blas_thread())
        loop.begin()
        _work(loop, end, words)


def _work(loop: ActorLoop, end: SharedActorEnd, words: io.TextIOBase) -> None:
    """Parcel after parcel."""
    told, collector = 0, loop.collector
    while not end.should_stop:
        if end.wait_for_allowance(WAIT_SECONDS) and not end.should_stop:
            loop.turn()
        if collector.envs.failures != told:
            told = collector.envs.failures
            _write(words, f"{ENV_RAISED}{collector.envs.last_failure}")


def _leave_signals_to_the_learner() -> None:
    """Do nothing on Ctrl-C and SIGTERM. They were blocked up to here, which whatever an env starts would inherit: it
    could then not be terminated."""
    both = (signal.SIGINT, signal.SIGTERM)
    for number in both:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which would be inherited, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)


def _ways(duty: Duty, shapes: Sequence[Shape]) -> list[Way]:
    """How to act for each learner; an engine is imported where one is needed."""
    if all(duty.act_in_numpy):
        return [in_numpy(duty.spec)] * len(shapes)
    from hotloop.engines.registered import registered_network

    spec, record = duty.spec, registry.ENGINES[duty.spec.engine]
    registry.imported(record.start)(spec.with_field("devices", 1), steps_meanwhile=False)
    own, make = duty.network if duty.network is not None else registered_network(spec), registry.imported(record.make)
    engines = engines_by_shape(lambda obs, num_actions: make(spec, obs, num_actions, own), shapes)
    pairs = zip(engines, duty.act_in_numpy, strict=True)
    return [in_numpy(spec) if numpy else by_engine(engine) for engine, numpy in pairs]


def _write(words: io.TextIOBase, text: str) -> None:
    """Replace what stands in the file."""
    words.seek(0)
    words.truncate()
    words.write(text)
    words.flush()


def _leave(words: io.TextIOBase, text: str, code: int) -> NoReturn:
    if text:
        _write(words, text)
    with contextlib.suppress(Exception):  # whoever read it may be gone
        sys.stdout.flush()
    os._exit(code)  # whatever threads an env has left behind
