"""Priorities move within a block: what was just learned from is drawn less by the updates that follow.

Envs without rewards and a network that says zero make every TD error zero: a transition that was drawn once is then
almost never drawn again, one that is new has the largest priority. So as long as draws follow the priorities, a block
of many updates learns from every new transition; all drawn at once, it misses some and takes others several times.
"""

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.assembly import Assembly, Own
from hotloop.envs.device import ObsSpec
from hotloop.members import seeds
from hotloop.runs.state import digests
from hotloop.spec.reading import parse_spec

ROWS, UPDATES, BATCH = 64, 16, 8
FRESH, LEARNED = 1.0, 1e-3


class Unrewarded(gym.Env):
    """Nothing happens."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


gym.register("Unrewarded-v0", Unrewarded)


class UnrewardedOnDevice:
    """The same as pure functions."""

    num_actions = 2
    obs_spec = ObsSpec((2,), np.float32, np.full(2, -1.0), np.full(2, 1.0))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(2)

    def step(self, state, action, key):
        return state, jnp.zeros(2), jnp.float32(0), jnp.bool_(False), jnp.bool_(False), {}


def begun(pipeline: str, updates_per_draw: int, **replay):
    sampling = {"kind": "prioritized", "alpha": 1.0, "epsilon": LEARNED, "updates_per_draw": updates_per_draw}
    spec = parse_spec(
        {
            "pipeline": pipeline.partition(" ")[0],
            "updates_per_step": UPDATES / ROWS,
            "env": {"id": "Unrewarded-v0", "num_envs": ROWS},
            "network": {"torso": {"hidden": [4]}},
            "replay": {"capacity": 8 * ROWS, "start": ROWS, "batch_size": BATCH, "sampling": sampling, **replay},
            "evaluation": {"every": 0},
        }
    )
    own = Own(env=UnrewardedOnDevice()) if pipeline in ("fused", "sync on the device") else None
    session = Assembly(spec, own).session(seeds([0]))
    session.compile()
    session.begin()
    if own:
        learner = session.state.learner
        still = learner._replace(params=0 * learner.params, target=0 * learner.target)
        session.state = session.state._replace(learner=still)
    else:
        state = session.learner.state
        session.learner.state = state._replace(params=0 * state.params, target=0 * state.target)
    return session


def priorities(session) -> np.ndarray:
    if hasattr(session, "state"):
        return np.asarray(session.state.replay.priorities.sums[0]).reshape(-1)
    return session.learner.replay.tree.leaves


DRAWS = {"published": 1, "a few": 4, "the default": 8, "all at once": UPDATES}
ON_THE_DEVICE = {name: DRAWS[name] for name in ("published", "a few", "all at once")}
"""Each is a program of its own there."""


@pytest.mark.parametrize(
    ("pipeline", "draws"),
    [
        ("fused", ON_THE_DEVICE),
        ("sync", DRAWS),
        ("concurrent", DRAWS),
        pytest.param("fused", DRAWS, marks=pytest.mark.heavy),
        pytest.param("sync on the device", DRAWS, marks=pytest.mark.heavy),  # the bits of fused: see below
    ],
    ids=["fused", "sync", "concurrent", "fused, all", "sync on the device"],
)
def test_a_block_learns_from_every_new_transition_if_it_draws_again(pipeline, draws):
    missed = {}
    for name, updates_per_draw in draws.items():
        session = begun(pipeline, updates_per_draw)
        session.advance(2 if pipeline == "concurrent" else 1)  # which learns one block later
        rows = priorities(session)[:ROWS]
        assert set(np.unique(rows)) <= {np.float32(FRESH), np.float32(LEARNED), FRESH, LEARNED}
        missed[name] = int(np.count_nonzero(rows == FRESH))
        assert int(session.read().updates[0]) == UPDATES
    assert missed["published"] == 0
    *several, once = missed.values()
    assert several == sorted(several)
    assert several[-1] < once
    # 128 draws of 64 rows miss 64 x (1 - 1/64)^128 = 8.5 of them.
    assert 3 <= missed["all at once"] <= 15


def test_rows_of_the_running_block_are_drawn_from_its_end_on_when_envs_step_beside_the_learner():
    session = begun("concurrent", 4)
    session.advance(2)
    assert (priorities(session)[ROWS : 2 * ROWS] == FRESH).all(), "stored, and none was drawn"
    session.advance(1)
    assert (priorities(session)[ROWS : 2 * ROWS] == LEARNED).any()


def test_concurrent_draws_are_the_same_every_time():
    ends = []
    for _ in range(2):
        session = begun("concurrent", 2)
        session.advance(6)
        ends.append(digests(session.arrays()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("updates", "most", "expected"), [(64, 8, 8), (4, 8, 4), (12, 8, 6), (11, 8, 1), (9, 1, 1)])
def test_a_block_is_divided_evenly(updates, most, expected):
    sampling = {"kind": "prioritized", "updates_per_draw": most}
    spec = parse_spec({"updates_per_step": updates, "env": {"num_envs": 1}, "replay": {"sampling": sampling}})
    assert spec.updates_per_draw == expected
    assert parse_spec({"updates_per_step": updates, "env": {"num_envs": 1}}).updates_per_draw == updates


def test_the_stages_of_a_block_on_the_device_are_the_fused_block():
    ends = []
    for pipeline in ("fused", "sync on the device"):
        session = begun(pipeline, 4)
        session.state = session.state._replace(
            learner=session.state.learner._replace(params=0.1 + session.state.learner.params)
        )
        session.advance(5)
        ends.append(digests(session.arrays()))
    assert ends[0] == ends[1]


def test_the_newest_transitions_go_on_from_portion_to_portion():
    session = begun("sync", 4, newest_in_batch=True)
    first, sample = [], session.learner.replay.sample

    def watched(*args, **more):
        batches = sample(*args, **more)
        first.extend(batches.numbers[:, 0].tolist())
        return batches

    session.learner.replay.sample = watched
    session.advance(1)
    assert first == list(range(ROWS - 1, ROWS - 1 - UPDATES, -1))
