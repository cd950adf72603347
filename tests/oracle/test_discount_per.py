"""γ by the time that steps took: transitions on the device and on the host against a naive account of the episodes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotloop.assembly import Assembly, Own
from hotloop.envs.device import ObsSpec
from hotloop.errors import SpecError
from hotloop.experience import VectorStep
from hotloop.replay.delay import DelayLine
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec

pytestmark = pytest.mark.less_optimised

GAMMA, LENGTHS = 0.5, (3, 1, 6, 2)
SPEC = {
    "discount": GAMMA,
    "discount_per": "took",
    "updates_per_step": 0.5,
    "env": {"num_envs": 2},
    "network": {"torso": {"hidden": [4]}},
    "replay": {"capacity": 512, "start": 16, "batch_size": 4},
    "evaluation": {"every": 0},
}


def took(t: Any) -> Any:
    """Time of the step that leads to turn t: some take none."""
    return (t * t) % 3 * 0.5


class Turn(NamedTuple):
    episode: jax.Array
    t: jax.Array


@dataclass(frozen=True)
class Timed:
    """Sees episode and turn; earns 10 x episode + turn; every second episode is truncated."""

    num_actions = 2
    clock = "took"

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, -np.inf, np.inf)

    def _seen(self, state: Turn) -> jax.Array:
        return jnp.stack([state.episode, state.t]).astype(jnp.float32)

    def reset(self, key: jax.Array) -> tuple[Turn, jax.Array]:
        state = Turn(jax.random.randint(key, (), 0, len(LENGTHS)), jnp.int32(0))
        return state, self._seen(state)

    def step(self, state: Turn, action: jax.Array, key: jax.Array) -> Any:
        state = state._replace(t=state.t + 1)
        ended, by_truncation = state.t >= jnp.asarray(LENGTHS)[state.episode], state.episode % 2 == 1
        reward = (10 * state.episode + state.t).astype(jnp.float32)
        info = {"took": took(state.t).astype(jnp.float32)}
        return state, self._seen(state), reward, ended & ~by_truncation, ended & by_truncation, info


class TimedOnHost(gym.Env):
    """The same game as a Gymnasium env."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = int(self.np_random.integers(len(LENGTHS))), 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        ended, by_truncation = self.t >= LENGTHS[self.episode], self.episode % 2 == 1
        obs, reward = np.array([self.episode, self.t], np.float32), 10.0 * self.episode + self.t
        return obs, reward, ended and not by_truncation, ended and by_truncation, {"took": took(self.t)}


def expected(before: np.ndarray, n_step: int) -> tuple[float, float, int]:
    """Reward, discount and last turn of the transition that begins in an episode's turn, in the plainest way."""
    episode, t = (int(x) for x in before)
    reward, discount = 0.0, 1.0
    for turn in range(t + 1, min(t + n_step, LENGTHS[episode]) + 1):
        reward += discount * (10 * episode + turn)
        discount *= GAMMA ** took(turn)
    if turn == LENGTHS[episode] and episode % 2 == 0:
        discount = 0.0
    return reward, discount, turn


def assert_as_expected(before: np.ndarray, reward: np.ndarray, discount: np.ndarray, after: np.ndarray, n: int) -> None:
    assert len(before) > 60
    assert len({tuple(row) for row in before}) == sum(LENGTHS), "every turn of every episode"
    for row in zip(before, reward, discount, after, strict=True):
        wanted = expected(row[0], n)
        np.testing.assert_allclose((row[1], row[2], row[3][1]), wanted, rtol=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("pipeline", ["fused", "sync"])
def test_on_the_device(pipeline: str, n_step: int) -> None:
    spec = parse_spec({**SPEC, "pipeline": pipeline, "replay": {**SPEC["replay"], "n_step": n_step}})
    with Assembly(spec, Own(env=Timed())) as assembly:
        session = assembly.session(assembly.spec.members)
        session.compile()
        session.begin()
        session.advance(100)
        arrays = session.arrays()
        rows = {name.rpartition("/")[2]: array for name, array in arrays.items() if "/rows/" in name}
        size = int(session.read().env_steps)
    parts = (rows[name].reshape(-1, *rows[name].shape[-1:])[:size] for name in ("s_tm1", "s_t"))
    before, after = parts
    reward, discount = (rows[name].reshape(-1)[:size] for name in ("r_t", "discount_t"))
    assert_as_expected(before, reward, discount, after, n_step)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("pipeline", ["sync", "processes"])
def test_on_the_host(pipeline: str, n_step: int) -> None:
    actors = {"actors": {"count": 1}} if pipeline == "processes" else {}
    spec = parse_spec({**SPEC, **actors, "pipeline": pipeline, "replay": {**SPEC["replay"], "n_step": n_step}})
    with Assembly(spec, Own(env=TimedOnHost)) as assembly:
        session = assembly.session(assembly.spec.members)
        session.compile()
        session.begin()
        session.advance(100)
        replay = session.learner.replay
        rows = replay.ring.take(np.arange(replay.ring.inserted - replay.ring.size, replay.ring.inserted))
        before, after = replay.store.take(rows.s_tm1), replay.store.take(rows.s_t)
        assert_as_expected(before, rows.r_t, rows.discount_t, after, n_step)
        assert "took_mean" not in session.own_figures(), "it is no figure"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=30), st.integers(1, 4))
def test_a_resumed_delay_line_goes_on_with_the_times_that_passed(steps: list[Any], n: int) -> None:
    def lines() -> DelayLine:
        return DelayLine(n, 0.7, 1, ArraySpec((), np.float32), "took")

    whole, parted = lines(), lines()
    for t, (time, ended, terminated) in enumerate(steps):
        step = VectorStep(
            np.zeros(1),
            np.zeros(1),
            np.zeros(1, np.int32),
            np.array([t + 1.0], np.float32),
            np.array([ended and terminated]),
            np.array([ended and not terminated]),
            np.array([True]),
            np.array([False]),
            info={"took": np.array([time])},
        )
        other = lines()
        other.restore(parted.arrays())
        parted = other
        one, two = (line.push(np.array([t], np.float32), step, np.array([t + 1.0])) for line in (whole, parted))
        assert np.array_equal(one.discount_t, two.discount_t)
        assert np.array_equal(one.r_t, two.r_t)


def test_what_cannot_be_is_one_line() -> None:
    class Silent(TimedOnHost):
        def step(self, action):
            return (*super().step(action)[:4], {"took": -1.0})

    with Assembly(parse_spec({**SPEC, "pipeline": "sync"}), Own(env=Silent)) as assembly:
        session = assembly.session(assembly.spec.members)
        session.compile()
        session.begin()
        with pytest.raises(SpecError, match=r"env 0 gave -1\.0 as 'took' of its info"):
            session.advance(3)
    with (
        Assembly(parse_spec({**SPEC, "discount_per": "tock"}), Own(env=Timed())) as assembly,
        pytest.raises(SpecError, match=r"gives no 'tock'; it gives \['took'\]"),
    ):
        assembly.session(assembly.spec.members).compile()
    with pytest.raises(SpecError, match="discount_per is not for hindsight"):
        parse_spec({**SPEC, "replay": {**SPEC["replay"], "hindsight": {}}})
