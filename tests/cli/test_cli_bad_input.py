"""Bad input gives one line on stderr and exit code 2, and nothing is written."""

import json
import shutil

import pytest
from hotloop_process import contents


@pytest.fixture
def refused_by_process(hotloop, tmp_path):
    """Run a command that must refuse, in a process of its own; returns its one line."""

    def run(*args, **kwargs):
        before = contents(tmp_path)
        ran = hotloop(*args, **kwargs)
        return _the_only_line(ran, before, contents(tmp_path))

    return run


@pytest.fixture
def refused(hotloop_here, tmp_path):
    """The same within this process."""

    def run(*args):
        before = contents(tmp_path)
        return _the_only_line(hotloop_here(*args), before, contents(tmp_path))

    return run


def _the_only_line(ran, before, after):
    line = ran.refusal
    said = [text for text in ran.err.splitlines() if not text.endswith(" …")]  # what takes long is said meanwhile
    assert said == [line], "more than one line on stderr"
    assert ran.out == ""
    assert after == before
    return line


SETTINGS = {
    "unknown key": ("replay.batch_sise=4", ["replay.batch_sise", "unknown key", "'batch_size'"]),
    "unknown key at the top": ("sed=4", ["sed", "unknown key", "'seed'"]),
    "unknown key of a chosen kind": ("network.torso.hiden=[4]", ["network.torso.hiden", "'hidden'"]),
    "unknown section": ("replya.capacity=4", ["replya", "'replay'"]),
    "text for a number": ("replay.batch_size=many", ["replay.batch_size", "'many'", "integer"]),
    "fraction for a whole number": ("replay.batch_size=2.5", ["replay.batch_size", "2.5", "integer"]),
    "truth for a number": ("env.num_envs=true", ["env.num_envs", "True", "integer"]),
    "number for a section": ("replay=3", ["replay", "3"]),
    "text for a schedule": ("optimizer.learning_rate=fast", ["optimizer.learning_rate", "'fast'", "schedule"]),
    "batch larger than the replay": ("replay.batch_size=1000", ["replay.batch_size is 1000", "replay.capacity is 512"]),
    "replay smaller than a block": ("replay={capacity: 3, batch_size: 1}", ["replay.capacity is 3", "at least 4"]),
    "negative learning rate": ("optimizer.learning_rate=-1e-3", ["optimizer.learning_rate", "-0.001", "negative"]),
    "learning rate that is not a number": ("optimizer.learning_rate=.nan", ["optimizer.learning_rate", "nan"]),
    "endless learning rate": ("optimizer.learning_rate=.inf", ["optimizer.learning_rate", "inf"]),
    "endless replay ratio": ("updates_per_step=.inf", ["updates_per_step", "inf"]),
    "replay ratio that fits no block": ("updates_per_step=0.1234567", ["updates_per_step", "0.123", "use 0.12"]),
    "no updates at all": ("updates_per_step=0", ["updates_per_step", "greater than 0"]),
    "no steps at all": ("stop.steps=0", ["stop.steps", "0"]),
    "negative seed": ("seed=-1", ["seed", "-1"]),
    "probability above one": ("exploration.epsilon=1.5", ["exploration.epsilon", "1.5", "at most 1"]),
    "unknown env": ("env.id=cartpol", ["env.id", "'cartpol'", "'cartpole'"]),
    "unknown gymnax env": ("env={id: 'gymnax:CartPole-v9', num_envs: 4}", ["'CartPole-v9'", "'CartPole-v1'"]),
    "unknown head": ("network.head.kind=duelling", ["network.head.kind", "'duelling'", "scalar, c51, qr, iqn"]),
    "nearly a head": ("network.head.kind=iqm", ["network.head.kind", "'iqm'", "'iqn'"]),
    "unknown torso": ("network.torso.kind=mpl", ["network.torso.kind", "'mpl'", "'mlp'"]),
    "unknown engine": ("engine=jacks", ["engine", "'jacks'", "jax"]),
    "unknown pipeline": ("pipeline=fuse", ["pipeline", "'fuse'", "'fused'"]),
    "unknown env option": ("env.options.gravity=3", ["env.options", "gravity"]),
    "env option of the wrong type": ("env.options.max_steps=long", ["env.options", "max_steps", "long"]),
    "impossible env option": ("env.options.max_steps=0", ["env.options", "max_steps", "0"]),
    "images for a network without any": ("network.torso={kind: cnn}", ["network", "images", "(4,)"]),
    "branches for a network without keys": (
        "network.torso={kind: branches, branches: {position: {}}}",
        ["network", "branches", "Dict", "(4,)", "mlp"],
    ),
    "name that leaves the folder": ("name=../elsewhere", ["name", "../elsewhere"]),
    "spec of a newer version": ("version=2", ["version is 2", "newer hotloop"]),
    "assignment without a value": ("replay.capacity", ["--set 'replay.capacity'", "a.b=c"]),
    "assignment without a name": ("=3", ["--set '=3'", "a.b=c"]),
    "assignment that is not YAML": ("replay.capacity=[1", ["[1", "not YAML"]),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_bad_setting_is_refused(refused, what):
    setting, expected = SETTINGS[what]
    line = refused("train", "tiny.yaml", "--out", "here", "--set", setting)
    assert [part for part in expected if part not in line] == [], line


COMMAND_LINES = {
    "nothing to train": (["train"], ["preset", "--env"]),
    "unknown preset": (["train", "cartpol"], ["'cartpol'", "'cartpole'"]),
    "no such file": (["train", "nowhere/spec.yaml"], ["nowhere/spec.yaml", "no such file"]),
    "unknown env by option": (["train", "--env", "Pong"], ["'Pong'", "cartpole"]),
    "a grid too small": (["train", "snake", "--set", "env.options.grid=3"], ["grid is 3", "5 … 32"]),
    "an unknown kind of observation": (["train", "snake", "--set", "env.options.obs=flod"], ["'flod'", "'flood'"]),
    "a snake too long": (
        ["train", "snake", "--set", "env.options.start_length=11"],
        ["start_length is 11", "room for 1 … 6"],
    ),
    "no seeds": (["train", "cartpole", "--seeds", "0"], ["seeds", "greater than or equal to 1"]),
    "an image for a dense network": (["train", "snake_cnn", "--set", "env.options.obs=flood"], ["cnn", "3 axes"]),
    "unknown benchmark": (["bench", "trian"], ["benchmark", "'trian'", "'train'"]),
    "negative seed option": (["train", "tiny.yaml", "--seed", "-3"], ["seed", "-3"]),
    "resume of nothing": (["resume", "nowhere"], ["nowhere", "not a run"]),
    "eval of nothing": (["eval", "nowhere"], ["nowhere", "not a run"]),
    "an env without a name": (["train", "--env", ""], ["say what to train", "--env ID"]),
    "a check of a device env": (["check-env", "cartpole"], ["cartpole is a device env", "give a Gymnasium id"]),
    "a doctor without a patient": (["doctor"], ["say what to train", "--env ID"]),
    "a doctor without time": (["doctor", "cartpole", "--minutes", "0"], ["--minutes is 0", "more than 0"]),
    "tuning without time": (["tune", "cartpole", "--minutes", "0"], ["--minutes is 0", "more than 0"]),
    "tuning into no folder": (["tune", "cartpole", "--out", "nowhere/tuned.yaml"], ["no folder for it"]),
    "a recording that is no GIF": (["eval", "nowhere", "--record", "x.mp4"], ["--record x.mp4", ".gif"]),
}


# What is said of an unknown env hangs on the packages of envs that a process has imported.
IN_A_NEW_PROCESS = ("nothing to train", "unknown env by option")


@pytest.mark.parametrize("what", [name for name in COMMAND_LINES if name != "unknown env by option"])
def test_a_bad_command_line_is_refused(refused, what):
    args, expected = COMMAND_LINES[what]
    line = refused(*args)
    assert [part for part in expected if part not in line] == [], line


@pytest.mark.parametrize(
    "what",
    [name if name in IN_A_NEW_PROCESS else pytest.param(name, marks=pytest.mark.heavy) for name in COMMAND_LINES],
)
def test_a_bad_command_line_is_refused_by_a_process_of_its_own(refused_by_process, what):
    args, expected = COMMAND_LINES[what]
    line = refused_by_process(*args)
    assert [part for part in expected if part not in line] == [], line


USAGES = {
    "unknown command": (["trian"], "trian"),
    "unknown option": (["train", "tiny.yaml", "--sed", "3"], "--sed"),
    "text for a number option": (["train", "tiny.yaml", "--steps", "many"], "--steps"),
    "no episodes at all": (["eval", "run", "--episodes", "0"], "--episodes"),
    "no run": (["resume"], "RUN"),
}


@pytest.mark.parametrize("what", USAGES)
def test_a_wrong_usage_is_explained_with_exit_code_2(hotloop, tmp_path, what):
    args, expected = USAGES[what]
    before = contents(tmp_path)
    ran = hotloop(*args)
    assert ran.code == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert contents(tmp_path) == before


FILES = {
    "broken YAML": (b"env: {id: cartpole\nseed: 3\n", ["bad.yaml", "YAML"]),
    "YAML with a tab": (b"env:\n\tid: cartpole\n", ["bad.yaml", "YAML"]),
    "a list": (b"- 1\n- 2\n", ["bad.yaml", "list", "mapping"]),
    "nothing": (b"", ["bad.yaml", "mapping"]),
    "bytes that are not text": (b"\xff\xfe\x00\x01", ["bad.yaml", "cannot be read"]),
    "an unknown key": (b"replays: {capacity: 3}\n", ["replays", "'replay'"]),
}


@pytest.mark.parametrize("what", FILES)
def test_a_bad_file_is_refused(refused, tmp_path, what):
    data, expected = FILES[what]
    (tmp_path / "bad.yaml").write_bytes(data)
    line = refused("train", "bad.yaml")
    assert [part for part in expected if part not in line] == [], line


def test_an_out_folder_that_holds_something_is_refused(refused, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("all of it")
    line = refused("train", "tiny.yaml", "--out", "taken")
    assert "taken already exists" in line
    assert "--out" in line


def test_an_out_folder_that_is_a_file_is_refused(refused, tmp_path):
    (tmp_path / "taken").write_text("all of it")
    assert "taken already exists" in refused("train", "tiny.yaml", "--out", "taken")


def test_an_out_folder_below_a_file_is_refused(refused, tmp_path):
    (tmp_path / "taken").write_text("all of it")
    assert "taken" in refused("train", "tiny.yaml", "--out", "taken/run")


def test_a_file_where_the_runs_go_is_refused(refused, tmp_path):
    (tmp_path / "runs").write_text("all of it")
    assert "runs" in refused("train", "tiny.yaml", "--steps", "80")


@pytest.mark.heavy
def test_an_empty_out_folder_is_used(hotloop, tmp_path):
    (tmp_path / "empty").mkdir()
    assert hotloop("train", "tiny.yaml", "--out", "empty", "--steps", "80", "--json").json["run"] == "empty"


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_folder_that_is_not_a_run_is_refused(refused, tmp_path, command):
    (tmp_path / "photos").mkdir()
    line = refused(command, "photos")
    assert "photos is not a run" in line
    assert "spec.yaml" in line


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_run_of_a_newer_format_is_refused(refused, finished, command):
    facts = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**facts, "format": facts["format"] + 1}))
    line = refused(command, "run")
    assert "newer hotloop" in line
    assert f"format {facts['format'] + 1}" in line


@pytest.mark.parametrize(("command", "folder"), [("resume", "checkpoints/*"), ("eval", "best")])
def test_a_checkpoint_of_a_newer_format_is_refused(refused, finished, command, folder):
    for path in finished.glob(f"{folder}/manifest.json"):
        manifest = json.loads(path.read_text())
        path.write_text(json.dumps({**manifest, "format": manifest["format"] + 1}))
    assert "newer hotloop" in refused(command, "run")


@pytest.mark.parametrize("damage", ['{"format": ', "[]", '{"format": "2"}', '{"format": null}'])
def test_a_run_whose_facts_are_damaged_is_refused(refused, finished, damage):
    (finished / "run.json").write_text(damage)
    assert "run.json" in refused("resume", "run")


def test_a_run_without_checkpoints_is_refused(refused, finished):
    shutil.rmtree(finished / "checkpoints")
    assert "no whole checkpoint" in refused("resume", "run")


def test_a_resume_up_to_what_is_done_already_is_refused(refused, finished):
    before = contents(finished)
    line = refused("resume", "run", "--steps", "900")
    assert line.endswith(
        "run has done 1,000 env steps, so nothing is left to do up to 900; go on with --steps N, N above 1,000"
    )
    assert contents(finished) == before


@pytest.mark.parametrize("which", ["worst", "../run/best", "checkpoints", "."])
def test_weights_other_than_best_and_last_are_refused(refused, finished, which):
    line = refused("eval", "run", "--which", which)
    assert which in line
    assert "best" in line
    assert "last" in line


def test_a_replay_that_does_not_fit_is_refused_with_the_bytes_needed_and_available(refused, monkeypatch):
    monkeypatch.setenv("HOTLOOP_MEMORY_LIMIT", str(300 * 2**20))
    line = refused("train", "tiny.yaml", "--set", "replay.capacity=10000000")
    assert "419.6 MiB" in line  # ten million rows of 44 bytes
    assert "300.0 MiB is available" in line
    assert "replay.capacity" in line


def test_a_plan_that_does_not_fit_is_refused_too(hotloop, tmp_path):
    before = contents(tmp_path)
    ran = hotloop("train", "tiny.yaml", "--plan", env={"HOTLOOP_MEMORY_LIMIT": "10000"})
    assert "9.8 KiB is available" in ran.refusal
    assert contents(tmp_path) == before


def test_a_resume_that_does_not_fit_is_refused(refused, finished, monkeypatch):
    monkeypatch.setenv("HOTLOOP_MEMORY_LIMIT", "10000")
    assert "9.8 KiB is available" in refused("resume", "run", "--steps", "2000")


def test_a_missing_env_package_is_named_with_the_extra_that_brings_it(refused_by_process):
    blocked = "import sys; sys.modules['gymnax'] = None"
    line = refused_by_process("train", "--env", "gymnax:CartPole-v1", before=blocked)
    assert "package gymnax" in line
    assert "hotloop[gymnax]" in line


def test_a_missing_benchmark_package_is_named_with_the_extra_that_brings_it(refused_by_process):
    blocked = "import sys; sys.modules['stable_baselines3'] = None"
    line = refused_by_process("bench", "train", before=blocked)
    assert "package stable_baselines3" in line
    assert "hotloop[bench]" in line


def test_several_mistakes_are_named_together_on_one_line(refused):
    line = refused("train", "tiny.yaml", "--set", "sed=1", "--set", "replay.batch_size=many")
    assert "'seed'" in line
    assert "replay.batch_size" in line


def test_something_unexpected_is_shown_with_its_traceback_and_exit_code_1(hotloop):
    broken = "import hotloop.api\ndef train(*_, **__): raise RuntimeError('a defect')\nhotloop.api.train = train"
    ran = hotloop("train", "tiny.yaml", before=broken)
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "a defect" in ran.err
