"""A run that this user did not make has none of its plug-ins imported, unless the user says that it is trusted."""

import os
import shutil
import sys

import pytest
import yaml
from hotloop_process import contents, finish, start

import hotloop as package
from hotloop import plugins, registry
from hotloop.errors import SpecError
from hotloop.runs.folder import RunFolder
from hotloop.spec.reading import load_spec

EVIL = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"


@pytest.fixture
def beside(finished, tmp_path, monkeypatch):
    """A finished run beside a module that leaves a mark when it is imported, in a folder on the path."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield finished
    sys.modules.pop("evil", None)


def _change_spec(run, **fields):
    spec = yaml.safe_load((run / "spec.yaml").read_text())
    (run / "spec.yaml").write_text(yaml.safe_dump({**spec, **fields}))


def _was_executed(run):
    return (run.parent / "executed").exists() or "evil" in sys.modules


@pytest.mark.parametrize("command", [["eval", "run", "--episodes", "1"], ["resume", "run", "--steps", "1100"]], ids=str)
def test_a_command_imports_no_plug_in_of_a_strangers_run_unless_it_is_trusted(beside, command):
    _change_spec(beside, plugins=["evil"])
    before = contents(beside)
    refused = finish(start(*command, cwd=beside.parent)).refusal
    assert f"names the module 'evil', which would run as code (imported from {beside.parent / 'evil.py'})" in refused
    assert "--trust" in refused
    assert contents(beside) == before
    assert not _was_executed(beside)
    trusted = finish(start(*command, "--trust", cwd=beside.parent))
    assert trusted.code == 0, trusted.err
    assert _was_executed(beside)
    if command[0] == "resume":
        offered = [line for line in trusted.out.splitlines() if "hotloop eval" in line or "hotloop resume" in line]
        assert len(offered) == 2
        assert all(line.endswith(" --trust") for line in offered)


def test_python_refuses_it_too_whatever_else_is_given(beside):
    _change_spec(beside, plugins=["evil"])
    for work in (package.load, package.resume):
        for more in ({}, {"device_env": object()}, {"network": object()}):
            with pytest.raises(SpecError, match=r"'evil'.*spec.yaml was changed.*trust=True"):
                work(beside, **more)
    for overrides in ({"env.id": "cartpole"}, {"seed": 3}, {"network.head.kind": "scalar"}):
        with pytest.raises(SpecError, match="'evil'"):
            package.load(beside, **overrides)
    assert not _was_executed(beside)
    package.load(beside, trust=True)
    assert _was_executed(beside)


def test_a_plug_in_is_refused_before_the_rest_of_the_spec_is_looked_at(beside):
    _change_spec(beside, plugins=["evil"], network={"head": {"kind": "theirs"}}, wombat=1, env={"id": "evil:Foo-v0"})
    with pytest.raises(SpecError, match=r"names the module 'evil', which would run"):
        package.load(beside)
    assert not _was_executed(beside)


def test_a_kind_that_nobody_here_knows_has_nothing_imported(beside):
    _change_spec(beside, network={"head": {"kind": "evil"}, "torso": {"kind": "evil:Torso"}})
    with pytest.raises(SpecError, match=r"network.torso.kind: unknown value 'evil:Torso'.*network.head.kind"):
        package.load(beside)
    assert not _was_executed(beside)


NETWORK = """
import flax.linen
import hotloop
class Net(flax.linen.Module):
    actions: int = 2
    @flax.linen.compact
    def __call__(self, obs_B):
        return flax.linen.Dense(self.actions)(obs_B)
hotloop.register_network("theirs", hotloop.NetworkRecord({"jax": "evil:Net"}, "theirs"))
"""


def test_a_network_of_a_strangers_plug_in_is_made_only_if_the_run_is_trusted(beside, monkeypatch):
    monkeypatch.setattr(registry, "NETWORKS", {})
    (beside.parent / "evil.py").write_text(EVIL + NETWORK)
    _change_spec(beside, plugins=["evil"], network={"kind": "custom", "name": "theirs"})
    with pytest.raises(SpecError, match=r"names the module 'evil', which would run"):
        package.load(beside)
    assert not _was_executed(beside)
    with pytest.raises(SpecError, match="weights do not fit the network"):
        package.load(beside, trust=True)  # of the network that it was trained with
    assert _was_executed(beside)


@pytest.mark.parametrize(
    "name", ["evil", "evil:Net", "evil.Net", "evil:EVIL", "os:system", "", "../evil", "hotloop.evil:Net"]
)
def test_no_name_of_a_network_has_a_module_imported(beside, name):
    for options in ({}, {"name": "evil:Net"}):
        _change_spec(beside, network={"kind": "custom", "name": name, "options": options})
        with pytest.raises(SpecError, match=r"network of your own \(.*\); pass it again"):
            package.load(beside)
    assert not _was_executed(beside)


SPELLINGS = [
    "evil",
    ["evil", 1],
    [["evil"]],
    {"evil": 1},
    [{"evil": 1}],
    ["evil:x"],
    ["./evil"],
    [".evil"],
    ["evil."],
    ["evil.sub"],
    ["evil\n"],
    [" evil"],
    ["hotloop.evil"],
    ["hotloop.envs.mario", "evil"],
    ["os"],
    None,
    True,
]


@pytest.mark.parametrize("named", SPELLINGS, ids=str)
def test_no_spelling_has_a_module_imported(beside, named):
    _change_spec(beside, plugins=named)
    with pytest.raises(SpecError, match=r"plugins: got|names the module"):
        package.load(beside)
    assert not _was_executed(beside)


def test_plug_ins_that_the_user_names_are_the_users_own_word_and_those_of_the_run_are_not_imported(beside):
    (beside.parent / "good.py").write_text("")
    _change_spec(beside, plugins=["evil"])
    assert package.load(beside, plugins=["good"]).spec.plugins == ("good",)
    assert "good" in sys.modules
    assert not _was_executed(beside)
    sys.modules.pop("good")


def test_a_run_of_ones_own_has_its_plug_ins_imported_again_from_where_it_was_made(beside, tmp_path, monkeypatch):
    made = tmp_path / "made"
    made.mkdir()
    shutil.move(tmp_path / "evil.py", made / "evil.py")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in (str(tmp_path), "")])
    monkeypatch.chdir(made)
    load_spec({"plugins": ["evil"]}, imports_plugins=True)
    (made / "executed").unlink()
    spec = load_spec(RunFolder.open(beside).read_spec(), {"plugins": ["evil"]})
    RunFolder(beside).create(spec, {})  # anew, and so signed
    assert RunFolder.open(beside).made_in == str(made)
    sys.modules.pop("evil")
    sys.path.remove(str(made))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemError('a module that lies beside a run someone sent back')")
    package.load(beside)
    assert (made / "executed").exists()


def test_reading_a_file_imports_nothing(beside):
    (beside.parent / "theirs.yaml").write_text("plugins: [evil]\n")
    assert package.load_spec(beside.parent / "theirs.yaml").plugins == ("evil",)
    assert not _was_executed(beside)


# -- installed packages --------------------------------------------------------------------------------


def _with_entry_point(folder, module):
    (folder / f"{module}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{module}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (folder / f"{module}-1.0.dist-info" / "entry_points.txt").write_text(f"[hotloop.plugins]\nx = {module}\n")


def test_the_current_folder_is_not_where_packages_are_installed(beside):
    _with_entry_point(beside.parent, "evil")
    _change_spec(beside, network={"head": {"kind": "evil"}})
    for env in ({}, {"PYTHONSAFEPATH": "1"}, {"PYTHONPATH": f"{beside.parent}:{os.environ.get('PYTHONPATH', '')}"}):
        line = finish(start("eval", "run", "--episodes", "1", cwd=beside.parent, env=env)).refusal
        assert "network.head.kind: unknown value 'evil'" in line
    assert not _was_executed(beside)
    plugins.load_installed.cache_clear()
    with pytest.raises(SpecError, match="unknown value 'evil'"):
        package.load(beside)
    assert not _was_executed(beside)


def test_a_plug_in_of_an_installed_package_may_be_named_by_any_run(beside, tmp_path):
    site = tmp_path / "site"
    _with_entry_point(site, "installed_kinds")
    (site / "installed_kinds.py").write_text(EVIL)
    _change_spec(beside, plugins=["installed_kinds"])
    path = {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    assert finish(start("eval", "run", "--episodes", "1", cwd=tmp_path, env=path)).code == 0
    assert (site / "executed").exists()
    assert "'installed_kinds'" in finish(start("eval", "run", "--episodes", "1", cwd=tmp_path)).refusal
