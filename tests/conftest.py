"""Settings for every test: a compilation cache of the session's own, and repeatable property tests."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# Before JAX starts. Compiled programs are shared by the tests (of all processes) and the commands they start.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not _IS_WORKER:
    os.environ["HOTLOOP_CACHE"] = tempfile.mkdtemp(prefix="hotloop-tests-")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the oracles' tolerances are those of CPU arithmetic

# The same examples every time: a red test is a change of the code. HYPOTHESIS_PROFILE=explore draws new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _IS_WORKER:
        shutil.rmtree(os.environ["HOTLOOP_CACHE"], ignore_errors=True)
