"""The fused program against a naive account of what it should have done, on an env that counts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.engines.jax.engine import JaxEngine, LearnerState
from hotloop.envs.device import ObsSpec
from hotloop.experience import METRICS, Item
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.runs.state import digests, to_arrays
from hotloop.spec import Spec
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

DISCOUNT, START, CAPACITY, BATCH, TARGET_EVERY, BLOCKS = 0.9, 10, 50, 4, 6, 40
LENGTHS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Counting:
    """An observation is (episode's number, t). Number and length of an episode are drawn by its reset.

    Of every three episodes one terminates, one is truncated, and one does both in its last step.
    """

    num_actions: int = 2
    reward_scale: float = 1.0

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, np.zeros(2), np.full(2, 2.0**23))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.stack([jax.random.randint(key, (), 1, 2**23), 0])
        return state, state.astype(jnp.float32)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        episode, t = state[0], state[1] + 1
        over = t >= jnp.array(LENGTHS)[episode % 4]
        ending = (episode // 4) % 3
        reward = (10.0 * t + action) * self.reward_scale
        state = jnp.stack([episode, t])
        return state, state.astype(jnp.float32), reward, over & (ending != 1), over & (ending != 0), {}


class Shape(NamedTuple):
    """How many envs, which replay ratio, and the block that they should give."""

    num_envs: int
    updates_per_step: float
    vector_steps: int
    updates: int

    def __str__(self) -> str:
        return f"{self.num_envs} env(s) at ratio {self.updates_per_step:.3g}"

    @property
    def env_steps(self) -> int:
        return self.num_envs * self.vector_steps


ONE_ENV_RATIO_2, ONE_ENV_RATIO_QUARTER = Shape(1, 2.0, 1, 2), Shape(1, 0.25, 4, 1)
FOUR_ENVS, TWO_ENVS, THREE_ENVS = Shape(4, 0.125, 2, 1), Shape(2, 0.75, 2, 3), Shape(3, 1 / 3, 1, 1)
PARAMS = [ONE_ENV_RATIO_2, FOUR_ENVS, TWO_ENVS, pytest.param(ONE_ENV_RATIO_QUARTER, marks=pytest.mark.heavy)]


def make_spec(shape: Shape, **more: Any) -> Spec:
    return parse_spec(
        {
            "updates_per_step": shape.updates_per_step,
            "discount": DISCOUNT,
            "env": {"num_envs": shape.num_envs},
            "network": {"torso": {"hidden": [16]}},
            "target": {"rule": "target", "every": TARGET_EVERY},
            "optimizer": {"learning_rate": {"kind": "linear", "start": 1.0, "end": 0.0, "steps": 1000}},
            "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.0, "steps": 1000}},
            "replay": {"capacity": CAPACITY, "start": START, "batch_size": BATCH},
            **more,
        }
    )


class Program(NamedTuple):
    """A pipeline and its compiled loop."""

    pipeline: Fused
    advance: Any


def compiled(spec: Spec, engine: type[JaxEngine] = JaxEngine, env: Counting | None = None) -> Program:
    env = env or Counting()
    obs = jax.ShapeDtypeStruct(env.obs_spec.shape, env.obs_spec.dtype)
    pipeline = Fused(spec, env, engine(spec, obs, env.num_actions))
    return Program(pipeline, jax.jit(pipeline.advance))


class Recording(NamedTuple):
    """A run seen after every block (`states[0]` is before the first), and all rows it stored, in order."""

    shape: Shape
    program: Program
    states: list[FusedState]
    log: Item

    def blocks(self) -> Iterator[tuple[FusedState, FusedState]]:
        return pairwise(self.states)


@cache
def plain(shape: Shape) -> Program:
    """The program as users run it, compiled once."""
    return compiled(make_spec(shape))


def record(shape: Shape, program: Program) -> Recording:
    states = [jax.device_get(jax.jit(program.pipeline.init)(jnp.uint32(3)))]
    for _ in range(BLOCKS):
        states.append(jax.device_get(program.advance(states[-1], jnp.int32(1))))
    new = [
        jax.tree.map(lambda leaf: leaf[before.replay.ring.position :][: shape.env_steps], after.replay.ring.rows)  # noqa: B023
        for before, after in pairwise(states)
    ]
    return Recording(shape, program, states, jax.tree.map(lambda *leaves: np.concatenate(leaves), *new))


@pytest.fixture(scope="module", params=PARAMS, ids=str)
def run(request: pytest.FixtureRequest) -> Recording:
    """A recorded run of the real thing."""
    return record(request.param, plain(request.param))


@cache
def recorded_for_bits(shape: Shape) -> Recording:
    """A recorded run of a program that only tests of bits use: compiled as they ask."""
    return record(shape, compiled(make_spec(shape)))


@pytest.fixture(scope="module", params=[pytest.param(ONE_ENV_RATIO_2, marks=pytest.mark.heavy), TWO_ENVS], ids=str)
def users_run(request: pytest.FixtureRequest) -> Recording:
    return recorded_for_bits(request.param)


class Telltale(JaxEngine):
    """An engine that learns nothing and writes down what the pipeline gave it.

    Its action is 1000 x (1 - ε): with the spec's ε, the env step whose ε it was. Its weights are the actions of
    the batches it was given, then 1000 x (1 - learning rate); its target counts its moves.
    """

    def act(
        self, params: jax.Array, obs_N: Any, explore_N: jax.Array, key: jax.Array, legal_NA: Any = None
    ) -> jax.Array:
        return jnp.round(1000 * (1 - explore_N)).astype(jnp.int32)

    def update(
        self, state: LearnerState, batches: Item, learning_rate: jax.Array, weight_KB: Any = None, key: Any = None
    ) -> Any:
        seen = jnp.append(batches.a_tm1.astype(jnp.float32).reshape(-1), jnp.round(1000 * (1 - learning_rate)))
        params = state.params.at[: seen.size].set(seen)
        steps = batches.r_t.shape[0]
        state = state._replace(params=params, updates=state.updates + steps)
        return state, jnp.zeros(batches.r_t.shape), jnp.zeros(len(METRICS))

    def move_target(self, state: LearnerState, times: jax.Array) -> LearnerState:
        return state._replace(target=state.target + times)


@pytest.fixture(scope="module", params=[*PARAMS, pytest.param(THREE_ENVS, marks=pytest.mark.heavy)], ids=str)
def told(request: pytest.FixtureRequest) -> Recording:
    """A recorded run with the telltale engine."""
    return record(request.param, compiled(make_spec(request.param), Telltale))


# -- what is stored -----------------------------------------------------------------------------------


def test_every_row_is_a_step_of_one_episode_with_its_own_end(run: Recording) -> None:
    played = [_play(run.log, env, run.shape.num_envs) for env in range(run.shape.num_envs)]
    ends = {end for episodes in played for _, end in episodes}
    lengths = {length for episodes in played for length, _ in episodes}
    if run.log.r_t.size >= 100:
        assert ends == {"terminated", "truncated", "both"}, "the run should have seen every way to end"
        assert lengths == set(LENGTHS)


def test_the_bootstrap_is_cut_by_termination_and_never_by_truncation(run: Recording) -> None:
    over, terminated = _flags(run.log)
    np.testing.assert_array_equal(run.log.discount_t, np.where(terminated, 0.0, DISCOUNT).astype(np.float32))
    assert (run.log.discount_t[over & ~terminated] == np.float32(DISCOUNT)).all()
    assert terminated.any()
    assert (over & ~terminated).any()


def test_a_row_ends_where_its_episode_did_and_not_at_the_next_ones_start(run: Recording) -> None:
    np.testing.assert_array_equal(run.log.s_t, run.log.s_tm1 + np.array([0, 1]))


def test_the_reward_belongs_to_the_action_taken(run: Recording) -> None:
    np.testing.assert_array_equal(run.log.r_t, 10 * run.log.s_t[:, 1] + run.log.a_tm1)
    assert set(run.log.a_tm1) == {0, 1}


def test_the_next_row_of_an_env_begins_where_it_stands(run: Recording) -> None:
    for before, after in run.blocks():
        first = after.replay.ring.rows.s_tm1[before.replay.ring.position :][: run.shape.num_envs]
        np.testing.assert_array_equal(first, before.actor.obs)
        np.testing.assert_array_equal(after.actor.env.astype(np.float32), after.actor.obs)


def test_the_ring_keeps_the_newest_rows(run: Recording) -> None:
    capacity = CAPACITY - CAPACITY % run.shape.env_steps
    assert run.program.pipeline.replay.capacity == capacity
    for blocks, state in enumerate(run.states):
        stored = blocks * run.shape.env_steps
        assert (int(state.replay.ring.size), int(state.replay.ring.position)) == (
            min(stored, capacity),
            stored % capacity,
        )
    oldest_first = jax.tree.map(
        lambda leaf: np.roll(leaf, -run.states[-1].replay.ring.position, axis=0), state.replay.ring.rows
    )
    kept = min(stored, capacity)
    for field in ("s_tm1", "a_tm1", "r_t", "discount_t", "s_t"):
        in_ring, in_log = getattr(oldest_first, field)[-kept:], getattr(run.log, field)[-kept:]
        np.testing.assert_array_equal(in_ring, in_log, err_msg=field)


def test_every_episode_begins_with_a_draw_of_its_own(run: Recording) -> None:
    episodes = run.log.s_tm1[run.log.s_tm1[:, 1] == 0][:, 0]
    assert episodes.size > 5
    assert np.unique(episodes).size == episodes.size


# -- what is counted ----------------------------------------------------------------------------------


def test_the_block_is_the_one_the_replay_ratio_asks_for(run: Recording) -> None:
    shape = run.shape
    assert run.program.pipeline.block_plan == (shape.num_envs, shape.vector_steps, shape.updates)


def test_steps_episodes_and_returns_are_counted_exactly(run: Recording) -> None:
    num_envs = run.shape.num_envs
    over, _ = _flags(run.log)
    running_return, running_length = np.zeros(num_envs), np.zeros(num_envs, int)
    episodes, total_return, total_length, row = 0, 0.0, 0, 0
    for blocks, state in enumerate(run.states):
        while row < blocks * run.shape.env_steps:
            env = row % num_envs
            running_return[env] += run.log.r_t[row]
            running_length[env] += 1
            if over[row]:
                episodes, total_return = episodes + 1, total_return + running_return[env]
                total_length += running_length[env]
                running_return[env], running_length[env] = 0.0, 0
            row += 1
        assert (int(state.blocks), int(state.env_steps)) == (blocks, blocks * run.shape.env_steps)
        assert int(state.episodes) == int(state.totals.episodes) == episodes
        assert float(state.totals.episode_return) == total_return
        assert float(state.totals.episode_length) == total_length
        np.testing.assert_array_equal(state.actor.episode_return, running_return)
        np.testing.assert_array_equal(state.actor.episode_length, running_length)


def test_episodes_go_on_being_counted_when_the_totals_are_cleared(run: Recording) -> None:
    state = run.states[BLOCKS // 2]
    cleared = state._replace(totals=jax.tree.map(np.zeros_like, state.totals))
    after = run.program.advance(cleared, jnp.int32(BLOCKS - BLOCKS // 2))
    assert int(after.episodes) == int(run.states[-1].episodes)
    assert int(after.totals.episodes) == int(after.episodes) - int(state.episodes)


def test_learning_starts_on_time_and_keeps_its_ratio(run: Recording) -> None:
    learning_blocks = 0
    for blocks, state in enumerate(run.states):
        env_steps = blocks * run.shape.env_steps
        learning_blocks += blocks > 0 and env_steps >= START
        assert int(state.learner.updates) == learning_blocks * run.shape.updates
        assert float(state.totals.update[METRICS.index("applied")]) == learning_blocks * run.shape.updates
        begun = -(-START // run.shape.env_steps) * run.shape.env_steps
        assert int(state.first_update_at) == (begun if env_steps >= START else 0)
    ratio = int(state.learner.updates) / (int(state.env_steps) - int(state.first_update_at) + run.shape.env_steps)
    assert ratio == pytest.approx(run.shape.updates_per_step)


def test_weights_change_in_exactly_the_blocks_that_learn(run: Recording) -> None:
    for before, after in run.blocks():
        has_changed = not np.array_equal(before.learner.params, after.learner.params)
        assert has_changed is bool(after.env_steps >= START)


def test_the_target_net_is_copied_in_exactly_the_blocks_that_cross_a_period(run: Recording) -> None:
    copies = 0
    for before, after in run.blocks():
        crosses = any(step % TARGET_EVERY == 0 for step in range(before.env_steps + 1, after.env_steps + 1))
        expected = after.learner.params if crosses else before.learner.target
        np.testing.assert_array_equal(after.learner.target, expected)
        copies += crosses
    assert copies >= 5


# -- what the engine is given -------------------------------------------------------------------------


def test_epsilon_is_that_of_each_env_step(told: Recording) -> None:
    assert told.log.a_tm1.tolist() == list(range(BLOCKS * told.shape.env_steps))


def test_the_learning_rate_is_that_of_the_blocks_start(told: Recording) -> None:
    place = told.shape.updates * BATCH
    for before, after in told.blocks():
        if after.env_steps >= START:
            assert after.learner.params[place] == before.env_steps


def test_the_target_moves_once_for_every_period_crossed(told: Recording) -> None:
    moves_of_a_block = set()
    for before, after in told.blocks():
        moves = after.learner.target - before.learner.target
        crossed = sum(step % TARGET_EVERY == 0 for step in range(before.env_steps + 1, after.env_steps + 1))
        np.testing.assert_allclose(moves, crossed, atol=1e-5)
        moves_of_a_block.add(crossed)
    if told.shape.env_steps > TARGET_EVERY:
        assert moves_of_a_block == {1, 2}, "a block longer than the period crosses one or two"
    else:
        assert moves_of_a_block == {0, 1}


def test_batches_are_drawn_anew_from_the_rows_in_the_ring(told: Recording) -> None:
    """With the telltale engine a row's action is the env step it was taken at."""
    size, draws = told.shape.updates * BATCH, []
    for before, after in told.blocks():
        if after.env_steps < START:
            np.testing.assert_array_equal(before.learner.params, after.learner.params)
            continue
        drawn = after.learner.params[:size]
        draws.append(drawn)
        oldest = max(0, after.env_steps - told.program.pipeline.replay.capacity)
        assert drawn.min() >= oldest
        assert drawn.max() < after.env_steps
    together = np.concatenate(draws)
    assert np.unique(np.stack(draws), axis=0).shape[0] >= len(draws) - 1, "every block draws its own batches"
    newest = np.array([int(after.env_steps) for _, after in told.blocks() if after.env_steps >= START])
    ages = np.repeat(newest, size) - together
    assert (ages <= told.shape.env_steps).any(), "the block's own rows can be drawn"


# -- repeatability ------------------------------------------------------------------------------------


@pytest.mark.as_users_compile
def test_advancing_twice_equals_advancing_at_once_bit_for_bit(users_run: Recording) -> None:
    start = users_run.states[0]
    half = users_run.program.advance(start, jnp.int32(BLOCKS // 2))
    twice = users_run.program.advance(half, jnp.int32(BLOCKS // 2))
    at_once = users_run.program.advance(start, jnp.int32(BLOCKS))
    assert _digest(twice) == _digest(at_once) == _digest(users_run.states[-1])
    assert _digest(half) == _digest(users_run.states[BLOCKS // 2]) != _digest(twice)


@pytest.mark.as_users_compile
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(users_run: Recording) -> None:
    init, advance = jax.jit(users_run.program.pipeline.init), users_run.program.advance
    first, again, other = (advance(init(jnp.uint32(seed)), jnp.int32(BLOCKS)) for seed in (3, 3, 4))
    assert digests(to_arrays(first)) == digests(to_arrays(again))
    ours, theirs = digests(to_arrays(first)), digests(to_arrays(other))
    for part in ("learner", "actor", "replay", "key", "all"):
        assert ours[part] != theirs[part]


# -- stop rules the device sees -----------------------------------------------------------------------


@pytest.mark.as_users_compile
def test_a_run_stops_in_the_block_that_finishes_the_last_episode_asked_for() -> None:
    unstopped = recorded_for_bits(TWO_ENVS).states
    wanted = int(unstopped[5].episodes)  # reached exactly at the end of a block: one more block would be too many
    program = compiled(make_spec(TWO_ENVS, stop={"episodes": wanted}))
    stopped = program.advance(unstopped[0], jnp.int32(10_000))
    expected = next(state for state in unstopped if state.episodes >= wanted)
    assert _digest(stopped) == _digest(expected)
    assert _digest(program.advance(stopped, jnp.int32(5))) == _digest(stopped), "a finished run stays as it is"


def test_updates_that_are_not_finite_end_the_program_and_leave_the_weights() -> None:
    spec = make_spec(TWO_ENVS, guard={"skips_in_a_row": 7})
    program = compiled(spec, env=Counting(reward_scale=float("nan")))
    start = program.pipeline.init(jnp.uint32(3))
    end = program.advance(start, jnp.int32(1000))
    waiting_blocks = (START - 1) // TWO_ENVS.env_steps
    assert int(end.blocks) == waiting_blocks + 3, "7 skips need 3 blocks of 3"
    assert (int(end.learner.updates), int(end.learner.skipped), int(end.learner.skipped_in_a_row)) == (0, 9, 9)
    np.testing.assert_array_equal(end.learner.params, start.learner.params)


# -- helpers ------------------------------------------------------------------------------------------


def _flags(log: Item) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row was the last of its episode, and whether it terminated, from s_tm1 alone."""
    episode, t = log.s_tm1[:, 0].astype(int), log.s_tm1[:, 1].astype(int)
    over = t + 1 == np.array(LENGTHS)[episode % 4]
    return over, over & ((episode // 4) % 3 != 1)


def _play(log: Item, env: int, num_envs: int) -> list[tuple[int, str]]:
    """Follow one env through the log as a plain loop over its episodes; returns length and end of each."""
    rows, episodes = iter(range(env, log.r_t.size, num_envs)), []
    row = next(rows, None)
    while row is not None:
        episode = int(log.s_tm1[row, 0])
        length, end = LENGTHS[episode % 4], ("terminated", "truncated", "both")[(episode // 4) % 3]
        for t in range(length):
            last = t + 1 == length
            assert log.s_tm1[row].tolist() == [episode, t]
            assert log.s_t[row].tolist() == [episode, t + 1]
            assert log.discount_t[row] == np.float32(0.0 if last and end != "truncated" else DISCOUNT)
            row = next(rows, None)
            if row is None:
                return episodes
        episodes.append((length, end))
    return episodes


def _digest(state: FusedState) -> str:
    return digests(to_arrays(state))["all"]
