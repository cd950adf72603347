"""A run that this user did not make has nothing imported, unless the user says that it is trusted."""

import json
import shutil
import sys
from importlib import import_module

import gymnasium
import numpy as np
import pytest
import yaml
from hotloop_process import contents, finish, start

import hotloop as package
from hotloop.envs.naming import SUPPORTED_MODULES, from_outside
from hotloop.errors import SpecError
from hotloop.runs import signing
from hotloop.runs.folder import RunFolder
from hotloop.spec.reading import load_spec

for _module in SUPPORTED_MODULES:  # they register their envs now, not in a copy of the registry
    import_module(_module)
EVIL = """
import gymnasium, pathlib
pathlib.Path(__file__).with_name("executed").touch()
gymnasium.register("Foo-v0", entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=20)
"""
SMALL = (
    "env={id: 'evil:Foo-v0', num_envs: 2}",
    "network.torso={kind: mlp, hidden: [8]}",
    "replay={capacity: 128, start: 16, batch_size: 8}",
    "evaluation={every: 100, episodes: 2}",
    "log={every: 50, checkpoint_every: 100}",
)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A run of this user's on a module of their own, evaluated and ready to be resumed; not to be changed."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "evil.py").write_text(EVIL)
    settings = [word for setting in SMALL for word in ("--set", setting)]
    ran = finish(start("train", "cartpole", *settings, "--steps", "200", "--out", "run", cwd=folder))
    assert ran.code == 0, ran.err
    assert "signed" not in ran.err
    return folder / "run"


@pytest.fixture
def beside(own_run, tmp_path, monkeypatch):
    """That run beside a module that leaves a mark when it is imported, in a folder on the path."""
    shutil.copytree(own_run, tmp_path / "run")
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    yield tmp_path / "run"
    sys.modules.pop("evil", None)


def _change_facts(run, **facts):
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**known, **facts}))


def _change_spec(run, **sections):
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    for section, fields in sections.items():
        spec[section].update(fields)
    (run / "spec.yaml").write_text(yaml.safe_dump(spec))


@pytest.mark.parametrize("command", [["eval", "run", "--episodes", "1"], ["resume", "run", "--steps", "250"]], ids=str)
def test_a_command_on_an_unsigned_run_imports_nothing_unless_it_is_trusted(beside, command):
    _change_facts(beside, signature=None)
    before = contents(beside)
    refused = finish(start(*command, cwd=beside.parent))
    assert "'evil'" in refused.refusal
    assert "--trust" in refused.refusal
    assert not (beside.parent / "executed").exists()
    assert contents(beside) == before
    trusted = finish(start(*command, "--trust", cwd=beside.parent))
    assert trusted.code == 0, trusted.err
    assert (beside.parent / "executed").exists()
    if command[0] == "resume":
        offered = [line for line in trusted.out.splitlines() if "hotloop eval" in line or "hotloop resume" in line]
        assert len(offered) == 2
        assert all(line.endswith(" --trust") for line in offered)


def test_a_place_that_no_folder_can_have_is_refused_in_a_line(beside):
    _change_facts(beside, made_in="\ud800")
    assert "'evil'" in finish(start("eval", "run", "--episodes", "1", cwd=beside.parent)).refusal


def test_where_a_run_was_made_counts_only_if_the_module_lay_there(own_run, tmp_path, monkeypatch):
    assert RunFolder.open(own_run).made_in == str(own_run.parent)
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.choose(load_spec("cartpole"), tmp_path / "installed")
    folder.create(load_spec({"env": {"id": "gymnasium.envs:CartPole-v1"}}), {})
    assert RunFolder.open(tmp_path / "installed").made_in == ""


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "run", "--episodes", "1"],
        pytest.param(["resume", "run", "--steps", "250"], marks=pytest.mark.heavy),
    ],
    ids=str,
)
def test_a_run_of_ones_own_needs_no_word(beside, command):
    ran = finish(start(*command, cwd=beside.parent))
    assert ran.code == 0, ran.err
    assert (beside.parent / "executed").exists()


def test_ones_own_module_is_looked_for_where_the_run_was_made_and_not_where_it_lies_now(
    own_run, beside, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in (str(tmp_path), "")])
    monkeypatch.chdir(tmp_path)
    mark = own_run.parent / "executed"
    mark.unlink(missing_ok=True)
    package.load(beside)
    assert mark.exists()
    assert not (tmp_path / "executed").exists(), "a module that lies beside a run someone sent back"
    mark.unlink()
    sys.modules.pop("evil")
    package.load(beside, trust=True)  # a word more than needed does no harm
    assert mark.exists()
    _change_facts(beside, made_in=str(tmp_path))
    with pytest.raises(SpecError, match="'evil'"):  # where it was made is part of the signature
        package.load(beside)


def test_options_that_a_stranger_chose_do_not_reach_an_env_of_the_users(beside):
    _change_facts(beside, signature=None)
    _change_spec(beside, env={"id": "CartPole-v1", "options": {"level": "theirs.pkl"}})
    with pytest.raises(SpecError, match=r"options for another env than evil:Foo-v0.*not signed.*trust=True"):
        package.load(beside, **{"env.id": "evil:Foo-v0"})
    assert not (beside.parent / "executed").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "curve.png", "checkpoints/link"])
def test_a_run_is_not_continued_through_links_out_of_its_folder(beside, tmp_path, name):
    (tmp_path / "precious").write_text("mine")
    (beside / name).unlink(missing_ok=True)
    (beside / name).symlink_to(tmp_path / "precious")
    with pytest.raises(SpecError, match="is a link"):
        package.resume(beside, steps=250)
    assert (tmp_path / "precious").read_text() == "mine"


def test_python_refuses_an_unsigned_run_too_and_imports_nothing(beside):
    _change_facts(beside, signature=None)
    for work in (package.load, package.resume):
        with pytest.raises(SpecError, match=r"'evil'.*not signed.*trust=True"):
            work(beside)
    assert "evil" not in sys.modules
    assert not (beside.parent / "executed").exists()
    agent = package.load(beside, trust=True)
    assert (beside.parent / "executed").exists()
    assert agent.predict(np.zeros(4, np.float32)) in (0, 1)


def test_what_the_user_names_for_an_evaluation_is_the_users_own_word(beside):
    _change_facts(beside, signature=None)
    _change_spec(beside, env={"id": "CartPole-v1"})
    package.load(beside)
    assert not (beside.parent / "executed").exists()
    assert package.load(beside, **{"env.id": "evil:Foo-v0"}).spec.env.id == "evil:Foo-v0"
    assert (beside.parent / "executed").exists()


def test_options_of_the_user_do_not_make_the_id_theirs(beside):
    _change_facts(beside, signature=None)
    for overrides in ({"env.num_envs": 1}, {"env.options.x": 1}, {"seed": 3}):
        with pytest.raises(SpecError, match="'evil'"):
            package.load(beside, **overrides)
    assert not (beside.parent / "executed").exists()


FORGERIES = {
    "a module in a signed spec": lambda run: _change_spec(run, env={"num_envs": 3}),
    "another signature": lambda run: _change_facts(run, signature="0" * 64),
    "the signature in capitals": lambda run: _change_facts(run, signature=_signature(run).upper()),
    "a part of the signature": lambda run: _change_facts(run, signature=_signature(run)[:-1]),
    "no text as a signature": lambda run: _change_facts(run, signature=["0" * 64]),
    "letters that are not ASCII": lambda run: _change_facts(run, signature="é\ud800" * 32),
    "an older format": lambda run: _change_facts(run, format=1),
}


def _signature(run):
    return json.loads((run / "run.json").read_text())["signature"]


@pytest.mark.parametrize("what", FORGERIES)
def test_a_signed_run_that_was_changed_is_a_strangers(beside, what):
    assert RunFolder.open(beside).doubt() is None
    FORGERIES[what](beside)
    with pytest.raises(SpecError, match=r"'evil'.*spec.yaml was changed"):
        package.load(beside)
    assert not (beside.parent / "executed").exists()


def test_a_run_signed_by_someone_else_is_a_strangers(beside, tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_KEY_FOLDER", str(tmp_path / "another"))
    with pytest.raises(SpecError, match="cannot be checked"):
        package.load(beside)
    assert not (tmp_path / "another").exists(), "looking at a run makes no key"
    signing.sign(2, "/here", b"")
    with pytest.raises(SpecError, match="not yours"):
        package.load(beside)
    assert not (beside.parent / "executed").exists()


IDS = [
    "evil:Foo-v0",
    "evil.sub:Foo-v0",
    "evil:ALE/Pong-v5",
    "evil:CartPole-v1",
    "os:evil:Foo-v0",
    "evil::Foo-v0",
    ":evil:Foo-v0",
    "ALE/x:evil:Foo-v0",
    "ale_py:evil:Foo-v0",
    "ale_py.evil:Foo-v0",
    "hotloop.envs.mario:evil:Foo-v0",
    "hotloop.envs.mario.evil:Foo-v0",
    "hotloop.envs.evil:Foo-v0",
    "hotloop.evil:Foo-v0",
    "hotlooop.envs.mario:Foo-v0",
    "gymnax:evil:Foo-v0",
    "gymnax:evil",
    "gymnax.evil:Foo-v0",
    "cartpole:evil",
    "own:evil:Foo-v0",
    "evil",
    "./evil:Foo-v0",
    ".evil:Foo-v0",
]


@pytest.mark.parametrize("env_id", IDS)
def test_no_spelling_of_an_id_has_a_module_imported(beside, env_id):
    (beside.parent / "gymnax.py").write_text(EVIL) if "gymnax.evil" in env_id else None
    _change_spec(beside, env={"id": env_id})
    before = set(sys.modules)
    with pytest.raises(SpecError):
        package.load(beside)
    assert not (beside.parent / "executed").exists()
    strange = {name for name in set(sys.modules) - before if "evil" in name or "hotlooop" in name}
    assert strange == set()


@pytest.mark.parametrize("section", ["env", "evaluation"])
@pytest.mark.parametrize("name", ["wrappers", "vector_kwargs", "vectorization_mode", "id", "disable_env_checker"])
def test_options_cannot_reach_arguments_of_gymnasium_itself(beside, section, name):
    _change_spec(beside, env={"id": "CartPole-v1"})
    _change_spec(beside, **{section: {"options": {name: ["evil:Foo"]}}})
    with pytest.raises(SpecError, match=rf"{section}\.options\.{name}"):
        package.load(beside)


def test_options_of_an_env_that_builds_others_cannot_name_a_module(beside):
    options = {"env_id": "evil:Foo-v0"}
    _change_spec(beside, env={"id": "hotloop.envs.gymnasium:hotloop/CartPole-v1", "options": options})
    with pytest.raises(SpecError, match="unknown device env 'evil:Foo-v0'"):
        package.load(beside)
    assert not (beside.parent / "executed").exists()


@pytest.mark.parametrize("where", ["entry_point", "vector_entry_point"])
def test_a_plain_id_cannot_lead_to_an_entry_point_of_another_package(beside, where):
    gymnasium.register("Planted-v0", **{"entry_point": "gymnasium.envs.classic_control.cartpole:CartPoleEnv"})
    setattr(gymnasium.registry["Planted-v0"], where, "evil:Env")
    _change_spec(beside, env={"id": "Planted-v0"})
    with pytest.raises(SpecError, match=r"'Planted-v0' of the module 'evil'"):
        package.load(beside)
    assert not (beside.parent / "executed").exists()


@pytest.mark.parametrize(
    "env_id",
    [
        "cartpole",
        "gymnax:Acrobot-v1",
        "CartPole-v1",
        "LunarLander-v3",
        "ALE/Pong-v5",
        "ale_py:ALE/Pong-v5",
        "hotloop.envs.mario:hotloop/Mario-v0",
        "hotloop.envs.bit_flip:hotloop/BitFlip-v0",
        "hotloop.envs.gymnasium:hotloop/Snake-v1",
    ],
)
def test_envs_of_the_packages_that_are_supported_need_no_word(env_id):
    assert from_outside(load_spec("cartpole", {"env.id": env_id, "env.options": {}})) is None


def test_a_strangers_run_that_names_nothing_outside_is_loaded_without_a_question(finished):
    _change_facts(finished, signature=None)
    assert package.load(finished).predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)


def test_what_a_spec_file_of_the_users_own_names_is_imported(own_run):
    assert (own_run.parent / "executed").exists()


# -- runs of an older format -----------------------------------------------------------------------------


def test_a_run_of_an_older_format_is_evaluated_but_not_resumed(hotloop, finished):
    facts = json.loads((finished / "run.json").read_text())
    del facts["signature"]
    (finished / "run.json").write_text(json.dumps({**facts, "format": 1}))
    assert hotloop("eval", "run", "--episodes", "2", "--json").json["episodes"] == 2
    before = contents(finished)
    refusal = hotloop("resume", "run", "--trust").refusal
    assert "older hotloop (run format 1" in refusal
    assert "hotloop eval run" in refusal
    assert contents(finished) == before


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_never_was_is_refused(finished, number):
    _change_facts(finished, format=number)
    with pytest.raises(SpecError, match=f"format {number}, expected 1 to"):
        package.load(finished)
