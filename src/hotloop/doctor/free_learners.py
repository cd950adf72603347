"""Stages of learners that cost nothing for a while, those of all of them at once: of a run of one, or of a team's."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from hotloop.doctor.free_on_host import Change, FreeLearner, in_place_of, no_update
from hotloop.engines.protocol import Learned, Lesson, State
from hotloop.pipelines.learning_run import LearningRun


class FreeLearners:
    """The stages that can be free; all must have learned already."""

    def __init__(self, runs: Sequence[LearningRun]) -> None:
        self._runs, self._each = runs, [FreeLearner(run) for run in runs]
        # Not all need have the same: batches of small observations are handed over with the update.
        names = dict.fromkeys(name for free in self._each for name in free.stages)
        of_all = {name: [free.stages[name] for free in self._each if name in free.stages] for name in names}
        of_all["update"].append(self._no_update_together)
        self.stages: dict[str, Change] = {name: partial(all_at_once, changes) for name, changes in of_all.items()}

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Within, the run goes on as it is and what will stand in is kept: let it run for some blocks."""
        with all_at_once([free.prepared for free in self._each]):
            yield

    @property
    def is_prepared(self) -> bool:
        """Whether all that will stand in was seen."""
        return all(free.is_prepared for free in self._each)

    @contextmanager
    def _no_update_together(self) -> Iterator[None]:
        """Where gradient steps of all are one batched program, that is another call."""
        first = self._runs[0]
        stay = no_update(first.spec.updates_per_draw)

        def all_stay(lessons: Sequence[Lesson[State]]) -> list[Learned[State]]:
            return [stay(*lesson) for lesson in lessons]

        with in_place_of(first.engine, "update_all", all_stay):
            yield


@contextmanager
def all_at_once(changes: Sequence[Change]) -> Iterator[None]:
    """Within, all of them hold."""
    with ExitStack() as all_of_them:
        for change in changes:
            all_of_them.enter_context(change())
        yield
