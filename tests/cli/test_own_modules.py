"""`module:Id` with a module of the current folder, which the console script does not put on Python's path."""

import json

import pytest
from hotloop_process import contents, finish, start

MAZE = """
import gymnasium, numpy, pathlib
from maze_rules import LENGTH  # a neighbour of this module

assert numpy.zeros(3).sum() == 0, "numpy is not the one beside this file"
pathlib.Path(__file__).with_name("imported").touch()

class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.t += 1
        return numpy.full(2, self.t / LENGTH, numpy.float32), float(action), self.t == LENGTH, False, {}

gymnasium.register("Maze-v0", entry_point=Maze)
"""
SMALL = [
    *("--set", "env.num_envs=2", "--set", "network.torso.hidden=[8]", "--set", "log={every: 50, checkpoint_every: 99}"),
    *("--set", "replay={capacity: 128, start: 16, batch_size: 8}", "--set", "evaluation={every: 100, episodes: 2}"),
]


@pytest.fixture
def here(tmp_path):
    """A folder with a module of the user's, one beside it, and one that would hide NumPy."""
    (tmp_path / "mine.py").write_text(MAZE)
    (tmp_path / "maze_rules.py").write_text("LENGTH = 8\n")
    (tmp_path / "numpy.py").write_text("raise ImportError('this is not NumPy')\n")
    return tmp_path


@pytest.fixture
def hotloop(here):
    """Runs a command as the console script does: the current folder is not on the path."""
    return lambda *args: finish(start(*args, cwd=here, env={"PYTHONSAFEPATH": "1"}))


def test_it_is_found_for_training_and_again_by_the_run_of_ones_own(hotloop, here):
    ran = hotloop("train", "--env", "mine:Maze-v0", *SMALL, "--steps", "100", "--out", "run", "--json")
    assert ran.json["env_steps"] == 100
    assert hotloop("eval", "run", "--episodes", "2", "--json").json["length_mean"] == 8
    assert hotloop("resume", "run", "--steps", "150", "--json").json["env_steps"] >= 150
    moved = here.parent / f"{here.name}-moved"
    here.rename(moved)
    (moved / "empty").mkdir()
    for folder, remedy in (
        (moved, f"add --trust to import {moved / 'mine.py'}"),
        (moved / "empty", "go to the folder"),
    ):
        refusal = finish(start("eval", moved / "run", cwd=folder, env={"PYTHONSAFEPATH": "1"})).refusal
        assert f"names the module 'mine', which was in {here} when the run was made and is not there now" in refusal
        assert remedy in refusal
    moved.rename(here)


@pytest.mark.heavy
def test_it_is_found_by_processes_of_their_own(hotloop):
    args = ("--env", "mine:Maze-v0", *SMALL, "--set", "env.vectorization=async", "--steps", "60", "--out", "run")
    assert hotloop("train", *args, "--json").json["env_steps"] >= 60


def test_it_is_found_when_a_file_names_it(hotloop, here):
    (here / "maze.yaml").write_text("name: maze\nenv: {id: 'mine:Maze-v0'}\n")
    assert hotloop("train", "maze.yaml", "--plan", "--json").json["total"] > 0


@pytest.mark.heavy
def test_it_is_found_when_an_env_is_only_looked_at(hotloop, here):
    assert hotloop("check-env", "mine:Maze-v0", "--json").json["is_sound"]
    found = hotloop("profile", "--env", "mine:Maze-v0", "--json").json
    assert any("mine.py" in row["function"] for row in found["functions"])


def test_a_module_that_is_nowhere_is_said_to_be_so(hotloop):
    assert (
        "there is no module nowhere, installed or in the current folder"
        in hotloop("train", "--env", "nowhere:Thing-v0").refusal
    )


def test_nothing_of_the_folder_is_imported_that_was_not_named(hotloop, here):
    (here / "gymnasium.py").write_text("raise ImportError('this is not Gymnasium')\n")
    assert hotloop("train", "--env", "CartPole-v1", "--plan").code == 0
    assert not (here / "imported").exists()


@pytest.mark.heavy
def test_a_run_from_elsewhere_finds_nothing_in_the_folder_unless_it_is_trusted(hotloop, here):
    assert hotloop("train", "--env", "mine:Maze-v0", *SMALL, "--steps", "60", "--out", "run").code == 0
    facts = json.loads((here / "run" / "run.json").read_text())
    (here / "run" / "run.json").write_text(json.dumps({**facts, "signature": None}))
    (here / "imported").unlink()
    before = contents(here)
    assert "'mine'" in hotloop("eval", "run", "--episodes", "1").refusal
    assert contents(here) == before
    assert hotloop("eval", "run", "--episodes", "1", "--trust").code == 0
    assert (here / "imported").exists()


def test_an_id_that_is_nearly_right_is_told_with_its_module(hotloop):
    assert "did you mean 'mine:Maze-v0'?" in hotloop("train", "--env", "mine:Mazze-v0").refusal
