"""Networks that are wrong are refused in a line, whatever is wrong with them, before anything is written."""

import re
import sys
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hotloop_process import finish, start

import hotloop as package
from hotloop import registry
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised

TINY: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "num_envs": 2},
    "replay": {"capacity": 64, "start": 8, "batch_size": 4},
    "evaluation": {"every": 0},
    "stop": {"steps": 16},
}


class Flax(flax.linen.Module):
    """Sound, unless it is told otherwise."""

    actions: int = 2
    scale: float = 1.0
    gives: str = "array"

    @flax.linen.compact
    def __call__(self, obs_B: jax.Array) -> Any:
        q_BA = flax.linen.Dense(self.actions)(obs_B) / self.scale
        forms = {"array": q_BA, "tuple": (q_BA, q_BA), "one row": q_BA[:1], "nothing": None}
        if self.gives not in forms:
            raise RuntimeError("no such form\nat all")
        return forms[self.gives]


class Weightless(flax.linen.Module):
    def __call__(self, obs_B: jax.Array) -> jax.Array:
        return jnp.zeros((obs_B.shape[0], 2))


class Torch(torch.nn.Module):
    """The same for the other engine."""

    def __init__(self, actions: int = 2, scale: float = 1.0, gives: str = "array") -> None:
        super().__init__()
        self.layer, self.scale, self.gives = torch.nn.Linear(4, actions), scale, gives

    def forward(self, obs_B: torch.Tensor) -> Any:
        q_BA = self.layer(obs_B) / self.scale
        forms = {"array": q_BA, "tuple": (q_BA, q_BA), "one row": q_BA[:1], "nothing": None}
        if self.gives not in forms:
            raise RuntimeError("no such form\nat all")
        return forms[self.gives]


def makes(what: str) -> Any:
    return {"torch": Torch, "jax": Flax}[what]()


def gives_a_class(**options: Any) -> Any:
    return Flax


def refuses_options(hidden: int, **more: Any) -> Any:
    raise ValueError(f"hidden is {hidden}\nand more")


NUMBER = 3
WRONG_OUTPUTS = {
    "another number of actions": ({"actions": 3}, r"returns shape \(1, 3\) for 1 observation\(s\), expected \(1, 2\)"),
    "fewer rows": ({"gives": "one row"}, r"returns shape \(1, 2\) for 2 observation\(s\), expected \(2, 2\)"),
    "NaN": ({"scale": 0.0}, r"returns \[\[.*(nan|inf).*\]\] for .*zeros; expected finite Q-values"),
    "a tuple": ({"gives": "tuple"}, r"returns a tuple, expected an? (array|tensor): one Q-value per action"),
    "nothing": ({"gives": "nothing"}, r"returns a NoneType, expected an? (array|tensor)"),
    "an error": ({"gives": "smoke"}, r"raised RuntimeError.*no such form[^\n]*$"),
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder in which `nets` registers what this module defines, for a process of its own or for this one."""
    lines = ["import hotloop"]
    for name, builders in RECORDS.items():
        lines.append(f"hotloop.register_network({name!r}, hotloop.NetworkRecord({builders!r}, 'one'))")
    (tmp_path / "nets.py").write_text("\n".join(lines))
    (tmp_path / "broken_net.py").write_text("raise KeyError('at odds with itself')")
    (tmp_path / "quits.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "incomplete.py").write_text("import no_such_package")
    monkeypatch.setattr(registry, "NETWORKS", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for module in ("nets", "broken_net", "quits", "incomplete"):
        sys.modules.pop(module, None)


HERE = __name__
RECORDS = {
    "net": {"torch": f"{HERE}:Torch", "jax": f"{HERE}:Flax"},
    "torch_only": {"torch": f"{HERE}:Torch"},
    "nobody": {},
    "crossed": {"torch": f"{HERE}:Flax", "jax": f"{HERE}:Torch"},
    "class_of": {"torch": f"{HERE}:gives_a_class", "jax": f"{HERE}:gives_a_class"},
    "refusing": {"torch": f"{HERE}:refuses_options", "jax": f"{HERE}:refuses_options"},
    "number": {"torch": f"{HERE}:NUMBER", "jax": f"{HERE}:NUMBER"},
    "missing": {"torch": f"{HERE}:Missing", "jax": f"{HERE}:Missing"},
    "nowhere": {"torch": "no_such_module:Net", "jax": "no_such_module:Net"},
    "incomplete": {"torch": "incomplete:Net", "jax": "incomplete:Net"},
    "broken": {"torch": "broken_net:Net", "jax": "broken_net:Net"},
}
WRONG_RECORDS = {
    "a misspelt option": (
        "net",
        {"action": 3},
        f"'net' of {HERE}:{{}} takes no option 'action'; did you mean 'actions'?",
    ),
    "an option of nobody's": ("net", {"wombat": 3}, "takes no option 'wombat'; known: actions, gives, scale"),
    "an option that is lacking": ("refusing", {}, f"'refusing' of {HERE}:refuses_options needs the option(s) hidden"),
    "options that it refuses": (
        "refusing",
        {"hidden": 1, "depth": 2},
        "raised ValueError: hidden is 1 with options {'hidden': 1, 'depth': 2}",
    ),
    "the other engine's": ("crossed", {}, f"'crossed' of {HERE}:{{other}} made a {{other}}, expected"),
    "a class": ("class_of", {}, f"'class_of' of {HERE}:gives_a_class made the class Flax, expected"),
    "no function": ("number", {}, f"'number' of {HERE}:NUMBER is a int, expected a class or a function"),
    "no such attribute": ("missing", {}, "cannot be imported: AttributeError: module"),
    "no such module": ("nowhere", {}, "'nowhere' of no_such_module:Net: there is no module no_such_module"),
    "a module that lacks another": (
        "incomplete",
        {},
        "the module incomplete imports no_such_package, which is neither",
    ),
    "a module that raises": ("broken", {}, "'broken' of broken_net:Net cannot be imported: KeyError: 'at odds with"),
    "no builder": ("nobody", {}, "network 'nobody' is not made for engine {engine}, but for none"),
    "no such name": ("nett", {}, "network of your own (nett); pass it again from Python"),
}


def _refused(spec: Any, folder: Any, **more: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        package.train(spec, out=folder / "run", **more)
    assert "\n" not in str(caught.value)
    assert not (folder / "run").exists()
    return caught.value


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("wrong", WRONG_OUTPUTS)
def test_a_network_that_gives_something_else_is_refused(tmp_path, engine, wrong):
    options, said = WRONG_OUTPUTS[wrong]
    network = (Torch if engine == "torch" else Flax)(**options)
    assert re.search(said, str(_refused(TINY, tmp_path, engine=engine, network=network)))


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("wrong", WRONG_RECORDS)
def test_a_registered_network_that_cannot_be_made_is_refused(here, engine, wrong):
    name, options, said = WRONG_RECORDS[wrong]
    mine, other = ("Torch", "Flax") if engine == "torch" else ("Flax", "Torch")
    said = said if "{'" in said else said.format(mine, other=other, engine=engine)
    network = {"kind": "custom", "name": name, "options": options}
    error = _refused({**TINY, "plugins": ["nets"], "network": network}, here, engine=engine)
    assert said in str(error)
    assert str(error).startswith("network"), "where in the spec it is"


@pytest.mark.usefixtures("here")
def test_a_record_for_one_engine_says_for_which(here):
    spec = {**TINY, "plugins": ["nets"], "network": {"kind": "custom", "name": "torch_only"}}
    assert "is not made for engine jax, but for torch; use that" in str(_refused(spec, here))
    misspelt = {**spec, "network": {"kind": "custom", "name": "torch_onli"}}
    assert str(_refused(misspelt, here)).endswith("plugins: [module]; did you mean 'torch_only'?")


@pytest.mark.parametrize(
    ("engine", "network", "said"),
    [
        ("jax", Flax, "the network is the class Flax, expected an instance of it: Flax(…)"),
        ("jax", Torch(), "the network is a Torch, expected init(key, obs_B) and apply(params, obs_B)"),
        ("jax", Torch, "the network is the class Torch, expected init(key, obs_B) and apply(params, obs_B)"),
        ("jax", object(), "the network is a object, expected init(key, obs_B)"),
        ("jax", Weightless(), "the network has no weights; there is nothing to learn"),
        ("jax", flax.linen.Dense(2, param_dtype=jnp.float16), "is float16, expected float32"),
        ("torch", Flax(), "the network is a Flax, expected a torch.nn.Module"),
        ("torch", Flax, "the network is the class Flax, expected a torch.nn.Module"),
        ("torch", torch.nn.Identity(), "Identity has no weights; there is nothing to learn"),
    ],
)
def test_a_network_of_another_kind_is_refused(tmp_path, engine, network, said):
    assert said in str(_refused(TINY, tmp_path, engine=engine, network=network))


def test_sound_networks_are_trained_all_the_same(here):
    for engine in ("torch", "jax"):
        spec = {**TINY, "engine": engine, "plugins": ["nets"], "network": {"kind": "custom", "name": "net"}}
        run = package.train(spec, out=None)
        assert run.env_steps == 16
        agent = package.load(run, which="last")
        assert agent.q_values(np.zeros((3, 4), np.float32)).shape == (3, 2)


# -- commands ---------------------------------------------------------------------------------------------

COMMANDS = {
    "an option": (["network={kind: custom, name: net, options: {action: 3}}"], "takes no option 'action'"),
    "an output": (["network={kind: custom, name: net, options: {actions: 3}}"], "returns shape (1, 3)"),
    "NaN": (["network={kind: custom, name: net, options: {scale: 0.0}}"], "expected finite Q-values"),
    "no builder": (["network={kind: custom, name: nobody}"], "is not made for engine"),
    "no name": (["network={kind: custom}"], "network.name: missing"),
    "options that are none": (["network={kind: custom, name: net, options: 3}"], "network.options: got 3, expected"),
    "no plug-in": (["plugins=[netz]"], "plugins: there is no module netz"),
    "a plug-in that raises": (["plugins=[broken_net]"], "plugins: broken_net: KeyError: 'at odds with itself'"),
    "a plug-in that quits": (["plugins=[quits]"], "plugins: quits: SystemExit: 0"),
}


@pytest.mark.parametrize("engine", ["torch", "jax"])
@pytest.mark.parametrize("wrong", COMMANDS)
def test_a_command_says_so_in_one_line_and_exits_with_two(here, monkeypatch, capfd, engine, wrong):
    from hotloop.cli import main

    settings, said = COMMANDS[wrong]
    words = [word for setting in ("plugins=[nets]", *settings) for word in ("--set", setting)]
    arguments = ["hotloop", "train", "--env", "CartPole-v1", "--engine", engine, "--out", "run", *words]
    monkeypatch.setattr(sys, "argv", arguments)
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capfd.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert lines[-1].startswith("hotloop: ")
    assert said in lines[-1]
    assert "Traceback" not in "".join(lines)
    assert not (here / "run").exists()


def test_a_command_without_torch_says_which_extra_brings_it(tmp_path):
    before = "import sys\nsys.modules['torch'] = None"
    for words in (["train", "--env", "CartPole-v1", "--engine", "torch"], ["train", "cartpole", "--engine", "torch"]):
        line = finish(start(*words, "--out", "run", cwd=tmp_path, before=before)).refusal
        assert line == "hotloop: engine torch needs PyTorch, which is not installed; pip install 'hotloop[torch]'"


@pytest.mark.parametrize(
    ("builders", "said"),
    [
        ({"torch": Torch}, "its builder for engine torch is <class .*expected 'module:NameOfTheClass'"),
        ({"torch": "nets"}, "its builder for engine torch is 'nets', expected 'module:NameOfTheClass'"),
        ({"pytorch": "nets:Net"}, "builders has 'pytorch'; did you mean 'torch'"),
    ],
)
def test_a_record_that_names_nothing_is_refused_when_it_is_registered(builders, said, monkeypatch):
    monkeypatch.setattr(registry, "NETWORKS", {})
    with pytest.raises(ValueError, match=said):
        package.register_network("net", package.NetworkRecord(builders, "one"))
    assert not registry.NETWORKS
