"""Settings for every test: a compilation cache and a key of its own, how to compile, repeatable property tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Before JAX starts. Compiled programs are shared by the tests (of all processes) and the commands they start.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:
    os.environ["HOTLOOP_CACHE"] = tempfile.mkdtemp(prefix="hotloop-tests-")
    # What `hotloop.engines.jax.setup` asks for in a run, also where a test calls JAX by itself.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(os.environ["HOTLOOP_CACHE"], "xla")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["HOTLOOP_CACHE"], "torch")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["HOTLOOP_KEY_FOLDER"] = os.path.join(os.environ["HOTLOOP_CACHE"], "key")  # never the user's own
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the oracles' tolerances are those of CPU arithmetic

# The same examples every time: a red test is a change of the code. HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Torch as a run of a small network has it, in this process."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _IS_WORKER:
        shutil.rmtree(os.environ["HOTLOOP_CACHE"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let XLA compile in a quarter of the time, without most of its optimisations, where a test says so.

    For comparisons with tolerances. What compares bits, or runs long loops, is compiled as users compile it. What tests
    of a module share is compiled as the first of them asks.
    """
    is_less = bool(item.get_closest_marker("less_optimised")) and not item.get_closest_marker("as_users_compile")
    if is_less and not _less:
        _take_less_optimised()
    _less[:] = [is_less] if _less else []


_less: list[bool] = []
"""Whether the test that runs has asked for it; empty until one has."""


def _take_less_optimised() -> None:
    """From now on, JAX hands XLA these options while `_less` says so; a run's own flags stay what they are."""
    from jax._src import compiler  # there is no other way to reach the programs that the package itself compiles

    options_of = compiler.get_compile_options

    def with_less(*args: Any, **kwargs: Any) -> Any:
        options = options_of(*args, **kwargs)
        if _less[0]:
            quick = [("xla_backend_optimization_level", 0), ("xla_cpu_use_fusion_emitters", False)]
            options.env_option_overrides = [*options.env_option_overrides, *quick]
        return options

    compiler.get_compile_options = with_less
    _less.append(True)
