"""Several seeds on the host: one run after another, each as it would be alone, then together in one picture."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
from hotloop_process import TINY, checkpoints, contents, finish, manifest, metrics, start, wait_for
from PIL import Image

import hotloop
from hotloop.errors import EnvFailed, SpecError
from hotloop.listeners import End, Start
from hotloop.members import seeds
from hotloop.progress import Silent
from hotloop.runs.folder import RunFolder
from hotloop.runs.statistics import estimate, lines_in_turn
from hotloop.seeds_in_turn import _read_result

FIRST, STEPS = 5, 400
HOST = {
    **TINY,
    "seed": FIRST,
    "seeds": 3,
    "env": {"id": "hotloop.envs.gymnasium:hotloop/CartPole-v1", "num_envs": 4, "options": {"max_steps": 50}},
    "network": {"torso": {"kind": "mlp", "hidden": [8]}},
    "evaluation": {"every": 200, "episodes": 4, "max_steps": 50},
    "stop": {"steps": STEPS},
    "log": {"every": 100, "exact": True, "checkpoint_every": 200, "checkpoints": 2},
}
"""Its envs can be saved, so that a resumed run ends in the same bits."""
SEEDS = [FIRST, FIRST + 1, FIRST + 2]
TIMES = {"seconds", "env_steps_per_s", "updates_per_s", "stage_seconds"}


class Hearing(hotloop.Listener):
    """Keeps beginnings and ends, and calls `act(seed, name of the method, event)` for every event."""

    def __init__(self, act=lambda seed, name, event: None):
        self.act, self.starts, self.ends, self.seed = act, [], [], None

    def on_start(self, start):
        self.seed = start.spec.seed
        self.starts.append(start)
        return self.act(self.seed, "on_start", start)

    def on_log(self, log):
        return self.act(self.seed, "on_log", log)

    def on_end(self, end):
        self.ends.append(end)
        return self.act(self.seed, "on_end", end)


class Noting(Silent):
    """Keeps what is said, warnings too."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def warn(self, text):
        self.said.append(f"warning: {text}")


def in_second_seed(act, env_steps=200):
    """Act once, in the middle of the second seed; a run that is ending may write one more line."""
    acted = []

    def act_once(seed, name, event):
        if _is_there(seed, name, event, env_steps) and not acted:
            acted.append(event)
            return act()
        return None

    return Hearing(act_once)


def _is_there(seed, name, event, env_steps):
    return (seed, name) == (FIRST + 1, "on_log") and event.env_steps >= env_steps


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of three seeds, what it said, and who listened; not to be changed."""
    heard, reporter = Hearing(), Noting()
    run = hotloop.train(HOST, out=tmp_path_factory.mktemp("whole") / "run", listeners=[heard], reporter=reporter)
    return run, heard, reporter


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of its folder, to be changed at will."""
    return shutil.copytree(whole[0].path, tmp_path / "run")


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing is what short runs spend most of their time on."""
    monkeypatch.setattr("hotloop.final_pictures.draw", lambda *_, **__: None)


undrawn = pytest.mark.usefixtures("without_pictures")


def digests(path):
    """The state of every seed that has begun."""
    return {each.name: manifest(each)["digests"] for each in sorted(path.glob("seed-*"))}


def lines(path):
    return [{name: value for name, value in row.items() if name not in TIMES} for row in metrics(path)]


def place(row):
    return row["env_steps"], row["kind"] == "eval"


def same_as_alone(run, spec, tmp_path):
    alone = hotloop.train({**spec, "seed": FIRST + 1, "seeds": 1}, out=tmp_path / "alone")
    seed = run.path / f"seed-{FIRST + 1}"
    assert manifest(seed)["digests"] == manifest(alone.path)["digests"]
    assert manifest(seed)["digests"] != manifest(run.path / f"seed-{FIRST}")["digests"]
    assert (seed / "spec.yaml").read_bytes() == (alone.path / "spec.yaml").read_bytes()
    assert lines(seed) == lines(alone.path)
    files = [{each.name for each in path.iterdir() if "events" not in each.name} for path in (seed, alone.path)]
    assert files[0] == {*files[1], "result.json"}


def test_each_seed_is_the_run_it_would_be_alone_bit_for_bit(whole, tmp_path):
    same_as_alone(whole[0], HOST, tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("fields", [{"pipeline": "concurrent"}, {"engine": "torch", "torch": {"mode": "eager"}}])
def test_so_it_is_with_other_pipelines_and_engines(fields, tmp_path):
    spec = {**HOST, **fields, "seeds": 2}
    same_as_alone(hotloop.train(spec, out=tmp_path / "run"), spec, tmp_path)


def test_the_run_and_every_seed_are_runs_of_ones_own(whole):
    run = whole[0]
    folders = [run.path, *(run.path / f"seed-{seed}" for seed in SEEDS)]
    specs = [RunFolder.open(folder).read_spec() for folder in folders]
    assert [(spec.seed, spec.seeds) for spec in specs] == [(FIRST, 3), *((seed, 1) for seed in SEEDS)]
    assert [RunFolder.open(folder).doubt() for folder in folders] == [None] * 4
    assert {each.name for each in run.path.iterdir()} == {
        *("spec.yaml", "run.json", "metrics.jsonl", "curve.png", "recording.gif", "best", "last"),
        *(f"seed-{seed}" for seed in SEEDS),
    }


def test_the_terminal_hears_which_seed_is_trained_and_what_it_came_to(whole):
    run, _, reporter = whole
    said = [line for line in reporter.said if line.startswith("seed ")]
    for index, (seed, line) in enumerate(zip(SEEDS, said, strict=True)):
        score = run.by_seed["return_mean"][index]
        assert line == f"seed {seed} ({index + 1} of 3): 400 env steps done; score {score:.1f}"


def test_the_picture_is_drawn_from_the_lines_of_all_seeds(whole):
    run = whole[0]
    each = [metrics(run.path / f"seed-{seed}") for seed in SEEDS]
    together = metrics(run.path)
    assert [place(row) for row in together] == sorted(map(place, each[0]))
    for row in together:
        of_seeds = [next(r for r in rows if place(r) == place(row)) for rows in each]
        for name in ("return_mean", "length_mean") if row["kind"] == "eval" else ("loss", "episodes", "ep_return_mean"):
            assert row["by_seed"][name] == [r[name] for r in of_seeds]
            assert row[name] == pytest.approx(np.mean(row["by_seed"][name]))
        if row["kind"] == "eval":
            found = estimate(np.array(row["by_seed"]["return_mean"]))
            assert (row["return_iqm"], row["return_interval"]) == (found.iqm, [found.low, found.high])
    with Image.open(run.path / "curve.png") as picture:
        picture.load()
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
        assert picture.width > 500
    assert (0xD6, 0x76, 0x3E) in colours, "the line of evaluations"


def test_the_result_has_the_keys_of_several_seeds_on_the_device_and_counts_as_it_does(whole):
    run = whole[0]
    device = hotloop.train(TINY, out=None, seeds=2, **{"stop.steps": 200})
    assert list(run.result) == list(device.result)
    assert set(run.by_seed) == set(device.by_seed)
    results = [json.loads((run.path / f"seed-{seed}" / "result.json").read_text()) for seed in SEEDS]
    assert (run.env_steps, run.seeds, run.stopped_by) == (STEPS, SEEDS, "steps")
    assert run.stopped == "400 env steps done by each of 3 seeds"
    assert run.updates_per_step == pytest.approx(results[0]["updates_per_step"])
    for name in ("updates", "episodes", "return_mean"):
        assert run.result[name] == pytest.approx(np.mean([result[name] for result in results]))
    assert run.steps_per_episode == pytest.approx(3 * STEPS / sum(r["episodes"] for r in results), abs=0.01)
    rates = [result["env_steps_per_s"] for result in results]
    assert min(rates) <= run.env_steps_per_s <= max(rates)
    assert run.seconds >= sum(result["seconds"] for result in results)
    assert run.result["run"] == str(run.path)


def test_the_best_seed_plays_for_the_run_and_each_can_be_asked_for(whole):
    run = whole[0]
    manifests = {
        which: [json.loads((run.path / f"seed-{s}" / which / "manifest.json").read_text()) for s in SEEDS]
        for which in ("best", "last")
    }
    for which, found in manifests.items():
        returns = [each["evaluation"]["return_mean"] for each in found]
        seed = SEEDS[int(np.argmax(returns))]
        weights = hotloop.load(run.path / f"seed-{seed}", which=which).weights
        assert np.array_equal(hotloop.load(run, which=which).weights, weights)
        assert json.loads((run.path / which / "manifest.json").read_text())["seed"] == seed
    assert np.array_equal(hotloop.load(run).weights, hotloop.load(run, which="best").weights)
    second = hotloop.load(run.path / f"seed-{FIRST + 1}", which="last").weights
    assert np.array_equal(hotloop.load(run, which=f"seed-{FIRST + 1}").weights, second)
    with pytest.raises(SpecError, match="has no seed-99 weights: it has best, last, seed-5, seed-6, seed-7"):
        hotloop.load(run, which="seed-99")


def test_listeners_hear_of_every_seed(whole):
    run, heard, _ = whole
    assert [(start.spec.seed, start.path) for start in heard.starts] == [(s, run.path / f"seed-{s}") for s in SEEDS]
    assert [type(each) for each in (heard.starts[0], heard.ends[0])] == [Start, End]
    assert [end.result["run"] for end in heard.ends] == [str(run.path / f"seed-{seed}") for seed in SEEDS]


@undrawn
def test_a_signal_in_the_second_seed_saves_it_and_a_resume_ends_in_the_same_bits(whole, tmp_path):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    listener = in_second_seed(lambda: os.kill(os.getpid(), signal.SIGTERM))
    run = hotloop.train(HOST, out=tmp_path / "run", listeners=[listener])
    assert (run.stopped, run.stopped_by) == ("stopped by SIGTERM, in seed 6", "signal")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert sorted(digests(run.path)) == ["seed-5", "seed-6"]
    assert checkpoints(run.path / "seed-6")[-1] < STEPS
    assert "return_iqm" not in run.result
    assert hotloop.load(run).predict(np.zeros(4, np.float32)) in (0, 1)
    first = contents(run.path / "seed-5")
    reporter = Noting()
    resumed = hotloop.resume(run, reporter=reporter)
    assert any(line.startswith("seed 5 (1 of 3) has ended already: 400 env steps done") for line in reporter.said)
    assert contents(run.path / "seed-5") == first, "it is left alone"
    assert digests(run.path) == digests(whole[0].path)
    assert resumed.by_seed == whole[0].by_seed
    assert [row for row in lines(run.path) if row["kind"] == "eval"] == [
        row for row in lines(whole[0].path) if row["kind"] == "eval"
    ]


@undrawn
def test_a_signal_between_two_seeds_ends_the_run_before_the_next(tmp_path):
    listener = Hearing(lambda seed, name, event: os.kill(os.getpid(), signal.SIGINT) if name == "on_end" else None)
    run = hotloop.train(HOST, out=tmp_path / "run", listeners=[listener])
    assert (run.stopped, run.stopped_by) == ("stopped by SIGINT, before seed 6", "signal")
    assert sorted(digests(run.path)) == ["seed-5"]
    assert run.env_steps == STEPS
    resumed = hotloop.resume(run, listeners=[listener])
    assert (resumed.stopped, sorted(digests(run.path))) == ("stopped by SIGINT, before seed 7", ["seed-5", "seed-6"])


@pytest.mark.parametrize("env_steps", [100, pytest.param(300, marks=pytest.mark.heavy)])
@pytest.mark.heavy
def test_after_a_kill_in_the_second_seed_a_resume_ends_in_the_same_bits(whole, tmp_path, env_steps):
    """Before the first checkpoint of that seed, which begins anew, and after it."""
    program = f"""
import os, signal
import hotloop
seen = []
def on_log(log):
    seen.append(log.env_steps)
    if len(seen) > {STEPS // 100} and log.env_steps >= {env_steps}:
        os.kill(os.getpid(), signal.SIGKILL)
hotloop.train({HOST!r}, out="run", on_log=on_log)
"""
    assert finish(start(cwd=tmp_path, before=program)).code == -signal.SIGKILL
    run = tmp_path / "run"
    assert (checkpoints(run / "seed-6") == []) == (env_steps < 200)
    assert metrics(run / "seed-6")
    reporter = Noting()
    resumed = hotloop.resume(run, reporter=reporter)
    assert any("seed-6 has no whole checkpoint" in line for line in reporter.said) == (env_steps < 200)
    assert digests(run) == digests(whole[0].path)
    assert lines(run / "seed-6") == lines(whole[0].path / "seed-6")
    assert resumed.by_seed == whole[0].by_seed


@pytest.mark.heavy
@pytest.mark.parametrize("place", ["checkpoint.begin", "checkpoint.arrays_written", "checkpoint.before_rename"])
def test_a_kill_while_the_first_checkpoint_is_written_is_no_harm(whole, tmp_path, place):
    (tmp_path / "tiny.json").write_text(json.dumps(HOST))
    args = ("train", "tiny.json", "--out", "run")
    assert finish(start(*args, cwd=tmp_path, env={"HOTLOOP_FAILPOINT": f"{place}=kill"})).code == -signal.SIGKILL
    ran = finish(start("resume", "run", "--json", cwd=tmp_path))
    assert ran.json["by_seed"] == whole[0].by_seed
    assert digests(tmp_path / "run") == digests(whole[0].path)


@pytest.mark.heavy
def test_a_seed_that_has_checkpoints_is_never_begun_anew(copied):
    (copied / "seed-6" / "run.json").unlink()
    before = checkpoints(copied / "seed-6")
    with pytest.raises(SpecError, match=r"seed-6 has checkpoints, but no spec\.yaml or no run\.json"):
        hotloop.resume(copied, steps=STEPS + 100)
    assert checkpoints(copied / "seed-6") == before != []


@pytest.mark.parametrize("lost", ["result.json", "last", "seed-7"])
def test_what_a_kill_between_two_writes_leaves_out_is_made_up_for(whole, copied, lost):
    path = copied / lost if lost == "seed-7" else copied / "seed-7" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (copied / "curve.png").unlink()
    resumed = hotloop.resume(copied)
    assert digests(copied) == digests(whole[0].path)
    assert resumed.by_seed == whole[0].by_seed
    assert (copied / "curve.png").is_file()


def test_a_finished_run_says_so_and_changes_nothing(whole, copied):
    before, reporter = contents(copied), Noting()
    again = hotloop.resume(copied, reporter=reporter)
    assert reporter.said[-1] == (
        f"{copied} is finished (400 env steps done by each of 3 seeds); "
        f"go on with: hotloop resume {copied} --steps N, N above 400"
    )
    assert (again.env_steps, again.env_steps_per_s, again.by_seed) == (STEPS, 0.0, whole[0].by_seed)
    assert list(again.result) == list(whole[0].result)
    after = contents(copied)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert changed <= {"curve.png"}


@undrawn
@pytest.mark.heavy
def test_steps_moves_the_end_of_all_seeds(copied, tmp_path):
    longer = hotloop.resume(copied, steps=600)
    assert longer.env_steps == 600
    for folder in (copied, *(copied / f"seed-{seed}" for seed in SEEDS)):
        assert RunFolder.open(folder).read_spec().stop.steps == 600
        assert RunFolder.open(folder).doubt() is None
    alone = hotloop.train({**HOST, "seed": FIRST + 1, "seeds": 1, "stop": {"steps": 600}}, out=tmp_path / "alone")
    assert digests(copied)["seed-6"] == manifest(alone.path)["digests"]
    assert [row["env_steps"] for row in metrics(copied, "eval")] == [200, 400, 600]
    with pytest.raises(SpecError, match="has done 600 env steps, so nothing is left to do up to 500"):
        hotloop.resume(copied, steps=500)


@pytest.mark.heavy
@undrawn
def test_a_new_end_holds_for_the_seeds_that_a_stopped_resume_did_not_reach(copied):
    stopped = hotloop.resume(copied, steps=600, on_log=lambda log: hotloop.STOP)
    assert stopped.stopped == "stopped by on_log, in seed 5"
    assert hotloop.resume(copied).env_steps == 600
    assert [checkpoints(copied / f"seed-{seed}")[-1] for seed in SEEDS] == [600] * 3


@undrawn
@pytest.mark.heavy
def test_stop_ends_the_whole_run_saved(whole, tmp_path):
    run = hotloop.train(HOST, out=tmp_path / "run", listeners=[in_second_seed(lambda: hotloop.STOP)])
    assert (run.stopped, run.stopped_by) == ("stopped by on_log, in seed 6", "callback")
    assert (sorted(digests(run.path)), checkpoints(run.path / "seed-6")[-1]) == (["seed-5", "seed-6"], 200)
    assert hotloop.resume(run).stopped_by == "steps"
    assert digests(run.path) == digests(whole[0].path)


def test_stop_at_the_end_of_a_seed_is_heard_too(tmp_path):
    listener = Hearing(lambda seed, name, event: hotloop.STOP if name == "on_end" else None)
    run = hotloop.train(HOST, out=None, listeners=[listener])
    assert (run.stopped, len(listener.ends)) == ("stopped by on_end, before seed 6", 1)


@pytest.mark.heavy
@undrawn
def test_an_exception_in_a_callback_is_raised_as_it_is_and_the_run_resumes(whole, tmp_path):
    error = SpecError("mine")

    def fail():
        raise error

    with pytest.raises(SpecError) as raised:
        hotloop.train(HOST, out=tmp_path / "run", listeners=[in_second_seed(fail)])
    assert raised.value is error
    hotloop.resume(tmp_path / "run")
    assert digests(tmp_path / "run") == digests(whole[0].path)


@undrawn
def test_an_env_that_fails_names_the_seed(tmp_path):
    import gymnasium as gym

    class Fails(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            if len(list(tmp_path.glob("run/seed-*"))) == 2:
                raise LookupError("mine")
            return np.zeros(2, np.float32), 1.0, False, False, {}

    spec = {**HOST, "env": {"num_envs": 1}, "evaluation": {"every": 0}}
    with pytest.raises(EnvFailed, match=r"^seed 6: .*the run is saved in .*seed-6"):
        hotloop.train(spec, env=Fails, out=tmp_path / "run", reporter=Noting())


@undrawn
@pytest.mark.heavy
def test_a_goal_ends_each_seed_by_itself(tmp_path):
    run = hotloop.train(HOST, out=tmp_path / "run", **{"stop.return_at_least": 2})
    assert (run.stopped, run.stopped_by) == ("solved by each of 3 seeds: mean return >= 2.0", "goal")
    assert run.env_steps == 200
    at_first = run.by_seed["return_mean"]
    assert hotloop.resume(run).env_steps == 200, "it is finished"
    again = hotloop.resume(run, steps=STEPS)
    assert (again.env_steps, again.stopped_by) == (400, "goal"), "until it is solved again"
    goal = sorted(at_first)[1]
    some = hotloop.train(HOST, out=tmp_path / "some", **{"stop.return_at_least": goal})
    at_once = [value >= goal for value in at_first]
    ends = [checkpoints(some.path / f"seed-{seed}")[-1] for seed in SEEDS]
    assert [end == 200 for end in ends] == at_once
    assert not all(at_once)
    last = metrics(some.path, "eval")[-1]
    assert last["env_steps"] == max(ends)
    assert last["by_seed"] == some.by_seed, "who has ended stands as it did in its last evaluation"


@pytest.mark.heavy
def test_without_a_folder_nothing_is_written_and_every_agent_is_there(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = hotloop.train(HOST, out=None)
    assert list(tmp_path.iterdir()) == []
    assert (run.path, run.by_seed) == (None, whole[0].by_seed)
    for which in ("best", "last", *(f"seed-{seed}" for seed in SEEDS)):
        assert np.array_equal(hotloop.load(run, which=which).weights, hotloop.load(whole[0], which=which).weights)
    assert np.array_equal(run.agent.weights, hotloop.load(whole[0]).weights)
    with pytest.raises(SpecError, match="trained with out=None"):
        hotloop.resume(run)


@undrawn
@pytest.mark.heavy
def test_envs_of_ones_own_are_trained_on_too(tmp_path):
    from walk_env import Walk

    spec = {**HOST, "seeds": 2, "env": {"num_envs": 2}}
    run = hotloop.train(spec, env=lambda: Walk(length=7), out=tmp_path / "run", on_checkpoint=lambda _: hotloop.STOP)
    assert run.stopped == "stopped by on_checkpoint, in seed 5"
    with pytest.raises(SpecError, match="an env of your own"):
        hotloop.resume(run.path)
    assert hotloop.resume(run).by_seed["return_mean"] == [7.0, 7.0]
    assert hotloop.load(run).evaluate(2)["return_mean"] == 7.0


@pytest.mark.heavy
@undrawn
def test_a_default_folder_that_another_run_took_in_the_same_second_is_left_alone(whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hotloop.runs.folder.time.strftime", lambda *_: "now")
    taken = shutil.copytree(whole[0].path, tmp_path / "runs" / "tiny-now")
    before = contents(taken)
    run = hotloop.train({**HOST, "seeds": 2}, **{"stop.steps": 200})
    assert (run.path.name, sorted(digests(run.path))) == ("tiny-now-2", ["seed-5", "seed-6"])
    assert contents(taken) == before


@undrawn
def test_seeds_of_a_run_from_elsewhere_are_not_signed_as_ones_own(copied):
    facts = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps({**facts, "signature": "00" * 32}))
    shutil.rmtree(copied / "seed-7")
    hotloop.resume(copied, trust=True)
    assert [RunFolder.open(copied / f"seed-{seed}").doubt() for seed in SEEDS] == [None, None, "it is not signed"]


@undrawn
@pytest.mark.heavy
def test_the_mode_that_the_first_seed_chose_is_that_of_all(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from hotloop.engines.torch.engine import TorchEngine

    asked, prepare = [], TorchEngine.prepare

    def noted(engine, *inputs):
        asked.append((engine.spec.seed, engine.spec.torch.mode))
        return prepare(engine, *inputs)

    monkeypatch.setattr(TorchEngine, "prepare", noted)
    run = hotloop.train({**HOST, "engine": "torch", "seeds": 2}, out=tmp_path / "run", **{"stop.steps": 200})
    hotloop.resume(run, steps=300)
    hotloop.resume(run)
    assert asked == [(5, "auto"), (6, "eager"), (5, "auto"), (6, "eager")]
    folders = (run.path, run.path / "seed-5", run.path / "seed-6")
    assert [RunFolder.open(folder).read_spec().torch.mode for folder in folders] == ["eager"] * 3


@undrawn
def test_a_result_that_says_nothing_is_worked_out_again(whole, copied):
    for text in ("", "[]", "{}", '{"env_steps": "many"}', "\x00", '{"stopped_by": "goal"}'):
        (copied / "seed-6" / "result.json").write_text(text)
        assert _read_result(RunFolder(copied / "seed-6")) is None
    assert hotloop.resume(copied).by_seed == whole[0].by_seed


def test_a_seed_whose_checkpoints_are_damaged_is_not_thrown_away(copied):
    (copied / "seed-6" / "result.json").unlink()
    for each in (copied / "seed-6" / "checkpoints").iterdir():
        (each / "manifest.json").write_text("{}")
    before = contents(copied)
    with (
        pytest.raises(SpecError, match=r"no whole checkpoint to continue from; without the folder .*seed-6 this seed"),
        pytest.warns(RuntimeWarning, match="falling back"),
    ):
        hotloop.resume(copied)
    assert contents(copied) == before


@pytest.mark.heavy
def test_a_seed_goes_on_by_itself_as_any_run(copied):
    alone = hotloop.resume(copied / "seed-6", steps=600)
    assert alone.env_steps == 600
    with pytest.raises(SpecError, match="nothing is left to do up to 500"):
        hotloop.resume(copied, steps=500)


def test_commands_train_evaluate_and_say_how_to_go_on(tmp_path, whole):
    (tmp_path / "tiny.json").write_text(json.dumps(HOST))
    args = ("train", "tiny.json", "--seeds", "2", "--out", "run", "--steps", "2000000000")
    process = start(*args, "--set", "evaluation.every=0", "--set", "log.checkpoint_every=2000000000", cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "run" / "seed-5" / "metrics.jsonl").is_file(), process)
        process.send_signal(signal.SIGINT)
        ran = finish(process, timeout=30)
    finally:
        process.kill()
    assert ran.code == 0, ran.err
    assert "stopped by SIGINT, in seed 5" in ran.out
    assert "hotloop resume run" in ran.out
    shutil.copytree(whole[0].path, tmp_path / "whole")
    ran = finish(start("eval", "whole", "--which", "seed-6", "--episodes", "2", "--json", cwd=tmp_path))
    assert ran.json["episodes"] == 2


def test_what_does_not_work_is_refused_in_a_line_and_writes_nothing(hotloop_here, tmp_path):
    (tmp_path / "host.json").write_text(json.dumps(HOST))
    before = contents(tmp_path)
    of_one = "seeds is 3: on the host a profile is of one seed; set seeds to 1, or use hotloop train"
    assert of_one in hotloop_here("profile", "host.json", "--out", "run").refusal
    assert "seeds" in hotloop_here("train", "host.json", "--seeds", "0", "--out", "run").refusal
    assert "already exists" in hotloop_here("train", "host.json", "--out", ".").refusal
    assert "Nowhere" in hotloop_here("train", "--env", "Nowhere-v0", "--seeds", "2", "--out", "run").refusal
    assert contents(tmp_path) == before


def test_the_memory_plan_is_that_of_one_seed_at_a_time(tmp_path):
    (tmp_path / "host.json").write_text(json.dumps(HOST))
    one, three = (
        finish(start("train", "host.json", "--seeds", str(count), "--plan", "--json", cwd=tmp_path)).json
        for count in (1, 3)
    )
    assert one["parts"] == three["parts"]


def _eval(step, value):
    return {"kind": "eval", "env_steps": step, "episodes": 2, "return_mean": value, "return_std": 0.0}


def test_lines_belong_together_within_a_block_and_who_has_ended_stands():
    one = [_eval(100, 1.0), _eval(203, 2.0), _eval(301, 3.0)]
    other = [_eval(102, 5.0), _eval(200, 6.0)]
    found = lines_in_turn([one, other], [True, True], seeds([0, 1]), 4)
    assert [(row["env_steps"], row["by_seed"]["return_mean"]) for row in found] == [
        (100, [1.0, 5.0]),
        (200, [2.0, 6.0]),
        (301, [3.0, 6.0]),
    ]
    assert found[2]["return_iqm"] == 4.5
    cut = lines_in_turn([one, other], [True, False], seeds([0, 1]), 4)
    assert [row["env_steps"] for row in cut] == [100, 200], "it has not ended: what it would say is not known"
    assert lines_in_turn([one, []], [True, False], seeds([0, 1]), 4) == []
    odd = lines_in_turn([one, [_eval(150, 7.0)]], [True, True], seeds([0, 1]), 4)
    assert [row["env_steps"] for row in odd] == [203, 301], "nobody else has a line at 150"


def test_lines_of_training_are_means_over_those_that_still_train():
    one = [{"kind": "train", "env_steps": step, "loss": loss, "updates": 3} for step, loss in ((100, 1.0), (200, None))]
    other = [{"kind": "train", "env_steps": 101, "loss": 3.0, "updates": 3}]
    found = lines_in_turn([one, other], [True, True], seeds([0, 1]), 4)
    assert [(row["loss"], row["updates"], row["by_seed"]["loss"]) for row in found] == [
        (2.0, 3, [1.0, 3.0]),
        (None, 3, [None, None]),
    ]
