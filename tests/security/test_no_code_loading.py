"""Nothing in the package turns data into code: checked on its syntax trees."""

import ast
from pathlib import Path

import pytest

import hotloop

SOURCES = sorted(Path(hotloop.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load",
    "torch.jit.load",
    "torch.package.PackageImporter",
    "numpy.load",
    "np.load",
    "jnp.load",
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "pandas.read_pickle",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "yaml.full_load",
    "yaml.full_load_all",
    "yaml.load_all",
}
LOADERS = {"Loader", "CLoader", "FullLoader", "CFullLoader", "UnsafeLoader", "CUnsafeLoader", "BaseLoader"}


def offences(source: str) -> list[str]:
    """What a piece of Python does that it must not, as `line: what`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for what in _of(node):
            found.append(f"{node.lineno}: {what}")
    return found


def _of(node):
    if isinstance(node, ast.Import):
        yield from (f"import {alias.name}" for alias in node.names if alias.name.partition(".")[0] in MODULES)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        names = {alias.name for alias in node.names}
        if module.partition(".")[0] in MODULES:
            yield f"from {module} import"
        if module == "yaml":
            yield from (f"from yaml import {name}" for name in names & (LOADERS | {"load", "load_all", "unsafe_load"}))
        yield from (f"{module}.{name}" for name in names if f"{module}.{name}" in CALLS)
    elif isinstance(node, ast.Attribute):
        dotted = ast.unparse(node)
        if dotted in CALLS or dotted in {f"yaml.{loader}" for loader in LOADERS}:
            yield dotted
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in BUILTINS or called.removeprefix("builtins.") in BUILTINS:
            yield f"{called}()"
        if called == "yaml.load" and "Loader" not in given:
            yield "yaml.load() without a Loader"
        if given.get("shell", "False") != "False":
            yield "shell=True"
        if given.get("allow_pickle", "False") != "False":
            yield "allow_pickle=True"
    elif isinstance(node, ast.ClassDef):
        yield from (f"class of {ast.unparse(base)}" for base in node.bases if ast.unparse(base) in LOADERS)


PACKAGE = Path(hotloop.__file__).parent
PASSING_ON = PACKAGE / "pipelines" / "passing_on.py"
"""From a process to one that it starts: what both have in memory, and no file."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_never_turns_data_into_code(path):
    found = [offence.partition(": ")[2] for offence in offences(path.read_text())]
    assert found == (["import cloudpickle"] if path == PASSING_ON else [])


def test_only_actors_and_who_starts_them_pass_anything_on():
    using = {path.name for path in SOURCES if "passing_on" in path.read_text() and path != PASSING_ON}
    assert using == {"crew.py", "actor_process.py"}


def test_all_of_the_package_is_looked_at():
    assert {"cli.py", "checkpoint.py", "reading.py", "engine.py"} <= {path.name for path in SOURCES}


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "from cloudpickle import load",
        "eval('1')",
        "exec(text)",
        "import builtins; builtins.eval(text)",
        "import torch; torch.load(path)",
        "from torch import load",
        "import numpy as np; np.load(path)",
        "f(path, allow_pickle=True)",
        "import yaml; yaml.load(text)",
        "import yaml; yaml.load(text, Loader=yaml.FullLoader)",
        "import yaml\nclass Mine(yaml.Loader): pass",
        "from yaml import load",
        "import yaml; yaml.unsafe_load(text)",
        "import subprocess; subprocess.run(text, shell=True)",
        "import os; os.system(text)",
        "from os import system",
    ],
)
def test_the_check_sees_what_it_looks_for(bad):
    assert offences(bad)


@pytest.mark.parametrize(
    "good",
    [
        "import re; re.compile('x')",
        "jitted.lower(x).compile()",
        "import yaml\nclass Mine(yaml.SafeLoader): pass\nyaml.load(text, Loader=Mine)",
        "import subprocess; subprocess.run(['git'])",
        "json.load(file)",
        "evaluate(x)",
    ],
)
def test_the_check_leaves_harmless_code_alone(good):
    assert offences(good) == []


def test_specs_are_read_by_a_safe_loader(monkeypatch):
    import yaml

    from hotloop.spec.reading import parse_value

    used = []
    genuine = yaml.load
    monkeypatch.setattr(yaml, "load", lambda text, Loader: used.append(Loader) or genuine(text, Loader))
    assert parse_value("1e-3") == 1e-3
    assert [issubclass(loader, yaml.SafeLoader) for loader in used] == [True]
