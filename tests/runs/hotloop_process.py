"""Starts the command line in processes of its own, on one small spec that all these tests share.

Compiling is what costs: every spec here has the same network, envs and replay, so that the compiled programs are
found again in the session's cache.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from warm_start import Fork

TINY: dict[str, Any] = {
    "name": "tiny",
    "updates_per_step": 0.25,
    "env": {"id": "cartpole", "num_envs": 4, "options": {"max_steps": 50}},
    "network": {"torso": {"kind": "mlp", "hidden": [16]}},
    "target": {"every": 64},
    "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 1000}},
    "replay": {"capacity": 512, "start": 64, "batch_size": 16},
    "evaluation": {"every": 400, "episodes": 4, "max_steps": 50},
    "stop": {"steps": 1000},
    "log": {"every": 200, "exact": True, "checkpoint_every": 400, "checkpoints": 2},
}
OF_THIS_PROCESS = ("XLA_FLAGS", "PJRT_NPROC", "HOTLOOP_FAILPOINT")
"""Set by runs in the tests' own process. A command must choose its own: also, with other flags it compiles all anew."""
DAYS = 2_000_000_000
"""Env steps that no test waits for."""


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout; anything else there fails the test."""
        assert self.code == 0, self.err
        [line] = self.out.splitlines()
        return strict_json(line)

    @property
    def refusal(self) -> str:
        """The line for the user, last on stderr, of a command that refused its input."""
        assert self.code == 2, self.err
        assert "Traceback" not in self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("hotloop: ")]
        assert lines == self.err.splitlines()[-1:], self.err
        assert len(lines[0]) < 1500, f"a line of {len(lines[0])} characters: {lines[0][:600]} …"
        return lines[0]


def strict_json(text: str) -> Any:
    """Parse JSON as other languages do: NaN and Infinity are errors."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON: {text}")

    return json.loads(text, parse_constant=refuse)


def start(
    *args: str | Path, cwd: Path, env: dict[str, str] | None = None, before: str = "", fresh: bool = False
) -> "subprocess.Popen[str]":
    """Start `hotloop ARGS` in `cwd`; `before` is Python to run first in that process.

    It is a fork of a process that has done its imports, unless it is asked to be `fresh` or must be.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in OF_THIS_PROCESS}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes |= {"cwd": cwd, "env": {**inherited, "COLUMNS": "200", **(env or {})}}
    if not (before or fresh or any(name.startswith("JAX") for name in env or {})):
        return Fork([*map(str, args)], **pipes)
    main = ["-m", "hotloop.cli"] if not before else ["-c", f"{before}\nfrom hotloop.cli import main\nmain()"]
    # A shell that runs the tests in the background leaves SIGINT ignored, and children inherit that.
    interruptible = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen([sys.executable, *main, *map(str, args)], **pipes, **interruptible)


def finish(process: "subprocess.Popen[str]", timeout: float = 120) -> Ran:
    """Wait for a command started before; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s; stderr: {err}") from None
    return Ran(process.returncode, out, err)


def wait_for(happened: Callable[[], Any], process: "subprocess.Popen[str]", timeout: float = 60) -> Any:
    """Poll until `happened()` is true, while the process lives."""
    deadline = time.monotonic() + timeout
    while not (seen := happened()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"waited in vain; exit code {process.returncode}, stdout: {out}, stderr: {err}")
        time.sleep(0.002)
    return seen


def checkpoints(run: Path) -> list[int]:
    """Env steps of the finished checkpoints of a run, oldest first."""
    folder = run / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def manifest(run: Path, env_steps: int | None = None) -> dict[str, Any]:
    """Manifest of one checkpoint of a run, the newest by default."""
    steps = checkpoints(run)[-1] if env_steps is None else env_steps
    return json.loads((run / "checkpoints" / f"{steps:012d}" / "manifest.json").read_text())


def metrics(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """All lines of a run's metrics, or those of one kind; each must be JSON."""
    rows = [strict_json(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if kind in (None, row["kind"])]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder and the bytes of the files, to see whether anything was written."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
        if not p.is_symlink()
    }


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    """The small spec as a file in the working folder."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture
def hotloop(tmp_path: Path, spec_file: Path) -> Callable[..., Ran]:
    """`hotloop("train", "tiny.yaml", …)` runs that command in the test's own folder."""
    return lambda *args, timeout=120, **kwargs: finish(start(*args, cwd=tmp_path, **kwargs), timeout)


@pytest.fixture
def hotloop_here(
    tmp_path: Path, spec_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """The same within this process, for commands that refuse their input: hundreds of times faster."""
    from hotloop.cli import main

    def run(*args: str) -> Ran:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["hotloop", *args])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(ended.value.code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small spec to its end, made once; not to be changed."""
    folder = tmp_path_factory.getbasetemp() / "finished"
    if not folder.exists():
        folder.mkdir()
        (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
        ran = finish(start("train", "tiny.yaml", "--out", "run", "--json", cwd=folder, fresh=True))
        (folder / "result.json").write_text(json.dumps(ran.json))
    return folder / "run"


@pytest.fixture
def finished(finished_once: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed at will, as `run` in the test's own folder."""
    return shutil.copytree(finished_once, tmp_path / "run")
