"""Settings that leave what is learned as it is, and how much faster the model predicts a run to be with each.

| setting | seconds of an env step, by the model |
|---|---|
| `pipeline: sync` | the sum of all stages |
| `pipeline: concurrent` | drawing, then the longer of acting and learning; no less than all work on all cores |
| `pipeline: processes` | the longest of: acting by so many actors, learning, all work on all cores |
| `env.vectorization: async` | the envs' steps side by side, and the way to their processes |
| rarer evaluations, checkpoints, lines of metrics | a tenth of what they take now |

The order of experience changes with the pipeline, and so do the bits; env steps, gradient steps, batches, ε and targets
do not.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hotloop.doctor.causes import LISTED
from hotloop.doctor.examination import Examined
from hotloop.doctor.model import ACTING, LEARNING
from hotloop.pipeline_trial import MOST_ACTORS

RARER = 10
"""Times as many env steps from one evaluation, checkpoint or line of metrics to the next."""
TO_A_PROCESS = 1e-4
"""Seconds that it takes to hand a step to another process and back, for each env: Gymnasium's own, on a usual core."""
WORTH_SAYING = 1.03
"""Times as fast below which a setting is not named."""
FIELDS = {"log": "log.every", "evaluate": "evaluation.every", "checkpoint": "log.checkpoint_every"}


class Remedy(NamedTuple):
    """A change of the spec."""

    changes: dict[str, str | int]
    predicted: float
    """Times as fast as it is."""
    can_be_raced: bool
    """Whether a short training shows it; what happens now and then is counted instead."""

    @property
    def options(self) -> str:
        """To paste behind `hotloop train SPEC`."""
        return " ".join(f"--set {field}={value}" for field, value in self.changes.items())


def same_result(seen: Examined, cores: int) -> list[Remedy]:
    """The best first."""
    found = [*([] if seen.env_busy is None else _pipelines(seen, cores, seen.env_busy)), *_occasions(seen)]
    worth = [remedy for remedy in found if remedy.predicted >= WORTH_SAYING]
    return sorted(worth, key=lambda remedy: -remedy.predicted)


def _pipelines(seen: Examined, cores: int, busy: float) -> Iterator[Remedy]:
    """`busy` is the share of an env's step in which it uses a core."""
    if seen.pipeline not in ("sync", "concurrent"):  # of actors, none is in this process to be timed
        return
    spec, stages = seen.spec, seen.all_stages
    acting, learning = (sum(stages.get(name, 0.0) for name in side) for side in (ACTING, LEARNING))
    drawing, step = stages.get("sample", 0.0), stages["step"]
    at_work = busy * step + acting - step + learning + drawing
    beside = sum(each.per_env_step for each in seen.occasions.values())

    def remedy(seconds: float, **changes: str | int) -> Remedy:
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return Remedy(named, seen.seconds / (seconds + beside), can_be_raced=True)

    if seen.pipeline == "sync" and cores > 1:
        yield remedy(max(drawing + max(acting, learning) + seen.between, at_work / cores), pipeline="concurrent")
    elif seen.pipeline == "concurrent":
        yield remedy(drawing + acting + learning + seen.between, pipeline="sync")
    most = min(MOST_ACTORS, spec.env.num_envs)
    if cores > 1:
        seconds = [max(acting / n, learning + drawing, at_work / cores) for n in range(1, most + 1)]
        actors = 1 + next(n for n, each in enumerate(seconds) if each <= 1.05 * min(seconds))
        yield remedy(seconds[actors - 1], pipeline="processes", actors__count=actors)
    if cores > 1 and spec.env.num_envs > 1 and spec.env.vectorization in ("auto", "sync"):
        at_once = spec.env.num_envs if busy < 0.5 else min(cores, spec.env.num_envs)
        faster = step - step / at_once - TO_A_PROCESS
        if seen.pipeline == "sync":
            yield remedy(1 / seen.env_steps_per_s - faster, env__vectorization="async")


def _occasions(seen: Examined) -> Iterator[Remedy]:
    for name, occasion in seen.occasions.items():
        if occasion.per_env_step >= LISTED * seen.seconds:
            left = seen.seconds - occasion.per_env_step * (1 - 1 / RARER)
            yield Remedy({FIELDS[name]: RARER * occasion.every}, seen.seconds / left, can_be_raced=False)
