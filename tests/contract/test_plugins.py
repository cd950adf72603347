"""Heads, torsos, networks and device envs from outside of the package: the examples', by each of the ways to register
them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import jax
import numpy as np
import pytest
import yaml
from hotloop_process import checkpoints, finish, start

import hotloop
from hotloop import plugins, registry
from hotloop.assembly import Own, Player, _with_own_network
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.modules import Functions
from hotloop.engines.jax.setup import dense_products
from hotloop.engines.policies import _is_plain
from hotloop.errors import SpecError
from hotloop.spec import Mlp, Network, ScalarHead
from hotloop.spec.reading import json_schema, load_spec, parse_spec, to_yaml

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = ("own_kinds.py", "own_kinds_jax.py", "own_env.py")
NETWORK_MODULES = ("own_network_in_a_spec.py", "own_network.py", "own_torch_network.py")
NETWORK = {"torso": {"kind": "fourier", "waves": 8}, "head": {"kind": "two_hot", "bins": 7, "dueling": True}}
SMALL: dict[str, Any] = {
    "name": "mine",
    "plugins": ["own_kinds"],
    "env": {"id": "corridor", "num_envs": 4, "options": {"length": 6}},
    "network": NETWORK,
    "replay": {"capacity": 512, "start": 64, "batch_size": 16},
    "evaluation": {"every": 400, "episodes": 4, "max_steps": 50},
    "stop": {"steps": 600},
    "log": {"every": 200, "checkpoint_every": 400},
}
WIDE: dict[str, Any] = {
    **{name: SMALL[name] for name in ("replay", "evaluation", "stop", "log")},
    "name": "wide",
    "plugins": ["own_network_in_a_spec"],
    "env": {"id": "CartPole-v1", "num_envs": 4},
    "network": {"kind": "custom", "name": "wide", "options": {"hidden": 6}},
}


@pytest.fixture
def here(tmp_path):
    """A folder of the user's with the modules of the examples and two small specs that name them."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in MODULES + NETWORK_MODULES:
        shutil.copy(EXAMPLES / name, folder)
    (folder / "mine.yaml").write_text(yaml.safe_dump(SMALL))
    (folder / "wide.yaml").write_text(yaml.safe_dump(WIDE))
    return folder


def _hotloop(folder, *args, **env):
    """A command as the console script runs it: the current folder is not on the path."""
    return finish(start(*args, cwd=folder, env={"PYTHONSAFEPATH": "1", **env}))


def _install(folder, module, text=None):
    """Put a module where packages are installed, with an entry point that names it; returns the path to look in."""
    folder.mkdir()
    for name in MODULES if text is None else ():
        shutil.copy(EXAMPLES / name, folder)
    if text is not None:
        (folder / f"{module}.py").write_text(text)
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[hotloop.plugins]\nany = {module}\n")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def registered(monkeypatch):
    """The example's kinds, known to this process until the test ends."""
    for table in ("HEADS", "TORSOS", "ENVS", "NETWORKS"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    monkeypatch.syspath_prepend(EXAMPLES)
    plugins.import_named(["own_kinds", "own_network_in_a_spec"])
    yield
    for name in MODULES + NETWORK_MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


# -- commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("example", "steps"),
    [("own_head_and_torso.py", 10_000), pytest.param("own_network_in_a_spec.py", 5_000, marks=pytest.mark.heavy)],
)
def test_the_example_trains_and_is_evaluated(tmp_path, example, steps):
    command = [sys.executable, str(EXAMPLES / example)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert f"env_steps={steps}" in ran.stdout.splitlines()[0]
    assert "'episodes': 20" in ran.stdout.splitlines()[1]


@pytest.mark.heavy
def test_a_file_that_names_a_module_of_the_folder_is_trained_evaluated_and_resumed_by_its_maker(here, tmp_path):
    assert _hotloop(here, "train", "mine.yaml", "--out", "run", "--json").json["env_steps"] == 600
    spec = yaml.safe_load((here / "run" / "spec.yaml").read_text())
    assert spec["plugins"] == ["own_kinds"]
    assert spec["network"]["head"] == {"kind": "two_hot", "dueling": True, "hidden": [], "trunk": [], "noise": None} | {
        "bins": 7,
        "low": -10.0,
        "high": 10.0,
    }
    assert spec["network"]["torso"] == NETWORK["torso"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (here, elsewhere):  # where it was made is part of what is signed
        assert _hotloop(folder, "eval", here / "run", "--episodes", "3", "--json").json["episodes"] == 3
    assert _hotloop(elsewhere, "resume", here / "run", "--steps", "900", "--json").json["env_steps"] >= 900
    assert checkpoints(here / "run")[-1] >= 900


@pytest.mark.parametrize("engine", ["torch", pytest.param("jax", marks=pytest.mark.heavy)])
@pytest.mark.heavy
def test_a_network_that_a_file_names_is_trained_evaluated_and_resumed_by_its_maker(here, tmp_path, engine):
    assert _hotloop(here, "train", "wide.yaml", "--engine", engine, "--out", "run", "--json").json["env_steps"] == 600
    spec = yaml.safe_load((here / "run" / "spec.yaml").read_text())
    assert (spec["engine"], spec["plugins"], spec["network"]) == (engine, WIDE["plugins"], WIDE["network"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    played = _hotloop(elsewhere, "eval", here / "run", "--which", "last", "--episodes", "3", "--json")
    assert played.json["episodes"] == 3
    assert _hotloop(elsewhere, "resume", here / "run", "--steps", "900", "--json").json["env_steps"] >= 900
    assert checkpoints(here / "run")[-1] >= 900


def test_a_plug_in_is_named_on_the_command_line_too(here):
    args = ("train", "cartpole", "--set", "plugins=[own_kinds]", "--set", "network.torso={kind: fourier}", "--plan")
    assert _hotloop(here, *args, "--json").json["total"] > 0
    args = (
        "train",
        "cartpole",
        "--set",
        "plugins=[own_network_in_a_spec]",
        "--set",
        "network={kind: custom, name: wide}",
    )
    assert _hotloop(here, *args, "--plan", "--json").json["total"] > 0


def test_list_and_schema_show_what_a_plug_in_brings(here):
    listed = _hotloop(here, "list", "--plugin", "own_kinds", "--plugin", "own_network_in_a_spec", "--json").json
    assert list(listed["networks"]) == ["wide"]
    assert "two_hot" in listed["heads"]
    assert "fourier" in listed["torsos"]
    assert "corridor" in listed["envs"]
    assert '"TwoHotHead"' in _hotloop(here, "schema", "--plugin", "own_kinds").out
    assert "two_hot" not in _hotloop(here, "list").out


def test_an_installed_plug_in_needs_no_name(here, tmp_path):
    path = _install(tmp_path / "site", "own_kinds")
    (tmp_path / "there").mkdir()
    unnamed = {name: value for name, value in SMALL.items() if name != "plugins"}
    (tmp_path / "there" / "mine.yaml").write_text(yaml.safe_dump(unnamed))
    assert "two_hot" in _hotloop(tmp_path / "there", "list", "--json", PYTHONPATH=path).json["heads"]
    ran = _hotloop(tmp_path / "there", "train", "mine.yaml", "--out", "run", "--json", PYTHONPATH=path)
    assert ran.json["env_steps"] == 600


def test_a_network_of_an_installed_plug_in_needs_no_name(tmp_path):
    text = (
        "import hotloop\nfrom torch.nn import Linear\n"
        "hotloop.register_network('line', hotloop.NetworkRecord({'torch': 'brings_a_line:Linear'}, 'a line'))\n"
    )
    path = _install(tmp_path / "site", "brings_a_line", text)
    network = {"kind": "custom", "name": "line", "options": {"in_features": 4, "out_features": 2}}
    (tmp_path / "line.yaml").write_text(yaml.safe_dump({**WIDE, "plugins": [], "network": network}))
    planned = _hotloop(tmp_path, "train", "line.yaml", "--engine", "torch", "--plan", "--json", PYTHONPATH=path)
    assert planned.json["total"] > 0


def test_an_installed_plug_in_that_is_broken_is_said_to_be_and_hinders_nobody(tmp_path):
    path = _install(tmp_path / "site", "broken", "raise RuntimeError('at odds with itself')")
    listed = _hotloop(tmp_path, "list", "--json", PYTHONPATH=path)
    assert "scalar" in listed.json["heads"]
    assert "the plug-in broken cannot be imported: RuntimeError: at odds with itself" in listed.err
    assert "plug-in" not in _hotloop(tmp_path, "train", "cartpole", "--plan", PYTHONPATH=path).err, "not asked for"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["network.head.kind=two_hott"], ["network.head.kind", "'two_hott'", "did you mean 'two_hot'?"]),
        (["network.head.bin=3"], ["network.head.bin: unknown key; did you mean 'bins'?"]),
        (["network.head.bins=1"], ["network.head.bins: got 1", "greater than or equal to 2"]),
        (["network.torso.wave=3"], ["network.torso.wave: unknown key; did you mean 'waves'?"]),
        (["target.munchausen={}"], ["target.munchausen with head two_hot: a mean of logits"]),
        (["network.core={}", "replay.sequence={}"], ["network.core learns with head scalar"]),
        (["plugins=[]"], ["network.torso.kind", "'fourier'", "mlp, cnn, impala"]),
        (["plugins=[own_kindz]"], ["plugins: there is no module own_kindz"]),
        (
            ["plugins=[wants_more]"],
            ["plugins: the module wants_more imports no_such_package, which is neither installed"],
        ),
        (["plugins=own_kinds"], ["plugins: got 'own_kinds', expected a list"]),
        (["plugins=[broken]"], ["plugins: broken: ValueError: head 'c51' is registered already"]),
        (["env.id=corridr"], ["unknown env 'corridr'", "'corridor'"]),
        (["env.options.size=3"], ["env.options", "size"]),
    ],
)
def test_complaints_about_kinds_from_outside_are_as_good_as_about_our_own(here, settings, expected):
    (here / "broken.py").write_text(
        "import hotloop\nhotloop.register_head('c51', hotloop.HeadRecord('', {}, '', ''))\n"
    )
    (here / "wants_more.py").write_text("import no_such_package\n")
    words = [word for setting in settings for word in ("--set", setting)]
    line = _hotloop(here, "train", "mine.yaml", *words).refusal
    assert [part for part in expected if part not in line] == [], line


# -- from Python --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_kinds_from_outside_are_written_and_read_again():
    spec = load_spec(SMALL)
    assert parse_spec(yaml.safe_load(to_yaml(spec))) == spec
    assert {"TwoHotHead", "FourierTorso"} <= set(json_schema()["$defs"])
    head: Any = spec.network.head
    assert (head.bins, head.beyond_q_values) == (7, ["two_hot's distribution", "dueling"])


@pytest.mark.usefixtures("registered")
@pytest.mark.less_optimised
@pytest.mark.parametrize("head", [{}, {"noise": 0.5}, {"hidden": [5], "dueling": True}], ids=str)
def test_a_head_and_a_torso_from_outside_act_and_learn(head):
    spec = load_spec(SMALL, {"network.head": {"kind": "two_hot", "bins": 5, **head}})
    engine = JaxEngine(spec, jax.ShapeDtypeStruct((3,), np.float32), 4)
    assert engine.is_random == ("noise" in head)
    obs_B = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    q_BA = np.asarray(engine.q_values(engine.init(jax.random.key(0)).params, obs_B))
    assert q_BA.shape == (6, 4)
    assert np.ptp(q_BA) > 0
    assert np.abs(q_BA).max() < 10


@pytest.mark.usefixtures("registered")
def test_the_example_estimate_is_what_its_words_say():
    from own_kinds import TwoHot, TwoHotHead

    maths = TwoHot(TwoHotHead(kind="two_hot", bins=3, low=0.0, high=2.0), None, xp=np, constant=lambda x: x)
    sure_of_1 = np.array([[-50.0, 50.0, -50.0]])
    np.testing.assert_allclose(maths.q(sure_of_1), [1.0])
    target_BN = maths.target(np.array([0.25]), np.array([0.5]), sure_of_1)
    np.testing.assert_allclose(target_BN, [[0.25, 0.75, 0.0]])  # 0.25 + 0.5 x 1, between 0 and 1
    loss_B, td_B = maths.loss(np.zeros((1, 3)), None, target_BN)
    np.testing.assert_allclose(loss_B, np.log(3))
    np.testing.assert_allclose(td_B, 0.75 - 1.0)


@pytest.mark.usefixtures("registered")
def test_a_network_of_ones_own_says_what_of_a_head_from_outside_it_leaves_out():
    _, [said] = _with_own_network(load_spec(SMALL), Own(network=object()))
    assert "left out of this spec's head: two_hot's distribution, dueling" in said


class Derived(ScalarHead):
    """A head whose layers are not those of the class it is derived from."""

    kind: Literal["derived"] = "derived"  # type: ignore[assignment]


class Retina(Mlp):
    """An image torso with fields of a dense one."""

    kind: Literal["retina"] = "retina"  # type: ignore[assignment]


@pytest.mark.usefixtures("registered")
def test_traits_are_those_of_the_record_and_not_of_a_class_it_is_derived_from():
    at, jax_builder = f"{__name__}:", {"jax": "hotloop.engines.jax.heads:scalar"}
    hotloop.register_head("derived", hotloop.HeadRecord(f"{at}Derived", jax_builder, "", "another head"))
    hotloop.register_torso("retina", hotloop.TorsoRecord(f"{at}Retina", {}, "another torso", is_image=True))
    spec = parse_spec({"network": {"torso": {"kind": "retina"}, "head": {"kind": "derived"}}})
    assert spec.sees_images
    assert not _is_plain(Network(head=Derived()))
    assert _is_plain(Network())
    assert dense_products(parse_spec({"network": {"torso": NETWORK["torso"]}})) == []
    with pytest.raises(ValueError, match="Retina is not built for engine jax"):
        JaxEngine(spec, jax.ShapeDtypeStruct((3,), np.float32), 4)


class Parts(gym.Env):
    """Sees a dict."""

    observation_space = gym.spaces.Dict(place=gym.spaces.Box(-1, 1, (2,)), fuel=gym.spaces.Discrete(3))
    action_space = gym.spaces.Discrete(2)


@pytest.mark.usefixtures("registered")
def test_a_torso_from_outside_that_cannot_take_the_observation_is_said_in_a_line_with_what_it_saw():
    with pytest.raises(SpecError) as caught:
        Player(load_spec({"network": {"torso": NETWORK["torso"]}}), Own(env=Parts))
    assert str(caught.value) == (
        "network: torso 'fourier' of own_kinds_jax:fourier failed on an observation of shape {fuel: uint8(3,), place: "
        "float32(2,)}: AttributeError: 'dict' object has no attribute 'reshape'; have it take such an observation, "
        "choose a part (env.observe, of a Gymnasium env), or use torso mlp, which takes any"
    )
    assert isinstance(caught.value.__cause__, AttributeError), "for whoever wrote it"


def fails(*args):
    raise KeyError("no such thing\nat all")


def gives_nothing(*args):
    return None


def gives_functions_that_fail(*args):
    return Functions(lambda random, inputs: {}, fails)


def gives_functions_of_nothing(*args):
    return Functions(lambda random, inputs: {}, gives_nothing)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize(
    ("builder", "said", "cause"),
    [
        ("fails", "cannot be built by {}: KeyError: 'no such thing", KeyError),
        ("gives_nothing", ": {} returned NoneType, expected Functions", type(None)),
        ("missing", "cannot be built by {}: AttributeError: module", AttributeError),
        ("gives_functions_that_fail", "of {} failed on features of shape float32(64,): KeyError: 'no such", KeyError),
        ("gives_functions_of_nothing", "of {} gives NoneType, expected HeadOutput(values, tau)", type(None)),
    ],
)
def test_a_builder_from_outside_that_fails_is_named_with_what_it_raised(engine, builder, said, cause):
    target = f"{__name__}:{builder}"
    record = hotloop.HeadRecord(f"{__name__}:Derived", {engine: target}, registry.HEADS["scalar"].estimates, "a head")
    hotloop.register_head("derived", record)
    with pytest.raises(SpecError, match=re.escape(said.format(target))) as caught:
        Player(parse_spec({"network": {"head": {"kind": "derived"}}, "engine": engine}))
    assert str(caught.value).startswith("network: head 'derived'")
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("target", ["fails", "missing"])
def test_estimates_from_outside_that_cannot_be_made_are_named(engine, target):
    record = registry.HEADS["scalar"]._replace(section=f"{__name__}:Derived", estimates=f"{__name__}:{target}")
    hotloop.register_head("derived", record)
    with pytest.raises(SpecError, match=f"head 'derived': its estimates cannot be made by {__name__}:{target}: "):
        Player(parse_spec({"network": {"head": {"kind": "derived"}}, "engine": engine}))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:Env", "'theirs' is said to be nowhere:Env, which cannot be imported: No module named 'nowhere'"),
        (f"{__name__}:Missing", "which cannot be imported: module"),
        (f"{__name__}:fails", "making 'theirs' raised KeyError: 'no such thing"),
    ],
)
def test_an_env_from_outside_that_cannot_be_made_is_refused_in_a_line(target, said):
    hotloop.register_env("theirs", hotloop.Entry(target, "theirs"))
    for engine in ("jax", "torch"):
        with pytest.raises(SpecError, match=re.escape(said)):
            Player(parse_spec({"env": {"id": "theirs"}, "engine": engine}))


@pytest.mark.usefixtures("registered")
def test_a_name_is_registered_once():
    record = registry.HEADS["two_hot"]
    hotloop.register_head("two_hot", record)  # the same again
    with pytest.raises(ValueError, match="head 'two_hot' is registered already"):
        hotloop.register_head("two_hot", record._replace(about="another"))
    for register, name in ((hotloop.register_head, "a:NAME"), (hotloop.register_env, "Maze-v0")):
        with pytest.raises(ValueError, match="expected a name of letters, digits and underscores"):
            register(name, record)


def test_a_family_of_envs_of_an_installed_plug_in_is_known_when_first_asked_for(tmp_path):
    text = "import hotloop\nhotloop.register_env('family:NAME', hotloop.Entry('nowhere:make', 'a family'))\n"
    env = {**os.environ, "PYTHONPATH": _install(tmp_path / "site", "brings_a_family", text)}
    code = (
        "from hotloop import registry; print(*map(registry.is_device_env, ['family:One', 'families:One', 'cartpole']))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == ["True", "False", "True"], ran.stderr


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("nowhere:Head", "cannot be imported: No module named 'nowhere'"),
        ("own_kinds:Missing", "cannot be imported: module 'own_kinds' has no attribute 'Missing'"),
        ("own_kinds:TwoHot", "which is no hotloop.spec.Head"),
        ("own_kinds:FourierTorso", "which is no hotloop.spec.Head"),
    ],
)
def test_a_record_that_names_no_section_is_refused_in_a_line(section, said):
    hotloop.register_head("strange", hotloop.HeadRecord(section, {}, "", "strange"))
    with pytest.raises(SpecError, match=r"^network\.head: head 'strange' is said to be") as caught:
        parse_spec({"network": {"head": {"kind": "strange"}}})
    assert said in str(caught.value)


def test_registering_imports_nothing_heavy():
    code = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import own_kinds; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "own_kinds" in ran.stdout.split()
    assert {"jax", "torch", "gymnasium"} & set(ran.stdout.split()) == set()


# -- whole networks -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
@pytest.mark.less_optimised
@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_a_network_from_outside_is_the_one_that_its_options_make(engine):
    player = Player(load_spec(WIDE, {"engine": engine}))
    first, again, other = (player.engine.to_named(player.engine.weights(player.engine.init(s))) for s in (0, 0, 1))
    assert {6} <= {size for array in first.values() for size in array.shape}, "hidden"
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
    assert any((array != other[name]).any() for name, array in first.items()), "a seed of its own makes it"


@pytest.mark.usefixtures("registered")
def test_a_run_with_a_network_from_outside_is_loaded_without_it(tmp_path):
    from own_torch_network import Wide

    run = hotloop.train(WIDE, engine="torch", out=tmp_path / "run")
    agent, passed = hotloop.load(run.path, which="last"), hotloop.load(run.path, which="last", network=Wide(hidden=6))
    obs_B = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_array_equal(agent.q_values(obs_B), passed.q_values(obs_B))
    with pytest.raises(SpecError, match="weights do not fit the network"):
        hotloop.load(run.path, which="last", **{"network.options": {"hidden": 7}})


@pytest.mark.usefixtures("registered")
def test_a_network_passed_from_python_is_not_taken_for_one_that_is_registered_under_its_name():
    from own_torch_network import Wide

    hotloop.register_network("Wide", hotloop.NetworkRecord({"torch": "nowhere:Wide"}, "another one"))
    named, _ = _with_own_network(load_spec(WIDE), Own(network=Wide))
    assert named.network.name == "own_torch_network.Wide"
    with pytest.raises(SpecError, match=r"a network of your own \(own_torch_network.Wide\); pass it again"):
        Player(named)


@pytest.mark.usefixtures("registered")
def test_a_network_from_outside_says_whether_it_sees_images():
    hotloop.register_network("retina", hotloop.NetworkRecord({}, "sees images", is_image=True))
    assert load_spec({"network": {"kind": "custom", "name": "retina"}}).sees_images
    assert not load_spec({"network": {"kind": "custom", "name": "wide"}}).sees_images
    assert not load_spec({"network": {"kind": "custom", "name": "of no one"}}).sees_images
