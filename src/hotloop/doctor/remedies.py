"""Settings that make a run faster, and by how much, by the model: those that learn the same, and others.

| setting | seconds of an env step, by the model |
|---|---|
| `pipeline: sync` | the sum of all stages |
| `pipeline: concurrent` | as `model.py` has it; no less than all work on all cores |
| `pipeline: processes` | the longest of: acting and packing by so many actors, learning, all work on all cores |
| `env.vectorization`, `threads`, `engine` | that stage measured by itself (`alternatives.py`), the others as they are |
| rarer evaluations, checkpoints, lines of metrics | a tenth of what they take now |
| fewer gradient steps, a smaller batch or network, more envs | that stage's share of them; learns differently |

A side that gets a core of its own takes less than it did, as far as that was measured (`_apart`); new weights, which a
run in one process acts with after each block, are handed to actors a few times a second (`_with_actors`).

The order of experience changes with the pipeline, and so do the bits; env steps, gradient steps, batches, priorities, ε
and targets do not. What the spec's own rules refuse is not proposed.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

from hotloop.doctor.alternatives import Alternatives, Changes, Way, is_allowed
from hotloop.doctor.examination import Examined
from hotloop.doctor.limits import MOSTLY_WAITS
from hotloop.doctor.model import ACTING, BETWEEN, OF_ACTORS, left_without, seconds_if_concurrent, seconds_of
from hotloop.pipeline_trial import actors_for, seconds_with
from hotloop.spec import Prioritized

RARER, WORTH_MAKING_RARE = 10, 0.1
"""Times as many env steps from one occasion to the next; share of the time from which that is proposed."""
WORTH_SAYING = 1.03
"""Times as fast below which a setting is not named, and which each change of several must bring."""
QUOTE = '"'


class Remedy(NamedTuple):
    """A change of the spec."""

    changes: Changes
    predicted: float
    """Times as fast as it is, all in all."""
    can_be_raced: bool
    """Whether a short training shows it; what happens now and then is counted instead."""

    @property
    def options(self) -> str:
        """To paste behind `hotloop train SPEC`."""
        return " ".join(f"--set {field}={json.dumps(value).strip(QUOTE)}" for field, value in self.changes.items())


def same_result(seen: Examined, cores: int) -> list[Remedy]:
    """Those that learn the same, the best first: each alone, and together where each of them adds something."""
    measured = seen.alternatives
    together = [] if seen.env_busy is None else _on_host(seen, cores, measured)
    if seen.env_busy is None:
        together = [Remedy(way.changes, _on_device(seen, way), True) for way in measured.updates if way.learns_the_same]
    found = [*_worth_their_parts(together), *_occasions(seen)]
    return _in_order(remedy for remedy in found if is_allowed(seen.spec, remedy.changes))


def less_work(seen: Examined) -> list[Remedy]:
    """Those that do less work or another algorithm, the best first; none of them is tried."""
    spec, found = seen.spec, list[Remedy]()
    learning = ("sample", "transfer", "update")
    if spec.turns is None and spec.on_policy is None:
        found.append(Remedy({"updates_per_step": spec.updates_per_step / 2}, _scaled(seen, learning, 0.5), False))
    found += [
        Remedy(way.changes, _with_update(seen, way), False)
        for way in seen.alternatives.updates
        if not way.learns_the_same
    ]
    if spec.turns is None:
        found.append(Remedy({"env.num_envs": 2 * spec.env.num_envs}, _scaled(seen, ("select",), 0.5), False))
    return _in_order(remedy for remedy in found if is_allowed(seen.spec, remedy.changes))


def _in_order(remedies: Iterator[Remedy]) -> list[Remedy]:
    worth = (remedy for remedy in remedies if remedy.predicted >= WORTH_SAYING)
    return sorted(worth, key=lambda remedy: -remedy.predicted)


def _worth_their_parts(remedies: list[Remedy]) -> list[Remedy]:
    """Without those of which fewer changes bring about as much."""
    return [
        remedy
        for remedy in remedies
        if not any(
            part.changes.items() < remedy.changes.items() and remedy.predicted < WORTH_SAYING * part.predicted
            for part in remedies
        )
    ]


# -- on the host ----------------------------------------------------------------------------------------


def _on_host(seen: Examined, cores: int, measured: Alternatives) -> list[Remedy]:
    """Every pipeline with every way to step envs and to learn, but for the run as it is."""
    steps: list[tuple[Changes, float]] = [({}, 1.0)]
    steps += [({"env.vectorization": way}, factor) for way, factor in measured.steps.items()]
    ways = [None, *(way for way in measured.updates if way.learns_the_same)]
    found = []
    for pipeline, (stepping, factor), way in product([*_pipelines(seen, cores)], steps, ways):
        changes: Changes = {**pipeline.changes, **stepping, **({} if way is None else way.changes)}
        if not changes or (pipeline.name == "processes" and stepping):  # actors step theirs one after the other
            continue
        slices = pipeline.seconds(_changed(seen, factor, way), str(stepping.get("env.vectorization", "")))
        gained = 1 / seen.env_steps_per_s / max(slices, 1e-12)
        found.append(Remedy(changes, seen.of_whole_run(gained), can_be_raced=True))
    return found


class _Stages(NamedTuple):
    """Seconds of an env step by stage, what is between them among them; and those of cores that all of them use."""

    seconds: dict[str, float]
    at_work: float


def _changed(seen: Examined, factor: float, way: Way | None) -> _Stages:
    """The stages as they are with envs that take so many times as long, and gradient steps taken another way."""
    seconds = _in_one_process(seen)
    busy, at_work = seen.env_busy or 1.0, seen.at_work
    step, update = seconds["step"], seconds.get("update", 0.0)
    if factor != 1.0:
        seconds["step"] = step * factor  # the work itself stays: it is done elsewhere, or side by side
    if way is not None:
        of_update = max(at_work - busy * step - _sum(seconds, "select", "insert", "sample", "transfer"), update)
        seconds["update"] = update * way.factor
        at_work += update * way.factor * way.threads - of_update
    return _Stages(seconds, at_work)


def _apart(seen: Examined, stages: _Stages) -> _Stages:
    """Acting and learning, each on a core of its own: neither pushes the other's data out of the caches."""
    now = _in_one_process(seen)
    alone = {name: stage.alone for name, stage in seen.stages.items()} | {BETWEEN: seen.between_alone}
    changed = {
        name: each * stages.seconds[name] / max(now[name], 1e-12) for name, each in alone.items() if each is not None
    }
    learner = left_without(ACTING, stages.seconds, changed)
    actor = left_without(tuple(learner), stages.seconds, changed)
    seconds = {**learner, **actor}
    return _Stages(seconds, stages.at_work - sum(stages.seconds.values()) + sum(seconds.values()))


def _with_actors(seen: Examined, stages: _Stages) -> _Stages:
    """What actors do of what one process did: they put their steps in order, and a parcel of many is stored at once;
    new weights are handed to them a few times a second."""
    stages = _apart(seen, stages)
    seconds, saved = dict(stages.seconds), min(seen.new_weights, stages.seconds.get("update", 0.0))
    seconds["select"] = _sum(seconds, "select", "insert")
    seconds["insert"], seconds["update"] = 0.0, seconds.get("update", 0.0) - saved
    return _Stages(seconds, stages.at_work - saved)


class _Pipeline:
    """One that the envs could be in, by the model."""

    def __init__(self, seen: Examined, cores: int, name: str, changes: Changes) -> None:
        self.name, self.changes, self._seen, self._cores = name, changes, seen, cores

    def seconds(self, stages: _Stages, vectorization: str = "") -> float:
        """Of an env step, with envs stepped in another way if one is named."""
        if self.name == "processes":
            stages = stages if self._seen.actors else _with_actors(self._seen, stages)
            actors = self.changes.get("actors.count", self._seen.actors)
            assert isinstance(actors, int)
            least = seconds_with(stages.seconds, actors, _busy(self._seen, stages), self._cores)
            return max(least, stages.at_work / self._cores) + stages.seconds[BETWEEN]
        if self.name == "concurrent" != self._seen.pipeline:
            stages = _apart(self._seen, stages)
            block, holds_lock = self._seen.spec.block_plan.env_steps, self._holds_lock(vectorization)
            seconds = seconds_if_concurrent(stages.seconds, block, holds_lock=holds_lock) + stages.seconds[BETWEEN]
            return max(seconds, stages.at_work / self._cores)
        return max(_in_all(self.name, stages.seconds), stages.at_work / self._cores)

    def _holds_lock(self, vectorization: str) -> bool:
        """Whether envs at work keep other threads from Python: those in processes, and emulators in threads, do not."""
        limits, way = self._seen.limits, vectorization or self._seen.spec.env.vectorization
        is_native = not vectorization and limits is not None and "step" not in limits.least
        is_elsewhere = is_native or way in ("async", "threads", "native")
        return not is_elsewhere and (self._seen.env_busy or 1.0) >= MOSTLY_WAITS


def _busy(seen: Examined, stages: _Stages) -> float:
    """Share of acting in which a core is used."""
    waits = (1 - (seen.env_busy or 1.0)) * stages.seconds["step"]
    return 1 - waits / max(_sum(stages.seconds, "select", "step"), 1e-12)


def _pipelines(seen: Examined, cores: int) -> Iterator[_Pipeline]:
    spec, stages = seen.spec, _changed(seen, 1.0, None)
    yield _Pipeline(seen, cores, seen.pipeline, {})
    tells_errors = seen.actors and isinstance(spec.replay.sampling, Prioritized) and spec.actors.first_errors
    for other in ("sync", "concurrent"):
        if other != seen.pipeline and (other == "sync" or cores > 1) and not tells_errors and not spec.actors.ladder:
            yield _Pipeline(seen, cores, other, {"pipeline": other})
    if cores > 1 and seen.can_be_elsewhere:
        then = stages if seen.actors else _with_actors(seen, stages)
        unsaid = spec if not seen.actors else spec.with_field("actors.count", None)
        actors = actors_for(then.seconds, unsaid, _busy(seen, then), cores)
        if actors == seen.actors or spec.actors.ladder:  # by which actors explore differently
            return
        changes: Changes = {"pipeline": "processes", "actors.count": actors}
        if isinstance(spec.replay.sampling, Prioritized) and not seen.actors:
            changes["actors.first_errors"] = False  # first priorities as they are without actors
        if spec.env.vectorization in ("async", "threads"):
            changes["env.vectorization"] = "sync"  # in its process each actor steps its own
        yield _Pipeline(seen, cores, "processes", changes)


def _sum(stages: Mapping[str, float], *names: str) -> float:
    return sum(stages.get(name, 0.0) for name in names)


# -- a stage that takes less ----------------------------------------------------------------------------


def _on_device(seen: Examined, way: Way) -> float:
    return _scaled(seen, ("update",), way.factor)


def _with_update(seen: Examined, way: Way) -> float:
    if seen.env_busy is None or seen.actors:
        return _on_device(seen, way)
    left = max(_in_all(seen.pipeline, _changed(seen, 1.0, way).seconds), 1e-12)
    return seen.of_whole_run(1 / seen.env_steps_per_s / left)


def _scaled(seen: Examined, names: tuple[str, ...], factor: float) -> float:
    """How many times as fast the run is where these stages take so many times as long as they do."""
    now = {name: stage.seconds for name, stage in seen.stages.items()}
    then = {name: seconds * factor if name in names else seconds for name, seconds in now.items()}
    before = 1 / seen.env_steps_per_s
    after = before - seconds_of(seen.pipeline, now) + seconds_of(seen.pipeline, then)
    return seen.of_whole_run(before / max(after, 1e-12))


def _in_all(pipeline: str, seconds: Mapping[str, float]) -> float:
    """Of an env step, what is between its stages included."""
    stages = {name: each for name, each in seconds.items() if name != BETWEEN}
    return seconds_of(pipeline, stages) + seconds[BETWEEN]


def _in_one_process(seen: Examined) -> dict[str, float]:
    """Seconds of an env step by stage and between them, if they were done one after the other in this process."""
    stages = {name: stage.seconds for name, stage in seen.stages.items()}
    if not seen.actors:
        return {**stages, BETWEEN: seen.between}
    between_processes = ("hand over", "publish")
    here = {
        name: each * (seen.actors if name in OF_ACTORS else 1)
        for name, each in stages.items()
        if name not in between_processes
    }
    # Where the learner waits for actors, that is what is between stages, and no other pipeline waits like it.
    return {**here, BETWEEN: 0.0 if seen.stages["update"].is_beside else seen.between}


def _occasions(seen: Examined) -> Iterator[Remedy]:
    for occasion in seen.occasions.values():
        if occasion.can_be_rarer and occasion.per_env_step >= WORTH_MAKING_RARE * seen.seconds:
            left = seen.seconds - occasion.per_env_step * (1 - 1 / RARER)
            yield Remedy({occasion.field: RARER * occasion.every}, seen.seconds / left, can_be_raced=False)
