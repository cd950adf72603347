"""The folder of a run: what was asked for, on what machine, and where everything lies."""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from importlib import metadata
from pathlib import Path

import numpy as np

from hotloop.envs.naming import folder_of_modules
from hotloop.errors import SpecError
from hotloop.members import is_member_name
from hotloop.plain import Figures
from hotloop.runs import checkpoint, signing
from hotloop.spec import Spec
from hotloop.spec.reading import parse_spec, plugins_in, read_text, to_yaml, with_meaning

FORMAT = 4
"""1: without a signature, and with checkpoints of another content. 2: runs on the host with one random stream. 3: other
names in checkpoints."""
_PACKAGES = ("hotloop", "jax", "jaxlib", "numpy", "optax", "gymnasium", "safetensors")


class RunFolder:
    """Paths of one run. Creating or opening it checks; nothing here trains."""

    def __init__(self, path: Path, *, is_chosen: bool = True, is_ours: bool = True) -> None:
        """`is_chosen`: the user named this very folder; `is_ours`: what is made here comes from this user."""
        self.is_chosen, self._is_ours = is_chosen, is_ours
        self._place(path)

    def _place(self, path: Path) -> None:
        self.path = path
        self.spec_file = path / "spec.yaml"
        self.facts_file = path / "run.json"
        self.metrics_file = path / "metrics.jsonl"
        self.notices_file = path / "notices.log"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.dump = path / "dump"
        self.curve = path / "curve.png"
        self.recording = path / "recording.gif"

    @classmethod
    def choose(cls, spec: Spec, out: Path | None) -> "RunFolder":
        """Decide where a new run goes, and refuse a place that is taken."""
        path = out or Path("runs") / f"{spec.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = cls(path, is_chosen=out is not None)
        if folder.is_chosen and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise SpecError(f"{path} already exists; choose another --out, or continue it with `hotloop resume {path}`")
        folder.require_writable()
        return folder

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """Open an existing run."""
        folder = cls(Path(path))
        if not folder.spec_file.is_file():
            raise SpecError(f"{path} is not a run: it has no {folder.spec_file.name}")
        if folder.format < 1:
            raise SpecError(f"{folder.facts_file} says format {folder.format}, expected 1 to {FORMAT}")
        if folder.format > FORMAT:
            raise SpecError(
                f"{path} has run format {folder.format}, this hotloop reads up to {FORMAT}; "
                "it was made by a newer hotloop"
            )
        return folder

    def require_writable(self) -> None:
        """Refuse a place where nothing can be written, before anything is computed."""
        parent = next(p for p in [self.path, *self.path.absolute().parents] if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise SpecError(f"{self.path} cannot be written: {parent} is not a writable folder; choose another place")

    def create(self, spec: Spec, facts: Figures) -> str | None:
        """Write what is known before training; returns why it could not be signed, if so.

        Another run of the same second gets a folder of its own.
        """
        base, number = self.path, 1
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=self.is_chosen)
                break
            except FileExistsError:
                number += 1
                self._place(base.with_name(f"{base.name}-{number}"))
        text, signature, unsigned = to_yaml(spec).encode(), None, None
        made_in = folder_of_modules(spec)
        try:
            signature = signing.sign(FORMAT, made_in, text) if self._is_ours else None
        except signing.NoKey as error:
            unsigned = str(error)
        self.write(self.spec_file, text)
        self._write_facts({"format": FORMAT, "signature": signature, "made_in": made_in, **_circumstances(), **facts})
        return unsigned

    def rewrite_spec(self, spec: Spec) -> None:
        """Change spec.yaml. A run that is this user's stays so: until it is changed, run.json holds both signatures."""
        text, facts = to_yaml(spec).encode(), self.read_facts()
        if self.doubt() is None:
            with contextlib.suppress(signing.NoKey):
                signature, before = (signing.sign(FORMAT, self.made_in, each) for each in (text, self._spec_bytes))
                self._write_facts({**facts, "signature": signature, "signature_before": before})
        self.write(self.spec_file, text)
        self.__dict__.pop("_spec_bytes", None)

    def _write_facts(self, facts: Figures) -> None:
        self.__dict__.pop("_facts", None)
        self.write(self.facts_file, (json.dumps(facts, indent=1) + "\n").encode())

    def write(self, path: Path, text: bytes) -> None:
        """Write a file of this run, all of it or nothing."""
        temporary = path.with_suffix(f".writing-{os.getpid()}")
        try:
            with temporary.open("xb") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def read_spec(self) -> Spec:
        """The spec this run was made from."""
        return parse_spec(with_meaning(self._spec_data()))

    def plugins(self) -> tuple[str, ...]:
        """Modules that must be imported before its spec can be read, if they may be."""
        return plugins_in(self._spec_data())

    def _spec_data(self) -> dict[str, object]:
        try:
            text = self._spec_bytes.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{self.spec_file} cannot be read: {error}") from None
        return read_text(text, str(self.spec_file))

    def doubt(self) -> str | None:
        """Why someone else may have made this run, or changed its spec; None if its signature is this user's."""
        facts = self.read_facts()
        signatures = [facts.get(name) for name in ("signature", "signature_before")]
        if signatures == [None, None]:
            return "it is not signed"
        try:
            is_signed = any(signing.is_signed(one, self.format, self.made_in, self._spec_bytes) for one in signatures)
        except signing.NoKey as error:
            return f"its signature cannot be checked: {error}"
        except OSError as error:
            raise SpecError(f"{self.spec_file} cannot be read: {error}") from None
        return None if is_signed else "its signature is not yours, or its spec.yaml was changed"

    @property
    def format(self) -> int:
        """What its files mean: FORMAT when it was made."""
        found = self._facts.get("format")
        if type(found) is not int:
            raise SpecError(f"{self.facts_file} says format {found!r}, expected a number")
        return found

    @property
    def made_in(self) -> str:
        """The folder in which a module it names was found, if that was the current one: part of its signature."""
        return str(self.read_facts().get("made_in", ""))

    def require_resumable(self) -> None:
        """Refuse to write into what is not this folder, and to go on with a state of an older format."""
        if link := next((entry for entry in self.path.rglob("*") if entry.is_symlink()), None):
            raise SpecError(f"{link} is a link, and a run is continued in its own folder only; put a copy there")
        found = self.format
        if found < FORMAT:
            raise SpecError(
                f"{self.path} was made by an older hotloop (run format {found}, this one continues {FORMAT}): its "
                f"agent can be used (hotloop eval {self.path}), but its training cannot go on; train anew"
            )

    @cached_property
    def _spec_bytes(self) -> bytes:
        """Read once: what is parsed is what the signature was checked on."""
        return self.spec_file.read_bytes()

    def read_facts(self) -> Figures:
        """What `create` wrote."""
        return dict(self._facts)

    @cached_property
    def _facts(self) -> Figures:
        """Read once, like the spec."""
        if not self.facts_file.is_file():
            raise SpecError(f"{self.path} is not a run: it has no {self.facts_file.name}")
        try:
            facts = json.loads(self.facts_file.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(f"{self.facts_file} cannot be read: {error}") from None
        if not isinstance(facts, dict):
            raise SpecError(f"{self.facts_file} holds {type(facts).__name__}, expected a mapping")
        return facts

    def newest_checkpoint(self, warn: Callable[[str], None]) -> tuple[dict[str, np.ndarray], Figures]:
        """Arrays and manifest of the newest whole checkpoint; `warn(text)` hears of each one skipped."""
        for leftover in checkpoint.torn(self.checkpoints):
            warn(f"skipping {leftover.name}: its writing was interrupted")
        for path in checkpoint.newest_first(self.checkpoints):
            try:
                return checkpoint.load(path)
            except checkpoint.NewerFormat as error:
                raise SpecError(str(error)) from None
            except checkpoint.CheckpointError as error:
                warn(f"{error}; falling back to the one before it")
        raise SpecError(f"{self.path} has no whole checkpoint to continue from")

    def has_weights(self, which: str) -> bool:
        """Whether there are such weights."""
        return checkpoint.place(self.path / which).is_dir()

    def weights(self, which: str) -> tuple[dict[str, np.ndarray], Figures]:
        """Named weights and manifest: those of the `best` evaluation, the `last`, or a member's (`seed-3`)."""
        if which not in ("best", "last") and not is_member_name(which):
            raise SpecError(f"there are no '{which[:40]}' weights; expected best, last, seed-N or agent-N")
        folder = checkpoint.place(self.path / which)
        if is_member_name(which) and (one := RunFolder(folder)).spec_file.is_file():  # it is a run of its own
            return one.weights("last")
        if not folder.is_dir():
            there = [name for name in ("best", "last") if self.has_weights(name)]
            there += sorted(each.name for each in self.path.iterdir() if is_member_name(each.name) and each.is_dir())
            hint = f"it has {', '.join(there)}" if there else "it has not ended yet"
            if which == "best":
                hint = "no evaluation was whole; ask for the last ones"
            raise SpecError(f"{self.path} has no {which} weights: {hint}")
        try:
            return checkpoint.load(folder)
        except checkpoint.CheckpointError as error:
            raise SpecError(str(error)) from None


def _circumstances() -> Figures:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": versions,
        "git": _git_revision(),
    }


def _git_revision() -> str | None:
    """Revision of the user's own project, if the run was started inside one."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        answer = subprocess.run(
            [git, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
