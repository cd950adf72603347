"""Trainings with other settings beside the one as it is: each in a process of its own, in turns.

Threads are a property of a process, and a pipeline is chosen when a run begins: unlike a free stage, another setting is
another training. Between its turns one rests and uses no core.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence

from hotloop.doctor.slices import Ratio, interval_of
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import given, load_spec
from hotloop.trainer_process import Orders, Trainer

SECONDS, WARM_SECONDS = 1.5, 1.0
FEWEST_ROUNDS, MOST_ROUNDS = 3, 12


def race(spec: Spec, changes: Sequence[Mapping[str, object]], until: float, reporter: Reporter) -> list[Ratio | str]:
    """How many times as fast the spec is with each of the changes, or why that could not be found out."""
    never = {"evaluation.every": 0, "stop.return_at_least": None, "stop.episodes": None, "seeds": 1}
    with contextlib.ExitStack() as ends:

        def begin(more: Mapping[str, object]) -> Trainer:
            trainer = Trainer(Orders(given(load_spec(spec, {**never, **more}))))
            ends.callback(trainer.close)
            return trainer

        with reporter.busy("starting trainings with other settings"):
            as_it_is = begin({})
            others: list[Trainer | str] = []
            for each in changes:
                others.append(begin(each))
            as_it_is.train(WARM_SECONDS)
            for index, other in enumerate(others):
                others[index] = _warmed(other)
        ratios: list[list[float]] = [[] for _ in changes]
        before = as_it_is.train(SECONDS)["env_steps_per_s"]
        for number in range(MOST_ROUNDS):
            if number >= FEWEST_ROUNDS and time.monotonic() > until:
                break
            for index, other in enumerate(others):
                if isinstance(other, str):
                    continue
                speed = other.train(SECONDS)["env_steps_per_s"]
                after = as_it_is.train(SECONDS)["env_steps_per_s"]
                ratios[index].append(speed / (before * after) ** 0.5)
                before = after
            reporter.show(number + 1, MOST_ROUNDS, {"rounds of": f"{len(others)} other settings"})
        return [
            other if isinstance(other, str) else interval_of(each) for other, each in zip(others, ratios, strict=True)
        ]


def _warmed(trainer: Trainer | str) -> Trainer | str:
    """The training past its first steps, or what ended it."""
    assert not isinstance(trainer, str)
    try:
        trainer.train(WARM_SECONDS)
    except ValueError as error:
        return str(error)
    return trainer
