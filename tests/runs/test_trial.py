"""A trial measures a piece of a run, as it is or with a stage replaced, and leaves nothing behind."""

import runpy
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hotloop_process import TINY, contents

from hotloop.engines.protocol import Learned
from hotloop.errors import SpecError
from hotloop.trial import trial

HOST = {**TINY, "env": {"id": "CartPole-v1", "num_envs": 4}}


class Still(gym.Env):
    """Looks like CartPole and does nothing."""

    observation_space = gym.make("CartPole-v1").observation_space
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.float32), {}

    def step(self, action):
        Still.steps += 1
        return np.zeros(4, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("spec", [TINY, HOST], ids=["device", "host"])
def test_a_trial_says_how_fast_a_spec_is_after_its_learning_start(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    found = trial(spec, seconds=0.3)
    assert found.seconds >= 0.3
    assert found.updates == pytest.approx(found.env_steps / 4, abs=1)
    assert found.env_steps_per_s == pytest.approx(found.env_steps / found.seconds, rel=0.5)
    assert found.env_steps_per_s > 0 < found.updates_per_s
    assert ("step" in found.stage_seconds) == (spec is HOST)
    assert found.stage_seconds["log"] > 0
    assert found.notices == []
    assert contents(tmp_path) == {}


def test_the_env_can_be_replaced_and_lines_of_metrics_left_out():
    Still.steps = 0
    found = trial(HOST, replace={"env": Still, "log": False}, seconds=0.2)
    assert Still.steps >= found.env_steps > 0


class FirstBatch:
    """A replay that draws once and gives the same batches ever after."""

    def __init__(self, replay):
        self.replay, self.drawn, self.asked = replay, None, 0

    def __getattr__(self, name):
        return getattr(self.replay, name)

    def sample(self, *args, **more):
        self.asked += 1
        self.drawn = self.replay.sample(*args, **more) if self.drawn is None else self.drawn
        return self.drawn


@pytest.mark.parametrize("name", ["replay", "update"])
def test_replay_and_update_of_a_run_on_the_host_can_be_replaced(name):
    stand_ins = []

    def updates_nothing(update):
        engine = update.__self__
        zero = np.zeros(4, np.float32)

        def still(state, items, weight, *rest):
            stand_ins.append(items)
            return Learned(state, np.zeros(items.r_t.shape, np.float32), zero)

        assert engine.num_actions == 2
        return still

    def first_batch(replay):
        stand_ins.append(FirstBatch(replay))
        return stand_ins[-1]

    found = trial(HOST, replace={name: {"replay": first_batch, "update": updates_nothing}[name]}, seconds=0.2)
    assert found.env_steps > 0
    if name == "replay":
        assert stand_ins[0].asked >= found.updates > 0
    else:
        assert found.updates == 0
        assert len(stand_ins) >= found.env_steps / 4


@pytest.mark.parametrize("pipeline", ["fused", pytest.param("sync", marks=pytest.mark.heavy)])
def test_replay_and_update_of_a_run_on_the_device_can_be_replaced(pipeline):
    traced = []

    def same_rows(replay):
        def sample(storage, key, env_steps):
            traced.append("sample")
            return replay_sample(storage, jax.random.key(0), env_steps)

        replay_sample = replay.sample
        replay.sample = sample
        return replay

    def nothing(update):
        def still(learner, batches, *rest):
            traced.append("update")
            return learner, batches.r_t, jnp.zeros(4)

        return still

    found = trial({**TINY, "pipeline": pipeline}, replace={"replay": same_rows, "update": nothing}, seconds=0.2)
    assert found.env_steps > 0
    assert found.updates == 0, "the weights stand still"
    assert {"sample", "update"} == set(traced)


WRONG_UPDATES = {
    "nothing": (lambda state, items: None, "returned a NoneType, expected"),
    "two results": (lambda state, items: (state, items.r_t), "returned 2 results, expected"),
    "no state": (
        lambda state, items: (None, items.r_t, np.zeros(4)),
        "a state whose params is absent, expected float32(",
    ),
    "another state": (
        lambda state, items: (state._replace(params=state.params[:1]), items.r_t, np.zeros(4)),
        "a state whose params is float32(1,), expected float32(",
    ),
    "no TD errors": (lambda state, items: (state, None, np.zeros(4)), "TD errors of a NoneType, expected one for each"),
    "too few": (lambda state, items: (state, items.r_t[0], np.zeros(4)), "TD errors of float32(16,), expected one for"),
    "other sums": (
        lambda state, items: (state, items.r_t, np.zeros(3)),
        "(3,), expected (4,): loss, grad_norm, q, appl",
    ),
    "a number": (lambda state, items: (state, items.r_t, 0.0), "sums of a float, expected (4,)"),
}


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("wrong", WRONG_UPDATES)
def test_a_stand_in_for_update_that_gives_something_else_is_told_so(where, wrong):
    gives, said = WRONG_UPDATES[wrong]

    def update(state, items, *rest):
        made = gives(state, items)
        return Learned(*made) if where == "host" and isinstance(made, tuple) and len(made) == 3 else made

    with pytest.raises(SpecError) as caught:
        trial(HOST if where == "host" else TINY, replace={"update": lambda own: update}, seconds=0.1)
    assert str(caught.value).startswith("replace: the stand-in for update returned ")
    assert said in str(caught.value)


def test_a_stand_in_for_update_on_the_host_gives_learned():
    still = {"update": lambda own: lambda state, items, *rest: (state, items.r_t, np.zeros(4))}
    with pytest.raises(
        SpecError, match="returned 3 results, expected a Learned of three: learner state, TD errors, sums"
    ):
        trial(HOST, replace=still, seconds=0.1)


def test_a_run_without_a_replay_says_so():
    with pytest.raises(SpecError, match="replace: this run has no replay"):
        trial("pqn", replace={"replay": lambda replay: replay})


@pytest.mark.parametrize(
    ("replace", "says"),
    [
        ({"replay": 3}, "replace: replay is 3, expected a function that is given the run's own replay"),
        ({"update": lambda update: None}, "replace: update gave None, expected what stands in for the run's own"),
        ({"replay": lambda replay: 3}, "replace: replay gave 3, expected what stands in for"),
        ({"update": "no"}, "replace: update is 'no', expected a function"),
        ({"acting": None}, "there is no stage 'acting'; the stages are env, replay, update, log"),
    ],
)
def test_what_cannot_be_replaced_is_refused(replace, says):
    with pytest.raises(SpecError, match=says):
        trial(TINY, replace=replace)


def test_a_spec_that_ends_before_it_learns_is_refused():
    with pytest.raises(SpecError, match="a stop rule of the spec"):
        trial({**TINY, "stop": {"steps": 1000, "episodes": 1}, "replay": {**TINY["replay"], "start": 500}})


def test_the_example_measures_each_stand_in(capsys):
    path = Path(__file__).parents[2] / "examples" / "what_if.py"
    runpy.run_path(str(path))["main"](seconds=0.2)
    said = capsys.readouterr().out.splitlines()
    assert [line[:16].strip() for line in said] == ["as it is", "without learning", "drawing once", "without metrics"]
    assert all("env steps/s" in line for line in said)
