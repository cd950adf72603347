"""Faster settings for a spec that leave what is learned as it is: predicted, then tried; the best is written down.

What may change are the pipeline, how envs are stepped, actors, threads and the engine. Env steps, gradient steps,
batches, the replay ratio, ε, targets, seeds, evaluations and what a run writes down stay as they are.
"""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hotloop.assembly import Assembly, Own
from hotloop.doctor.alternatives import Changes, mode_of
from hotloop.doctor.diagnosis import Diagnosis, Tried, diagnose
from hotloop.doctor.race import race
from hotloop.doctor.remedies import WORTH_SAYING
from hotloop.doctor.report import figures_of_tried, table_of_tried
from hotloop.doctor.slices import Ratio
from hotloop.engines.jax.setup import users_variables
from hotloop.errors import SpecError
from hotloop.pipeline_trial import choose, with_choice
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import as_given, load_spec, preset_names, read_text, with_base

if TYPE_CHECKING:
    from rich.console import Console

MAY_CHANGE = ("pipeline", "env.vectorization", "actors.count", "actors.first_errors", "threads", "engine", "torch.mode")
"""Fields that say how a run flows, and nothing of what it learns."""
TRIED = 4
CONFIRMING, SECONDS_TO_CONFIRM = 0.25, 30.0
"""Share of the time that is kept for trying the best once more, and seconds at the least."""


class Tuned(NamedTuple):
    """What came of it."""

    spec: Spec
    """With what was changed; as it was where nothing was faster."""
    changes: Changes
    gain: Ratio | None
    """Times as fast as it was; None where nothing was faster."""
    diagnosis: Diagnosis

    @property
    def tried(self) -> list[Tried]:
        """What was predicted to be faster and might be taken, the most promising first."""
        return [each for each in self.diagnosis.remedies if set(each.remedy.changes) <= set(MAY_CHANGE)]

    def figures(self, path: Path | None) -> Figures:
        """As JSON has it."""
        return {
            "spec": None if path is None else str(path),
            "speedup": 1.0 if self.gain is None else round(self.gain.value, 3),
            "interval": None if self.gain is None else self.gain.interval,
            "changed": {**self.changes},
            "tried": [figures_of_tried(each) for each in self.tried],
        }


def tune(spec: Spec, minutes: float, reporter: Reporter) -> Tuned:
    """Search for about so many minutes; nothing is kept of the trainings.

    The best of several that were tried has been lucky, too: it is tried once more, and that is the gain.
    """
    until, variables = time.monotonic() + 60 * minutes, users_variables()
    as_run = _as_a_run_would(spec, variables, reporter)
    left = max(0.0, until - time.monotonic()) / 60
    found = diagnose(as_run, Own(), (1 - CONFIRMING) * left, reporter, TRIED)
    faster = [tried for tried in found.remedies if _may_be_taken(tried)]
    if not faster:
        return Tuned(spec, {}, None, found)
    best = max(faster, key=lambda tried: tried.measured.value if tried.measured else 0.0)
    at_least = time.monotonic() + SECONDS_TO_CONFIRM
    (again,) = race(as_run, [best.remedy.changes], max(until, at_least), variables, reporter)
    if not isinstance(again, Ratio):
        notice = f"{best.remedy.options} was faster once, and could not be tried again: {again}"
        return Tuned(spec, {}, None, _noticing(found, notice))
    gain = Ratio(*(found.seen.of_whole_run(bound) for bound in again))
    if gain.low <= 1 or gain.value < WORTH_SAYING:
        return Tuned(spec, {}, None, found)
    tuned = load_spec(as_run, best.remedy.changes)
    return Tuned(tuned, {**_differences(spec, as_run), **best.remedy.changes}, gain, found)


def _noticing(found: Diagnosis, notice: str) -> Diagnosis:
    return found._replace(seen=found.seen._replace(notices=[*found.seen.notices, notice]))


def _may_be_taken(tried: Tried) -> bool:
    changes, ratio = set(tried.remedy.changes), tried.measured
    return ratio is not None and ratio.low > 1 and ratio.value >= WORTH_SAYING and changes <= set(MAY_CHANGE)


def _as_a_run_would(spec: Spec, variables: Mapping[str, str], reporter: Reporter) -> Spec:
    """The spec with what `hotloop train` would choose by measuring before it begins, so that no gain is counted that a
    run has by itself."""
    if spec.engine == "torch" and spec.torch.mode == "auto":
        spec = load_spec(spec, {"torch.mode": mode_of(spec, variables, reporter)})
    with Assembly(spec, Own()) as assembly:
        choice = choose(assembly, spec, Own(), reporter)
    return spec if choice is None else with_choice(spec, choice)


def _differences(spec: Spec, chosen: Spec) -> Changes:
    """What a run would have chosen by itself."""
    fields: Changes = {}
    for path in MAY_CHANGE:
        section, _, name = path.rpartition(".")
        before, after = ((getattr(one, section) if section else one) for one in (spec, chosen))
        if getattr(before, name) != getattr(after, name):
            fields[path] = getattr(after, name)
    return fields


def text_of(tuned: Tuned, source: str | None, overrides: Mapping[str, object]) -> str:
    """A spec file: `base:` and what differs where it began from a preset and that says it all, else all that was given.

    `overrides` are what the user has set beside `source`.
    """
    if source in preset_names():
        text = with_base(str(source), {**overrides, **tuned.changes})
        with contextlib.suppress(SpecError):
            if load_spec(read_text(text, "tuned.yaml")) == tuned.spec:
                return text
    return as_given(tuned.spec)


def print_tuned(tuned: Tuned, path: Path | None, console: "Console") -> None:
    """What was tried, what was chosen, and where it is."""
    if tuned.tried:
        console.print(table_of_tried("tried in turns with the run as it is", tuned.tried))
    if notices := tuned.diagnosis.seen.notices:
        console.print("; ".join(notices), style="dim", markup=False)
    if path is None:
        tried = any(each.measured is not None for each in tuned.tried)
        why = "was measured to be faster" if tried else "is predicted to be faster, or there was no time to try one"
        console.print(f"no gain: no setting that learns the same {why}; nothing was written")
        return
    changed = ", ".join(f"{name}: {value}" for name, value in tuned.changes.items())
    console.print(f"[bold]{tuned.gain}[/bold] as fast with {changed}")
    console.print("  the best of those tried has been lucky, too: this is what it brought when it was tried once more")
    console.print(f"  spec       {path}", highlight=False)
