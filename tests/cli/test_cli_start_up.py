"""Help is instant: it imports nothing heavy."""

import subprocess
import sys

HEAVY = {
    "PIL",
    "gymnasium",
    "gymnax",
    "jax",
    "jaxlib",
    "matplotlib",
    "numpy",
    "optuna",
    "optax",
    "pydantic",
    "safetensors",
    "scipy",
    "stable_baselines3",
    "tensorboard",
    "torch",
    "yaml",
}


def _imports(*command: str) -> set[str]:
    """Top-level packages that a Python command loads, as Python itself reports them."""
    ran = subprocess.run([sys.executable, "-X", "importtime", *command], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    lines = [line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")]
    return {line.partition(".")[0] for line in lines}


def test_help_imports_nothing_heavy():
    loaded = _imports("-m", "hotloop.cli", "--help")
    assert "typer" in loaded, "the report of imports is not understood"
    assert loaded & HEAVY == set()


def test_help_of_a_command_imports_nothing_heavy():
    # typer itself looks at a command's options with pydantic
    assert _imports("-m", "hotloop.cli", "train", "--help") & HEAVY <= {"pydantic"}


def test_importing_the_package_imports_nothing_heavy():
    loaded = _imports("-c", "import hotloop")
    assert "hotloop" in loaded
    assert loaded & HEAVY == set()


def test_reading_a_spec_starts_no_engine():
    assert _imports("-c", "import hotloop; hotloop.load_spec('cartpole')") & {"jax", "torch", "matplotlib"} == set()


def test_list_starts_no_engine():
    assert _imports("-m", "hotloop.cli", "list") & {"jax", "torch", "matplotlib"} == set()
