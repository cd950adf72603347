"""Settings that leave what is learned as it is, and how much faster the model predicts a run to be with each.

| setting | seconds of an env step, by the model |
|---|---|
| `pipeline: sync` | the sum of all stages |
| `pipeline: concurrent` | drawing, then the longer of acting and learning; no less than all work on all cores |
| `pipeline: processes` | the longest of: acting by so many actors, learning, all work on all cores |
| `env.vectorization: async` | the envs' steps side by side, and the way to their processes |
| rarer evaluations, checkpoints, lines of metrics | a tenth of what they take now |

The order of experience changes with the pipeline, and so do the bits; env steps, gradient steps, batches, priorities, ε
and targets do not. What the spec's own rules refuse is not proposed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hotloop.doctor.examination import Examined
from hotloop.doctor.model import seconds_of
from hotloop.errors import SpecError
from hotloop.pipeline_trial import actors_for, seconds_with
from hotloop.spec import Prioritized
from hotloop.spec.reading import load_spec

RARER, WORTH_MAKING_RARE = 10, 0.1
"""Times as many env steps from one occasion to the next; share of the time from which that is proposed."""
TO_A_PROCESS = 1e-4
"""Seconds that it takes to hand a step to another process and back, for each env: Gymnasium's own, on a usual core."""
WORTH_SAYING = 1.03
"""Times as fast below which a setting is not named."""
QUOTE = '"'
MOSTLY_WAITS = 0.5
"""Share of an env's step below which its core is free for others."""


class Remedy(NamedTuple):
    """A change of the spec."""

    changes: dict[str, str | int | bool]
    predicted: float
    """Times as fast as it is, all in all."""
    can_be_raced: bool
    """Whether a short training shows it; what happens now and then is counted instead."""

    @property
    def options(self) -> str:
        """To paste behind `hotloop train SPEC`."""
        return " ".join(f"--set {field}={json.dumps(value).strip(QUOTE)}" for field, value in self.changes.items())


def same_result(seen: Examined, cores: int) -> list[Remedy]:
    """The best first."""
    found = [*([] if seen.env_busy is None else _pipelines(seen, cores, seen.env_busy)), *_occasions(seen)]
    worth = [remedy for remedy in found if remedy.predicted >= WORTH_SAYING and _is_allowed(seen, remedy.changes)]
    return sorted(worth, key=lambda remedy: -remedy.predicted)


def _is_allowed(seen: Examined, changes: Mapping[str, object]) -> bool:
    try:
        load_spec(seen.spec, dict(changes))
    except SpecError:
        return False
    return True


def _pipelines(seen: Examined, cores: int, busy: float) -> Iterator[Remedy]:
    """`busy` is the share of an env's step in which it uses a core."""
    spec, stages = seen.spec, {name: stage.seconds for name, stage in seen.stages.items()}
    slices, step = 1 / seen.env_steps_per_s, stages["step"]
    at_work = sum(stages.values()) - (1 - busy) * step

    def remedy(seconds: float, changes: dict[str, str | int | bool]) -> Remedy:
        return Remedy(changes, seen.of_whole_run(slices / max(seconds, 1e-12)), can_be_raced=True)

    other = "sync" if seen.pipeline == "concurrent" else "concurrent"
    if other == "sync" or cores > 1:
        seconds = seconds_of(other, stages) + seen.between
        yield remedy(max(seconds, at_work / cores), {"pipeline": other})
    if cores == 1:
        return
    if seen.can_be_elsewhere:
        acting = sum(stages[name] for name in ("select", "step"))
        of_acting = 1 - (1 - busy) * step / max(acting, 1e-12)
        actors = actors_for(stages, spec, of_acting, cores)
        changes: dict[str, str | int | bool] = {"pipeline": "processes", "actors.count": actors}
        if isinstance(spec.replay.sampling, Prioritized):
            changes["actors.first_errors"] = False  # first priorities as they are without actors
        yield remedy(seconds_with(stages, actors, of_acting, cores) + seen.between, changes)
    if spec.env.num_envs > 1 and spec.env.vectorization in ("auto", "sync"):
        at_once = spec.env.num_envs if busy < MOSTLY_WAITS else min(cores, spec.env.num_envs)
        beside = {**stages, "step": step / at_once + TO_A_PROCESS}
        yield remedy(seconds_of(seen.pipeline, beside) + seen.between, {"env.vectorization": "async"})


def _occasions(seen: Examined) -> Iterator[Remedy]:
    for occasion in seen.occasions.values():
        if occasion.can_be_rarer and occasion.per_env_step >= WORTH_MAKING_RARE * seen.seconds:
            left = seen.seconds - occasion.per_env_step * (1 - 1 / RARER)
            yield Remedy({occasion.field: RARER * occasion.every}, seen.seconds / left, can_be_raced=False)
