"""SIGTERM and SIGINT ask for a checkpoint and an orderly end; a second one is immediate."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hotloop_process import DAYS, TINY, checkpoints, finish, manifest, start, wait_for

import hotloop as package
from hotloop.envs.host import make_vector_env
from hotloop.interrupts import EndsTheCommand
from hotloop.progress import Silent

LINE = EndsTheCommand.LINE

ENDLESS = (
    *("train", "tiny.yaml", "--out", "run", "--steps", str(DAYS)),
    *("--set", "log={every: 50000, checkpoint_every: 2000000000}", "--set", "evaluation.every=0"),
)


def _is_training(tmp_path):
    lines = tmp_path / "run" / "metrics.jsonl"
    return lambda: lines.is_file() and lines.stat().st_size > 0


def test_sigint_ends_the_run_with_a_checkpoint_and_says_how_to_continue(hotloop, tmp_path):
    process = start(*ENDLESS, cwd=tmp_path)
    wait_for(_is_training(tmp_path), process)
    assert checkpoints(tmp_path / "run") == []
    process.send_signal(signal.SIGINT)
    ran = finish(process, timeout=20)
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    assert "stopped by SIGINT" in ran.out
    assert "hotloop resume run" in ran.out
    [reached] = checkpoints(tmp_path / "run")
    continued = hotloop("resume", "run", "--steps", str(reached + 400), "--json").json
    assert continued["env_steps"] == reached + 400
    assert manifest(tmp_path / "run")["env_steps"] == reached + 400


def test_ctrl_c_in_a_terminal_reaches_env_processes_too_and_still_saves(tmp_path):
    own_group = "import os; os.setpgid(0, 0)"
    settings = ("env={id: CartPole-v1, num_envs: 2, vectorization: async}", "evaluation.every=0", "log.every=200")
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--set", "stop.return_at_least=null", "--steps", str(DAYS)]
    process = start("train", "cartpole", "--out", "run", *words, cwd=tmp_path, before=own_group)
    wait_for(_is_training(tmp_path), process)
    os.killpg(process.pid, signal.SIGINT)
    ran = finish(process, timeout=30)
    assert ran.code == 0, ran.err
    assert "stopped by SIGINT" in ran.out
    assert len(checkpoints(tmp_path / "run")) == 1


@pytest.mark.heavy
def test_sigterm_ends_the_run_with_a_checkpoint_and_is_named_in_the_json(tmp_path, spec_file):
    process = start(*ENDLESS, "--json", cwd=tmp_path)
    wait_for(_is_training(tmp_path), process)
    process.send_signal(signal.SIGTERM)
    result = finish(process, timeout=20).json
    assert result["stopped"] == "stopped by SIGTERM"
    assert checkpoints(tmp_path / "run") == [result["env_steps"]]


@pytest.mark.heavy
def test_a_second_sigint_while_a_slow_disk_takes_the_checkpoint_is_immediate(tmp_path, spec_file):
    slow_disk = """
import time
from pathlib import Path
from hotloop.runs import checkpoint
def save(*_):
    Path("saving").touch()
    time.sleep(60)
checkpoint.save = save
"""
    process = start(*ENDLESS, cwd=tmp_path, before=slow_disk)
    wait_for(_is_training(tmp_path), process)
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "saving").exists, process)
    process.send_signal(signal.SIGINT)
    assert finish(process, timeout=10).code in (-signal.SIGINT, 128 + signal.SIGINT)


def test_a_signal_while_compiling_ends_at_once_and_writes_nothing(tmp_path, spec_file):
    slow_compiler = """
import time
from pathlib import Path
from hotloop.pipelines.device_session import DeviceSession
def compile(self):
    Path("compiling").touch()
    time.sleep(60)
DeviceSession.compile = compile
"""
    process = start(*ENDLESS, cwd=tmp_path, before=slow_compiler)
    wait_for((tmp_path / "compiling").exists, process)
    process.send_signal(signal.SIGINT)
    ran = finish(process, timeout=10)
    assert ran.code == 130, ran.err
    assert "Traceback" not in ran.err
    assert ran.err.splitlines()[-1] == LINE
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "where",
    [
        "gc.callbacks.append(interrupt); gc.collect()",  # as one of JAX does: what it raises is printed, and lost
        "import swallows",
        "swallow()",
        "interrupt()",
    ],
)
def test_ctrl_c_outside_of_a_run_ends_the_command_wherever_it_comes(tmp_path, where):
    (tmp_path / "swallows.py").write_text("import __main__\n__main__.swallow()")
    code = f"""
import gc, signal, time
from hotloop import cli
def interrupt(*_):
    signal.raise_signal(signal.SIGINT)
def swallow():
    try:
        interrupt()
    except BaseException:
        {"time.sleep(30)" if where == "swallow()" else "pass"}
@cli.app.command()
def wait():
    {where}
    print("went on")
cli.main()
"""
    ran = _run_python(code, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", f"{LINE}\n")


def test_ctrl_c_that_was_lost_before_a_run_ends_the_run_in_good_order(tmp_path):
    code = """
import contextlib, signal, time
from hotloop.interrupts import EndsTheCommand, Interrupts
with EndsTheCommand():
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with Interrupts() as interrupts:
        while not interrupts.seen:
            time.sleep(0.01)
print(interrupts.seen)
"""
    ran = _run_python(code, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "stopped by SIGINT\n", "")


def test_a_second_ctrl_c_that_the_run_has_heard_is_not_followed_by_a_third_that_kills_it(tmp_path):
    code = """
import contextlib, signal, time
from hotloop.interrupts import EndsTheCommand, Interrupts
EndsTheCommand.SECONDS = 0.2
with EndsTheCommand():
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.6)
        print("saved", interrupts.seen)
"""
    ran = _run_python(code, tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "saved stopped by SIGINT\n", "")


def _run_python(code, folder):
    default = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    started = [sys.executable, "-c", code, "wait"]
    return subprocess.run(started, cwd=folder, capture_output=True, text=True, timeout=60, **default)


class _Interrupting(Silent):
    """Sends a signal to this very process after the first chunk."""

    def __init__(self, number):
        self.number = number

    def show(self, env_steps, total, figures):
        if self.number:
            os.kill(os.getpid(), self.number)
            self.number = None


def test_python_callers_get_their_run_and_their_handlers_back(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = package.train(TINY, out=tmp_path / "run", reporter=_Interrupting(signal.SIGTERM), **{"stop.steps": DAYS})
    assert run.stopped == "stopped by SIGTERM"
    assert run.env_steps == checkpoints(run.path)[-1] < 10_000
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_training_in_a_thread_leaves_signals_alone(tmp_path):
    before, runs = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(
        target=lambda: runs.append(package.train(TINY, out=tmp_path / "run", **{"stop.steps": 200}))
    )
    thread.start()
    thread.join(timeout=120)
    assert runs
    assert runs[0].env_steps == 200
    assert signal.getsignal(signal.SIGINT) is before


def test_processes_of_envs_never_see_an_interrupt_and_this_one_still_does():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    envs = make_vector_env("CartPole-v1", 2, {}, "async")
    try:
        for process in envs.processes:
            status = Path(f"/proc/{process.pid}/status").read_text()
            mask = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
            assert mask & (1 << (signal.SIGINT - 1))
    finally:
        envs.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 128 + signal.SIGTERM), ("SIGINT", 130)])
def test_a_signal_that_has_ended_a_run_goes_on_to_a_benchmark_that_trains_one_after_another(name, code, tmp_path):
    program = f"""
import signal
from hotloop.interrupts import EndsTheCommand, Interrupts
try:
    with EndsTheCommand(), Interrupts.passed_on():
        for number in range(3):
            try:
                with Interrupts() as interrupts, interrupts:
                    if number == 1:
                        signal.raise_signal(signal.{name})
                    print(number, interrupts.seen, flush=True)
            finally:
                print("closed", flush=True)
except KeyboardInterrupt:
    raise SystemExit(130)
"""
    ran = _run_python(program, tmp_path)
    assert (ran.returncode, ran.stdout) == (code, f"0 None\nclosed\n1 stopped by {name}\nclosed\n")
