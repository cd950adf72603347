"""A search: trials one after the other or side by side, until there are as many as were asked for."""

import errno
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotloop.api import DEFAULT, Out, Source
from hotloop.cores import usable_cores
from hotloop.envs.naming import look_in_current_folder
from hotloop.errors import SearchFailed, SpecError
from hotloop.interrupts import Interrupts
from hotloop.plain import Figures, Json
from hotloop.progress import Reporter, Silent
from hotloop.searching.folder import SearchFolder
from hotloop.searching.space import EXAMPLE, Space, parse_space
from hotloop.searching.study import Asked, Record, SearchStudy, State, require_optuna
from hotloop.searching.subject import OwnSpec, Subject
from hotloop.searching.trial_process import (
    Ended,
    Evaluated,
    Task,
    TrialProcess,
    refuse_in_a_starting_process,
    those_that_speak,
)
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec, space_in

TRIALS = 20
"""Trials of a search that nobody has said a number for."""
FAILURES_IN_A_ROW = 5
"""So many trials that fail before any has a score end a search."""
CORES_PER_TRIAL = 2
WARM_UP = 0.25
"""Share of a trial's evaluations before it may be pruned."""
SECONDS_BETWEEN_LOOKS = 0.2
DRAWS_TO_CHECK = 50
"""Draws of a space among which one must make a spec."""


@dataclass(frozen=True)
class Search:
    """A search that has ended or was stopped: its folder, its trials, and the best of them."""

    path: Path
    records: Sequence[Record]
    importances: Mapping[str, float]
    best_spec: Path | None
    stopped: str | None  # by whom, if it has not come to its end

    @property
    def best(self) -> Record | None:
        """The completed trial with the highest score."""
        return best_of(self.records)

    def count(self, state: State) -> int:
        """How many trials have ended so."""
        return sum(record.state == state for record in self.records)

    def as_json(self) -> Figures:
        """What `hotloop search --json` prints."""
        best: Json = None
        if self.best is not None:
            best = {"trial": self.best.number, "score": self.best.score, "values": self.best.values}
        return {
            "search": str(self.path),
            "trials": len(self.records),
            "completed": self.count("completed"),
            "pruned": self.count("pruned"),
            "failed": self.count("failed"),
            "best": best,
            "best_spec": None if self.best_spec is None else str(self.best_spec),
            "importances": dict(self.importances),
            "stopped": self.stopped,
        }


def search(
    spec: Source,
    *,
    space: Mapping[str, object] | None = None,
    trials: int = TRIALS,
    parallel: int | None = None,
    out: Out = DEFAULT,
    prune: bool = True,
    reporter: Reporter | None = None,
    **overrides: object,
) -> Search:
    """Search for the values of a spec with the highest score: a trial is a whole training with some of them.

    `space` says what is drawn, `{"optimizer.learning_rate__loguniform": [1e-4, 1e-2]}`; without it, the spec's file
    does, under `search:`. `trials` are those in all: a search whose folder is given again as `out` goes on until it has
    as many. `parallel` of them run side by side, by default one for every two cores. With `prune` a trial ends when
    its return no longer rises and is below the median of those before it. Overrides are fields of the spec, as for
    `hotloop.train`.
    A script calls this below `if __name__ == "__main__":`, as trials run in processes of their own that import it.
    """
    parsed = load_spec(spec, overrides, imports_plugins=True)
    described = space_in(spec) if space is None else space
    return search_in(
        OwnSpec.of(parsed),
        described,
        trials=trials,
        parallel=parallel,
        out=out,
        prune=prune,
        reporter=reporter or Silent(),
    )


def search_in(
    subject: Subject,
    space: object,
    *,
    trials: int = TRIALS,
    parallel: int | None = None,
    out: Out = DEFAULT,
    prune: bool = True,
    reporter: Reporter,
) -> Search:
    """As `search`, with a spec that was read and a space as it was found, if there was one."""
    refuse_in_a_starting_process()
    spec = subject.with_values({})
    if out is None:
        raise SpecError("out is None, but a search lives in its folder; give out=FOLDER")
    for name, value in (("trials", trials), ("parallel", parallel)):
        if value is not None and (type(value) is not int or value < 1):
            raise SpecError(f"{name} is {value!r}, expected a whole number from 1 on")
    if space is None:
        raise SpecError(
            f"nothing says what to search; expected fields under search: in the spec's file, such as {EXAMPLE}"
        )
    parsed = parse_space(space)
    look_in_current_folder(spec.env.id)
    _require_fields(subject, parsed)
    require_optuna()
    folder = SearchFolder.choose(None if out is DEFAULT else Path(out), spec, space)
    goes_on = folder.is_there
    with folder.opened():
        every = spec.evaluation.every
        warm_up = max(1, round(WARM_UP * spec.stop.steps / every)) if every and prune else None
        study = SearchStudy(folder.journal, parsed, spec.seed, warm_up=warm_up)
        running = _Trials(subject, spec, study, folder, parallel or usable_cores() // CORES_PER_TRIAL or 1, reporter)
        if goes_on:
            reporter.say(f"continuing the search in {folder.path}: {len(running.records)} trial(s) have ended")
        try:
            return _concluded(running, running.run_until(trials))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            raise SearchFailed(
                f"{folder.path} cannot be written: {error.strerror}; what has ended is kept: make room, then the same "
                f"command with --out {folder.path} continues"
            ) from None


def best_of(records: Sequence[Record]) -> Record | None:
    """The completed trial with the highest score; of equals the first."""
    completed = [record for record in records if record.state == "completed"]
    return max(completed, key=lambda record: record.score or 0.0, default=None)


def _concluded(running: "_Trials", stopped: str | None) -> Search:
    folder, study = running.folder, running.study
    best, importances = best_of(running.records), study.importances()
    if running.records and not stopped and all(record.state == "failed" for record in running.records):
        raise SearchFailed(f"all {len(running.records)} trial(s) failed, the last: {running.records[-1].reason}")
    if any(record.score is not None for record in running.records):
        from hotloop.searching.picture import draw_search

        with running.reporter.busy("drawing"):
            draw_search(folder.picture, running.spec.name, running.records, importances)
    return Search(folder.path, running.records, importances, folder.best_spec if best else None, stopped)


class _Trials:
    """The trials of a search that run now, and those that have ended."""

    def __init__(
        self,
        subject: Subject,
        spec: Spec,
        study: SearchStudy,
        folder: SearchFolder,
        parallel: int,
        reporter: Reporter,
    ) -> None:
        """`spec` is the subject's without values."""
        self._subject, self.spec, self.study, self.folder, self.reporter = subject, spec, study, folder, reporter
        self.records = study.records()
        self._parallel = parallel
        self._running: dict[TrialProcess, Asked] = {}
        self._began = time.monotonic()
        self._failures = 0  # since this process began
        self._write()

    def run_until(self, trials: int) -> str | None:
        """Run trials until so many have ended; returns who has stopped it before, if so."""
        with Interrupts() as interrupts:
            try:
                while not interrupts.seen:
                    while len(self._running) < min(self._parallel, trials - len(self.records)):
                        self._begin()
                    if not self._running:
                        break
                    for process in those_that_speak(list(self._running), SECONDS_BETWEEN_LOOKS):
                        self._hear(process)
                    self._show(trials)
            finally:
                self._put_back_all()
        return interrupts.seen

    def _begin(self) -> None:
        asked = self.study.ask()
        run, output = self.folder.run_of(asked.number), self.folder.output_of(asked.number)
        shutil.rmtree(run, ignore_errors=True)  # what is left of it from before it was interrupted
        output.unlink(missing_ok=True)
        threads = max(1, usable_cores() // self._parallel) if self._parallel > 1 else None
        self._running[TrialProcess(Task(self._subject, asked.values, run, output, threads))] = asked

    def _hear(self, process: TrialProcess) -> None:
        asked, heard = self._running[process], process.hear()
        if isinstance(heard, Evaluated):
            # Periods rather than env steps: blocks of trials may differ in length, their evaluations do not.
            period = max(1, round(heard.env_steps / max(1, self.spec.evaluation.every)))
            process.answer(stops=self.study.is_hopeless(asked, period, heard.score))
        elif isinstance(heard, Ended):
            process.close(has_ended=True)
            del self._running[process]
            self._end(asked, heard, process.seconds)

    def _end(self, asked: Asked, ended: Ended, seconds: float) -> None:
        state: State = "failed" if ended.reason else "pruned" if ended.stopped_by == "callback" else "completed"
        self.study.end(asked, state, ended.score, seconds, ended.reason)
        self.records = self.study.records()
        self._write()
        what = f"failed: {ended.reason}" if ended.reason else f"{ended.score:g}{' (pruned)' * (state == 'pruned')}"
        best = best_of(self.records)
        so_far = "" if best is None else f"; best {best.score:g} (trial {best.number})"
        self.reporter.say(f"trial {asked.number}: {what}{so_far}")
        self._failures = self._failures + 1 if state == "failed" else 0
        has_score = any(record.state != "failed" for record in self.records)
        if not has_score and self._failures >= FAILURES_IN_A_ROW:
            raise SearchFailed(f"all of the first {self._failures} trials failed, the last: {ended.reason}")

    def _put_back_all(self) -> None:
        """End what still runs; it runs again when the search goes on."""
        running, self._running = self._running, {}
        for process in running:
            process.ask_to_end()
        for process, asked in running.items():
            process.close()
            self.study.put_back(asked)
            shutil.rmtree(self.folder.run_of(asked.number), ignore_errors=True)
            self.folder.output_of(asked.number).unlink(missing_ok=True)

    def _write(self) -> None:
        self.folder.write_trials(self.records)
        if best := best_of(self.records):
            self.folder.write_best(best, self._subject.with_values(best.values))

    def _show(self, trials: int) -> None:
        best = best_of(self.records)
        counts = {state: sum(record.state == state for record in self.records) for state in ("pruned", "failed")}
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        shown: Figures = {"best": best.score if best else None, **counts, "elapsed": f"{minutes}:{seconds:02d}"}
        self.reporter.show(len(self.records), trials, shown)


def _require_fields(subject: Subject, space: Space) -> None:
    """Refuse a space none of whose values make a spec: a field that is not there, or values that it does not take."""
    middle = space.middle()
    try:
        subject.with_values(middle)
        return
    except SpecError as error:
        complaint = str(error)
    draws = _Draws(random.Random(0))
    for _ in range(DRAWS_TO_CHECK):  # a combination may be refused while others are not
        try:
            subject.with_values(space.suggest(draws))
            return
        except SpecError:
            continue
    shown = ", ".join(f"{path}={value}" for path, value in middle.items())
    raise SpecError(f"search: {complaint} (with {shown})")


class _Draws:
    """A trial without a study: every value at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return self._rng.uniform(low, high)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return self._rng.randrange(low, high + 1, step)

    def suggest_categorical(self, name: str, choices: Sequence[int]) -> int:
        return self._rng.choice(choices)
