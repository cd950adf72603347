"""`hotloop doctor -- COMMAND` on real scripts: the planted ones, and those that crash, end, hang or never learn."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hotloop.bench.planted_script_cases import SCRIPT_CASES, SCRIPTS
from hotloop.doctor.causes import WORDS
from hotloop.doctor.scripts.attach import attend
from hotloop.progress import Silent

ENV = {**os.environ, "COLUMNS": "200"}


def doctor(*command, minutes=0.25, options=(), env=ENV, cwd=None):
    line = [sys.executable, "-m", "hotloop", "doctor", "--minutes", str(minutes), *options, "--", *map(str, command)]
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd=cwd, timeout=120, check=False)


def report_of(*command, **more):
    done = doctor(*command, options=["--json", "--quiet"], **more)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def script(folder, text):
    path = folder / "mine.py"
    path.write_text(text)
    return path


def running(path):
    """Processes of a script that are still there."""
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [command for command in commands if str(path) in command]


def test_every_planted_script_has_a_cause_that_the_doctor_can_say_and_a_line():
    assert len({case.name for case in SCRIPT_CASES}) == len(SCRIPT_CASES) >= 24
    assert {cause for case in SCRIPT_CASES for cause in case.truth} <= set(WORDS)
    assert sum(case.half == "asked" for case in SCRIPT_CASES) >= 12
    without = {"memory", "threads", "update-arithmetic", "nothing-wrong"}
    assert all(case.lines() or case.truth & (without | {"update-count"}) for case in SCRIPT_CASES)


def test_a_search_in_an_env_is_found_with_its_line_and_nothing_is_left():
    report = report_of(sys.executable, SCRIPTS / "flat.py", "--plant", "env-step", minutes=0.35)
    assert report["kind"] == "script"
    # Tests beside this one may take the cores: that is said first, and rightly.
    assert report["verdict"]["cause"] in ("env-step", "machine")
    first = next(cause for cause in report["causes"] if cause["cause"] != "machine")
    assert first["cause"] == "env-step"
    assert first["where"].startswith("flat.py:")
    assert first["where"].endswith(" search")
    assert first["predicted_speedup"] > 1.5
    assert report["env_steps_per_s"] > report["updates_per_s"] > 0
    assert report["learning"]["batch"] == 64
    assert report["learning"]["parameters"] == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert not running(SCRIPTS / "flat.py")


CRASHES = """
import time
time.sleep(0.2)
raise RuntimeError("no such ROM")
"""
HANGS = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
while True:
    sum(range(100_000))
"""


def test_a_script_that_crashes_is_said_to_have_and_keeps_its_own_words(tmp_path):
    done = doctor(sys.executable, script(tmp_path, CRASHES))
    assert done.returncode == 1
    assert "no such ROM" in done.stderr
    assert "exit code 1" in done.stdout.replace("\n", " ")


def test_one_that_never_learns_and_does_not_want_to_end_is_ended(tmp_path):
    path, began = script(tmp_path, HANGS), time.monotonic()
    done = doctor(sys.executable, path, minutes=0.15)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    assert "begun" in done.stdout
    assert "no gradient step was seen" in done.stdout.replace("\n", " ")
    assert not running(path)


def test_a_command_that_is_not_there_is_one_line():
    done = doctor("no-such-python", "train.py")
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("hotloop: no-such-python cannot be started")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--"], "there is no command after --"), (["cartpole", "--", "python", "x.py"], "either a spec or a command")],
)
def test_bad_input_is_one_line(arguments, said):
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "doctor", *arguments], capture_output=True, text=True, env=ENV, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr


def test_a_script_with_a_sitecustomize_and_arguments_of_its_own_is_none_the_wiser(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.users_own = 42\n")
    (tmp_path / "beside.py").write_text("value = 7\n")
    text = (
        "import sys, os, beside\n"
        "print(users_own, beside.value, sys.argv[1:], any('hook' in each for each in sys.path), __name__)\n"
    )
    path = script(tmp_path, text)
    env = {**ENV, "PYTHONPATH": str(tmp_path)}
    done = doctor(sys.executable, path, "--minutes", "--json", env=env)
    assert "42 7 ['--minutes', '--json'] False __main__" in done.stdout
    as_module = doctor(sys.executable, "-m", "mine", "a", env=env, cwd=tmp_path)
    assert "42 7 ['a'] False __main__" in as_module.stdout


OWN_ENV = """
import inspect, pickle, threading
import cloudpickle
import gymnasium as gym
import numpy as np
from typing import Generic, TypeVar

T = TypeVar("T")


class Base(gym.Env[T, int], Generic[T]):
    pass


class Maze(Base[np.ndarray]):
    observation_space, action_space = gym.spaces.Box(0, 1, (2,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


if __name__ == "__main__":
    made = pickle.loads(cloudpickle.dumps(Maze))()
    print("pickled", made.step(0)[2], "seed" in inspect.signature(made.reset).parameters)
    envs = gym.vector.AsyncVectorEnv([Maze] * 2, context="spawn")
    envs.reset()
    for _ in range(50):
        envs.step([0, 0])
    envs.close()
"""


def test_an_env_of_the_scripts_own_is_pickled_as_it_would_be_and_its_steps_are_counted_once(tmp_path):
    path = script(tmp_path, OWN_ENV)
    with (tmp_path / "out").open("wb") as out:
        seen = attend([sys.executable, str(path)], 60.0, Silent(), out, is_sampled=False)
    assert seen.exit_code == 0
    assert (tmp_path / "out").read_text().strip() == "pickled True True"
    counts = [process.counts for process in seen.processes.values()]
    assert sum(each["env_steps"] for each in counts) == 1 + 2 * 50
    assert max(each["envs"] for each in counts) == 2


TWO_OPTIMISERS = """
import threading, torch
torch.set_num_threads(1)
nets = [torch.nn.Linear(4, 4) for _ in range(2)]
optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
hooked = []
optimizers[0].register_step_post_hook(lambda *_: hooked.append(1))

def train(number, steps):
    for _ in range(steps):
        loss = nets[number](torch.ones(8, 4)).square().mean()
        optimizers[number].zero_grad()
        loss.backward()
        optimizers[number].step()

train(0, 29)
threads = [threading.Thread(target=train, args=(number, 50)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
train(0, 5)
print("hooks", len(hooked), torch.compile is not None)
"""


def test_several_optimisers_in_several_threads_run_as_they_would(tmp_path):
    path = script(tmp_path, TWO_OPTIMISERS)
    with (tmp_path / "out").open("wb") as out:
        seen = attend([sys.executable, str(path)], 60.0, Silent(), out, is_sampled=False)
    assert seen.exit_code == 0
    assert (tmp_path / "out").read_text().strip() == "hooks 84 True"
    (process,) = seen.processes.values()
    assert process.counts["gradient_steps"] == 29 + 2 * 50 + 5


def test_the_hook_is_for_old_pythons_too():
    import ast

    text = (Path(__file__).parents[2] / "src/hotloop/doctor/scripts/hook/sitecustomize.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert not [name for name in imported if name.startswith(("hotloop", "numpy", "psutil"))]


def test_a_quiet_script_writes_to_a_file_and_one_that_fails_has_its_last_words(tmp_path):
    says = "import sys\nprint('seen by nobody')\nprint('beside it', file=sys.stderr)\nsys.exit(3)"
    folder = tmp_path / "report"
    done = doctor(sys.executable, script(tmp_path, says), minutes=0.1, options=["--quiet", "--out", folder])
    assert sorted((folder / "script.log").read_text().splitlines()) == ["beside it", "seen by nobody"]
    assert done.returncode == 1
    assert "beside it" in done.stderr, "of one that fails"
    assert "seen by nobody" not in done.stdout
