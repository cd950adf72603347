"""What each command prints and how it ends."""

import json
import shlex
import shutil

import pytest
from hotloop_process import TINY, contents, manifest

import hotloop as package
from hotloop import registry
from hotloop.api import Run
from hotloop.cli import _about_twice, _next_commands
from hotloop.spec.reading import to_yaml

TRAIN_KEYS = {
    "run",
    "env_steps",
    "updates",
    "updates_per_step",
    "env_steps_per_s",
    "updates_per_s",
    "seconds",
    "compile_seconds",
    "return_mean",
    "episodes",
    "steps_per_episode",
}
EVAL_KEYS = {"episodes", "return_mean", "return_std", "length_mean"}
COMMANDS = ["train", "resume", "eval", "list", "schema", "bench"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(hotloop, command):
    ran = hotloop(command, "--help")
    assert ran.code == 0
    assert "Usage" in ran.out
    assert command in ran.out
    assert ran.err == ""


def test_help_names_every_command(hotloop):
    ran = hotloop("--help")
    assert ran.code == 0
    assert all(command in ran.out for command in COMMANDS)


def test_no_command_at_all_shows_the_help_without_a_traceback(hotloop):
    ran = hotloop()
    assert "Traceback" not in ran.err
    assert "Usage" in ran.out + ran.err
    assert ran.code in (0, 2)


def test_train_prints_one_json_object_and_nothing_else(finished_once):
    result = json.loads((finished_once.parent / "result.json").read_text())  # all of what the command printed
    assert set(result) >= TRAIN_KEYS
    assert result["run"] == "run"
    assert result["env_steps"] == 1000
    # Learning starts at step 64, which counts: one update per 4 steps from the block that ends there.
    assert result["updates"] == (1000 - 64) // 4 + 1
    assert result["updates_per_step"] == 0.25
    assert result["env_steps_per_s"] > 0
    assert result["updates_per_s"] > 0
    assert 0 < result["compile_seconds"] < result["seconds"]
    assert 0 < result["return_mean"] <= 50
    assert result["steps_per_episode"] == pytest.approx(1000 / result["episodes"], abs=0.01)
    assert result["disk_error"] is None


def test_train_without_json_tells_a_person_where_everything_is(hotloop):
    ran = hotloop("train", "tiny.yaml", "--out", "here", "--steps", "400")
    assert ran.code == 0, ran.err
    assert "400 env steps" in ran.out
    assert "replay ratio 0.25" in ran.out
    assert "here/curve.png" in ran.out
    assert "here/recording.gif" in ran.out
    assert "  evaluate   hotloop eval here\n" in ran.out
    assert "  continue   hotloop resume here --steps 800\n" in ran.out
    assert "  profile    hotloop profile here/spec.yaml\n" in ran.out
    assert "  watch      tensorboard --logdir here\n" in ran.out
    assert "seed 0" in ran.err
    assert "threads" in ran.err
    assert "greedy return" in ran.err


def _offered(folder, **result):
    """Commands that are offered at the end of a run of 1,000 env steps, by what they are for."""
    return _next_commands(Run(folder, {"stopped_by": "steps", "env_steps": 1000, **result}), folder)


def test_what_can_be_done_next_is_offered_only_where_it_makes_sense(finished):
    assert list(_offered(finished)) == ["evaluate", "continue", "profile", "watch"]
    assert _offered(finished, stopped_by="signal")["continue"].endswith("run")
    assert "--steps" in _offered(finished, stopped_by="goal")["continue"]
    assert "continue" not in _offered(finished, stopped_by="episodes")
    assert "profile" not in _offered(finished, profile={})
    shutil.rmtree(finished / "best")
    assert _offered(finished)["evaluate"].endswith("--which last")
    (finished / "spec.yaml").write_text(to_yaml(package.load_spec("pqn")))
    assert "profile" not in _offered(finished), "refused where there is no replay"
    short = package.load_spec({"env": {"id": "CartPole-v1"}, "stop": {"steps": 2_000}})
    (finished / "spec.yaml").write_text(to_yaml(short))
    assert "profile" not in _offered(finished), "too few lines of metrics"


@pytest.mark.heavy
def test_what_is_offered_can_be_copied_and_run(hotloop, finished, tmp_path):
    folder = finished.rename(tmp_path / "my run")
    offered = [shlex.split(command)[1:] for what, command in _offered(folder).items() if what != "watch"]
    assert [hotloop(*words).code for words in offered] == [0, 0, 0]


@pytest.mark.parametrize(("steps", "twice"), [(4, 8), (64, 120), (5_008, 10_000), (403_216, 800_000)])
def test_a_new_end_is_a_round_number(steps, twice):
    assert _about_twice(steps) == twice


def test_eval_prints_one_json_object_and_plays_as_many_episodes_as_asked(hotloop, finished, tmp_path):
    before = contents(tmp_path)
    result = hotloop("eval", "run", "--episodes", "7", "--json").json
    assert set(result) >= EVAL_KEYS
    assert result["episodes"] == 7
    assert 1 <= result["return_mean"] <= 50
    assert result["return_mean"] == pytest.approx(result["length_mean"])  # CartPole pays 1 per step
    assert contents(tmp_path) == before

    again = hotloop("eval", "run", "--episodes", "7", "--record", "film.gif", "--json").json
    assert again == {**result, "recording": "film.gif"}
    assert set(contents(tmp_path)) - set(before) == {"film.gif"}
    assert (tmp_path / "film.gif").read_bytes()[:4] == b"GIF8"


def test_list_names_everything_that_is_registered(hotloop):
    sections = hotloop("list", "--json").json
    for name, known in (
        ("envs", registry.ENVS),
        ("torsos", registry.TORSOS),
        ("heads", registry.HEADS),
        ("engines", registry.ENGINES),
        ("pipelines", registry.PIPELINES),
        ("benchmarks", registry.BENCHES),
    ):
        assert set(sections[name]) == set(known)
        assert all(sections[name].values()), f"a thing in {name} has no description"
    assert "cartpole" in sections["presets"]
    for_people = hotloop("list").out
    assert all(name in for_people for section in sections.values() for name in section)


def test_schema_is_json_and_describes_every_field(hotloop):
    schema = json.loads(hotloop("schema").out)
    sections = {"Spec": schema, **schema["$defs"]}
    nameless = [
        f"{title}.{name}"
        for title, section in sections.items()
        for name, field in section.get("properties", {}).items()
        if name != "kind" and not (field.get("description") or _definition(schema, field).get("description"))
    ]
    assert nameless == []
    assert {"env", "replay", "optimizer", "stop"} <= set(schema["properties"])
    assert schema["$defs"]["Replay"]["properties"]["batch_size"]["default"] == 64


def _definition(schema, field):
    return schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})


def test_plan_says_how_much_memory_is_needed_and_writes_nothing(hotloop, tmp_path):
    before = contents(tmp_path)
    plan = hotloop("train", "tiny.yaml", "--plan", "--json").json
    assert plan["total"] == sum(plan["parts"].values())
    # A row is two observations of 4 floats, an action, a reward and a discount.
    assert plan["parts"]["replay of 512 transitions"] == 512 * (2 * 4 + 3) * 4
    assert plan["available"] > plan["total"]
    for_people = hotloop("train", "tiny.yaml", "--plan")
    assert for_people.code == 0
    assert "memory" in for_people.out
    assert contents(tmp_path) == before


def test_a_preset_is_planned_by_its_name(hotloop):
    assert "replay of 100,000 transitions" in hotloop("train", "cartpole", "--plan").out


def test_options_and_set_override_the_file(hotloop, tmp_path):
    ran = hotloop(
        *("train", "tiny.yaml", "--out", "here", "--json"),
        *("--seed", "7", "--steps", "80", "--engine", "jax", "--pipeline", "fused"),
        *("--set", "log={every: 40, checkpoint_every: 50, checkpoints: 5}", "--set", "log.checkpoints=6"),
        *("--set", "stop.return_at_least=1e3", "--set", "description=short"),
    )
    assert ran.json["env_steps"] == 80
    spec = package.load_spec(tmp_path / "here" / "spec.yaml")
    assert (spec.seed, spec.stop.steps, spec.pipeline, spec.engine) == (7, 80, "fused", "jax")
    assert (spec.log.every, spec.log.checkpoint_every, spec.log.checkpoints) == (40, 50, 6)
    assert spec.stop.return_at_least == 1000.0
    assert spec.replay.capacity == 512, "what was not overridden stays"


@pytest.mark.heavy
def test_a_json_file_trains_the_same_as_a_yaml_file(hotloop, tmp_path, finished_once):
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    assert hotloop("train", "tiny.json", "--out", "here").code == 0
    assert manifest(tmp_path / "here")["digests"] == manifest(finished_once)["digests"]


@pytest.mark.heavy
def test_another_seed_gives_another_result(hotloop, tmp_path, finished_once):
    assert hotloop("train", "tiny.yaml", "--seed", "1", "--out", "here").code == 0
    assert manifest(tmp_path / "here")["digests"]["learner"] != manifest(finished_once)["digests"]["learner"]
    assert manifest(tmp_path / "here")["digests"]["actor"] != manifest(finished_once)["digests"]["actor"]


def test_an_env_alone_trains_the_default_spec_as_set(hotloop, tmp_path, finished_once):
    plan = hotloop("train", "--env", "cartpole", "--plan").out
    assert "replay of 100,000 transitions" in plan

    settings = {**TINY, "env.num_envs": TINY["env"]["num_envs"], "env.options": TINY["env"]["options"]}
    sets = [f"{name}={json.dumps(value)}" for name, value in settings.items() if name not in ("name", "env")]
    result = hotloop("train", "--env", "cartpole", "--json", *(part for one in sets for part in ("--set", one))).json
    run = tmp_path / result["run"]
    assert run.parent == tmp_path / "runs"
    assert run.name.startswith("cartpole-")
    spec = package.load_spec(run / "spec.yaml")
    assert spec == package.load_spec(TINY, {"name": "cartpole"})
    assert manifest(run)["digests"] == manifest(finished_once)["digests"]
