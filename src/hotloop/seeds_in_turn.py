"""Several seeds on the host: one run after another, each in a folder of its own within the run's.

Each seed is the run it would be alone, to the bit. What the run's own folder has beside them (the best and the last
weights, metrics.jsonl, curve.png) is made from theirs when a seed has ended: it can be lost without harm.
"""

import gc
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from hotloop.assembly import Assembly, Own
from hotloop.driver import Driver
from hotloop.errors import ActorsFailed, HotloopError, SpecError
from hotloop.figures import Turn, result_in_turn
from hotloop.interrupts import Interrupts
from hotloop.listeners import Listener
from hotloop.members import seeds
from hotloop.plain import Figures, number
from hotloop.progress import Reporter
from hotloop.runs import checkpoint, metrics, statistics
from hotloop.runs.folder import RunFolder
from hotloop.runs.store import Arrays, InFolder, InMemory
from hotloop.spec import Spec
from hotloop.standing import Standing
from hotloop.stopping import Kind, Stop

RESULT = "result.json"
"""What a seed's folder has beside those of other runs: its figures, by which a resume knows that it has ended."""
CUT_SHORT = ("signal", "callback")
COUNTED = ("env_steps", "updates", "skipped", "updates_per_step", "episodes", "episodes_cut", "episodes_endless")


class SeedsInTurn:
    """One training session of a run of several seeds."""

    def __init__(
        self,
        spec: Spec,
        own: Own,
        store: InFolder | InMemory,
        reporter: Reporter,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """`store` is the whole run's; its seeds' are within it."""
        self.began = time.perf_counter()
        self.spec, self.own, self.store, self.reporter, self.listeners = spec, own, store, reporter, listeners
        self.members, self.interrupts = spec.members, Interrupts()
        self.kept_spec = spec  # as spec.yaml has it
        self._is_begun = self._is_resumed = self._moves_end = False  # begun: the run's own folder is there
        self._keeps_mode = True
        self._asked: str | None = None  # by which method a listener has just asked for the end
        self._turns: list[Turn] = []
        self._kept: list[RunFolder | InMemory] = []  # where the weights of each turn are

    def train(self) -> Figures:
        """Train one seed after the other; returns the run's figures."""
        return self._drive()

    def resume(self, *, moves_end: bool = False, keeps_mode: bool = True) -> Figures:
        """Leave those alone that have ended, go on with the one that was interrupted, train the rest.

        `moves_end`: to a new end, which a goal already reached does not forestall. `keeps_mode`: each in the mode of
        its engine that it had.
        """
        assert isinstance(self.store, InFolder)  # no other can be resumed
        self._moves_end, self._keeps_mode = moves_end, keeps_mode
        if self.store.folder.read_spec().stop.steps != self.spec.stop.steps:
            self.store.change_spec(self.spec)
        self._is_begun = self._is_resumed = True
        result = self._drive()
        if all(turn.began_at is None for turn in self._turns):
            done = max(int(number(turn.result, "env_steps")) for turn in self._turns)
            further = f"go on with: hotloop resume {self.store.path} --steps N, N above {done:,}"
            if result["stopped_by"] == "episodes":
                further = f"its spec ends it after {self.spec.stop.episodes} episodes (stop.episodes)"
            self.reporter.say(f"{self.store.path} is finished ({result['stopped']}); {further}")
        return result

    def _drive(self) -> Figures:
        stop = None
        with ExitStack() as self._while_it_runs:
            if self._is_begun:
                self._while_it_runs.enter_context(self.interrupts)
            for index in range(len(self.members)):
                if stop := self._asked_to_stop(index):
                    break
                self._asked = None
                self._take_turn(index)
                self._gather()
        stop = stop or self._end()
        result = result_in_turn(self._turns, self.members, stop, time.perf_counter() - self.began)
        driven = [turn.result for turn in self._turns if turn.began_at is not None]
        errors = [self.store.disk_error, *(each["disk_error"] for each in driven)]
        where = None if self.store.path is None else str(self.store.path)
        return {"run": where, **result, "disk_error": next((error for error in errors if error), None)}

    # -- one seed -------------------------------------------------------------------------------------

    def _take_turn(self, index: int) -> None:
        """Train a seed, or go on with it, or leave it alone."""
        name, folder = self.members.named(index), self._folder(index)
        turn = None if folder is None else self._ended(folder)
        was = "" if turn is None else " has ended already"
        if turn is None:
            turn = self._trained(index, folder)
        self._turns.append(turn)
        result = turn.result
        score = "none yet" if result["return_mean"] is None else f"{number(result, 'return_mean'):.1f}"
        self.reporter.say(f"{name} ({index + 1} of {len(self.members)}){was}: {result['stopped']}; score {score}")

    def _trained(self, index: int, folder: RunFolder | None) -> Turn:
        """Drive a seed to its end."""
        name, reporter = self.members.names[index], self.reporter
        spec = self.spec.model_copy(update={"seed": self.members.numbers[index], "seeds": 1})
        saved, began_at, moves_end = None, 0, False
        if folder is not None and _has_checkpoint(folder):
            spec, saved, moves_end = self._saved(folder, spec)
            done = saved[1].get("env_steps")
            began_at = done if isinstance(done, int) else 0
        store: InFolder | InMemory = InMemory()
        if isinstance(self.store, InFolder):
            store = InFolder(RunFolder(self.store.path / name), reporter.warn, spec.log.checkpoints)
        gc.collect()  # the replay of the seed before, which may take most of the memory
        with reporter.busy(f"starting engine {spec.engine}"):
            assembly = Assembly(spec, self.own)
        with assembly:
            driver = Driver(assembly, store, reporter, self.listeners, self.interrupts)
            try:
                if saved is None:
                    result = driver.train(partial(self._begin, store, name))
                else:
                    result = driver.resume(*saved, moves_end=moves_end)
            except HotloopError as error:
                if error is driver.audience.error:  # a listener's own
                    raise
                message = f"{self.members.named(index)}: {error}"
                if isinstance(error, ActorsFailed):
                    raise ActorsFailed(message, error.words) from error
                raise type(error)(message) from error
        self._asked = driver.audience.stopped_by
        if driver.spec.torch != self.spec.torch:  # what the engine chose by measuring holds for the seeds that follow
            self.spec = self.spec.model_copy(update={"torch": driver.spec.torch})
            if self._is_resumed:
                self.store.change_spec(self.spec)
        if isinstance(store, InFolder):
            text, written = json.dumps(metrics.finite(result), indent=1).encode(), store.folder
            store.attempt(RESULT, lambda: written.write(written.path / RESULT, text))
        self._kept.append(store.folder if isinstance(store, InFolder) else store)
        return Turn(result, driver.standing.evaluation, began_at)

    def _begin(self, store: InFolder | InMemory, name: str, spec: Spec, facts: Figures) -> None:
        """Begin with a seed; with the first one, the run."""
        if not self._is_begun:
            self.kept_spec = spec.model_copy(update={"seed": self.spec.seed, "seeds": self.spec.seeds})
            self.store.begin(self.kept_spec, facts)
            self._is_begun = True
            self._while_it_runs.enter_context(self.interrupts)
        if isinstance(store, InFolder) and isinstance(self.store, InFolder):
            # A seed of a run that someone else made is no more this user's than that.
            store.folder = RunFolder(self.store.path / name, is_ours=self.store.folder.doubt() is None)
            if store.path.is_dir():
                if checkpoint.newest_first(store.path / "checkpoints"):
                    raise SpecError(
                        f"{store.path} has checkpoints, but no spec.yaml or no run.json to go on by; put them back, or "
                        "remove the folder to train this seed anew"
                    )
                self.reporter.say(f"{store.path} has no whole checkpoint: this seed begins anew")
                shutil.rmtree(store.path)
        store.begin(spec, facts)

    def _folder(self, index: int) -> RunFolder | None:
        """A seed's folder, if it has begun."""
        if self.store.path is None or not self._is_begun:
            return None
        folder = RunFolder(self.store.path / self.members.names[index])
        return folder if folder.spec_file.is_file() and folder.facts_file.is_file() else None

    def _ended(self, folder: RunFolder) -> Turn | None:
        """A seed that has come to this run's end; None if there is something left to do."""
        result = _read_result(folder)
        if result is None or folder.read_spec().stop.steps != self.spec.stop.steps or not folder.has_weights("last"):
            return None
        newest, done = checkpoint.newest_first(folder.checkpoints), int(number(result, "env_steps"))
        if not newest or newest[0].name != f"{done:012d}" or (self._moves_end and done < self.spec.stop.steps):
            return None
        members = seeds([self.members.numbers[len(self._turns)]])
        try:
            evaluation = Standing.from_facts(folder.weights("last")[1], members).evaluation
        except ValueError as error:
            raise SpecError(f"{folder.path}: {error}") from None
        self._kept.append(folder)
        return Turn(result, evaluation, None)

    def _saved(self, folder: RunFolder, spec: Spec) -> tuple[Spec, tuple[Arrays, Figures], bool]:
        """A seed's spec, the checkpoint to go on from, and whether its end has moved."""
        folder = RunFolder.open(folder.path)
        folder.require_resumable()
        made = folder.read_spec()
        moves_end = self._moves_end or made.stop.steps != spec.stop.steps
        if not moves_end and self._keeps_mode:
            spec = spec.model_copy(update={"torch": made.torch})
        try:
            return spec, folder.newest_checkpoint(self.reporter.warn), moves_end
        except SpecError as error:
            raise SpecError(f"{error}; without the folder {folder.path} this seed would be trained anew") from None

    # -- all of them ----------------------------------------------------------------------------------

    def _asked_to_stop(self, index: int) -> Stop | None:
        """Who has asked, in or after the turn before this one."""
        if not self._turns:
            return None
        last = self._turns[-1].result
        where = f", before {self.members.named(index)}"
        if last["stopped_by"] in CUT_SHORT:
            where = f", in {self.members.named(index - 1)}"
        if self.interrupts.seen:
            return Stop("signal", f"{self.interrupts.seen}{where}")
        return Stop("callback", f"stopped by {self._asked}{where}") if self._asked else None

    def _end(self) -> Stop:
        """Why the run is over, all seeds having had their turn."""
        results = [turn.result for turn in self._turns]
        if results[-1]["stopped_by"] in CUT_SHORT:
            kind: Kind = "signal" if results[-1]["stopped_by"] == "signal" else "callback"
            return Stop(kind, f"{results[-1]['stopped']}, in {self.members.named(len(results) - 1)}")
        kinds, stop, them = [result["stopped_by"] for result in results], self.spec.stop, f"{self.members.kind}s"
        solved, count = kinds.count("goal"), len(results)
        if solved == count:
            return Stop("goal", f"solved by each of {count} {them}: mean return >= {stop.return_at_least}")
        if solved:
            return Stop("steps", f"solved by {solved} of {count} {them}: mean return >= {stop.return_at_least}")
        if "steps" in kinds:
            return Stop("steps", f"{stop.steps:,} env steps done by each of {count} {them}")
        return Stop("episodes", f"{stop.episodes} episodes done by each of {count} {them}")

    def _gather(self) -> None:
        """Have the run's own folder say what its seeds came to so far."""
        best = {which: self._copy_the_best(which) for which in ("last", "best")}
        if isinstance(self.store, InMemory):
            self.store.save_weights(self.members.names[len(self._kept) - 1], *self._kept[-1].weights("last"))
        elif len(self._turns) == len(self.members):
            self._draw(self.store, best["last"] if best["best"] is None else best["best"])

    def _copy_the_best(self, which: str) -> int | None:
        """Have the run keep the weights that did best of all seeds' `best` or `last`; returns whose they are."""
        # In a resumed run seeds whose turn is still to come may have been the best before.
        coming = [self._folder(i) for i in range(len(self._kept), len(self.members))]
        found = {
            i: kept.weights(which)
            for i, kept in enumerate([*self._kept, *coming])
            if kept is not None and kept.has_weights(which)
        }
        best = max(found, key=lambda i: _return_of(found[i][1].get("evaluation")), default=None)
        if best is not None:
            self.store.save_weights(which, *found[best])
        return best

    def _draw(self, store: InFolder, best: int | None) -> None:
        """Write the metrics of all seeds together, their picture, and the best one's recording."""
        from hotloop.runs.pictures import draw_curve

        folders = [kept.path for kept in self._kept if isinstance(kept, RunFolder)]
        have_ended = [turn.result["stopped_by"] not in CUT_SHORT for turn in self._turns]
        rows = [metrics.read(folder / "metrics.jsonl") for folder in folders]
        lines = statistics.lines_in_turn(rows, have_ended, self.members, self.spec.block_plan.env_steps)
        text = "".join(json.dumps(metrics.finite(line)) + "\n" for line in lines).encode()
        store.attempt("metrics", lambda: store.folder.write(store.folder.metrics_file, text))
        with self.reporter.busy("drawing"):
            store.attempt("curve.png", lambda: draw_curve(store.path, self.spec))
        recording = RunFolder(folders[best or 0]).recording
        if recording.is_file():
            store.attempt("recording.gif", lambda: shutil.copyfile(recording, store.folder.recording))


def furthest(folder: RunFolder, spec: Spec) -> int | None:
    """Env steps of the seed of a run that has done the most."""
    found = [checkpoint.newest_first(folder.path / name / "checkpoints") for name in spec.members.names]
    return max((int(paths[0].stem) for paths in found if paths), default=None)


def _has_checkpoint(folder: RunFolder) -> bool:
    return bool(checkpoint.newest_first(folder.checkpoints))


def _read_result(folder: RunFolder) -> Figures | None:
    """What a seed that has ended came to; None for one that was cut short, or a file that says nothing of use."""
    try:
        found = json.loads((folder.path / RESULT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), int | float) for name in COUNTED):
        return None
    score, error = found.get("return_mean"), found.get("disk_error")
    is_one = isinstance(score, int | float | None) and isinstance(error, str | None)
    is_one &= found.get("stopped_by") in ("goal", "steps", "episodes") and isinstance(found.get("stopped"), str)
    return found if is_one else None


def _return_of(evaluation: object) -> float:
    """The mean return of an evaluation; below all others where there is none."""
    found = evaluation.get("return_mean") if isinstance(evaluation, dict) else None
    return found if isinstance(found, int | float) and found == found else float("-inf")
