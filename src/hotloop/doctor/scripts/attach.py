"""Run someone's command and look at it from outside: counts of all its processes, and samples of their stacks.

    start-up | first gradient steps | without sampler | sampled | without | sampled | … | stopped as Ctrl-C would

The script is not changed; `hook/sitecustomize.py` is put in front of what Python imports, by a variable of the
environment. py-spy samples from another process, so that the script neither waits nor knows. Speeds of windows with
and without it say what it costs.
"""

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from hotloop.doctor.counters import waited_by_thread
from hotloop.doctor.scripts.stacks import Stack, read_stacks
from hotloop.doctor.watch import Watch, Watched
from hotloop.errors import HotloopError
from hotloop.interrupts import end_is_wanted
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.transport.lifeline import PR_SET_PDEATHSIG

HOOK = Path(__file__).with_name("hook")
RATE, FEWER, MANY = 100, 40, 3
"""Samples a second of each process; and where there are more than so many."""
MOST_SAMPLED = 8
LOOKS_EVERY = 0.1
WARM_STEPS, WARM_SECONDS = 40, 2.0
"""Gradient steps, and seconds since the first of them, after which a training is past its begin."""
PLAIN_SECONDS, SAMPLED_SECONDS = 2.0, 6.0
TO_STOP = (5.0, 3.0)
"""Seconds that a script has to end after SIGINT, and then after SIGTERM."""
SAMPLER_LATE = 10.0
LATER = 5.0
"""Seconds by which a process that has counted may have begun after it said so, for clocks that differ."""


def _end_with_parent() -> None:
    """In the new process: it ends when we are killed, with no time to say so."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class CannotAttend(HotloopError):
    """The command cannot be looked at."""


@dataclass
class Process:
    """One of the script's, with Python in it."""

    pid: int
    about: Figures
    counts: Mapping[str, float] = field(default_factory=dict)
    """As they were last seen."""
    learning: Figures | None = None
    training: Figures | None = None
    """Settings, where it is a training of a known kind."""
    env: Figures | None = None
    """The first env that it stepped, with its wrappers."""
    stacks: list[Stack] = field(default_factory=list)
    sampled: int = 0
    """How often it was looked at."""
    processor_seconds: float = 0.0
    """Of the steady state, as is the next."""
    collecting: float = 0.0
    """Seconds of garbage collection."""
    waited: float | None = None
    """Seconds that a thread was ready and had no core, of the one that waited most; None where that is not said."""


class Window(NamedTuple):
    """A piece of the steady state."""

    seconds: float
    counts: Mapping[str, float]
    """Of all processes, what came in it."""
    is_sampled: bool


@dataclass
class Attended:
    """What was seen of a command."""

    command: Sequence[str]
    processes: dict[int, Process]
    windows: list[Window]
    seconds: float
    """That it ran, or was let run."""
    seconds_to_learn: float | None
    """Until its first gradient step; None where there was none."""
    exit_code: int | None
    """If it ended by itself."""
    notices: list[str]
    watched: Watched | None = None
    """What else the machine did in the windows; None where there were none."""

    @property
    def steady_seconds(self) -> float:
        """Of all windows."""
        return sum(window.seconds for window in self.windows)

    def total(self, name: str) -> float:
        """What came in all windows."""
        return sum(window.counts.get(name, 0.0) for window in self.windows)

    def per_second(self, name: str, *, is_sampled: bool | None = None) -> float | None:
        """In windows of one kind, or all; None where there were none."""
        chosen = [each for each in self.windows if is_sampled is None or each.is_sampled == is_sampled]
        seconds = sum(each.seconds for each in chosen)
        return sum(each.counts.get(name, 0.0) for each in chosen) / seconds if seconds else None


def attend(
    command: Sequence[str],
    seconds: float,
    reporter: Reporter,
    output: IO[bytes] | int | None = None,
    apply: Mapping[str, object] | None = None,
    folder: Path | None = None,
    *,
    errors: IO[bytes] | int | None = None,
    is_sampled: bool = True,
) -> Attended:
    """Run the command for at most so many seconds and look at it; `output` and `errors` are where its standard output
    and standard error go.

    `apply` are remedies that the hook applies; `folder` is where the command runs. Without samples, speeds are all.
    """
    sampler = _sampler() if is_sampled else None
    with tempfile.TemporaryDirectory(prefix="hotloop-doctor-") as counts:
        script = _start(command, Path(counts), (output, errors), apply or {}, folder)
        looking = _Looking(command, script, Path(counts), sampler, time.monotonic() + seconds, reporter)
        try:
            looking.until_it_learns()
            looking.windows_until_the_end()
        finally:
            looking.stop()
        return looking.attended()


def _sampler() -> str:
    path = Path(sys.executable).with_name("py-spy")
    if not path.exists():
        raise CannotAttend(f"the sampler py-spy is not beside {sys.executable}; pip install py-spy")
    return str(path)


def _start(
    command: Sequence[str],
    counts: Path,
    streams: tuple[IO[bytes] | int | None, IO[bytes] | int | None],
    apply: Mapping[str, object],
    folder: Path | None,
) -> subprocess.Popen[bytes]:
    before = os.environ.get("PYTHONPATH")
    env = {**os.environ, "HOTLOOP_DOCTOR": str(counts), "HOTLOOP_DOCTOR_APPLY": json.dumps(dict(apply))}
    env["PYTHONPATH"] = os.pathsep.join([str(HOOK), *([before] if before else [])])
    if "threads" in apply:
        env |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(apply["threads"]))
    try:
        # A group of its own: what it starts is stopped with it, and a Ctrl-C is ours to pass on.
        begin = _end_with_parent if sys.platform == "linux" else None
        out, err = streams
        return subprocess.Popen(
            command, env=env, stdout=out, stderr=err, cwd=folder, start_new_session=True, preexec_fn=begin
        )
    except OSError as error:
        raise CannotAttend(f"{command[0]} cannot be started: {error.strerror or error}") from None


def _is_at_work(process: psutil.Process) -> bool:
    """Whether it is there, and has not only been left unburied."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _kill(family: Iterable[psutil.Process]) -> None:
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextlib.contextmanager
def _ending_at_once(kill: Callable[[], None]) -> Iterator[None]:
    """Within, a signal that ends us ends what we look at first."""

    def end(number: int, _: object) -> None:
        kill()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ends = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, end) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Looking:
    """From the start of a command to its end."""

    def __init__(
        self,
        command: Sequence[str],
        script: subprocess.Popen[bytes],
        counts: Path,
        sampler: str | None,
        until: float,
        reporter: Reporter,
    ) -> None:
        self._command, self._script, self._counts, self._sampler = command, script, counts, sampler
        self._began, self._until, self._reporter = time.monotonic(), until, reporter
        self._processes: dict[int, Process] = {}
        self._windows: list[Window] = []
        self._learned_at: float | None = None
        self._notices: list[str] = []
        self._used_before: dict[int, float] = {}
        self._watched: Watched | None = None

    def until_it_learns(self) -> None:
        """Past its start-up and its first gradient steps; or, of one that never learns, half of the time."""
        steady_at = None
        with self._reporter.busy("waiting for its first gradient steps"):
            while self._goes_on():
                done = self._read().get("gradient_steps", 0.0)
                now = time.monotonic()
                if done and self._learned_at is None:
                    self._learned_at = now
                if done >= WARM_STEPS and self._learned_at is not None and now - self._learned_at >= WARM_SECONDS:
                    steady_at = now
                    break
                if now > (self._began + self._until) / 2:
                    break
                time.sleep(LOOKS_EVERY)
        if steady_at is None and self._goes_on():
            waited = time.monotonic() - self._began
            self._notices.append(
                f"no gradient step was seen in {waited:.0f} s: what it does instead was looked at"
                if self._learned_at is None
                else f"its first {WARM_STEPS} gradient steps were not over in {waited:.0f} s: its begin was looked at"
            )

    def windows_until_the_end(self) -> None:
        """Without a sampler and with it, in turn."""
        self._used_before, collected, waited = self._used(), self._collected(), self._waited()
        with Watch() as watch, self._reporter.counting("seconds of its training looked at") as tell:
            began = time.monotonic()
            while self._goes_on():
                self._window(PLAIN_SECONDS, is_sampled=False)
                if self._sampler is not None:
                    self._window(SAMPLED_SECONDS, is_sampled=True)
                tell(round(time.monotonic() - began), round(self._until - began))
                time.sleep(LOOKS_EVERY / 10)  # the last half second has no window
        self._watched = watch.watched() if self._windows else None
        for pid, seconds in self._used().items():
            self._processes[pid].processor_seconds = seconds - self._used_before.get(pid, 0.0)
        for pid, threads in self._waited().items():
            before = waited.get(pid, {})
            each = [seconds - before.get(thread, 0.0) for thread, seconds in threads.items()]
            self._processes[pid].waited = max(each, default=None)
        for pid, seconds in self._collected().items():
            self._processes[pid].collecting = seconds - collected.get(pid, 0.0)

    def stop(self) -> None:
        """As Ctrl-C would; then harder. Nothing that it has started is left; a second Ctrl-C ends it at once."""
        self._goes_on()  # how it ended, if it has
        family = self._family()
        stopping = "stopping the script, as Ctrl-C would: what it says of a KeyboardInterrupt is our doing"
        with self._reporter.busy(stopping), _ending_at_once(partial(_kill, family)):
            for sent, patience in zip((signal.SIGINT, signal.SIGTERM), TO_STOP, strict=True):
                if self._script.poll() is None:
                    self._signal(sent)
                psutil.wait_procs(family, patience)
                family = [*{*family, *self._family()}]
                if not any(map(_is_at_work, family)):
                    break
            _kill(family)
        self._script.wait()

    def _family(self) -> list[psutil.Process]:
        """The script, what it has started, and all Pythons that have ever counted for it."""
        found: set[psutil.Process] = set()
        for pid in (self._script.pid, *self._processes):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                about = self._processes.get(pid)
                if about is not None and process.create_time() > float(str(about.about["began"])) + LATER:
                    continue  # another one, by the same number
                found |= {process, *process.children(recursive=True)}
        return list(found)

    def attended(self) -> Attended:
        """What was seen."""
        self._read()
        for failed in self._counts.glob("failed-*.json"):
            said = json.loads(failed.read_text())
            self._notices.append(f"what {said['module']} does could not be named: {said['error']}")
        for process in self._processes.values():
            process.env = self._said("env", process.pid)
            if (compiled := self._said("compiled", process.pid)) is not None:
                self._say_once(f"torch's {compiled['by']} was asked for: what PyTorch does has no names from then on")
        return Attended(
            self._command,
            self._processes,
            self._windows,
            time.monotonic() - self._began,
            None if self._learned_at is None else self._learned_at - self._began,
            self._ended_by_itself,
            self._notices,
            self._watched,
        )

    _ended_by_itself: int | None = None

    def _goes_on(self) -> bool:
        code = self._script.poll()
        if code is not None:
            self._ended_by_itself = code
        return code is None and time.monotonic() < self._until and not end_is_wanted()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._script.pid, number)

    def _window(self, seconds: float, *, is_sampled: bool) -> None:
        seconds = min(seconds, self._until - time.monotonic())
        if seconds <= 0.5 or not self._goes_on():
            return
        finish = self._sample(seconds) if is_sampled else None
        before, began = self._read(), time.monotonic()
        while time.monotonic() < began + seconds and self._goes_on():
            time.sleep(min(LOOKS_EVERY, max(0.0, began + seconds - time.monotonic())))
        after, ended = self._read(), time.monotonic()
        if finish is not None:
            finish()
        came = {name: after[name] - before.get(name, 0.0) for name in after}
        self._windows.append(Window(ended - began, came, is_sampled))

    def _sample(self, seconds: float) -> Callable[[], None]:
        """Begin to; returns what waits for the end of it."""
        alive = [each for each in self._processes.values() if psutil.pid_exists(each.pid)]
        used, learned = self._used(), max((each.counts.get("gradient_steps", 0.0) for each in alive), default=0.0)
        is_learner = {each.pid: bool(learned) and each.counts.get("gradient_steps") == learned for each in alive}
        chosen = sorted(alive, key=lambda each: (not is_learner[each.pid], -used.get(each.pid, 0.0)))[:MOST_SAMPLED]
        rate = RATE if len(chosen) <= MANY else FEWER
        begun: list[tuple[Process, Path, subprocess.Popen[bytes]]] = []
        for process in chosen:
            path = self._counts / f"stacks-{process.pid}-{len(self._windows)}"
            options = ["--format", "raw", "--threads", "--idle", "--full-filenames", "--nonblocking"]
            command = [str(self._sampler), "record", "--pid", str(process.pid), "--rate", str(rate), *options]
            command += ["--duration", str(max(1, round(seconds))), "--output", str(path)]
            nowhere = subprocess.DEVNULL
            started = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=subprocess.PIPE)
            begun.append((process, path, started))

        def finish() -> None:
            for process, path, started in begun:
                said = b""
                try:
                    _, said = started.communicate(timeout=SAMPLER_LATE)
                except subprocess.TimeoutExpired:
                    started.kill()
                    started.wait()
                if path.exists():
                    found = read_stacks(path.read_text(errors="replace"))
                    process.stacks += found
                    process.sampled += 1
                    path.unlink()
                elif psutil.pid_exists(process.pid) and said:
                    self._say_once(
                        f"process {process.pid} could not be sampled: {said.decode().strip().splitlines()[-1]}"
                    )

        return finish

    def _say_once(self, text: str) -> None:
        if text not in self._notices:
            self._notices.append(text)

    def _collected(self) -> dict[int, float]:
        """Seconds of garbage collection in each process."""
        return {pid: process.counts.get("collecting", 0.0) for pid, process in self._processes.items()}

    def _waited(self) -> dict[int, dict[int, float]]:
        """Seconds without a core of each thread, of each process of which they are said."""
        found = {pid: waited_by_thread(Path(f"/proc/{pid}/task")) for pid in self._processes}
        return {pid: threads for pid, threads in found.items() if threads}

    def _used(self) -> dict[int, float]:
        """Seconds of a core, of each process that is still there."""
        used: dict[int, float] = {}
        for pid in self._processes:
            with contextlib.suppress(psutil.Error):
                used[pid] = sum(psutil.Process(pid).cpu_times()[:2])
        return used

    def _said(self, what: str, pid: int) -> Figures | None:
        path = self._counts / f"{what}-{pid}.json"
        said: Figures | None = json.loads(path.read_text()) if path.exists() else None
        return said

    def _read(self) -> dict[str, float]:
        """What all its processes have counted so far."""
        total: dict[str, float] = {}
        for path in self._counts.glob("about-*.json"):
            pid = int(path.stem.partition("-")[2])
            if pid not in self._processes:
                self._processes[pid] = Process(pid, json.loads(path.read_text()))
            process = self._processes[pid]
            names = process.about["names"]
            assert isinstance(names, list)
            raw = (self._counts / f"counts-{pid}").read_bytes()
            numbers = struct.unpack(f"{len(names)}d", raw[: 8 * len(names)])
            process.counts = dict(zip(map(str, names), numbers, strict=True))
            if process.learning is None:
                process.learning = self._said("learning", pid)
            if process.training is None:
                process.training = self._said("training", pid)
            for name, number in process.counts.items():
                total[name] = total.get(name, 0.0) + number
        return total
