"""Trainings with other settings beside the one as it is: each in a process of its own, in turns.

Threads are a property of a process, and a pipeline is chosen when a run begins: unlike a free stage, another setting is
another training. Between its turns one rests and uses no core. There are never more than two at a time.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing

from hotloop.doctor.examination import learning_early
from hotloop.doctor.slices import Ratio, interval_of
from hotloop.interrupts import end_is_wanted
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import given, load_spec
from hotloop.trainer_process import Orders, Trainer, TrainingEnded

SECONDS, WARM_SECONDS = 1.5, 1.0
TO_BEGIN, TO_ANSWER = 120.0, 60.0
"""Seconds beyond a turn's own after which a training is taken to hang: the first has all there is to compile."""
FEWEST_ROUNDS, MOST_ROUNDS = 3, 10
NO_TIME = "there was no time left to try it (--minutes)"
NEVER = 2**30
"""Env steps between lines of metrics, which are counted apart."""
NEEDED = 20.0
"""Seconds that must be left for another training to be begun: it starts, compiles, and has its turns."""


def race(
    spec: Spec, changes: Sequence[Mapping[str, object]], until: float, variables: Mapping[str, str], reporter: Reporter
) -> list[Ratio | str]:
    """How many times as fast slices of the spec are with each of the changes, or why that could not be found out.

    `variables` are those of the environment with which a run of the user's would begin.
    """
    found: list[Ratio | str] = []
    if until - time.monotonic() < NEEDED or end_is_wanted():
        return [NO_TIME] * len(changes)
    try:
        with closing(_begin(spec, {}, variables)) as as_it_is:
            for index, each in enumerate(changes):
                left = until - time.monotonic()
                if left < NEEDED or end_is_wanted():
                    break
                ends = time.monotonic() + left / (len(changes) - index)
                found.append(_compared(as_it_is, _begin(spec, each, variables), ends, each, reporter))
    except TrainingEnded as ended:  # the one as it is
        found += [str(ended)] * (len(changes) - len(found))
    return [*found, *[NO_TIME] * (len(changes) - len(found))]


def _begin(spec: Spec, changes: Mapping[str, object], variables: Mapping[str, str]) -> Trainer:
    changed = load_spec(learning_early(spec), {"evaluation.every": 0, "log.every": NEVER, **changes})
    return Trainer(Orders(given(changed), variables=variables))


def _compared(
    as_it_is: Trainer, other: Trainer, until: float, changes: Mapping[str, object], reporter: Reporter
) -> Ratio | str:
    with closing(other):
        with reporter.busy(f"a training with {', '.join(f'{name}: {value}' for name, value in changes.items())}"):
            as_it_is.train(WARM_SECONDS, TO_BEGIN)
            try:
                other.train(WARM_SECONDS, TO_BEGIN)
            except TrainingEnded as ended:
                return str(ended)
        ratios: list[float] = []
        before = as_it_is.train(SECONDS, TO_ANSWER)["env_steps_per_s"]
        for number in range(MOST_ROUNDS):
            if end_is_wanted() or (number >= FEWEST_ROUNDS and time.monotonic() > until):
                break
            try:
                speed = other.train(SECONDS, TO_ANSWER)["env_steps_per_s"]
            except TrainingEnded as ended:
                return str(ended)
            after = as_it_is.train(SECONDS, TO_ANSWER)["env_steps_per_s"]
            ratios.append(speed / (before * after) ** 0.5)
            before = after
            reporter.show(number + 1, MOST_ROUNDS, {"rounds of": "two trainings"})
    return interval_of(ratios) if ratios else NO_TIME
