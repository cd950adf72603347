"""The actors of a run in processes of their own: started, watched over, replaced when they die or hang.

One thread of the learner's process does all of it, so that nothing the learner does holds it up. It alone starts
processes: the kernel ends them with the thread that started them (`transport/lifeline.py`).

| seen | done |
|---|---|
| a process has ended, or could not be started | another takes its place, with random streams of its own, after a pause that grows while none hands anything over |
| `tries` in a row have handed over nothing | the run ends with what the last one said |
| an error that the next one would meet too (an env that gives NaN, a spec that cannot be) | the run ends with it |
| no heartbeat for `patience` seconds, or for START_SECONDS if that is more while it starts | what its threads are doing is written down, then it is killed and replaced |
| this process itself did not run for a while (a stopped machine, a debugger) | no heartbeat counts until it has run for `patience` seconds again |
"""  # noqa: E501

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from subprocess import _args_from_interpreter_flags  # type: ignore[attr-defined]  # which multiprocessing uses, too
from typing import NamedTuple

from hotloop.errors import ActorsFailed, HotloopError, SpecError
from hotloop.pipelines.actor_loop import Place
from hotloop.pipelines.actor_process import BAD_INPUT, ENV_RAISED, HOPELESS, STACKS, Orders
from hotloop.pipelines.passing_on import packed
from hotloop.transport.bell import new_bell_descriptor
from hotloop.transport.exchange import Exchange
from hotloop.transport.protocol import ActorState, ActorStatus

TICK_SECONDS = 0.25
START_SECONDS = 30.0
"""How long an actor may take at least to import what it needs and open its envs, however short the patience is."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a process is replaced: doubled each time it has handed over nothing."""
GRACE_SECONDS = 5.0
"""How long actors that were asked to stop may take to close their envs."""
STACK_SECONDS = 0.5
KILL_SECONDS = 2.0
LONGEST_WORDS = 20_000
"""Bytes of what an actor said last, from its beginning and from its end."""
DESCRIPTORS_PER_ACTOR, DESCRIPTORS_BESIDE = 5, 11
"""Of an actor its bell, here and at two ends, its words and its process; beside them memory and the learner's bell here
and at two ends, what wakes the thread, and what is open for the moment in which a process starts."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC")
ON_THE_CPU = {"JAX_PLATFORMS": "cpu", "HOTLOOP_TORCH_DEVICE": "cpu"}
"""The GPU is the learner's; of the machine an actor has one thread."""
COMMAND = "import sys; sys.path[:] = {path!r}; from hotloop.pipelines.actor_process import main; main({orders})"


NEWEST_FIRST = "(most recent call first):"
"""Above the stack of a thread, as `faulthandler` writes it."""


class Loss(NamedTuple):
    """A process that has ended, or was ended."""

    actor: int
    pid: int
    how: str
    words: str
    """What it said last: a traceback, or what its threads were doing."""
    seen_ns: int = 0
    """When it was noticed, by `time.monotonic_ns`."""

    def __str__(self) -> str:
        lines = self.words.strip().splitlines() or [""]
        stack = next((n for n, line in enumerate(lines) if line.rstrip().endswith(NEWEST_FIRST)), None)
        last = lines[-1] if stack is None or stack + 1 == len(lines) else lines[stack + 1]
        return f"actor {self.actor} (pid {self.pid}) {self.how}" + (f": {last.strip()}" if last else "")


class Gone(NamedTuple):
    """What the processes that have been an actor and have ended did, in transitions."""

    made: int = 0
    dropped: int = 0
    """Of these, in parcels that found no room."""


def descriptors_of(actors: int) -> int:
    """How many files so many actors have open in the learner's process."""
    return DESCRIPTORS_BESIDE + DESCRIPTORS_PER_ACTOR * actors


class Crew:
    """N actors."""

    def __init__(
        self,
        duty: bytes,
        exchange: Exchange,
        seed: int,
        blocks: int,
        learners: tuple[int, ...],
        patience: float,
        tries: int,
    ) -> None:
        """`duty` is packed; `blocks` of the run are done; `learners` are the seeds of those who learn."""
        self._duty, self._exchange, self._patience, self._tries = duty, exchange, patience, tries
        count = exchange.form.actors
        self._seats = [_Seat(Place(index, count, 0, 0, seed, blocks, learners)) for index in range(count)]
        self._learner = exchange.learner_seat().open()  # to read what actors say of themselves
        self._wake, self._ending, self._lock = new_bell_descriptor(), threading.Event(), threading.Lock()
        self._losses: list[Loss] = []
        self._error: HotloopError | None = None
        self._thread = threading.Thread(target=self._watch, name="crew", daemon=True)

    def start(self) -> None:
        """Start all processes."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ActorsFailed(
                f"the thread that watches over the actors could not be started ({error}); end other processes or "
                "threads, or have more of them allowed (ulimit -u, pids.max of the control group)"
            ) from error

    def work(self) -> None:
        """Nothing: processes work by themselves."""

    def raise_if_lost(self) -> None:
        """Raise what ends the run, if it cannot go on with these actors."""
        if self._error is not None:
            raise self._error
        if not self._thread.is_alive() and not self._ending.is_set():
            raise ActorsFailed("who watches over the actors has ended; this is a mistake of hotloop's")

    def are_ready(self) -> bool:
        """Whether each has begun to act, and lives."""
        pairs = zip(self._seats, self._learner.statuses(), strict=True)
        neither = (ActorState.STARTING, ActorState.ENDED)
        return all(seat.says(status) and status.state not in neither for seat, status in pairs)

    def made_by_the_dead(self) -> list[Gone]:
        """For each actor what processes that have ended made: none of it is still to come, but for what is in parcels
        that were handed over."""
        return [seat.gone for seat in self._seats]

    def losses(self) -> list[Loss]:
        """Processes that have ended since this was last asked."""
        with self._lock:
            new, self._losses = self._losses, []
        return new

    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised, as one of the actors says."""
        each = [seat.read_words().strip() for seat in self._seats]
        raised = [words.removeprefix(ENV_RAISED) for words in each if words.startswith(ENV_RAISED)]
        return raised[-1].rpartition("\n")[2] if raised else "an error that its actor did not live to tell"

    def pids(self) -> list[int | None]:
        """The process of each actor, if there is one now."""
        processes = [seat.process for seat in self._seats]
        return [None if process is None else process.pid for process in processes]

    def restarts_of(self) -> list[int]:
        """How many processes of each actor have ended."""
        return [seat.place.incarnation for seat in self._seats]

    def stop(self) -> None:
        """Have all end: those that do not by themselves are killed. Whoever interrupts this does not wait for it, but
        they end, and what they had is closed."""
        if self._ending.is_set():
            return
        try:
            self._ending.set()
            os.eventfd_write(self._wake, 1)
            if self._thread.ident is None:
                self._close()
            else:
                self._thread.join()
        finally:
            os.close(self._wake)

    def _close(self) -> None:
        for seat in self._seats:
            seat.close()
        self._learner.close()

    # -- the thread -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        # Processes inherit this: Ctrl-C and SIGTERM are the learner's, which saves the run and then stops them.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            last = ran_since = time.monotonic()
            while not self._ending.is_set() and self._error is None:
                now = time.monotonic()
                if now - last > max(4 * TICK_SECONDS, self._patience / 4):
                    ran_since = now  # this process itself was not running: nobody's silence counts
                last = now
                statuses = self._learner.statuses()
                for seat, status in zip(self._seats, statuses, strict=True):
                    self._look_at(seat, status, now, ran_since)
                self._sleep()
        except Exception as error:
            self._error = ActorsFailed(f"actors cannot be watched over any more: {type(error).__name__}: {error}")
        try:
            self._end_all()
        finally:
            self._ending.wait()  # until then someone may want to know what they said
            self._close()

    def _look_at(self, seat: "_Seat", status: ActorStatus, now: float, ran_since: float) -> None:
        if seat.process is None:
            if now >= seat.starts_at:
                self._start(seat, status)
            return
        code = seat.process.poll()
        if code is not None:
            hopeless = {HOPELESS: ActorsFailed, BAD_INPUT: SpecError}.get(code)
            self._ended(seat, seat.process.pid, _how(code), hopeless=hopeless)
            return
        is_ours = seat.says(status)
        heard = max(status.heartbeat_ns / 1e9 if is_ours else seat.started, seat.started)
        silent = now - max(heard, ran_since)
        is_starting = not is_ours or status.state == ActorState.STARTING
        if silent > (max(self._patience, START_SECONDS) if is_starting else self._patience):
            seat.ask_for_stacks()
            if not _is_killed(seat.process):
                return  # the kernel holds on to it, on a disk or a driver that hangs: others are looked at meanwhile
            doing = "starting" if is_starting else status.state.name.lower().replace("_", " ")
            how = f"said nothing for {silent:.0f} s (in: {doing}) and was killed"
            self._ended(seat, seat.process.pid, how)

    def _start(self, seat: "_Seat", status: ActorStatus) -> None:
        seat.parcels_before, seat.opened_before = status.parcels, status.incarnation
        try:
            seat.start(self._duty, self._exchange)
        except OSError as error:  # no process, memory or descriptor is left at the moment
            self._ended(seat, 0, "could not be started", words=f"{type(error).__name__}: {error}")

    def _ended(
        self,
        seat: "_Seat",
        pid: int,
        how: str,
        *,
        hopeless: type[HotloopError] | None = None,
        words: str | None = None,
    ) -> None:
        """A process is gone for good, and what it has left in shared memory is its last word; `hopeless` is the error
        that the next one would meet as well."""
        status = self._learner.statuses()[seat.place.number]
        said = seat.read_words() if words is None else words
        words = "" if said.startswith(ENV_RAISED) else said
        loss = Loss(seat.place.number, pid, how, words, time.monotonic_ns())
        seat.in_vain = 0 if status.parcels > seat.parcels_before else seat.in_vain + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** max(0, seat.in_vain - 1))
        seat.succeed(time.monotonic() + pause, Gone(status.transitions, status.dropped_transitions))
        if hopeless is not None:
            message, _, trace = loss.words.strip().partition("\n")
            message = f"actor {loss.actor}: {message}"
            self._error = ActorsFailed(message, trace) if hopeless is ActorsFailed else hopeless(message)
        elif seat.in_vain >= self._tries:
            times = f"{seat.in_vain} times in a row without having handed over anything"
            self._error = ActorsFailed(f"{loss}; so it has ended {times}", loss.words)
        else:
            with self._lock:
                self._losses.append(loss)

    def _sleep(self) -> None:
        """Until a process ends, someone wakes this, or a tick is over."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for seat in self._seats:
            if seat.pidfd is not None:
                poll.register(seat.pidfd, select.POLLIN)
        poll.poll(TICK_SECONDS * 1000)

    def _end_all(self) -> None:
        self._learner.ask_to_stop()
        until = time.monotonic() + GRACE_SECONDS
        for seat, status in zip(self._seats, self._learner.statuses(), strict=True):
            if seat.process is None:
                continue
            if seat.says(status) and status.state != ActorState.STARTING:  # else it would not hear of it
                with contextlib.suppress(subprocess.TimeoutExpired):
                    seat.process.wait(max(0.0, until - time.monotonic()))
            _is_killed(seat.process)


def _is_killed(process: "subprocess.Popen[bytes]") -> bool:
    """Kill a process; False if it is not gone after a moment."""
    process.kill()
    try:
        process.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


class _Seat:
    """One of the actors, whichever process it is."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd: int | None = None
        self.starts_at = self.started = 0.0
        self.in_vain = self.parcels_before = self.opened_before = 0
        self.gone = Gone()
        self._words = os.memfd_create(f"actor-{place.number}")

    def start(self, duty: bytes, exchange: Exchange) -> None:
        os.ftruncate(self._words, 0)
        seat = exchange.actor_seat(self.place.number)
        orders = os.memfd_create("orders")
        try:
            told = Orders(duty, self.place, exchange.form, seat.numbers, self._words, os.getpid(), list(sys.path))
            with os.fdopen(os.dup(orders), "wb") as file:
                file.write(packed(told))
            os.lseek(orders, 0, os.SEEK_SET)
            command = COMMAND.format(path=list(sys.path), orders=orders)
            process = subprocess.Popen(
                [sys.executable, *_args_from_interpreter_flags(), "-c", command],
                stdin=subprocess.DEVNULL,
                pass_fds=(orders, self._words, *seat.numbers),
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), **ON_THE_CPU},
            )
        finally:
            os.close(orders)
        try:
            self.pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        self.process, self.started = process, time.monotonic()

    def says(self, status: ActorStatus) -> bool:
        """Whether it is the present process that says so, and not one before it, whose id it may have."""
        return self.process is not None and status.incarnation > self.opened_before

    def ask_for_stacks(self) -> None:
        """Have the process write down what its threads are doing; the kernel may not let it, so not for long."""
        assert self.process is not None
        os.ftruncate(self._words, 0)
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(STACKS)
        until = time.monotonic() + STACK_SECONDS
        while time.monotonic() < until and not os.fstat(self._words).st_size:
            time.sleep(0.01)
        time.sleep(0.02)  # for the rest of what it writes

    def read_words(self) -> str:
        size = os.fstat(self._words).st_size
        first = os.pread(self._words, LONGEST_WORDS, 0)
        last = os.pread(self._words, LONGEST_WORDS, max(LONGEST_WORDS, size - LONGEST_WORDS))
        left_out = b"\n[...]\n" if size > 2 * LONGEST_WORDS else b""
        return (first + left_out + last).decode("utf-8", "replace").replace("\0", "")

    def succeed(self, starts_at: float, gone: Gone) -> None:
        """The process is gone: from `starts_at` on another may take its place, to go on after what was made."""
        self.process, self.starts_at, self.gone = None, starts_at, gone
        self.place = replace(self.place, incarnation=self.place.incarnation + 1, made_before=gone.made)
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
        os.close(self._words)


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
