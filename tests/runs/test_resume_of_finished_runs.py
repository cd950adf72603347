"""A run that has reached its goal or its end: what a resume does with and without a new end."""

import os
import shutil

import pytest
from hotloop_process import TINY, checkpoints, manifest, metrics

import hotloop
from hotloop.api import Run
from hotloop.progress import Silent

GOAL = {"stop.return_at_least": 2}
"""Any episode of CartPole reaches it."""
SPECS = {
    "device": TINY,
    "host": {
        **TINY,
        "env": {"id": "hotloop.envs.gymnasium:hotloop/CartPole-v1", "num_envs": 4, "options": {"max_steps": 50}},
    },
}


class Noting(Silent):
    """Keeps what is said; `crashes` when the first chunk is shown."""

    def __init__(self, crashes=False):
        self.said, self.crashes = [], crashes

    def say(self, text):
        self.said.append(text)

    def show(self, env_steps, total, figures):
        if self.crashes:
            raise RuntimeError("the power is gone")


@pytest.fixture(scope="module", params=SPECS)
def solved_once(request, tmp_path_factory):
    """A run that has reached its goal; not to be changed."""
    run = hotloop.train(SPECS[request.param], out=tmp_path_factory.mktemp("solved") / "run", **GOAL)
    assert run.stopped.startswith("solved: ")
    assert run.env_steps == 400
    return run


@pytest.fixture
def solved(solved_once, tmp_path):
    """A copy of it, to be changed at will."""
    return Run(shutil.copytree(solved_once.path, tmp_path / "run"), solved_once.result)


host_is_heavy = pytest.mark.parametrize(
    "solved_once", ["device", pytest.param("host", marks=pytest.mark.heavy)], indirect=True
)


def test_a_solved_run_with_a_new_end_goes_on_until_it_is_solved_again(solved, tmp_path):
    longer = hotloop.resume(solved, steps=2000)
    assert longer.env_steps == 800, "the evaluation there is the first that counts"
    assert longer.stopped.startswith("solved: ")
    own = hotloop.load_spec(solved.path / "spec.yaml").model_copy(update={"name": "left"})
    left_alone = hotloop.train(own, out=tmp_path / "left", **{"stop.return_at_least": None, "stop.steps": 800})
    assert manifest(longer.path)["digests"] == manifest(left_alone.path)["digests"]


@host_is_heavy
def test_the_new_end_is_written_down(solved):
    hotloop.resume(solved, steps=600)
    assert hotloop.load_spec(solved.path / "spec.yaml").stop.steps == 600
    assert [row["env_steps"] for row in metrics(solved.path, "eval")] == [400, 600]
    assert hotloop.load(solved).spec.stop.steps == 600
    assert sorted(path.name for path in solved.path.iterdir() if "writing" in path.name) == []


@host_is_heavy
def test_a_later_plain_resume_goes_on_to_the_new_end(solved):
    """Also when nothing but the resume itself had happened before the power went."""
    with pytest.raises(RuntimeError, match="the power is gone"):
        hotloop.resume(solved, steps=700, reporter=Noting(crashes=True))
    assert checkpoints(solved.path)[-1] == 400
    plain = hotloop.resume(solved)
    assert plain.env_steps == 700


@host_is_heavy
def test_a_solved_run_without_a_new_end_says_that_it_is_finished_and_how_to_go_on(solved):
    reporter = Noting()
    before = manifest(solved.path)
    again = hotloop.resume(solved, reporter=reporter)
    assert again.env_steps == 400
    [said] = [line for line in reporter.said if "finished" in line]
    assert f"{solved.path} is finished (solved: mean return" in said
    assert said.endswith(f"go on with: hotloop resume {solved.path} --steps N, N above 400")
    assert manifest(solved.path)["digests"] == before["digests"]


@pytest.mark.heavy
def test_a_run_at_its_end_says_so_too(tmp_path):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 200})
    reporter = Noting()
    hotloop.resume(run, reporter=reporter)
    assert any("is finished (200 env steps done); go on with" in line for line in reporter.said)


@pytest.mark.heavy
def test_a_run_that_has_played_its_episodes_says_so_too(tmp_path):
    reporter = Noting()
    episodes = hotloop.train(TINY, out=tmp_path / "episodes", **{"stop.episodes": 3})
    hotloop.resume(episodes, reporter=reporter)
    assert "its spec ends it after 3 episodes (stop.episodes)" in reporter.said[-1]


def test_a_spec_that_cannot_be_replaced_stays_whole_and_is_said(tmp_path, monkeypatch):
    run = hotloop.train(TINY, out=tmp_path / "run", **{"stop.steps": 200})
    before = (run.path / "spec.yaml").read_bytes()
    replace = os.replace

    def full(source, target):
        if str(target).endswith("spec.yaml"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("hotloop.runs.folder.os.replace", full)
    with pytest.warns(RuntimeWarning, match=r"spec\.yaml could not be written"):
        longer = hotloop.resume(run, steps=400)
    assert longer.env_steps == 400
    assert (run.path / "spec.yaml").read_bytes() == before
    assert not list(run.path.glob("*writing*"))
