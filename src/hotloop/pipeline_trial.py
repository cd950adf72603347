"""Whether `pipeline: auto` has slow envs in processes of their own: where a short trial says that this is faster.

| what is asked, in turn | what it costs | "no" means |
|---|---|---|
| may it be (`obstacle`)? | nothing | the run stays as it was, and nothing is said |
| does the env take long enough (`look_at_one`)? | some steps of one env | the same |
| can these envs be elsewhere? | sizes, a pickle | the same |
| how much could it bring at most? | a trial in this process | it stays, and says so |
| how much does it bring? | a trial with the actors | it stays, and says so |

So it does when trials have taken all the time that they may (`MOST_SHARE`): a network may take long to compile.

What is tried are envs and weights of their own, which are closed and forgotten: a run that stays is, to the bit, the
one that it would be if nothing had been measured.
"""

import contextlib
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hotloop.assembly import Assembly, Own, PipelineChoice
from hotloop.cores import usable_cores
from hotloop.envs.random_actions import random_actions
from hotloop.errors import SpecError, said
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec
from hotloop.spec.sections import Actors
from hotloop.trial import TookTooLong, Trial, trial

if TYPE_CHECKING:
    from hotloop.envs.host import HostEnvs
    from hotloop.envs.team import TeamEnvs, TeamStep

ELSEWHERE = "processes"
FEWEST_STEPS = 2_000
"""Env steps of a run below which its env is not even looked at."""
SHORTEST_STEP = 2e-4
"""Seconds of an env step below which handing it over is too much of it."""
MOST_SHARE = 0.05
"""Of the time that the run's env steps take, which is the most that could be saved: what trials may cost of it."""
WORTH_TRYING, WORTH_TAKING = 1.15, 1.1
"""Times as fast that processes must be: as they could be at best; as they were."""
SECONDS = 2.0
"""Of a trial, from its first gradient steps on."""
SECONDS_TO_START = 2.0
"""What a trial takes beside its steps: an engine, actors that import it."""
ROUNDS, STEPS_OF_ROUND, SECONDS_OF_ROUND = 3, 20, 0.1
"""Of a look at an env, of which the fastest round counts: other work on the machine does not."""
SECONDS_OF_PARCEL = 0.1
"""Parcels of a trial come at least so often, else it would see one or two: they are shorter than those of the run."""
LEAST_PATIENCE = 10.0
MOST_ACTORS, ABOUT = 16, 1.05
"""Actors that are taken unasked; times as long as at best that counts as the same."""
LONGEST_REASON = 200


def obstacle(assembly: Assembly, spec: Spec) -> str | None:
    """Why nothing is measured for a run of this spec, as far as that costs nothing to say; None where it may be."""
    if spec.seeds > 1:
        return "several seeds are to differ by nothing but their seed"
    spec = assembly.spec  # which knows of agents
    if spec.pipeline != "auto" or assembly.on_device or spec.agents is not None:
        return "processes are measured for pipeline auto and one agent in envs on the host"
    if assembly.has_one_env_only:
        return "there is one instance of the env, which stays in this process"
    if not spec.actors.measure:
        return "actors.measure is false"
    if spec.actors.in_step or spec.actors.here:
        return "actors that are in step, or here, are never faster"
    if spec.turns is not None or spec.replay.hindsight is not None:
        return f"processes do not go with {'turns' if spec.turns else 'replay.hindsight'}"
    if spec.devices > 1:
        return f"learning on {spec.devices} devices has processes of its own"
    if sys.platform != "linux" or usable_cores() < 2:
        return "processes need Linux, and two cores"
    return f"the run has fewer than {FEWEST_STEPS:,} env steps" if spec.stop.steps < FEWEST_STEPS else None


def choose(assembly: Assembly, spec: Spec, own: Own, reporter: Reporter) -> PipelineChoice | None:
    """The pipeline that was measured to be the faster one, and why; None where nothing was worth measuring.

    `assembly` is what `spec` and `own` made. Before a trial it is closed: the next one is of what was chosen.
    """
    reason, look = obstacle(assembly, spec), None
    with _randomness_kept():
        if reason is None:
            try:
                look = look_at_one(assembly)
                reason = look.obstacle(spec)
                if reason is None:
                    assembly.require_that_envs_can_be_elsewhere(ELSEWHERE)
            except Exception as error:  # whatever the user's own env raises: the run will say so itself
                reason = _in_a_line(error)
        if reason is not None:
            if spec.describes_actors and spec.pipeline == "auto":
                reporter.warn(f"actors are not used: {reason}; pipeline: {ELSEWHERE} would use them")
            elif look is not None and look.of_step >= SHORTEST_STEP:
                reporter.say(f"pipeline {ELSEWHERE} was not tried: {reason}")
            return None
        assert look is not None
        assembly.close()
        gc.collect()
        with reporter.busy("measuring whether envs in processes are faster"):
            return _compared(assembly.pipeline_choice.name, spec, own, look)


def with_choice(spec: Spec, choice: PipelineChoice) -> Spec:
    """The spec that says what was chosen; one of actors that are not there says nothing of them."""
    chosen = spec.with_field("pipeline", choice.name)
    if choice.name == ELSEWHERE:
        return chosen.with_field("actors.count", choice.actors)
    return chosen.model_copy(update={"actors": Actors()})


# -- how long the env takes -----------------------------------------------------------------------------


class Look(NamedTuple):
    """Seconds that one env takes by itself."""

    to_open: float
    of_step: float
    busy: float
    """Share of a step in which it uses the processor; else it waits, and others can use it."""

    def obstacle(self, spec: Spec) -> str | None:
        """Why trials are not worth their time with such an env; None where they may be."""
        if self.of_step < SHORTEST_STEP:
            return f"a step of the env takes {self.of_step * 1e6:.0f} µs"
        trials = self._seconds_of_trials(spec)
        if trials > self.most_seconds(spec):
            in_all = spec.stop.steps * self.of_step
            return f"its env steps take {in_all:.0f} s in all, and trials would take {trials:.0f} s"
        return None

    def most_seconds(self, spec: Spec) -> float:
        """What trials may take."""
        return MOST_SHARE * spec.stop.steps * self.of_step

    def _seconds_of_trials(self, spec: Spec) -> float:
        """Of both: until it learns, a few blocks, and as long as they measure."""
        steps = _steps_to_learn(spec) + 4 * spec.block_plan.env_steps
        opened = self.to_open * spec.env.num_envs
        return 2 * (opened + SECONDS_TO_START + SECONDS + steps * self.of_step)


def look_at_one(assembly: Assembly) -> Look:
    """How long steps of one env take (turns of all its agents, where there are several), of which some are taken; it is
    then closed."""
    from hotloop.envs.host import HostEnvs

    spec, began = assembly.spec, time.perf_counter()
    envs = assembly.open_one_env() if spec.agents is None else assembly.open_team(1)
    try:
        if isinstance(envs, HostEnvs) and spec.env.action_mask:
            envs.mask_actions(spec.env.id)
        envs.reset(spec.seed)
        to_open, actions = time.perf_counter() - began, np.random.default_rng(spec.seed)
        act: Callable[[], object] = (
            partial(act_at_random, envs, actions)
            if isinstance(envs, HostEnvs)
            else partial(agents_act_at_random, envs, actions)
        )
        act()  # in which it may make what it needs
        of_step, of_processor = min(_round(act) for _ in range(ROUNDS))
        return Look(to_open, of_step, min(1.0, of_processor / of_step))
    finally:
        envs.close()


def _round(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a step, on average, and seconds of the processor."""
    began, used, steps = time.perf_counter(), time.process_time(), 0
    while True:
        act()
        steps, passed = steps + 1, time.perf_counter() - began
        if steps == STEPS_OF_ROUND or passed > SECONDS_OF_ROUND:
            return passed / steps, (time.process_time() - used) / steps


def act_at_random(envs: "HostEnvs", actions: np.random.Generator) -> None:
    """Step all envs by legal actions; they begin anew by themselves."""
    envs.step(random_actions(envs.actions.size, envs.num_envs, envs.legal, actions))


def agents_act_at_random(envs: "TeamEnvs", actions: np.random.Generator) -> "TeamStep":
    """A turn of all envs in which every agent does anything."""
    sizes = [each.actions.size for each in envs.spaces.each]
    return envs.step([random_actions(size, envs.num_envs, None, actions) for size in sizes])


# -- trials ---------------------------------------------------------------------------------------------


def _compared(here: str, spec: Spec, own: Own, look: Look) -> PipelineChoice:
    """Both pipelines, one after the other; the second one only where it can be worth it."""
    most = look.most_seconds(spec)
    until = time.monotonic() + most
    dropped = "; the run's spec says nothing of actors any more" if spec.describes_actors else ""
    try:
        found = _tried(spec, own, {"pipeline": here, "actors": {}}, until)
        stages, cores = found.stage_seconds, usable_cores()
        count, speed = actors_for(stages, spec, look.busy, cores), found.env_steps_per_s
        at_best, actors = found.seconds / seconds_with(stages, count, look.busy, cores), _so_many(count)
        why = f"measured: {speed:,.0f} env steps/s, {ELSEWHERE} with {actors} would bring {at_best:.2f}x at best"
        if at_best >= WORTH_TRYING:
            with_actors = spec.with_field("actors.count", count)
            there = _tried(with_actors, own, with_short_parcels(with_actors, look), until).env_steps_per_s
            if there >= WORTH_TAKING * speed:
                why = f"measured: {there:,.0f} env steps/s with {actors} against {speed:,.0f} of {here}"
                return PipelineChoice(ELSEWHERE, why, is_measured=True, actors=count)
            why = f"measured: {speed:,.0f} env steps/s, {ELSEWHERE} with {actors} {there:,.0f}, {there / speed:.2f}x"
    except TookTooLong:
        why = f"{ELSEWHERE} could not be measured within {most:.0f} s"
    except Exception as error:  # of the user's env, or of an actor: the run goes on without them
        why = f"{ELSEWHERE} could not be measured: {_in_a_line(error)}"
    return PipelineChoice(here, f"{why}{dropped}", is_measured=True)


def actors_for(stages: Mapping[str, float], spec: Spec, busy: float, cores: int) -> int:
    """How many actors: as the spec says, else the fewest that are about as fast as any number of them could be.

    More than there are cores help envs that wait, for a simulator or a network, most of the time.
    """
    if spec.actors.count is not None:
        return spec.actors.count
    seconds = [seconds_with(stages, n, busy, cores) for n in range(1, min(MOST_ACTORS, spec.env.num_envs) + 1)]
    return 1 + next(n for n, each in enumerate(seconds) if each <= ABOUT * min(seconds))


def seconds_with(stages: Mapping[str, float], actors: int, busy: float, cores: int) -> float:
    """What stages that took so long in one process would take at least with so many actors: none waits for another, but
    all of them and the learner share the cores; `busy` is the share of acting that uses one."""
    acting = sum(stages.get(name, 0.0) for name in ("select", "step"))
    learning = sum(stages.get(name, 0.0) for name in ("insert", "sample", "redraw", "transfer", "update"))
    return max(acting / actors, learning, (busy * acting + learning) / cores, 1e-9)


def _so_many(actors: int) -> str:
    return f"{actors} actor{'' if actors == 1 else 's'}"


def _tried(spec: Spec, own: Own, changes: Mapping[str, object], until: float) -> Trial:
    """A trial that learns early, that no rule ends and no compiler holds up; nothing of it is left."""
    endless = {"stop.episodes": None, "stop.return_at_least": None, "evaluation.every": 0}
    eager = {"torch.mode": "eager"} if spec.engine == "torch" and spec.torch.mode == "auto" else {}
    short = load_spec(spec, {**endless, **eager, "replay.start": _steps_to_learn(spec), **changes})
    try:
        return trial(short, replace={"log": False}, seconds=SECONDS, own=own, begins_by=until)
    finally:
        gc.collect()  # replay and weights, which may take most of the memory


def _steps_to_learn(spec: Spec) -> int:
    """Env steps after which a trial learns: a batch's."""
    return min(spec.replay.start, spec.replay.batch_size + spec.env.num_envs * spec.replay.n_step)


def with_short_parcels(spec: Spec, look: Look) -> dict[str, object]:
    """What a trial with actors changes: parcels that come often, and a mistake of an env is soon the end."""
    from hotloop.pipelines.actor_parcels import room_of, steps_per_parcel
    from hotloop.pipelines.processes import actors_of

    of_step = room_of(spec, actors_of(spec)) * look.of_step
    usual = steps_per_parcel(spec)
    steps = min(usual, max(1, math.floor(SECONDS_OF_PARCEL / of_step)))
    parcels = spec.actors.parcels
    return {
        "pipeline": ELSEWHERE,
        "actors.steps_per_parcel": steps,
        "actors.parcels": None if parcels is None else parcels * math.ceil(usual / steps),
        "actors.tries": 1,
        "actors.patience": min(spec.actors.patience, max(LEAST_PATIENCE, 10 * of_step)),
    }


@contextlib.contextmanager
def _randomness_kept() -> Iterator[None]:
    """Leave the random numbers that envs may share with the user's script as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _in_a_line(error: Exception) -> str:
    words = str(error) if isinstance(error, SpecError) else said(error)
    return " ".join(words.split())[:LONGEST_REASON]
