"""The memory of a search: Optuna's study in a journal, which a process that is killed at any time leaves whole.

A trial has one number for ever. Optuna knows one that was interrupted and the one that runs again in its place as two;
here they are one.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hotloop.errors import SpecError
from hotloop.plain import Figures, Json, inner, number
from hotloop.searching.space import Space

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

State = Literal["completed", "pruned", "failed"]
STARTUP_TRIALS = 10
"""Trials drawn at random before those that are drawn where the best ones lie."""
UNPRUNED_TRIALS = 5
"""Trials that must have been completed before any is pruned."""
FEWEST_FOR_IMPORTANCES = 4
BETTER_SHARE = 0.5
"""Trials that importances are about. In simulated searches of 15, 30 and 60 trials (eight of each) this was the one
share of 0.1, 0.25 and 0.5 at which both parameters that mattered stood, on average, above three that did not."""
_NUMBER, _VALUES, _SECONDS, _REASON, _INTERRUPTED = "number", "values", "seconds", "reason", "interrupted"


@dataclass(frozen=True)
class Record:
    """A trial that has ended."""

    number: int
    state: State
    score: float | None  # of a pruned one what it had reached
    values: Mapping[str, Json]
    seconds: float
    reason: str | None  # why it failed
    evaluations: Mapping[int, float] = field(default_factory=dict)  # score by evaluation, from 1 on


@dataclass(frozen=True)
class Asked:
    """A trial that runs: its number, and its values by path."""

    number: int
    values: dict[str, object]
    trial: "Trial"
    scores: list[float] = field(default_factory=list)  # of its evaluations so far


def require_optuna() -> None:
    """Refuse a search where Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        raise SpecError("a search needs Optuna, which is not installed; pip install 'hotloop[search]'") from None


class SearchStudy:
    """What was tried and what came of it; asks Optuna what to try next. One process at a time has it open."""

    def __init__(self, journal: Path, space: Space, seed: int, *, warm_up: int | None) -> None:
        """`warm_up`: evaluations before a trial may be pruned; None: no trial is."""
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        _mend(journal)
        backend = JournalFileBackend(str(journal), JournalFileOpenLock(str(journal)))
        pruner = (
            optuna.pruners.NopPruner()
            if warm_up is None
            else optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS, n_warmup_steps=warm_up)
        )
        self._space, self._seed = space, seed
        try:
            self._study: Study = optuna.create_study(
                storage=JournalStorage(backend),
                study_name="search",
                direction="maximize",
                pruner=pruner,
                load_if_exists=True,
            )
        except (ValueError, KeyError, TypeError) as error:  # whatever a line that is damaged makes Optuna raise
            raise SpecError(
                f"{journal} is damaged ({type(error).__name__}: {error}); without it a search cannot go on: choose "
                "another --out"
            ) from None
        self._require_values_of_the_space(journal)
        for frozen in self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            self._put_back(frozen)  # whoever ran it is gone

    def _require_values_of_the_space(self, journal: Path) -> None:
        """Refuse a journal that someone has changed: values go into specs, which may name modules."""
        expected = set(self._space.parameters)
        for frozen in self._study.get_trials(deepcopy=False):
            found = set(inner(frozen.user_attrs, _VALUES)) if _VALUES in frozen.user_attrs else expected
            if found != expected:
                raise SpecError(
                    f"{journal} has a trial with values of {', '.join(sorted(map(str, found))) or 'nothing'}, but what "
                    f"is searched is {', '.join(sorted(expected))}: it was changed; choose another --out"
                )

    def ask(self) -> Asked:
        """Begin a trial: one that was interrupted, else a new one.

        What is drawn follows from the seed, the trial's number and those that have ended, not from what this process
        has drawn before: a search that was interrupted goes on as it would have.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        number = _number_of(waiting[0]) if waiting else self._begun()
        seed = _seed_of(self._seed, number)
        with _quiet():
            self._study.sampler = TPESampler(
                n_startup_trials=STARTUP_TRIALS,
                multivariate=True,
                group=True,
                warn_independent_sampling=False,
                seed=seed,
            )
            trial = self._study.ask()
            trial.set_user_attr(_NUMBER, number)
            values = self._space.suggest(trial)
        trial.set_user_attr(_VALUES, values)
        return Asked(number, values, trial)

    def is_hopeless(self, asked: Asked, evaluation: int, score: float) -> bool:
        """Note what an evaluation gave; whether the trial is to be ended: below the median, and no better than before.

        Returns come in jumps: one that still rises may pass the others.
        """
        asked.trial.report(score, evaluation)
        still_rises = score > max(asked.scores, default=-math.inf)
        asked.scores.append(score)
        return not still_rises and asked.trial.should_prune()

    def end(self, asked: Asked, state: State, score: float | None, seconds: float, reason: str | None = None) -> None:
        """Note how a trial has ended; `score` is that of a completed one."""
        from optuna.trial import TrialState

        asked.trial.set_user_attr(_SECONDS, round(seconds, 3))
        if reason is not None:
            asked.trial.set_user_attr(_REASON, reason)
        states = {"completed": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        self._study.tell(asked.trial, score if state == "completed" else None, states[state])

    def put_back(self, asked: Asked) -> None:
        """A trial that was interrupted, through no fault of its own: it runs again."""
        self._put_back(self._study.trials[asked.trial.number])

    def _put_back(self, frozen: "FrozenTrial") -> None:
        from optuna.trial import Trial, TrialState

        if _NUMBER in frozen.user_attrs:  # else nothing had been drawn, and the next trial is the same
            number = _number_of(frozen)
            same = [other for other in self._study.get_trials(deepcopy=False) if _number_of(other) == number]
            if same[-1].number == frozen.number:  # else it was put back before this process was killed
                drawn = [dict(other.params) for other in same if _VALUES in other.user_attrs]
                self._study.enqueue_trial(drawn[-1] if drawn else {}, user_attrs={_NUMBER: number})
        trial = Trial(self._study, frozen._trial_id)
        trial.set_user_attr(_INTERRUPTED, True)
        self._study.tell(trial, state=TrialState.FAIL)

    def _begun(self) -> int:
        """How many trials have been begun: the number of the next."""
        known = self._study.get_trials(deepcopy=False)
        return 1 + max((_number_of(frozen) for frozen in known if _NUMBER in frozen.user_attrs), default=-1)

    def records(self) -> list[Record]:
        """The trials that have ended, by their numbers."""
        ended = [
            frozen
            for frozen in self._study.get_trials(deepcopy=False)
            if frozen.state.is_finished() and _INTERRUPTED not in frozen.user_attrs
        ]
        return sorted((_record(frozen) for frozen in ended), key=lambda record: record.number)

    def importances(self) -> dict[str, float]:
        """The share of each path in what tells the better half of the trials from all (PED-ANOVA), the largest first.

        Pruned trials count with what they had reached. Empty where there are too few trials, or all are alike.
        """
        import optuna

        scored = []
        for frozen in self._study.get_trials(deepcopy=False):
            score = None if _INTERRUPTED in frozen.user_attrs else _score_of(frozen)
            if frozen.state.is_finished() and score is not None:
                scored.append(
                    optuna.trial.create_trial(params=frozen.params, distributions=frozen.distributions, value=score)
                )
        if len(scored) < FEWEST_FOR_IMPORTANCES or len({trial.value for trial in scored}) == 1:
            return {}
        with _quiet():
            whole = optuna.create_study(direction="maximize")
            whole.add_trials(scored)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=BETTER_SHARE)
            found = optuna.importance.get_param_importances(whole, evaluator=evaluator)
        # Of a path with several draws the one that matters most: their sum would grow with their number alone.
        weights = {path: max(found[name] for name in found if _is_of(name, path)) for path in self._space.parameters}
        whole_weight = sum(weights.values()) or 1.0
        return {path: weights[path] / whole_weight for path in sorted(weights, key=lambda path: -weights[path])}


def _is_of(name: str, path: str) -> bool:
    """Whether a draw belongs to a path: its own, or one of several."""
    return name == path or name.startswith(f"{path}.")


def _number_of(frozen: "FrozenTrial") -> int:
    return int(frozen.user_attrs.get(_NUMBER, -1))


def _record(frozen: "FrozenTrial") -> Record:
    from optuna.trial import TrialState

    states: dict[TrialState, State] = {TrialState.COMPLETE: "completed", TrialState.PRUNED: "pruned"}
    attributes: Figures = frozen.user_attrs
    reason = attributes.get(_REASON)
    return Record(
        number=_number_of(frozen),
        state=states.get(frozen.state, "failed"),
        score=_score_of(frozen),
        values=inner(attributes, _VALUES),
        seconds=number(attributes, _SECONDS),
        reason=None if reason is None else str(reason),
        evaluations=dict(sorted(frozen.intermediate_values.items())),
    )


def _score_of(frozen: "FrozenTrial") -> float | None:
    """What a trial has reached; none of a failed one."""
    from optuna.trial import TrialState

    if frozen.state == TrialState.COMPLETE:
        return frozen.value
    if frozen.state == TrialState.PRUNED and frozen.intermediate_values:
        reached = frozen.intermediate_values[max(frozen.intermediate_values)]
        return reached if math.isfinite(reached) else None
    return None


def _seed_of(seed: int, number: int) -> int:
    """A seed of its own for the draws of each trial."""
    import numpy as np

    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _mend(journal: Path) -> None:
    """Take away what a killed process may have left: its lock, and the half of a line."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)
    if journal.is_file():
        whole = journal.read_bytes()
        if whole and not whole.endswith(b"\n"):
            with journal.open("r+b") as file:
                file.truncate(whole.rfind(b"\n") + 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Optuna's warnings of what is experimental, or of few trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
