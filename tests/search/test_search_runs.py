"""`hotloop search` as a command: trials that train, in processes that die with it and never harm it."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from hotloop_process import DAYS, TINY, finish, metrics, start, strict_json, wait_for

from process_tree import children_of

SMALL = {
    **TINY,
    "evaluation": {"every": 200, "episodes": 4, "max_steps": 50},
    "stop": {"steps": 400},
}
KEYS = {"search", "trials", "completed", "pruned", "failed", "best", "best_spec", "importances", "stopped"}


@pytest.fixture
def searches(tmp_path):
    """Start `hotloop search` of the small spec with this space, and other changes."""

    def begin(space, *words, **changes):
        (tmp_path / "s.yaml").write_text(json.dumps({**SMALL, **changes, "search": space}))
        words = ("search", "s.yaml", "--out", "out", *map(str, words))
        return start(*words, cwd=tmp_path, before="import os; os.setpgid(0, 0)")

    return begin


def _trials_of(process):
    """The processes of trials that a search has running."""
    return [child for child, command in children_of(process.pid) if "spawn_main" in command]


def trials_of(tmp_path):
    return json.loads((tmp_path / "out" / "trials.json").read_text())


def test_each_trial_is_a_run_and_one_that_is_refused_is_told(searches, tmp_path):
    space = {"replay.batch_size__choice": [16, 4096], "optimizer.learning_rate__loguniform": [1e-3, 1e-2]}
    ran = finish(searches(space, "--trials", 2, "--parallel", 1, "--json", seed=3))
    assert ran.code == 0, ran.err
    told = strict_json(ran.out.splitlines()[-1])
    assert len(ran.out.splitlines()) == 1
    assert set(told) == KEYS
    assert (told["trials"], told["completed"], told["failed"]) == (2, 1, 1)
    good, bad = sorted(trials_of(tmp_path), key=lambda trial: trial["state"])
    assert bad["values"]["replay.batch_size"] == 4096
    assert bad["reason"].startswith("replay.batch_size is 4096 but replay.capacity is 512")
    assert told["best"] == {"trial": good["trial"], "score": good["score"], "values": good["values"]}
    run = tmp_path / "out" / good["run"]
    [first, last] = metrics(run, "eval")
    assert (first["env_steps"], last["env_steps"]) == (200, 400)
    assert good["score"] == last["return_mean"]
    assert good["evaluations"] == [first["return_mean"], last["return_mean"]]
    best, made = (yaml.safe_load(path.read_text()) for path in (tmp_path / told["best_spec"], run / "spec.yaml"))
    assert best == made, "the best spec is that of the run"
    assert (tmp_path / "out" / "search.png").stat().st_size > 10_000


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"import hotloop\nhotloop.search({SMALL}, space={{'seed__randint': [0, 9]}}, trials=1, out='out')"
    )
    ran = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "all 1 trial(s) failed" in ran.stderr.splitlines()[-1]
    assert "if __name__ == '__main__':" in ran.stderr.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.heavy
def test_killed_in_mid_trial_it_goes_on_and_no_process_is_left(searches, tmp_path):
    space = {"stop.steps__choice": [400, DAYS]}
    words = ("--trials", 3, "--parallel", 2)
    process = searches(space, *words, seed=SEED_OF_SHORT_THEN_LONG)
    running = tmp_path / "out" / "trials" / "001" / "metrics.jsonl"
    wait_for(lambda: running.is_file() and trials_of(tmp_path) and running.stat().st_size, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert _trials_of(process)
    first, before = (tmp_path / "out/trials/000/metrics.jsonl").read_bytes(), trials_of(tmp_path)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive, "a trial outlived its search"
    assert [trial["trial"] for trial in before] == [0]
    # What was running runs again, and for days; the one before it does not.
    process = searches(space, *words, seed=SEED_OF_SHORT_THEN_LONG)
    running.unlink()
    wait_for(lambda: running.is_file() and running.stat().st_size, process)
    process.send_signal(signal.SIGINT)
    ran = finish(process, timeout=60)
    assert ran.code == 0, ran.err
    assert "continuing the search in out: 1 trial(s) have ended" in ran.err
    assert trials_of(tmp_path)[0] == before[0]
    assert (tmp_path / "out/trials/000/metrics.jsonl").read_bytes() == first


SEED_OF_SHORT_THEN_LONG = 3


@pytest.mark.heavy
def test_ctrl_c_in_a_terminal_exits_with_0_and_a_command_that_continues(searches, tmp_path):
    process = searches({"discount__uniform": [0.9, 0.99]}, "--trials", 3, "--parallel", 1)
    table = tmp_path / "out" / "trials.csv"
    wait_for(lambda: table.is_file() and len(table.read_text().splitlines()) == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    ran = finish(process, timeout=30)
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err
    assert ran.out.startswith("stopped by SIGINT: ")
    [command] = [line.split(None, 1)[1] for line in ran.out.splitlines() if line.startswith("  continue")]
    assert "--out out" in command
    before = trials_of(tmp_path)
    program, *words = shlex.split(command)
    assert program == "hotloop"
    told = finish(start(*words, "--json", cwd=tmp_path, fresh=True)).json
    assert told["trials"] == told["completed"] == 3
    assert trials_of(tmp_path)[: len(before)] == before
    trained = finish(start("train", told["best_spec"], "--out", "again", "--json", cwd=tmp_path)).json
    assert trained["return_mean"] == told["best"]["score"], "the best spec gives the best score again"


@pytest.mark.heavy
def test_a_run_that_is_pruned_ends_early_and_saved(searches, tmp_path, hotloop):
    space = {"env.options.max_steps__choice": [50, 4]}  # nobody returns more than it lasts
    told = finish(
        searches(space, "--trials", 6, "--parallel", 1, "--json", stop={"steps": 800}, seed=2), timeout=200
    ).json
    assert told["pruned"] >= 1
    pruned = [trial for trial in trials_of(tmp_path) if trial["state"] == "pruned"]
    for trial in pruned:
        assert trial["values"]["env.options.max_steps"] == 4
        run = tmp_path / "out" / trial["run"]
        [reached] = [int(folder.name) for folder in sorted((run / "checkpoints").iterdir())[-1:]]
        assert reached < 800
        assert metrics(run, "eval")[-1]["env_steps"] == reached
    resumed = hotloop("resume", str(Path("out") / pruned[0]["run"]), "--json").json
    assert resumed["env_steps"] == 800


@pytest.mark.heavy
def test_a_trial_whose_process_is_killed_fails_and_the_search_goes_on(searches, tmp_path):
    space = {"stop.steps__choice": [400, DAYS]}
    process = searches(space, "--trials", 2, "--parallel", 1, "--json", seed=SEED_OF_SHORT_THEN_LONG)
    running = tmp_path / "out" / "trials" / "001" / "metrics.jsonl"
    wait_for(lambda: running.is_file() and running.stat().st_size, process)
    [trial] = _trials_of(process)
    trial.kill()
    told = finish(process).json
    assert (told["completed"], told["failed"]) == (1, 1)
    assert trials_of(tmp_path)[1]["reason"] == "its process was killed by signal 9 (out of memory?)"


@pytest.mark.heavy
def test_trials_side_by_side_may_have_envs_in_processes_of_their_own(searches, tmp_path):
    space = {"env__choice": [{"id": "CartPole-v1", "num_envs": 2, "vectorization": "async"}, SMALL["env"]]}
    told = finish(searches(space, "--trials", 3, "--parallel", 2, "--json"), timeout=200).json
    assert told["completed"] == 3, trials_of(tmp_path)
    assert {trial["values"]["env"]["id"] for trial in trials_of(tmp_path)} == {"CartPole-v1", "cartpole"}


@pytest.mark.heavy
def test_several_seeds_are_scored_by_their_interquartile_mean(searches, tmp_path):
    space = {"optimizer.learning_rate__uniform": [0.01, 0.02]}
    told = finish(searches(space, "--trials", 1, "--seeds", 4, "--json")).json
    [trial] = trials_of(tmp_path)
    last = metrics(tmp_path / "out" / trial["run"], "eval")[-1]
    assert told["best"]["score"] == trial["score"] == last["return_iqm"]
    assert len(last["by_seed"]["return_mean"]) == 4
