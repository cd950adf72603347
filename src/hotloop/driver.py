"""The host's side of a run: advance it in chunks of about half a second.

Between chunks the host logs, evaluates, saves, and looks whether someone pressed Ctrl-C. Nothing it does
changes what is computed, so an interrupted and resumed run ends in the same bits.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from hotloop import evaluating, figures, final_pictures, run_plan, stopping
from hotloop.assembly import Assembly
from hotloop.clock import Clock, Rates, StageClock
from hotloop.errors import ActorsFailed, DeviceFailed, EnvFailed, HotloopError, NetworkFailed, NotFinite, SpecError
from hotloop.interrupts import Interrupts
from hotloop.listeners import Audience, Checkpoint, Chunk, End, Evaluation, Listener, Log, Start
from hotloop.narrator import Narrator
from hotloop.pace import Pace, crossed
from hotloop.pipelines.session import Reading
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.runs.store import InFolder, Store
from hotloop.spec import Spec
from hotloop.standing import Standing, counts
from hotloop.stopping import Stop

T = TypeVar("T")


class Driver:
    """One training session of one run, of one member or several side by side."""

    def __init__(
        self,
        assembly: Assembly,
        store: Store,
        reporter: Reporter,
        listeners: Sequence[Listener] = (),
        interrupts: Interrupts | None = None,
    ) -> None:
        """Say what is about to happen, and refuse what does not fit into memory.

        `interrupts` are those of a longer run that this is a part of.
        """
        self.began = time.perf_counter()
        self.assembly, self.store, self.reporter, self.spec = assembly, store, reporter, assembly.spec
        self.standing = Standing(self.spec.members)
        self.session = assembly.session(self.spec.members)
        if refusal := run_plan.memory_plan(assembly).refusal():
            raise SpecError(refusal)
        for line in run_plan.describe(assembly):
            reporter.say(line)
        for notice in assembly.notices:
            reporter.warn(notice)
        self.audience = Audience([Narrator(reporter), *store.listeners()], listeners)
        self.pace, self.stages = Pace(self.spec), StageClock(self.session.spans)
        self.interrupts = interrupts or Interrupts()
        self.logged_at: int | None = None
        self.stays_open = False  # after the run, for whoever wants a few blocks more; the assembly closes it, too

    def train(self, begin: Callable[[Spec, Figures], None] | None = None) -> Figures:
        """Run from the first block to a stop rule; returns the run's figures. `begin` stands in for the store's."""
        self._compile()
        self.session.begin()  # an env that is wrong from the first reset on leaves nothing behind
        facts: Figures = {"machine": {**self.assembly.machine}, "pipeline": str(self.assembly.pipeline_choice)}
        (begin or self.store.begin)(self.spec, {**facts, "chosen": list(self.chosen)})
        return self._drive(resumed_at=None)

    def resume(self, arrays: dict[str, np.ndarray], facts: Figures, *, moves_end: bool = False) -> Figures:
        """Run on from a checkpoint; `moves_end`: to a new end, which a goal already reached does not forestall."""
        try:
            lost = self.session.restore(arrays)
            self.standing = Standing.from_facts(facts, self.spec.members)
        except HotloopError:  # of envs and actors that begin: the file is not at fault
            raise
        except (ValueError, TypeError, OverflowError) as error:  # whatever numbers a damaged file can hold
            raise SpecError(f"{self.store.path}: {error}") from None
        self._compile()
        host = self.session.read()
        self.logged_at = host.env_steps
        self.reporter.say(f"resuming {self.store.path} at env step {host.env_steps:,}")
        for line in lost:
            self.reporter.warn(line)
        if moves_end and host.env_steps < self.spec.stop.steps:
            self._move_end(host)
        if not self.standing.owes_evaluation and (stop := self._rule_that_fired(host)):
            self.reporter.say(stopping.how_to_go_on(self.spec, host, stop, self.store.path))
        return self._drive(resumed_at=host.env_steps)

    def _move_end(self, host: Reading) -> None:
        """Write the new end down; a goal that was reached before holds it up no more, after this resume or the next."""
        self.store.change_spec(self.spec)
        if stopping.solved_by(self.spec, self.standing):
            self.standing.goal_from = host.env_steps
            self.store.save_state(host.env_steps, self.session.arrays, self.standing.facts(host))

    def _compile(self) -> None:
        started = time.perf_counter()
        is_eager = self.spec.torch.mode == "eager" or (self.spec.engine == "torch" and self.spec.devices > 1)
        with self.reporter.busy("warming up" if is_eager else "compiling"):
            choice = self.session.compile()
        # By measuring: what else `spec.yaml` says was given.
        self.chosen = ["pipeline"] if self.assembly.pipeline_choice.is_measured else []
        if choice is not None:
            self.chosen.append(choice.field)
            self.reporter.say(str(choice))
            self.spec = self.spec.with_field(choice.field, choice.value)
        self.compile_seconds = time.perf_counter() - started

    # -- the loop -------------------------------------------------------------------------------------

    def _drive(self, resumed_at: int | None) -> Figures:
        try:
            self.audience.tell(Start(self.spec, self.store.path, resumed_at))
            with self.interrupts:
                host, stop = self._loop()
                result = self._finish(host, stop)
        except BaseException as error:
            self.audience.tell(End(None, error))
            raise
        finally:
            if not self.stays_open:
                self.session.close()
        self.audience.tell(End(result, self.audience.error))
        if self.audience.error is not None:
            raise self.audience.error
        return {**result, "disk_error": self.store.disk_error}

    def _loop(self) -> tuple[Reading, Stop]:
        spec, log = self.spec, self.session.spans["log"]
        host = self.session.read()
        self.clock = Clock(lambda: self.session.spans.seconds()["evaluate"], host, self.compile_seconds)
        if self.standing.owes_evaluation:
            self._evaluate(host)
        while not (stop := self._asked_to_stop() or self._rule_that_fired(host)):
            before, started = host.env_steps, time.perf_counter()
            blocks = self.pace.blocks(before)
            self._saved_if_it_fails(partial(self.session.advance, blocks))
            host = self.session.read()
            self.pace.note(blocks, time.perf_counter() - started)
            self.clock.note(host)
            self._stop_if_diverged(host)
            with log:
                if crossed(before, host.env_steps, spec.log.every):
                    self._log(host, forget=True)
            if crossed(before, host.env_steps, spec.evaluation.every):
                self._evaluate(host)
            with log:
                if crossed(before, host.env_steps, spec.log.checkpoint_every):
                    self._checkpoint(host)
                self._show(host)
        return host, stop

    def _finish(self, host: Reading, stop: Stop) -> Figures:
        self.clock.stop(host)
        if self.logged_at != host.env_steps:  # the last line of metrics may just have been written
            self._log(host)
        is_cut_short = stop.kind == "signal" or self.audience.error is not None
        if self.spec.evaluation.every and not is_cut_short and not self.standing.is_evaluated(host.env_steps):
            self._evaluate(host)
            if self.interrupts.seen and self.standing.owes_evaluation:  # someone could not wait for it
                stop, is_cut_short = Stop("signal", self.interrupts.seen), True
        self._checkpoint(host)
        self._save_weights("last", host, self.standing.best_member())
        if self.spec.members.are_many:
            for index, name in enumerate(self.spec.members.names):
                self._save_weights(name, host, index)
        if isinstance(self.store, InFolder) and not is_cut_short:
            has_best = self.standing.best_return is not None
            final_pictures.draw(self.assembly, self.store, self.reporter, has_best=has_best)
        path, seconds = self.store.path, time.perf_counter() - self.began
        found = figures.result_of(self.spec, host, self.standing, self.clock, stop, seconds)
        return {"run": None if path is None else str(path), **found, "disk_error": self.store.disk_error}

    def _asked_to_stop(self) -> Stop | None:
        if self.interrupts.seen:
            return Stop("signal", self.interrupts.seen)
        return Stop("callback", f"stopped by {self.audience.stopped_by}") if self.audience.stopped_by else None

    def _rule_that_fired(self, host: Reading) -> Stop | None:
        return stopping.reason_to_stop(self.spec, host, self.standing)

    # -- what happens between chunks ------------------------------------------------------------------

    def _saved_if_it_fails(self, work: Callable[[], T]) -> T:
        """Do something with envs and devices; when these end the run, it is saved before."""
        try:
            return work()
        except (NotFinite, EnvFailed, DeviceFailed, NetworkFailed, ActorsFailed, SpecError) as error:
            now = self.session.read()
            self._log(now)
            kept = self.store.what_was_kept(self._checkpoint(now))
            kind = EnvFailed if isinstance(error, SpecError) else type(error)  # too late for the spec to be at fault
            nothing = "" if kind in (ActorsFailed, DeviceFailed, NetworkFailed) else "nothing of it was stored, and "
            message = f"{error} (env step {now.env_steps:,}); {nothing}{kept}"
            if isinstance(error, ActorsFailed):
                self.store.note(now.env_steps, f"{message}\n{error.words}")
                raise ActorsFailed(message, error.words) from error
            raise kind(message) from error

    def _stop_if_diverged(self, host: Reading) -> None:
        index = stopping.diverged_member(self.spec, host)
        if index is not None:
            self._log(host)
            dump = self.store.dump_state(self.session.arrays, counts(host))
            raise stopping.divergence(host, self.spec.members, index, dump)

    def _log(self, host: Reading, *, forget: bool = False) -> None:
        """Tell a line of metrics; `forget` begins the sums of the next one."""
        self.logged_at = host.env_steps
        self._tell_notices(host.env_steps)
        line: Figures = {**self._line(host, self.clock.lap(host)), **self.session.own_figures()}
        line |= figures.stages_of(self.stages.lap())
        if forget:
            self.session.forget_totals()
        self.audience.tell(Log(host.env_steps, line))

    def _tell_notices(self, env_steps: int) -> None:
        """Say and keep what has happened: a line, below which a traceback may stand."""
        for notice in self.session.notices():
            line, _, trace = notice.partition("\n")
            self.reporter.warn(line)
            if trace:
                self.reporter.say(trace)
            self.store.note(env_steps, notice)

    def _show(self, host: Reading) -> None:
        shown = figures.shown_of(self._line(host, self.clock.recent), self.standing)
        self.audience.tell(Chunk(host.env_steps, self.spec.stop.steps, shown))

    def _line(self, host: Reading, rates: Rates) -> Figures:
        return figures.line_of(self.spec, host, time.perf_counter() - self.began, rates)

    def _evaluate(self, host: Reading) -> None:
        """Play greedy episodes; where an interrupt or an env ends them, the resumed run plays them first.

        After an interrupt the same ones; after an env that failed others, or it would fail again for ever.
        """
        standing, attempt = self.standing, self.standing.evaluations_failed
        standing.owes_evaluation = True
        if self.audience.error is not None:  # the run is about to end with it
            return
        standing.evaluations_failed += 1
        played = self._saved_if_it_fails(
            partial(evaluating.play, self.session, attempt, self.interrupts, self.reporter)
        )
        if played is None:
            standing.evaluations_failed = attempt
            return
        is_best = standing.take(host.env_steps, played.each, played.together)
        if is_best:
            self._save_weights("best", host, standing.best_member())
        self.audience.tell(Evaluation(host.env_steps, played.together, is_best))

    def _save_weights(self, which: str, host: Reading, index: int | None) -> None:
        """Those of one member, or of all that belong together, under the name of each."""

        def named_of(index: int) -> dict[str, np.ndarray]:
            return self.assembly.engine_of(index).to_named(self.session.weights(index))

        if index is not None:
            named = named_of(index)
        else:
            each = {name: named_of(i) for i, name in enumerate(self.spec.members.names)}
            named = {f"{of}/{name}": array for of, weights in each.items() for name, array in weights.items()}
        self.store.save_weights(which, named, self.standing.weights_facts(host, index))

    def _checkpoint(self, host: Reading) -> Path | None:
        where = self.store.save_state(host.env_steps, self.session.arrays, self.standing.facts(host))
        if where is not None:
            self.audience.tell(Checkpoint(host.env_steps, where))
        return where
