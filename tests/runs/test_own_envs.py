"""`env=` from Python: a section, an id, a factory or one instance."""

import copy
import multiprocessing
import sys

import gymnasium as gym
import numpy as np
import pytest
from hotloop_process import manifest

import hotloop
from hotloop.envs.cartpole import CartPole
from hotloop.errors import SpecError

SPEC = {
    "name": "own",
    "updates_per_step": 0.25,
    "env": {"num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 256, "start": 32, "batch_size": 8},
    "evaluation": {"every": 60, "episodes": 4},
    "stop": {"steps": 120},
    "log": {"every": 40},
}
ONE = {"env.num_envs": 1}


class Maze(gym.Env):
    """Ends after so many steps; counts how many of it are open."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    open_now = opened = 0

    def __init__(self, length=9):
        Maze.open_now += 1
        Maze.opened += 1
        self.length, self.t, self.steps = length, 0, 0

    def __deepcopy__(self, memo):
        return Maze(self.length)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        return np.full(2, self.t / self.length, np.float32), float(action), self.t == self.length, False, {}

    def close(self):
        Maze.open_now -= 1


class Single(Maze):
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise TypeError("holds a socket")


@pytest.fixture(autouse=True)
def all_are_closed():
    Maze.open_now = 0
    yield
    assert Maze.open_now == 0
    assert multiprocessing.active_children() == []


def test_an_id_and_a_section_are_parts_of_the_spec(tmp_path):
    for name, env in (("id", "CartPole-v1"), ("section", {"id": "CartPole-v1", "num_envs": 2})):
        run = hotloop.train(SPEC, out=tmp_path / name, env=env)
        spec = hotloop.load_spec(run.path / "spec.yaml")
        assert (spec.env.id, spec.env.num_envs) == ("CartPole-v1", 4 if name == "id" else 2)


@pytest.mark.parametrize("vectorization", ["auto", "sync", "threads"])
def test_a_factory_makes_all_envs_of_a_run(tmp_path, vectorization):
    run = hotloop.train(SPEC, out=tmp_path / "run", env=Maze, **{"env.vectorization": vectorization})
    assert run.env_steps == 120
    spec = hotloop.load_spec(run.path / "spec.yaml")
    assert (spec.env.id, spec.env.vectorization) == ("own:Maze", vectorization)
    agent = hotloop.load(run, env=Maze)
    assert agent.evaluate(episodes=3)["length_mean"] == 9
    assert agent.predict(np.zeros(2, np.float32)) in (0, 1)


def test_a_factory_that_can_be_pickled_makes_envs_in_processes(tmp_path):
    import cloudpickle

    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # tests are no package that another process could import
    try:
        run = hotloop.train(SPEC, out=None, env=lambda: Maze(7), **{"env.vectorization": "async"})
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    assert (run.env_steps, run.agent.spec.env.id) == (120, "own:Maze")


def test_a_factory_gets_the_options(tmp_path):
    run = hotloop.train(SPEC, out=tmp_path / "run", env=Maze, **{"env.options.length": 5})
    for agent in (hotloop.load(run.path, env=Maze), run.agent, copy.copy(run).agent):
        assert agent.evaluate(episodes=2)["length_mean"] == 5
    assert hotloop.load(run, **{"env.options.length": 3}).evaluate(episodes=2)["length_mean"] == 3
    assert run.__getstate__() == {**vars(run), "own": None}, "what a user brought along stays in its process"


def test_a_run_on_it_resumes_when_the_env_is_given_again(tmp_path):
    whole = hotloop.train(SPEC, out=tmp_path / "whole", env=Maze)
    run = hotloop.train(SPEC, out=tmp_path / "run", env=Maze, **{"stop.steps": 60})
    for call in (hotloop.resume, hotloop.load):
        with pytest.raises(SpecError, match=r"env of your own \(Maze\); pass it again from Python: .*env="):
            call(run.path)
    with pytest.warns(RuntimeWarning, match="begin new ones"):
        resumed = hotloop.resume(run.path, steps=120, env=Maze)
    assert manifest(resumed.path)["env_steps"] == manifest(whole.path)["env_steps"]


@pytest.mark.heavy
def test_a_factory_or_an_instance_of_a_device_env_runs_on_the_device(tmp_path):
    made = hotloop.train(SPEC, out=tmp_path / "made", env=CartPole, **{"env.options.max_steps": 50})
    given = hotloop.train(SPEC, out=tmp_path / "given", env=CartPole(max_steps=50))
    alias = hotloop.train(SPEC, out=tmp_path / "alias", device_env=CartPole(max_steps=50))
    digests = [manifest(run.path)["digests"]["all"] for run in (made, given, alias)]
    assert digests[0] == digests[1] == digests[2]
    assert hotloop.load_spec(made.path / "spec.yaml").env.id == "own:CartPole"


def test_an_instance_is_trained_on_as_it_is_and_evaluated_on_copies(tmp_path):
    env = Maze()
    run = hotloop.train(SPEC, out=tmp_path / "run", env=env, **ONE)
    assert env.steps == run.env_steps == 120, "evaluations have stepped copies"
    assert (run.path / "best").is_dir()
    assert Maze.open_now == 1, "it is its maker's to close"
    env.reset()
    assert hotloop.load(run, env=env).evaluate(episodes=2)["length_mean"] == 9
    env.close()


def test_an_instance_that_cannot_be_copied_is_not_evaluated_and_that_is_said(tmp_path):
    env = Single()
    with pytest.warns(RuntimeWarning, match=r"\(Single\) cannot be copied: there are no evaluations.* no goal ends"):
        run = hotloop.train(SPEC, out=tmp_path / "run", env=env, **ONE, **{"stop.return_at_least": 1})
    assert (run.env_steps, env.steps) == (120, 120)
    assert not (run.path / "best").exists()
    agent = hotloop.load(run, which="last", env=env)
    with pytest.raises(SpecError, match="cannot be copied"):
        agent.evaluate(episodes=2)
    env.close()


class Nonsense:
    """No env."""


REFUSED = {
    "several of one": (Maze, {}, r"one instance of Maze, but env\.num_envs is 4; give a factory"),
    "one in a process": (Maze, {**ONE, "env.vectorization": "async"}, "stays in this process"),
    "one with options": (Maze, {**ONE, "env.options.length": 3}, r"env\.options are for a factory"),
    "one with other evaluations": (Maze, {**ONE, "evaluation.options": {"length": 3}}, "evaluation.options"),
    "something else": (Nonsense, {}, "env is Nonsense, expected a section"),
    "a factory of something else": (lambda: Nonsense, {}, "made Nonsense, expected a Gymnasium env"),
    "a factory that raises": (lambda: lambda: 1 / 0, {}, "raised ZeroDivisionError"),
    "native vectors": (lambda: Maze, {"env.vectorization": "native"}, "no vector entry point"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_on_is_refused_and_nothing_is_written(tmp_path, case):
    make, own, says = REFUSED[case]
    given = make()
    with pytest.raises(SpecError, match=says):
        hotloop.train(SPEC, out=tmp_path / "run", env=given, **own)
    assert list(tmp_path.iterdir()) == []
    if isinstance(given, Maze):
        given.close()


def test_an_env_is_given_once():
    with pytest.raises(SpecError, match="both given"):
        hotloop.train(SPEC, env=Maze, device_env=CartPole())
    with pytest.raises(SpecError, match="env= is for one of your own"):
        hotloop.resume("run", env="CartPole-v1")


def test_two_factories_of_the_same_name_are_two_envs():
    runs = [hotloop.train(SPEC, out=None, env=lambda n=n: Maze(n)) for n in (4, 6)]
    agents = [copy.copy(run).agent for run in runs]
    assert [agent.evaluate(episodes=2)["length_mean"] for agent in agents] == [4, 6]


def test_a_spec_keeps_the_way_to_make_its_env_when_it_is_copied():
    agent = hotloop.train(SPEC, out=None, env=Maze).agent
    assert copy.deepcopy(agent.spec).env.id.make is Maze


def test_one_env_is_one_unless_it_is_said_otherwise():
    env, spec = Maze(), {name: section for name, section in SPEC.items() if name != "env"}
    run = hotloop.train(spec, out=None, env=env)
    assert (run.agent.spec.env.num_envs, env.steps) == (1, 120)
    env.close()
