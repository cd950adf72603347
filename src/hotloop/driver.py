"""The host's side of a run: drive the compiled program in chunks of about half a second.

Between chunks the host logs, evaluates, saves, and looks whether someone pressed Ctrl-C. Nothing it does
changes what the program computes, so an interrupted and resumed run ends in the same bits.
"""

import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from hotloop.agent import Agent
from hotloop.assembly import Assembly
from hotloop.clock import Clock, Rates
from hotloop.errors import Diverged, EnvFailed, NotFinite, SpecError
from hotloop.learning import schedules
from hotloop.pipelines.session import Reading
from hotloop.progress import Reporter
from hotloop.runs import checkpoint, statistics
from hotloop.runs.folder import RunFolder
from hotloop.runs.metrics import Metrics
from hotloop.runs.state import digests

SECONDS_PER_CHUNK = 0.5


class Driver:
    """One training session of one run, of one seed or several side by side."""

    def __init__(self, assembly: Assembly, folder: RunFolder, reporter: Reporter) -> None:
        """Say what is about to happen, and refuse what does not fit into memory."""
        self.began = time.perf_counter()
        self.assembly, self.folder, self.reporter = assembly, folder, reporter
        self.spec, self.engine = assembly.spec, assembly.engine
        self.seeds = [(self.spec.seed + i) % 2**32 for i in range(self.spec.seeds)]
        self.session = assembly.session(self.seeds)
        refusal = assembly.memory_plan().refusal()
        if refusal:
            raise SpecError(refusal)
        for line in assembly.describe():
            reporter.say(line)
        for notice in assembly.notices:
            reporter.warn(notice)
        self.best_return: float | None = None
        self.evaluation: dict[str, Any] | None = None
        self.disk_error: str | None = None
        self.logged_at: int | None = None
        self.speed = Rates()
        self.seconds_to_first_update: float | None = None
        self.seconds_to_stop: float | None = None
        self.stages_before: dict[str, float] = {}
        self.interrupted = False
        self.owes_evaluation = False
        self.evaluations_failed = 0  # since the last one that did not: each attempt plays other episodes
        self.logs_exactly = self.spec.log.exact
        self.goal_from = -1  # evaluations after this env step may end the run as solved

    def train(self) -> dict[str, Any]:
        """Run from the first block to a stop rule; returns the run's figures."""
        self._compile()
        self.session.begin()  # an env that is wrong from the first reset on leaves nothing behind
        facts = {"machine": self.assembly.machine, "pipeline": self.assembly.pipeline_choice}
        if unsigned := self.folder.create(self.spec, facts):
            self.reporter.warn(f"the run is not signed as yours ({unsigned}); loading it may need --trust")
        return self._drive(resumed_at=None)

    def resume(
        self, arrays: dict[str, np.ndarray], facts: dict[str, Any], *, moves_end: bool = False
    ) -> dict[str, Any]:
        """Run on from a checkpoint; `moves_end`: to a new end, which a goal already reached does not forestall."""
        try:
            lost = self.session.restore(arrays)
            self.best_return, self.evaluation = _known(facts, len(self.seeds))
            self.owes_evaluation = facts.get("evaluation_due") is True
            self.goal_from = _whole(facts, "goal_from", -1)
            self.evaluations_failed = _whole(facts, "evaluations_failed", 0)
        except (ValueError, TypeError, OverflowError) as error:  # whatever numbers a damaged file can hold
            raise SpecError(f"{self.folder.path}: {error}") from None
        self._compile()
        host = self.session.read()
        steps = self.logged_at = host.env_steps
        self.reporter.say(f"resuming {self.folder.path} at env step {steps:,}")
        for line in lost:
            self.reporter.warn(line)
        if moves_end and steps < self.spec.stop.steps:
            self._move_end(host)
        if not self.owes_evaluation and (reason := self._reason_to_stop(host)):
            self.reporter.say(self._how_to_go_on(reason, host))
        return self._drive(resumed_at=steps)

    def _move_end(self, host: Reading) -> None:
        """Write the new end down; a goal that was reached before holds it up no more, after this resume or the next."""
        self._try("spec.yaml", lambda: self.folder.rewrite_spec(self.spec))
        if self._is_solved():
            self.goal_from = host.env_steps
            self._checkpoint(host)

    def _how_to_go_on(self, reason: str, host: Reading) -> str:
        how = f"go on with: hotloop resume {self.folder.path} --steps N, N above {host.env_steps:,}"
        episodes = self.spec.stop.episodes
        if episodes is not None and (host.episodes >= episodes).all():
            how = f"its spec ends it after {episodes:,} episodes (stop.episodes)"
        return f"{self.folder.path} is finished ({reason}); {how}"

    def _compile(self) -> None:
        started = time.perf_counter()
        with self.reporter.busy("compiling"):
            self.session.compile()
        self.compile_seconds = time.perf_counter() - started

    # -- the loop -------------------------------------------------------------------------------------

    def _drive(self, resumed_at: int | None) -> dict[str, Any]:
        try:
            return self._drive_to_the_end(resumed_at)
        finally:
            self.session.close()

    def _drive_to_the_end(self, resumed_at: int | None) -> dict[str, Any]:
        self.metrics = Metrics(self.folder.path, resumed_at)
        spec, pace = self.spec, 1
        with _Interrupts() as interrupts:
            self.interrupts = interrupts
            host = self.session.read()
            self.clock = Clock(lambda: self.session.spans.seconds()["evaluate"], host)
            if self.owes_evaluation:
                self._run_evaluation(host)
            while not (stop := interrupts.seen or self._reason_to_stop(host)):
                before = host.env_steps
                blocks = min(pace, self._blocks_to_next_event(before))
                started = time.perf_counter()
                self._saved_if_an_env_fails(self.session.advance, blocks)
                host = self.session.read()
                seconds = time.perf_counter() - started
                self.clock.note(host)
                if host.attempts and self.seconds_to_first_update is None:
                    self.seconds_to_first_update = _since_process_start()
                # About half a second a chunk: short enough for Ctrl-C, long enough not to be seen in the speed.
                pace = max(1, min(int(blocks * SECONDS_PER_CHUNK / seconds), 8 * pace))
                self._stop_if_diverged(host)
                with self.session.spans["log"]:
                    if _crossed(before, host, spec.log.every):
                        self._log(host)
                        self.session.forget_totals()
                if spec.evaluation.every and _crossed(before, host, spec.evaluation.every):
                    self._run_evaluation(host)
                with self.session.spans["log"]:
                    if _crossed(before, host, spec.log.checkpoint_every):
                        self._checkpoint(host)
                    self._show(host)
            self.speed, self.seconds_to_stop = self.clock.steady(host), _since_process_start()
            return self._finish(host, stop, interrupted=interrupts.seen is not None)

    def _saved_if_an_env_fails(self, work: Callable[..., Any], *args: Any) -> Any:
        """Do something with envs; when they end the run, it is saved before."""
        try:
            return work(*args)
        except (NotFinite, EnvFailed, SpecError) as error:  # too late for the spec to be at fault alone
            now = self.session.read()
            self._log(now)
            saved = f"the run is saved in {self.folder.path}" if self._checkpoint(now) else "the run could not be saved"
            self._try("metrics", self.metrics.close)
            kind = NotFinite if isinstance(error, NotFinite) else EnvFailed
            raise kind(f"{error} (env step {now.env_steps:,}); nothing of it was stored, and {saved}") from error

    def _blocks_to_next_event(self, env_steps: int) -> int:
        spec = self.spec
        log_every = spec.log.every if self.logs_exactly else 0
        periods = [p for p in (log_every, spec.evaluation.every, spec.log.checkpoint_every) if p]
        event = min(spec.stop.steps, *((env_steps // period + 1) * period for period in periods))
        return max(1, -(-(event - env_steps) // spec.block.env_steps))

    def _reason_to_stop(self, host: Reading) -> str | None:
        stop = self.spec.stop
        if solved := self._is_solved():
            return solved
        if host.env_steps >= stop.steps:
            return f"{host.env_steps:,} env steps done"
        if stop.episodes is not None and (host.episodes >= stop.episodes).all():
            return f"{int(host.episodes.min()):,} episodes done"
        return None

    def _is_solved(self) -> str | None:
        """What the last evaluation has reached, if it was whole and is one that counts."""
        goal, evaluation = self.spec.stop.return_at_least, self.evaluation
        if goal is None or not evaluation or evaluation.get("cut") or evaluation["env_steps"] <= self.goal_from:
            return None
        what = "return_iqm" if len(self.seeds) > 1 else "return_mean"
        return f"solved: {_words(what)} {evaluation[what]:.1f} >= {goal:g}" if evaluation[what] >= goal else None

    def _finish(self, host: Reading, stop: str, *, interrupted: bool) -> dict[str, Any]:
        if self.logged_at != host.env_steps:  # the last line of metrics may just have been written
            self._log(host)
        is_evaluated = self.evaluation is not None and self.evaluation["env_steps"] == host.env_steps
        if self.spec.evaluation.every and not is_evaluated and not interrupted:
            self._run_evaluation(host)
            if self.owes_evaluation:  # someone could not wait for it
                stop, interrupted = str(self.interrupts.seen), True
        self._checkpoint(host)
        self._save_weights("last", host, self._best_seed())
        if len(self.seeds) > 1:
            for index, seed in enumerate(self.seeds):
                self._save_weights(f"seed-{seed}", host, index)
        self._try("metrics", self.metrics.close)
        self.interrupted = interrupted
        if not interrupted:
            self._draw_pictures()
        return self._result(host, stop)

    # -- what happens between chunks ------------------------------------------------------------------

    def _stop_if_diverged(self, host: Reading) -> None:
        diverged = np.flatnonzero(host.skipped_in_a_row >= self.spec.guard.skips_in_a_row)
        if not len(diverged):
            return
        self._log(host)
        saved = self._try("dump", lambda: checkpoint.save(self.folder.dump, self.session.arrays(), self._facts(host)))
        self._try("metrics", self.metrics.close)
        whose = f" of seed {self.seeds[diverged[0]]}" if len(self.seeds) > 1 else ""
        raise Diverged(
            f"the last {host.skipped_in_a_row[diverged[0]]} updates{whose} had a loss or gradient that is not finite "
            f"(env step {host.env_steps:,}); the weights are those before them"
            + (f", the whole state is in {self.folder.dump}" if saved else "")
            + ". Try a lower optimizer.learning_rate, or look for rewards or observations that are not finite"
        )

    def _log(self, host: Reading) -> None:
        self.logged_at = host.env_steps
        lap = self.clock.lap(host)
        speed = {"env_steps_per_s": round(lap.env_steps, 1), "updates_per_s": round(lap.updates, 1)}
        for notice in self.session.notices():
            self.reporter.warn(notice)
        figures = {**self._figures(host), **speed, **self.session.own_figures(), **self._stages()}
        self._try("metrics", lambda: self.metrics.write("train", host.env_steps, figures))

    def _stages(self) -> dict[str, Any]:
        """Seconds each stage took since the last line, for pipelines whose stages run on the host."""
        seconds = self.session.spans.seconds()
        lap = {name: round(total - self.stages_before.get(name, 0.0), 6) for name, total in seconds.items()}
        self.stages_before = seconds
        return {"stage_seconds": lap} if len(lap) > 2 else {}  # more than evaluate and log

    def _figures(self, host: Reading) -> dict[str, Any]:
        """What a line of metrics says: means over the seeds, and with several of them each one's own."""
        totals = host.totals
        loss, grad_norm, q, applied = totals.update.T
        ratio = statistics.ratio
        each = {
            "updates": host.updates,
            "skipped": host.skipped,
            "episodes": host.episodes,
            "ep_return_mean": ratio(totals.episode_return, totals.episodes),
            "ep_length_mean": ratio(totals.episode_length, totals.episodes),
            "loss": ratio(loss, applied),
            "grad_norm": ratio(grad_norm, applied),
            "q_mean": ratio(q, applied),
        }
        explore = "epsilon" if self.spec.exploration.kind == "epsilon_greedy" else "temperature"
        figures: dict[str, Any] = {
            "seconds": round(time.perf_counter() - self.began, 3),
            "env_steps_per_s": round(self.clock.recent.env_steps, 1),
            "updates_per_s": round(self.clock.recent.updates, 1),
            **{name: statistics.mean(values) for name, values in each.items()},
            explore: _at(self.spec.exploration_schedule, host.env_steps),
            "learning_rate": _at(self.spec.optimizer.learning_rate, host.env_steps),
        }
        if len(self.seeds) > 1:
            figures["by_seed"] = {name: [statistics.plain(value) for value in values] for name, values in each.items()}
        return figures

    def _run_evaluation(self, host: Reading) -> None:
        """Play greedy episodes; where an interrupt or an env ends them, the resumed run plays them first.

        After an interrupt the same ones; after an env that failed others, or it would fail again for ever.
        """
        self.owes_evaluation, attempt = True, self.evaluations_failed
        self.evaluations_failed += 1
        with self.reporter.counting("greedy episodes") as show, self.session.spans["evaluate"]:

            def tell(done: int, wanted: int) -> None:
                if self.interrupts.seen:
                    raise _Interrupted
                show(done, wanted)

            try:
                played = self._saved_if_an_env_fails(self.session.evaluate, tell, attempt)
            except _Interrupted:
                self.evaluations_failed = attempt
                return
        self.owes_evaluation, self.evaluations_failed = False, 0
        summaries = [episodes.summary() for episodes in played]
        summary = statistics.together(summaries) if len(summaries) > 1 else summaries[0]
        self.evaluation = {"env_steps": host.env_steps, **summary}
        self._try("metrics", lambda: self.metrics.write("eval", host.env_steps, summary))
        self.reporter.say(f"step {host.env_steps:>9,}  {_said(summary)}")
        best = self._best_seed()
        mean, is_whole = summaries[best]["return_mean"], "cut" not in summaries[best]
        if is_whole and math.isfinite(mean) and (self.best_return is None or mean > self.best_return):
            self.best_return = mean
            self._save_weights("best", host, best)

    def _best_seed(self) -> int:
        """Index of the seed that did best in the last evaluation."""
        if len(self.seeds) == 1 or self.evaluation is None:
            return 0
        returns = np.array(self.evaluation["by_seed"]["return_mean"])
        return int(np.argmax(np.nan_to_num(returns, nan=-math.inf)))

    def _save_weights(self, which: str, host: Reading, index: int) -> None:
        named = self.engine.layout.to_named(self.session.weights(index))
        facts = {
            "env_steps": int(host.steps[index]),
            "updates": int(host.updates[index]),
            "seed": self.seeds[index],
            "evaluation": self.evaluation,
        }
        self._try(f"{which} weights", lambda: checkpoint.save(self.folder.path / which, named, facts))

    def _facts(self, host: Reading) -> dict[str, Any]:
        updates = [int(count) for count in host.updates]
        return {"env_steps": host.env_steps, "updates": updates if len(updates) > 1 else updates[0]}

    def _checkpoint(self, host: Reading) -> bool:
        arrays = self.session.arrays()
        facts = {
            **self._facts(host),
            "evaluation": self.evaluation,
            "best_return": self.best_return,
            **({"evaluation_due": True} if self.owes_evaluation else {}),
            **({"evaluations_failed": self.evaluations_failed} if self.evaluations_failed else {}),
            **({"goal_from": self.goal_from} if self.goal_from >= 0 else {}),
            "digests": digests(arrays),
        }
        where = self.folder.checkpoints / f"{host.env_steps:012d}"
        is_saved = self._try("checkpoint", lambda: checkpoint.save(where, arrays, facts))
        if is_saved:
            checkpoint.prune(self.folder.checkpoints, self.spec.log.checkpoints)
        return is_saved

    def _draw_pictures(self) -> None:
        from hotloop.runs.pictures import draw_curve

        with self.reporter.busy("drawing"):
            self._try("curve.png", lambda: draw_curve(self.folder.path, self.spec))
            which = "last" if self.best_return is None else "best"
            if which == "last" and self.spec.evaluation.every:
                self.reporter.say(
                    "no evaluation was whole: there are no best weights, and the recording shows the last"
                )
            try:
                named, _ = self.folder.weights(which)
            except SpecError as error:
                self.reporter.warn(f"no recording: {error}")
                return
            agent = Agent(self.assembly, self.engine.layout.from_named(named))
            try:
                if agent.can_record:
                    self._try("recording.gif", lambda: agent.record(self.folder.recording, self.spec.seed))
            except Exception as error:  # whatever the user's own env raises; the run is saved
                self.reporter.warn(f"no recording: {type(error).__name__}: {error}")

    def _try(self, what: str, write: Callable[[], Any]) -> bool:
        """Do something with the disk; a full or read-only one is said, and training goes on."""
        try:
            write()
        except OSError as error:
            self.disk_error = f"{what} could not be written: {error}"
            self.reporter.warn(f"{self.disk_error}; training goes on, nothing older was removed")
            return False
        return True

    def _show(self, host: Reading) -> None:
        figures = self._figures(host)
        shown = {
            "steps/s": figures["env_steps_per_s"],
            "updates/s": figures["updates_per_s"],
            "return": self.evaluation["return_mean"] if self.evaluation else figures["ep_return_mean"],
            "ε": figures.get("epsilon"),
            "temperature": figures.get("temperature"),
            "loss": figures["loss"],
        }
        self.reporter.show(host.env_steps, self.spec.stop.steps, shown)

    def _result(self, host: Reading, stop: str) -> dict[str, Any]:
        """The run's figures. Counts are of one seed (a mean, if they differ); speeds are of all together."""
        figures, evaluation = self._figures(host), self.evaluation or {}
        learned = host.learned_from > 0
        # The block in which learning began counts: it was followed by updates.
        learned_steps = np.sum((host.steps - host.learned_from + self.spec.block.env_steps)[learned])
        steps, episodes = int(host.steps.sum()), int(host.episodes.sum())
        result = {
            "run": str(self.folder.path),
            "env_steps": statistics.mean(host.steps),
            "updates": figures["updates"],
            "updates_per_step": round(host.attempts / int(learned_steps), 6) if learned.any() else 0.0,
            "env_steps_per_s": round(self.speed.env_steps, 1),
            "updates_per_s": round(self.speed.updates, 1),
            "seconds": round(time.perf_counter() - self.began, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds_evaluating": round(self.session.spans.seconds()["evaluate"], 3),
            "seconds_to_first_update": self.seconds_to_first_update,
            "seconds_to_stop": self.seconds_to_stop,
            "return_mean": evaluation.get("return_mean", figures["ep_return_mean"]),
            "episodes_cut": evaluation.get("cut", 0),
            "episodes_endless": evaluation.get("endless", 0),
            "episodes": figures["episodes"],
            "steps_per_episode": round(steps / episodes, 2) if episodes else None,
            "skipped": figures["skipped"],
            "stopped": stop,
            "disk_error": self.disk_error,
        }
        if len(self.seeds) > 1:
            result["seeds"] = self.seeds
            result |= {name: evaluation[name] for name in ("return_iqm", "return_interval", "by_seed") if evaluation}
        return result


class _Interrupted(Exception):
    """Someone does not want to wait for the end of an evaluation."""


class _Interrupts:
    """SIGINT and SIGTERM ask for a checkpoint and an orderly end; a second one is immediate."""

    def __init__(self) -> None:
        self.seen: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: Any) -> None:
        self.seen = f"stopped by {signal.Signals(number).name}"
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)


def _known(facts: dict[str, Any], seeds: int) -> tuple[float | None, dict[str, Any] | None]:
    """Best return and last evaluation from a checkpoint's manifest."""
    best, evaluation = facts.get("best_return"), facts.get("evaluation")
    is_evaluation = isinstance(evaluation, dict) and _is_evaluation(evaluation, seeds)
    if not (best is None or isinstance(best, int | float)) or not (evaluation is None or is_evaluation):
        raise ValueError(f"the checkpoint's manifest has best_return {best!r} and evaluation {evaluation!r}")
    return best, evaluation


def _whole(facts: dict[str, Any], name: str, otherwise: int) -> int:
    """A whole number from a checkpoint's manifest, if it is there."""
    number = facts.get(name, otherwise)
    if type(number) is not int:
        raise ValueError(f"the checkpoint's manifest has {name} {number!r}")
    return number


def _is_evaluation(found: dict[str, Any], seeds: int) -> bool:
    """Whether all that is read from it later is there."""
    names = ("env_steps", "return_mean", *(("return_iqm",) if seeds > 1 else ()))
    by_seed = found.get("by_seed") if seeds > 1 else {"return_mean": [0.0]}
    each = by_seed.get("return_mean") if isinstance(by_seed, dict) else None
    numbers = (
        [found.get(name) for name in names]
        + [found.get("cut", 0)]
        + (each if isinstance(each, list) and len(each) == seeds else [None])
    )
    return all(isinstance(number, int | float) for number in numbers)


def _since_process_start() -> float:
    """Seconds since this process began, Python's own start included."""
    return round(time.time() - psutil.Process().create_time(), 3)


def _at(schedule: Any, env_steps: int) -> float:
    return float(schedules.value_at(env_steps, xp=schedules.Scalars, **schedule.model_dump()))


def _crossed(before: int, host: Reading, every: int) -> bool:
    return host.env_steps // every > before // every


def _said(summary: dict[str, Any]) -> str:
    """An evaluation in one line: the return, and the env's own figures."""
    own = [name for name in summary if name.endswith("_mean") and name not in ("return_mean", "length_mean")]
    figures = "".join(f"  {name.removesuffix('_mean')} {summary[name]:.1f}" for name in own)
    if cut := summary.get("cut"):
        figures += f"  (cut short: {cut} of the episodes were not played to their end; see evaluation.max_share)"
    if endless := summary.get("endless"):
        figures += f"  ({endless:g} episodes reached evaluation.max_steps and count as they stood)"
    if "return_iqm" not in summary:
        return f"greedy return {summary['return_mean']:7.1f} ± {summary['return_std']:.1f}{figures}"
    low, high = summary["return_interval"]
    return f"greedy return, IQM of seeds {summary['return_iqm']:7.1f} ({low:.1f}–{high:.1f}){figures}"


def _words(name: str) -> str:
    return {"return_mean": "mean return", "return_iqm": "interquartile mean return of the seeds"}[name]
