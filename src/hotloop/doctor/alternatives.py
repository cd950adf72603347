"""What a stage takes done another way, measured by itself: envs stepped in another way, gradient steps by other means.

| what | ways | measured |
|---|---|---|
| the envs' step | `env.vectorization` sync, threads, async | as many envs, random actions, nothing else |
| a gradient step | other threads, the other engine; half the batch, half the width, bfloat16 | in another process |

A whole run with one of them is then predicted from these and the other stages. The last three learn differently.
"""

import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from hotloop import registry
from hotloop.assembly import Own, Player
from hotloop.doctor.gradient_steps import seconds_alone
from hotloop.engines.torch.setup import WORTH_COMPILING
from hotloop.envs.serial import SerialEnvs
from hotloop.errors import HotloopError, SpecError
from hotloop.interrupts import end_is_wanted
from hotloop.pipeline_trial import act_at_random
from hotloop.plain import Json
from hotloop.progress import Reporter
from hotloop.spec import Network, Spec
from hotloop.spec.network import Mlp
from hotloop.spec.reading import load_spec

Changes = dict[str, Json]
SECONDS_OF_STEPS, FEWEST_STEPS = 0.4, 3
PATIENCE = 30.0
"""Seconds that gradient steps of one engine may take to be measured, imports and compiling included."""
TO_COMPILE = 60.0
"""And those of torch that are compiled first."""
MUCH_FASTER = 0.85
"""Times as long as now below which what is now is measured again."""
MOST_PROCESSES = 4
"""For each core, that envs are tried in."""


class Way(NamedTuple):
    """Another way to take gradient steps."""

    changes: Changes
    factor: float
    """Times as long as one takes now."""
    threads: int
    learns_the_same: bool


class Alternatives(NamedTuple):
    """What was measured; empty where nothing was worth it."""

    steps: dict[str, float] = {}  # noqa: RUF012  # none of these is ever changed
    """By `env.vectorization`: times as long as the envs' steps take now."""
    updates: list[Way] = []  # noqa: RUF012
    notices: list[str] = []  # noqa: RUF012
    """What could not be measured."""


def other_updates(
    spec: Spec, variables: Mapping[str, str], cores: int, until: float, reporter: Reporter
) -> Alternatives:
    """Gradient steps by other means, in as many processes as it takes; none for agents, rollouts and sequences."""
    if spec.learns_from != "transitions":
        return Alternatives()
    here = load_spec(spec, {"torch.mode": "eager"}) if spec.engine == "torch" and spec.torch.mode == "auto" else spec
    less = [changes for changes in _less_work(here) if is_allowed(here, changes)]
    found, notices = list[Way](), list[str]()
    with reporter.busy("gradient steps by themselves"):
        now, *of_less = _alone(here, [{}, *less], variables, until)
        if isinstance(now, str):
            return Alternatives(notices=[f"gradient steps by themselves could not be measured: {now}"])
        threads = _threads(here)
        for changes, seconds in zip(less, of_less, strict=True):
            if isinstance(seconds, float):
                found.append(Way(changes, seconds / now, threads, learns_the_same=False))
    for changes, others in _same_result(here, cores, may_choose_threads=not variables and spec.seeds == 1):
        words = ", ".join(f"{name} {value}" for name, value in changes.items())
        if end_is_wanted() or not is_allowed(here, changes):
            continue
        if time.monotonic() > until:
            notices.append(f"no time was left to measure gradient steps with {words} (--minutes)")
            continue
        with reporter.busy(f"gradient steps with {words}"):
            (seconds,) = _alone(here, [changes], variables, until)
        if isinstance(seconds, str):
            notices.append(f"gradient steps with {words} could not be measured: {seconds}")
        else:
            found.append(Way(changes, seconds / now, others, learns_the_same=True))
    return Alternatives({}, _measured_again(here, now, found, variables, until), notices)


def _measured_again(
    spec: Spec, before: float, ways: list[Way], variables: Mapping[str, str], until: float
) -> list[Way]:
    """Compared with the shorter time of two where a way seems much faster: a machine may have been slow for a while."""
    if not any(way.learns_the_same and way.factor <= MUCH_FASTER for way in ways) or end_is_wanted():
        return ways
    (again,) = _alone(spec, [{}], variables, until)
    slower = before / min(before, again) if isinstance(again, float) else 1.0
    return [way._replace(factor=way.factor * slower) if way.learns_the_same else way for way in ways]


def mode_of(spec: Spec, variables: Mapping[str, str], reporter: Reporter) -> str:
    """How engine torch would run the gradient steps of a whole run of a spec that leaves it the choice: measured."""
    eager, compiled = (load_spec(spec, {"torch.mode": mode}) for mode in ("eager", "compiled"))
    with reporter.busy("gradient steps by themselves"):
        (slow,) = seconds_alone([eager], variables, PATIENCE)
    in_all = spec.replay_ratio * spec.stop.steps
    if isinstance(slow, str) or slow * in_all < WORTH_COMPILING:
        return "eager"
    with reporter.busy("gradient steps, compiled"):
        (fast,) = seconds_alone([compiled], variables, TO_COMPILE)
    return "compiled" if isinstance(fast, float) and fast < slow else "eager"


def _alone(
    spec: Spec, ways: list[Changes], variables: Mapping[str, str], until: float
) -> list[float] | list[float | str]:
    compiles = any(changes.get("torch.mode") == "compiled" for changes in ways)
    patience = min(TO_COMPILE if compiles else PATIENCE, max(until - time.monotonic(), 5.0))
    return seconds_alone([load_spec(spec, changes) for changes in ways], variables, patience)


def _same_result(spec: Spec, cores: int, *, may_choose_threads: bool) -> Iterator[tuple[Changes, int]]:
    """Changes, and the threads that go with them."""
    threads = _threads(spec)
    if spec.engine == "torch":  # what promises most first: there may be no time for the rest
        yield {"engine": "jax"}, threads
    for other in sorted({1, cores} - {threads}) if may_choose_threads else ():
        yield {"threads": other}, other
    if spec.engine == "torch":
        if spec.torch.mode != "compiled":
            yield {"torch.mode": "compiled"}, threads
    elif spec.sees_images and find_spec("torch") is not None and not registry.is_device_env(spec.env.id):
        yield {"engine": "torch", "torch.mode": "eager"}, threads


def _less_work(spec: Spec) -> Iterator[Changes]:
    if spec.replay.batch_size > 1:
        yield {"replay.batch_size": spec.replay.batch_size // 2}
    if isinstance(spec.network, Network) and isinstance(spec.network.torso, Mlp) and min(spec.network.torso.hidden) > 1:
        yield {"network.torso.hidden": [max(1, width // 2) for width in spec.network.torso.hidden]}
    if spec.precision == "float32":
        yield {"precision": "bfloat16"}


def _threads(spec: Spec) -> int:
    chosen: int = registry.imported(registry.ENGINES[spec.engine].threads)(spec)
    return chosen


def is_allowed(spec: Spec, changes: Mapping[str, object]) -> bool:
    """Whether the spec's own rules let it be changed so."""
    try:
        load_spec(spec, dict(changes))
    except SpecError:
        return False
    return True


def other_steps(spec: Spec, own: Own, cores: int, until: float, reporter: Reporter) -> Alternatives:
    """Envs on the host stepped in other ways; none for agents, and for one env."""
    if spec.agents is not None or spec.env.num_envs == 1:
        return Alternatives()
    player, found, notices = Player(spec, own), dict[str, float](), list[str]()
    if player.on_device or player.spec.agents is not None or player.has_one_env_only or _has_own_vector_form(player):
        return Alternatives()
    try:
        with reporter.busy("envs by themselves"):
            now = seconds_of_steps(player, spec.env.vectorization)
    except HotloopError as error:
        return Alternatives(notices=[f"envs by themselves could not be measured: {error}"])
    for way in _ways_to_step(player.spec, cores):
        if time.monotonic() > until or end_is_wanted():
            break
        try:
            with reporter.busy(f"envs by themselves, env.vectorization: {way}"):
                found[way] = seconds_of_steps(player, way) / now
        except HotloopError as error:
            notices.append(f"env.vectorization {way} could not be measured: {error}")
    return Alternatives(found, [], notices)


def _has_own_vector_form(player: Player) -> bool:
    """Whether its envs are made many by an entry point of their own: made another way, they may be other envs."""
    if player.spec.env.vectorization not in ("auto", "native"):
        return False
    envs = player.open_envs(1, player.spec.env.vectorization)
    try:
        return not isinstance(envs.env, SerialEnvs)
    finally:
        envs.close()


def _ways_to_step(spec: Spec, cores: int) -> Iterator[str]:
    now, count = spec.env.vectorization, spec.env.num_envs
    if now in ("async", "threads"):
        yield "sync"
    if cores == 1:
        return
    if now != "threads":
        yield "threads"
    if now != "async" and count <= MOST_PROCESSES * cores:
        yield "async"


def seconds_of_steps(player: Player, vectorization: str) -> float:
    """Of an env step, all envs of the spec stepped together by random actions."""
    envs = player.open_envs(player.spec.env.num_envs, vectorization)
    try:
        if player.spec.env.action_mask:
            envs.mask_actions(player.spec.env.id)
        envs.reset(player.spec.seed)
        random, steps = np.random.default_rng(player.spec.seed), 0
        for _ in range(FEWEST_STEPS):  # in which they may make what they need
            act_at_random(envs, random)
        began = time.perf_counter()
        while steps < FEWEST_STEPS or time.perf_counter() - began < SECONDS_OF_STEPS:
            act_at_random(envs, random)
            steps += 1
        return (time.perf_counter() - began) / (steps * envs.num_envs)
    finally:
        envs.close()
