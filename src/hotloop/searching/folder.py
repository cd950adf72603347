"""The folder of a search: what is searched, and in files for people what was found."""

import csv
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from hotloop.errors import SpecError
from hotloop.plain import Figures, Json
from hotloop.searching.study import Record
from hotloop.spec import Spec
from hotloop.spec.reading import plain, to_yaml

FORMAT = 1
_WRITING = ".writing-"


class SearchFolder:
    """Paths of one search. To choose it is to check; nothing is written before `create`."""

    def __init__(self, path: Path, spec: Spec, space: object, *, is_chosen: bool) -> None:
        """`is_chosen`: the user named this very folder."""
        self.is_chosen = is_chosen
        self._asked = {"spec": _as_json(plain(spec)), "space": _as_json(space)}
        self._place(path)

    def _place(self, path: Path) -> None:
        self.path = path
        self.facts_file = path / "search.json"
        self.journal = path / "study.journal"
        self.trials = path / "trials"
        self.table = path / "trials.csv"
        self.records = path / "trials.json"
        self.best_spec = path / "best.yaml"
        self.picture = path / "search.png"

    @classmethod
    def choose(cls, out: Path | None, spec: Spec, space: object) -> "SearchFolder":
        """Decide where a search goes or goes on; refuses what is no search, or one of something else."""
        path = out or Path("runs") / f"search-{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = cls(path, spec, space, is_chosen=out is not None)
        parent = next(p for p in [path, *path.absolute().parents] if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SpecError(f"{path} cannot be written: {parent} is not a writable folder; choose another place")
        if folder.is_there:
            folder._require_the_same()
        elif folder.is_chosen and path.exists() and any(_WRITING not in each.name for each in path.iterdir()):
            raise SpecError(f"{path} is not a search: it has no {folder.facts_file.name}; choose another --out")
        return folder

    @property
    def is_there(self) -> bool:
        """Whether it is a search that was begun before."""
        return self.is_chosen and self.facts_file.is_file()

    def _require_the_same(self) -> None:
        try:
            facts = json.loads(self.facts_file.read_text())
            known, version = {name: facts[name] for name in self._asked}, facts["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SpecError(f"{self.facts_file} cannot be read: {type(error).__name__}: {error}") from None
        if version != FORMAT:
            raise SpecError(f"{self.path} has search format {version!r}, this hotloop continues {FORMAT}")
        for what, asked in self._asked.items():
            if found := _difference(known[what], asked, ""):
                path, was, now = found
                raise SpecError(
                    f"{self.path} is a search of another {what}: {path} is {was} there and {now} here; "
                    "give what it began with, or choose another --out"
                )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make it if it is new, and keep other processes from searching in it meanwhile."""
        if not self.is_there:
            self._create()
        with self.facts_file.open("r+") as file:
            try:
                import fcntl
            except ModuleNotFoundError:  # Windows
                pass
            else:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise SpecError(f"another process is searching in {self.path}; wait for its end") from None
            self.trials.mkdir(exist_ok=True)
            if not self.journal.is_file() and any(self.trials.iterdir()):
                raise SpecError(
                    f"{self.path} has trials, but {self.journal.name}, which says what came of them, is gone; choose "
                    "another --out"
                )
            yield

    def _create(self) -> None:
        base, number = self.path, 1
        while True:  # another search of the same second gets a folder of its own
            try:
                self.path.mkdir(parents=True, exist_ok=self.is_chosen)
                break
            except FileExistsError:
                number += 1
                self._place(base.with_name(f"{base.name}-{number}"))
        facts: Figures = {
            "format": FORMAT,
            **self._asked,
            "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "versions": {package: metadata.version(package) for package in ("hotloop", "optuna")},
        }
        self._write(self.facts_file, json.dumps(facts, indent=1) + "\n")

    def run_of(self, number: int) -> Path:
        """The run of a trial."""
        return self.trials / f"{number:03d}"

    def output_of(self, number: int) -> Path:
        """What the run of a trial has printed."""
        return self.trials / f"{number:03d}.log"

    def write_trials(self, records: Sequence[Record]) -> None:
        """All trials that have ended, as a table and as JSON."""
        paths = list(dict.fromkeys(path for record in records for path in record.values))
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["trial", "state", "score", "seconds", *paths, "reason"])
        rows: list[Json] = []
        for record in records:
            values = [_cell(record.values.get(path)) for path in paths]
            score = "" if record.score is None else record.score
            table.writerow([record.number, record.state, score, record.seconds, *values, record.reason or ""])
            rows.append(
                {
                    "trial": record.number,
                    "state": record.state,
                    "score": record.score,
                    "seconds": record.seconds,
                    "values": record.values,
                    "reason": record.reason,
                    "evaluations": list(record.evaluations.values()),
                    "run": str(self.run_of(record.number).relative_to(self.path)),
                }
            )
        self._write(self.table, text.getvalue())
        self._write(self.records, json.dumps(rows, indent=1, allow_nan=False) + "\n")

    def write_best(self, best: Record, spec: Spec) -> None:
        """The whole spec of the best trial."""
        self._write(self.best_spec, f"# Trial {best.number} of a search, score {best.score:g}.\n{to_yaml(spec)}")

    def _write(self, path: Path, text: str) -> None:
        """Write a file, all of it or nothing."""
        temporary = path.with_name(f"{path.name}{_WRITING}{os.getpid()}")
        try:
            temporary.write_text(text)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _as_json(data: object) -> Json:
    """Plain data as it is read back from a file."""
    try:
        found: Json = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError(f"search: {error}; expected numbers, text, lists and mappings") from None
    return found


def _difference(before: Json, now: Json, path: str) -> tuple[str, str, str] | None:
    """Where two trees of plain data differ first, and what stands there."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in [*before, *(name for name in now if name not in before)]:
            where = f"{path}.{name}" if path else name
            if name not in before or name not in now:
                was, is_now = ("absent" if name not in side else _short(side[name]) for side in (before, now))
                return where, was, is_now
            if found := _difference(before[name], now[name], where):
                return found
        return None
    return None if before == now and type(before) is type(now) else (path, _short(before), _short(now))


def _cell(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(value: Json) -> str:
    text = _cell(value)
    return text if len(text) <= 80 else f"{text[:80]} …"
