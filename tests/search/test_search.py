"""A search ends as if nothing had interrupted it, counts nothing twice, and outlives whatever its trials do.

Most of it with trials whose scores are a formula; `test_search_runs.py` has whole commands that train.
"""

import copy
import csv
import errno
import json
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
import yaml
from hotloop_process import TINY, contents
from optuna.storages.journal import JournalFileBackend
from PIL import Image

import hotloop
from hotloop.cores import usable_cores
from hotloop.errors import SearchFailed, SpecError
from hotloop.searching import picture, run
from hotloop.searching.space import parse_space
from hotloop.searching.study import Record
from hotloop.searching.subject import OwnSpec, SlmLabSpec
from hotloop.searching.trial_process import Ended, Evaluated
from hotloop.spec.reading import load_spec

RATE, DISCOUNT, HIDDEN = "optimizer.learning_rate", "discount", "network.torso.hidden"
SPACE = {
    "optimizer": {"learning_rate__loguniform": [1e-5, 1e-1]},
    "discount__uniform": [0.9, 0.999],
    "network.torso.hidden__layers": {"depth": [1, 2], "width": [4, 16]},
}
DRAW = picture.draw_search
FAR = 1e-2
"""Learning rates above it are bad."""


def quality(values):
    return 100.0 - 1000 * abs(values[DISCOUNT] - 0.95) - 80 * (values[RATE] > FAR)


class Formula:
    """Stands in for a trial's process: four evaluations on the way to a score that follows from the values."""

    begun: ClassVar[list["Formula"]] = []
    course: ClassVar[tuple[float, ...]] = (0.5, 0.7, 0.7, 1)
    before_hearing = staticmethod(lambda process, message: None)
    ending = staticmethod(lambda number, values: None)

    def __init__(self, task):
        self.task, self.seconds, self.is_closed = task, 0.5, False
        task.output.write_text("as printed\n")
        task.out.mkdir()
        self.begun.append(self)
        scores = [quality(task.values) * share for share in self.course]
        last = self.ending(int(task.out.name), task.values) or Ended(scores[-1], "steps", None)
        self.messages = [None, *(Evaluated(250 * i, score) for i, score in enumerate(scores, 1)), last]

    def hear(self):
        message = self.messages.pop(0)
        self.before_hearing(self, message)
        self.heard = message
        return message

    def answer(self, *, stops):
        if stops and len(self.messages) > 1:
            self.messages = [Ended(self.heard.score, "callback", None)]

    def ask_to_end(self):
        self.is_closed = True

    def close(self, *, has_ended=False):
        self.is_closed = True


@pytest.fixture(autouse=True)
def formula(monkeypatch, tmp_path):
    """Trials are formulas, and everything lies in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "TrialProcess", Formula)
    monkeypatch.setattr(run, "those_that_speak", lambda processes, timeout: processes)
    monkeypatch.setattr(picture, "draw_search", lambda path, *_: path.touch())
    monkeypatch.setattr(Formula, "begun", [])
    return Formula


def searched(out="search", trials=12, space=SPACE, parallel=1, **kwargs):
    spec = {**TINY, "evaluation": {**TINY["evaluation"], "every": 250}}
    return hotloop.search(spec, space=space, trials=trials, parallel=parallel, out=out, **kwargs)


def as_told(search):
    """Everything about the trials that does not depend on the clock."""
    return [(record.number, record.state, record.score, record.values, record.evaluations) for record in search.records]


def test_the_best_trial_is_found_written_and_can_be_trained(tmp_path):
    search = searched()
    assert [record.number for record in search.records] == list(range(12))
    best = max((record for record in search.records if record.state == "completed"), key=lambda record: record.score)
    assert search.best == best
    assert best.score == pytest.approx(quality(best.values))
    spec = load_spec(search.best_spec)
    assert spec.optimizer.learning_rate.value == best.values[RATE]
    assert spec.discount == best.values[DISCOUNT]
    assert list(spec.network.torso.hidden) == best.values[HIDDEN]
    assert spec.stop.steps == TINY["stop"]["steps"]
    assert search.path == Path("search")


def test_all_trials_are_in_the_table_and_in_json():
    search = searched()
    rows = list(csv.DictReader(Path("search/trials.csv").read_text().splitlines()))
    found = json.loads(Path("search/trials.json").read_text())
    assert len(rows) == len(found) == 12
    for row, told, record in zip(rows, found, search.records, strict=True):
        assert int(row["trial"]) == told["trial"] == record.number
        assert row["state"] == told["state"] == record.state
        assert float(row["score"]) == told["score"] == record.score
        assert json.loads(row[HIDDEN]) == told["values"][HIDDEN] == record.values[HIDDEN]
        assert (Path("search") / told["run"]).is_dir()


def test_trials_that_stay_below_the_median_are_pruned_and_others_are_not(monkeypatch):
    search = searched(trials=20)
    pruned = [record for record in search.records if record.state == "pruned"]
    assert len(pruned) >= 3
    assert all(record.number >= 5 for record in pruned), "five must be completed before"
    for record in pruned:
        assert list(record.evaluations) == [1, 2, 3]
        assert record.score == record.evaluations[3] == pytest.approx(quality(record.values) * 0.7)
        before = [other for other in search.records if other.number < record.number and other.state == "completed"]
        assert sum(other.evaluations[3] >= record.score for other in before) >= len(before) / 2
    assert searched("all", trials=20, prune=False).count("pruned") == 0
    monkeypatch.setattr(Formula, "course", (0.2, 0.5, 0.8, 1))
    assert searched("rising", trials=20).count("pruned") == 0, "whatever rises may pass the others"


def test_what_matters_has_the_largest_share():
    importances = searched(trials=30, prune=False).importances
    assert set(importances) == {RATE, DISCOUNT, HIDDEN}
    assert sum(importances.values()) == pytest.approx(1)
    assert min(importances, key=importances.get) == HIDDEN, "it has no part in the score"
    assert searched("few", trials=3).importances == {}


def test_a_trial_that_fails_is_told_with_its_reason_and_the_search_goes_on(monkeypatch):
    fails = Ended(None, "error", "replay.batch_size is 64, but replay.capacity is 32")
    monkeypatch.setattr(Formula, "ending", staticmethod(lambda number, _: fails if number % 3 == 0 else None))
    search = searched(trials=7)
    assert [record.number for record in search.records if record.state == "failed"] == [0, 3, 6]
    assert {record.reason for record in search.records if record.state == "failed"} == {fails.reason}
    assert search.best.number in (1, 2, 4, 5)
    assert fails.reason in Path("search/trials.csv").read_text()
    assert search.as_json()["failed"] == 3


def test_a_search_whose_first_trials_all_fail_ends_with_the_reason(monkeypatch):
    monkeypatch.setattr(Formula, "ending", staticmethod(lambda number, _: Ended(None, "error", f"no luck {number}")))
    with pytest.raises(SearchFailed, match="all of the first 5 trials failed, the last: no luck 4"):
        searched(trials=20)
    assert len(Formula.begun) == 5
    with pytest.raises(SearchFailed, match=r"all 2 trial\(s\) failed, the last: no luck 1"):
        searched("two", trials=2)


def test_failures_after_a_score_do_not_end_the_search(monkeypatch):
    fails = Ended(None, "error", "no luck")
    monkeypatch.setattr(Formula, "ending", staticmethod(lambda number, _: fails if number else None))
    assert searched(trials=8).count("failed") == 7


def test_two_searches_with_one_seed_are_the_same_and_another_seed_draws_others():
    first, second, other = searched("a"), searched("b"), searched("c", seed=1)
    assert as_told(first) == as_told(second)
    drawn = [{record.values[RATE] for record in search.records} for search in (first, other)]
    assert not drawn[0] & drawn[1]
    assert len(drawn[0]) == 12, "every trial draws anew"


def test_more_trials_go_on_where_the_search_ended():
    whole = searched("whole", trials=14)
    searched("parts", trials=9)
    begun = len(Formula.begun)
    parts = searched("parts", trials=14)
    assert len(Formula.begun) == begun + 5
    assert as_told(parts) == as_told(whole)
    assert as_told(searched("parts", trials=3)) == as_told(whole), "it has more already"
    assert len(Formula.begun) == begun + 5


class Killed(BaseException):
    """As if the process ended here and now."""


@pytest.mark.parametrize(
    ("is_torn", "writes"),
    [
        (False, range(2, 18, 3)),
        (True, range(3, 18, 5)),
        pytest.param(False, range(2, 100, 2), marks=pytest.mark.heavy),
        pytest.param(True, range(3, 100, 8), marks=pytest.mark.heavy),
    ],
)
def test_killed_at_any_write_of_its_memory_it_goes_on_as_if_nothing_had_happened(monkeypatch, is_torn, writes):
    trials = 2 if len(writes) < 10 else 7
    whole = as_told(searched("whole", trials=trials))
    append, left = JournalFileBackend.append_logs, [0]

    def append_until_killed(self, logs):
        left[0] -= 1
        if left[0] == 0:
            if is_torn:
                with open(self._file_path, "ab") as file:
                    file.write(json.dumps(logs[0])[:-5].encode())
            Path(f"{self._file_path}.lock").touch()
            raise Killed
        append(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", append_until_killed)
    monkeypatch.setattr(run._Trials, "_put_back_all", lambda self: None)  # nobody tidies up after a kill
    for at in writes:
        left[0] = at
        try:
            search = searched(f"killed-{at}", trials=trials)
            assert left[0] > 0
        except Killed:
            for again in (3, 2, 1):  # while it is about to go on
                left[0] = again
                with pytest.raises(Killed):
                    searched(f"killed-{at}", trials=trials)
            left[0] = 0
            search = searched(f"killed-{at}", trials=trials)
        assert as_told(search) == whole, f"killed at write {at}"


def test_a_full_disk_ends_it_with_a_line_and_it_goes_on_when_there_is_room(monkeypatch):
    whole, append, written = as_told(searched("whole", trials=4)), JournalFileBackend.append_logs, []

    def append_until_full(self, logs):
        written.append(logs)
        if len(written) >= 12:
            with open(self._file_path, "ab") as file:
                file.write(b'{"half')
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, logs)

    with monkeypatch.context() as patched:
        patched.setattr(JournalFileBackend, "append_logs", append_until_full)
        with pytest.raises(SearchFailed, match="full cannot be written: No space left on device"):
            searched("full", trials=4)
    assert as_told(searched("full", trials=4)) == whole


def test_trials_that_were_running_run_again_under_their_numbers_and_count_once(monkeypatch):
    whole = as_told(searched("whole", trials=6, prune=False))

    def kill(process, message):
        if process.task.out.name == "003" and isinstance(message, Ended):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Formula, "before_hearing", staticmethod(kill))
        patched.setattr(run._Trials, "_put_back_all", lambda self: None)
        for _ in range(3):
            with pytest.raises(Killed):
                searched("killed", trials=6, prune=False)
            assert Path("killed/trials/003").is_dir()
    search = searched("killed", trials=6, prune=False)
    assert as_told(search) == whole
    assert search.as_json()["trials"] == 6
    assert search.count("failed") == 0
    assert len(json.loads(Path("killed/trials.json").read_text())) == 6


def test_ctrl_c_ends_what_runs_and_the_search_goes_on_later(monkeypatch):
    whole = as_told(searched("whole", trials=5, prune=False))

    def interrupt(process, message):
        if process.task.out.name == "002" and isinstance(message, Evaluated):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Formula, "before_hearing", staticmethod(interrupt))
    search = searched("stopped", trials=5, prune=False)
    assert search.stopped == "stopped by SIGINT"
    assert search.as_json()["trials"] == 2
    assert Formula.begun[-1].is_closed
    assert not Path("stopped/trials/002").exists()
    monkeypatch.setattr(Formula, "before_hearing", staticmethod(lambda process, message: None))
    search = searched("stopped", trials=5, prune=False)
    assert search.stopped is None
    assert as_told(search) == whole


def test_side_by_side_there_are_never_more_than_were_asked_for(monkeypatch):
    open_at_once = []

    def count(process, message):
        running = [each for each in Formula.begun if not each.is_closed]
        open_at_once.append(len(running))

    monkeypatch.setattr(Formula, "before_hearing", staticmethod(count))
    search = searched(trials=8, parallel=3)
    assert max(open_at_once) == 3
    assert [record.number for record in search.records] == list(range(8))
    assert len(Formula.begun) == 8
    assert {process.task.threads for process in Formula.begun} == {max(1, usable_cores() // 3)}


def test_the_picture_shows_every_kind_of_trial_and_value(tmp_path):
    values = [{"a": 10.0**-i, "b": [8] * (i + 1), "c": ["x", None][i % 2], "d": i} for i in range(6)]
    states = ["completed", "pruned", "failed", "completed", "pruned", "completed"]
    records = [
        Record(i, state, None if state == "failed" else float(i), values[i], 1.0, None)
        for i, state in enumerate(states)
    ]
    DRAW(tmp_path / "whole.png", "x", records, {"a": 0.7, "b": 0.3})
    DRAW(tmp_path / "short.png", "x", records[:1], {})
    for name in ("whole.png", "short.png"):
        with Image.open(tmp_path / name) as drawn:
            assert len(set(drawn.convert("L").tobytes())) > 50, "hardly anything is drawn"


# -- what is refused --------------------------------------------------------------------------------------


def test_a_search_is_no_field_of_a_spec_and_changes_nothing_of_it():
    plain = {**TINY, "base": "cartpole"}
    Path("with.yaml").write_text(yaml.safe_dump({**plain, "search": SPACE}))
    Path("with.json").write_text(json.dumps({**plain, "search": SPACE}))
    for source in ("with.yaml", "with.json", {**plain, "search": SPACE}):
        assert load_spec(source) == load_spec(plain)


REFUSED = {
    "nothing to search": ({"search": None}, (), ["nothing says what to search", "search:", "__loguniform"]),
    "a space that is none": ({"search": [1]}, (), ["search: got [1]"]),
    "an unknown distribution": ({"search": {"seed__zipf": [1, 2]}}, (), ["seed__zipf", "unknown distribution"]),
    "an unknown field": (
        {"search": {"optimizer.learning_rat__uniform": [0.1, 0.2]}},
        (),
        ["search: optimizer.learning_rat: unknown key", "'learning_rate'"],
    ),
    "an unknown section": (
        {"search": {"optimiser.eps__uniform": [0.1, 0.2]}},
        (),
        ["search: optimiser", "'optimizer'"],
    ),
    "fractions for a whole number": (
        {"search": {"replay.batch_size__uniform": [8, 16]}},
        (),
        ["search: replay.batch_size: got 12.0", "integer", "with replay.batch_size=12.0"],
    ),
    "values that no field takes": ({"search": {"discount__uniform": [2, 3]}}, (), ["search: discount: got 2.5"]),
    "no trials": ({}, ("--trials", "0"), ["trials is 0", "from 1 on"]),
    "no trial at a time": ({}, ("--parallel", "0"), ["parallel is 0", "from 1 on"]),
    "a folder that is no search": ({}, ("--out", "other"), ["other is not a search", "search.json", "--out"]),
    "a file": ({}, ("--out", "file"), ["file", "not a writable folder"]),
    "a bad spec": ({"seed": -1}, (), ["seed: got -1"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line_and_writes_nothing(name, hotloop_here, tmp_path):
    changes, words, expected = REFUSED[name]
    Path("s.yaml").write_text(yaml.safe_dump({**TINY, "search": {"discount__uniform": [0.9, 0.99]}, **changes}))
    Path("other").mkdir()
    Path("other/thing").touch()
    Path("file").touch()
    before = contents(tmp_path)
    line = hotloop_here("search", "s.yaml", *words).refusal
    for text in expected:
        assert text in line
    assert contents(tmp_path) == before


def test_without_optuna_one_line_names_what_to_install(monkeypatch, hotloop_here, tmp_path):
    Path("s.yaml").write_text(yaml.safe_dump({**TINY, "search": {"discount__uniform": [0.9, 0.99]}}))
    monkeypatch.setitem(sys.modules, "optuna", None)
    before = contents(tmp_path)
    assert "pip install 'hotloop[search]'" in hotloop_here("search", "s.yaml").refusal
    assert contents(tmp_path) == before


def test_another_spec_or_space_is_refused_in_the_folder_of_a_search():
    searched(trials=2)
    before = contents(Path("search"))
    with pytest.raises(SpecError, match=r"search is a search of another spec: stop.steps is 1000 there and 900 here"):
        searched(trials=3, **{"stop.steps": 900})
    other = {**SPACE, "discount__uniform": [0.9, 0.99]}
    with pytest.raises(SpecError, match=r"another space: discount__uniform is \[0.9, 0.999\] there and \[0.9, 0.99\]"):
        searched(trials=3, space=other)
    assert contents(Path("search")) == before


def test_two_processes_do_not_search_in_one_folder(monkeypatch):
    seen = []

    def search_too(process, message):
        if not seen:
            with pytest.raises(SpecError, match="another process is searching in search"):
                seen.append(searched(trials=2))
            seen.append("refused")

    monkeypatch.setattr(Formula, "before_hearing", staticmethod(search_too))
    assert searched(trials=2).count("completed") == 2
    assert seen == ["refused"]


def test_a_combination_that_is_refused_does_not_refuse_the_space():
    space = {"network.head.kind__choice": ["scalar", "c51"], "network.head.high__choice": [60.0]}
    run._require_fields(OwnSpec.of(load_spec(TINY)), parse_space(space))
    with pytest.raises(SpecError, match=r"network\.head\.high"):
        run._require_fields(
            OwnSpec.of(load_spec(TINY)), parse_space({**space, "network.head.kind__choice": ["scalar"]})
        )


def test_a_study_of_optunas_own_tools_can_read_it():
    searched(trials=3)
    storage = optuna.storages.JournalStorage(JournalFileBackend("search/study.journal"))
    assert len(optuna.load_study(study_name="search", storage=storage).trials) == 3


def test_a_journal_that_someone_has_changed_or_taken_away_is_refused(tmp_path):
    (tmp_path / "evil_mod.py").write_text("raise SystemExit('imported')")
    journal = tmp_path / "search" / "study.journal"
    searched(trials=1)
    text = journal.read_text()
    for changed, said in (
        (text.replace(f'"{DISCOUNT}":', '"plugins":["evil_mod"],"x":'), "has a trial with values of .*plugins"),
        (text.replace("\n", "\n{garbled\n", 1), "is damaged"),
    ):
        assert changed != text
        journal.write_text(changed)
        with pytest.raises(SpecError, match=said):
            searched(trials=1)
    journal.unlink()
    before = contents(tmp_path / "search" / "trials")
    with pytest.raises(SpecError, match=r"has trials, but study\.journal"):
        searched(trials=2)
    assert contents(tmp_path / "search" / "trials") == before


# -- specs of SLM-Lab ---------------------------------------------------------------------------------------


def test_values_of_an_slm_lab_spec_are_put_into_its_own_fields() -> None:
    original = json.loads((Path(__file__).parents[2] / "examples" / "slm_lab.json").read_text())["dqn_cartpole"]
    subject = SlmLabSpec("dqn_cartpole", original, {}, {"seeds": 1})
    values = {
        "agent.algorithm.gamma": 0.9,
        "agent.net.hid_layers": [8, 8],
        "agent.net.optim_spec.lr": 0.003,
        "agent.algorithm.training_frequency": 2,
    }
    spec: Any = subject.with_values(values)
    assert (spec.discount, spec.network.torso.hidden, spec.turns.every, spec.seeds) == (0.9, (8, 8), 2, 1)
    assert spec.optimizer.learning_rate.start == 0.003
    assert subject.with_values({}).discount == 0.99, "the original is as it was"
    none = copy.deepcopy(original)
    none["agent"]["net"]["lr_scheduler_spec"] = None
    into_none = {"agent.net.lr_scheduler_spec.name": "StepLR", "agent.net.lr_scheduler_spec.step_size": 7}
    assert SlmLabSpec("one", none, {}, {}).with_values(into_none).optimizer.learning_rate.every == 7  # type: ignore[union-attr]
    with pytest.raises(SpecError, match=r"gamma is 0\.99, expected a section"):
        subject.with_values({"agent.algorithm.gamma.x": 0.9})
    with pytest.raises(SpecError, match=r"agent\.algorithm\.gama: unknown key"):
        subject.with_values({"agent.algorithm.gama": 0.9})
