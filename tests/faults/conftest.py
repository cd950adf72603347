import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "oracle"))
sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "multi"))

from hotloop_process import finished, finished_once, hotloop, spec_file

from process_tree import actors_of

__all__ = ["finished", "finished_once", "hotloop", "spec_file"]


@pytest.fixture
def in_time():
    """A test that hangs fails after two minutes, with the place where it stood."""

    def too_late(*_):
        raise TimeoutError("the test has not ended after 120 s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def nothing_left():
    """No actor stays behind."""
    before = set(actors_of())
    yield
    assert set(actors_of()) <= before
