"""Settings for every test: a compilation cache of the session's own, how to compile, repeatable property tests."""

import os
import shutil
import sys
import tempfile

import pytest
from hypothesis import settings

# Before JAX starts. Compiled programs are shared by the tests (of all processes) and the commands they start.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:
    os.environ["HOTLOOP_CACHE"] = tempfile.mkdtemp(prefix="hotloop-tests-")
    # What `hotloop.engines.jax.setup` asks for in a run, also where a test calls JAX by itself.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["HOTLOOP_CACHE"]
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the oracles' tolerances are those of CPU arithmetic

# The same examples every time: a red test is a change of the code. HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _IS_WORKER:
        shutil.rmtree(os.environ["HOTLOOP_CACHE"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let XLA leave out most of its optimisations where a test says so: half the time to compile.

    For comparisons with tolerances. What compares bits, or runs long loops, is compiled as users compile it. What tests
    of a module share is compiled as the first of them asks.
    """
    is_less = bool(item.get_closest_marker("less_optimised")) and not item.get_closest_marker("as_users_compile")
    if is_less or "jax" in sys.modules:
        import jax

        jax.config.update("jax_disable_most_optimizations", is_less)
