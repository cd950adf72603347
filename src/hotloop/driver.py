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

import jax
import jax.numpy as jnp
import numpy as np
import psutil

from hotloop.agent import Agent
from hotloop.assembly import Assembly
from hotloop.evaluate import episodes_program, to_host
from hotloop.pipelines.fused import no_totals
from hotloop.progress import Reporter
from hotloop.runs import checkpoint
from hotloop.runs.folder import RunFolder
from hotloop.runs.metrics import Metrics
from hotloop.runs.state import digests, from_arrays, to_arrays
from hotloop.spec_reading import SpecError

SECONDS_PER_CHUNK = 0.5


class Diverged(Exception):
    """Too many updates in a row were not finite; the message says where the state was saved."""


class Driver:
    """One training session of one run."""

    def __init__(self, assembly: Assembly, folder: RunFolder, reporter: Reporter) -> None:
        """Say what is about to happen, and refuse what does not fit into memory."""
        self.began = time.perf_counter()
        self.assembly, self.folder, self.reporter = assembly, folder, reporter
        self.spec, self.pipeline, self.engine = assembly.spec, assembly.pipeline, assembly.engine
        refusal = assembly.memory_plan().refusal()
        if refusal:
            raise SpecError(refusal)
        for line in assembly.describe():
            reporter.say(line)
        self.best_return: float | None = None
        self.evaluation: dict[str, float] | None = None
        self.disk_error: str | None = None
        self.logged_at: int | None = None
        self.clock = _Clock()
        self.seconds_to_first_update: float | None = None
        self.seconds_to_stop: float | None = None

    def train(self) -> dict[str, Any]:
        """Run from the first block to a stop rule; returns the run's figures."""
        self._compile()
        self.folder.create(self.spec, {"machine": self.assembly.machine, "pipeline": self.assembly.pipeline_choice})
        self.state = self._init(jnp.uint32(self.spec.seed))
        return self._drive(resumed_at=None)

    def resume(self, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> dict[str, Any]:
        """Run on from a checkpoint."""
        try:
            self.state = from_arrays(self._template(), arrays)
            self.pipeline.check_state(self.state)
            self.best_return, self.evaluation = _known(facts)
        except ValueError as error:
            raise SpecError(f"{self.folder.path}: {error}") from None
        self._compile()
        steps = int(self.state.env_steps)
        self.logged_at = steps
        self.reporter.say(f"resuming {self.folder.path} at env step {steps:,}")
        return self._drive(resumed_at=steps)

    def _template(self) -> Any:
        return jax.eval_shape(self.pipeline.init, jnp.uint32(0))

    def _compile(self) -> None:
        started = time.perf_counter()
        with self.reporter.busy("compiling"):
            state, evaluation = self._template(), self.spec.evaluation
            self._init = jax.jit(self.pipeline.init).lower(jnp.uint32(0)).compile()
            self._advance = jax.jit(self.pipeline.advance, donate_argnums=0).lower(state, jnp.int32(1)).compile()
            if evaluation.every:
                program = episodes_program(self.assembly.env, self.engine, evaluation.episodes, evaluation.max_steps)
                self._evaluate = jax.jit(program).lower(state.learner.params, jax.random.key(0)).compile()
        self.compile_seconds = time.perf_counter() - started

    # -- the loop -------------------------------------------------------------------------------------

    def _drive(self, resumed_at: int | None) -> dict[str, Any]:
        self.metrics = Metrics(self.folder.path, resumed_at)
        spec, pace = self.spec, 1
        with _Interrupts() as interrupts:
            host = self._read()
            while not (stop := interrupts.seen or self._reason_to_stop(host)):
                before, blocks = host["env_steps"], min(pace, self._blocks_to_next_event(host["env_steps"]))
                started = time.perf_counter()
                self.state = self._advance(self.state, blocks)
                host = self._read()
                seconds = time.perf_counter() - started
                self.clock.add(host, before, seconds)
                if host["updates"] and self.seconds_to_first_update is None:
                    self.seconds_to_first_update = _since_process_start()
                # About half a second a chunk: short enough for Ctrl-C, long enough not to be seen in the speed.
                pace = max(1, min(int(blocks * SECONDS_PER_CHUNK / seconds), 8 * pace))
                self._stop_if_diverged(host)
                if _crossed(before, host, spec.log.every):
                    self._log(host)
                    self.state = self.state._replace(totals=no_totals())
                if spec.evaluation.every and _crossed(before, host, spec.evaluation.every):
                    self._run_evaluation(host)
                if _crossed(before, host, spec.log.checkpoint_every):
                    self._checkpoint(host)
                self._show(host)
            self.seconds_to_stop = _since_process_start()
            return self._finish(host, stop, interrupted=interrupts.seen is not None)

    def _blocks_to_next_event(self, env_steps: int) -> int:
        spec = self.spec
        periods = [p for p in (spec.log.every, spec.evaluation.every, spec.log.checkpoint_every) if p]
        event = min(spec.stop.steps, *((env_steps // period + 1) * period for period in periods))
        return max(1, -(-(event - env_steps) // spec.block.env_steps))

    def _read(self) -> dict[str, Any]:
        """Bring over the few numbers the host needs: the only wait of a chunk."""
        state = self.state
        numbers, totals = jax.device_get(  # sync
            (
                {
                    "env_steps": state.env_steps,
                    "episodes": state.episodes,
                    "learned_from": state.learned_from,
                    "updates": state.learner.updates,
                    "skipped": state.learner.skipped,
                    "skipped_in_a_row": state.learner.skipped_in_a_row,
                },
                state.totals,
            )
        )
        return {**{name: int(value) for name, value in numbers.items()}, "totals": totals}

    def _reason_to_stop(self, host: dict[str, Any]) -> str | None:
        stop, goal = self.spec.stop, self.spec.stop.return_at_least
        if goal is not None and self.evaluation and self.evaluation["return_mean"] >= goal:
            return f"solved: mean return {self.evaluation['return_mean']:.1f} >= {goal:g}"
        if host["env_steps"] >= stop.steps:
            return f"{host['env_steps']:,} env steps done"
        if stop.episodes is not None and host["episodes"] >= stop.episodes:
            return f"{host['episodes']:,} episodes done"
        return None

    def _finish(self, host: dict[str, Any], stop: str, *, interrupted: bool) -> dict[str, Any]:
        if self.logged_at != host["env_steps"]:  # the last line of metrics may just have been written
            self._log(host)
        is_evaluated = self.evaluation is not None and self.evaluation["env_steps"] == host["env_steps"]
        if self.spec.evaluation.every and not is_evaluated and not interrupted:
            self._run_evaluation(host)
        self._checkpoint(host)
        self._save_weights("last", host)
        self._try("metrics", self.metrics.close)
        if not interrupted:
            self._draw_pictures()
        return self._result(host, stop)

    # -- what happens between chunks ------------------------------------------------------------------

    def _stop_if_diverged(self, host: dict[str, Any]) -> None:
        if host["skipped_in_a_row"] < self.spec.guard.skips_in_a_row:
            return
        self._log(host)
        facts = {"env_steps": host["env_steps"], "updates": host["updates"]}
        saved = self._try("dump", lambda: checkpoint.save(self.folder.dump, to_arrays(self.state), facts))
        self._try("metrics", self.metrics.close)
        raise Diverged(
            f"the last {host['skipped_in_a_row']} updates had a loss or gradient that is not finite (env step "
            f"{host['env_steps']:,}); the weights are those before them"
            + (f", the whole state is in {self.folder.dump}" if saved else "")
            + ". Try a lower optimizer.learning_rate, or look for rewards or observations that are not finite"
        )

    def _log(self, host: dict[str, Any]) -> None:
        self.logged_at = host["env_steps"]
        self._try("metrics", lambda: self.metrics.write("train", host["env_steps"], self._figures(host)))

    def _figures(self, host: dict[str, Any]) -> dict[str, Any]:
        loss, grad_norm, q, applied = (float(x) for x in host["totals"].update)
        episodes, steps = int(host["totals"].episodes), jnp.int32(host["env_steps"])
        explore = "epsilon" if self.spec.exploration.kind == "epsilon_greedy" else "temperature"
        return {
            "seconds": round(time.perf_counter() - self.began, 3),
            "env_steps_per_s": round(self.clock.recent[0], 1),
            "updates_per_s": round(self.clock.recent[1], 1),
            "updates": host["updates"],
            "skipped": host["skipped"],
            "episodes": host["episodes"],
            "ep_return_mean": float(host["totals"].episode_return) / episodes if episodes else None,
            "ep_length_mean": float(host["totals"].episode_length) / episodes if episodes else None,
            "loss": loss / applied if applied else None,
            "grad_norm": grad_norm / applied if applied else None,
            "q_mean": q / applied if applied else None,
            explore: float(self.engine.exploration(steps)),
            "learning_rate": float(self.engine.learning_rate(steps)),
        }

    def _run_evaluation(self, host: dict[str, Any]) -> None:
        key = jax.random.fold_in(jax.random.key(self.spec.seed), host["env_steps"])
        summary = to_host(self._evaluate(self.state.learner.params, key)).summary()
        self.evaluation = {"env_steps": host["env_steps"], **summary}
        self._try("metrics", lambda: self.metrics.write("eval", host["env_steps"], summary))
        self.reporter.say(
            f"step {host['env_steps']:>9,}  greedy return {summary['return_mean']:7.1f} ± {summary['return_std']:.1f}"
        )
        mean = summary["return_mean"]
        if math.isfinite(mean) and (self.best_return is None or mean > self.best_return):
            self.best_return = mean
            self._save_weights("best", host)

    def _save_weights(self, which: str, host: dict[str, Any]) -> None:
        named = self.engine.layout.to_named(self.state.learner.params)
        facts = {"env_steps": host["env_steps"], "updates": host["updates"], "evaluation": self.evaluation}
        self._try(f"{which} weights", lambda: checkpoint.save(self.folder.path / which, named, facts))

    def _checkpoint(self, host: dict[str, Any]) -> None:
        arrays = to_arrays(self.state)
        facts = {
            "env_steps": host["env_steps"],
            "updates": host["updates"],
            "evaluation": self.evaluation,
            "best_return": self.best_return,
            "digests": digests(arrays),
        }
        where = self.folder.checkpoints / f"{host['env_steps']:012d}"
        if self._try("checkpoint", lambda: checkpoint.save(where, arrays, facts)):
            checkpoint.prune(self.folder.checkpoints, self.spec.log.checkpoints)

    def _draw_pictures(self) -> None:
        from hotloop.runs.pictures import draw_curve

        with self.reporter.busy("drawing"):
            self._try("curve.png", lambda: draw_curve(self.folder.path, self.spec))
            which = "last" if self.best_return is None else "best"
            try:
                named, _ = self.folder.weights(which)
            except SpecError as error:
                self.reporter.warn(f"no recording: {error}")
                return
            agent = Agent(self.assembly, self.engine.layout.from_named(named))
            if agent.can_record:
                self._try("recording.gif", lambda: agent.record(self.folder.recording, self.spec.seed))

    def _try(self, what: str, write: Callable[[], Any]) -> bool:
        """Do something with the disk; a full or read-only one is said, and training goes on."""
        try:
            write()
        except OSError as error:
            self.disk_error = f"{what} could not be written: {error}"
            self.reporter.warn(f"{self.disk_error}; training goes on, nothing older was removed")
            return False
        return True

    def _show(self, host: dict[str, Any]) -> None:
        figures = self._figures(host)
        shown = {
            "steps/s": figures["env_steps_per_s"],
            "updates/s": figures["updates_per_s"],
            "return": self.evaluation["return_mean"] if self.evaluation else figures["ep_return_mean"],
            "ε": figures.get("epsilon"),
            "temperature": figures.get("temperature"),
            "loss": figures["loss"],
        }
        self.reporter.show(host["env_steps"], self.spec.stop.steps, shown)

    def _result(self, host: dict[str, Any], stop: str) -> dict[str, Any]:
        # The block in which learning began counts: it was followed by updates.
        learned_steps = host["env_steps"] - host["learned_from"] + self.spec.block.env_steps
        attempts = host["updates"] + host["skipped"]
        return_mean = self.evaluation["return_mean"] if self.evaluation else self._figures(host)["ep_return_mean"]
        return {
            "run": str(self.folder.path),
            "env_steps": host["env_steps"],
            "updates": host["updates"],
            "updates_per_step": round(attempts / learned_steps, 6) if host["learned_from"] else 0.0,
            "env_steps_per_s": round(self.clock.steady[0], 1),
            "updates_per_s": round(self.clock.steady[1], 1),
            "seconds": round(time.perf_counter() - self.began, 3),
            "compile_seconds": round(self.compile_seconds, 3),
            "seconds_to_first_update": self.seconds_to_first_update,
            "seconds_to_stop": self.seconds_to_stop,
            "return_mean": return_mean,
            "episodes": host["episodes"],
            "steps_per_episode": round(host["env_steps"] / host["episodes"], 2) if host["episodes"] else None,
            "skipped": host["skipped"],
            "stopped": stop,
            "disk_error": self.disk_error,
        }


class _Clock:
    """Speed of the compiled program alone: without compilation, evaluation and saving."""

    def __init__(self) -> None:
        self.recent = (0.0, 0.0)
        self._steps = self._updates = 0
        self._seconds = 0.0
        self._updates_before: int | None = None

    def add(self, host: dict[str, Any], steps_before: int, seconds: float) -> None:
        """Count one chunk; only those that learn from beginning to end make the steady rate."""
        attempts = host["updates"] + host["skipped"]
        updates = attempts - self._updates_before if self._updates_before is not None else 0
        steps = host["env_steps"] - steps_before
        is_steady = self._updates_before is not None and 0 < host["learned_from"] <= steps_before
        self._updates_before = attempts
        self.recent = (steps / seconds, updates / seconds)
        if is_steady:
            self._steps, self._updates, self._seconds = (
                self._steps + steps,
                self._updates + updates,
                self._seconds + seconds,
            )

    @property
    def steady(self) -> tuple[float, float]:
        """Env steps and updates per second."""
        if not self._seconds:
            return self.recent
        return self._steps / self._seconds, self._updates / self._seconds


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


def _known(facts: dict[str, Any]) -> tuple[float | None, dict[str, float] | None]:
    """Best return and last evaluation from a checkpoint's manifest."""
    best, evaluation = facts.get("best_return"), facts.get("evaluation")
    is_evaluation = isinstance(evaluation, dict) and all(
        isinstance(evaluation.get(name), int | float) for name in ("env_steps", "return_mean")
    )
    if not (best is None or isinstance(best, int | float)) or not (evaluation is None or is_evaluation):
        raise ValueError(f"the checkpoint's manifest has best_return {best!r} and evaluation {evaluation!r}")
    return best, evaluation


def _since_process_start() -> float:
    """Seconds since this process began, Python's own start included."""
    return round(time.time() - psutil.Process().create_time(), 3)


def _crossed(before: int, host: dict[str, Any], every: int) -> bool:
    return bool(host["env_steps"] // every > before // every)
