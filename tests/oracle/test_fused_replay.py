"""The fused program with n-step returns and priorities against a naive account, on an env that counts."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fused import LENGTHS, Counting

from hotloop.engines.jax.engine import JaxEngine
from hotloop.experience import Item
from hotloop.members import seeds
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.pipelines.stepwise import Stepwise
from hotloop.replay import device_tree
from hotloop.replay.device import Drawn
from hotloop.runs.state import digests, to_arrays
from hotloop.spec import Spec
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

DISCOUNT, N_STEP, START, CAPACITY, BATCH, BLOCKS = 0.9, 3, 24, 50, 8, 40
ALPHA, EPSILON, BETA = 0.7, 1e-2, (0.4, 1.0, 60)
SHAPES = {"1 env, 2 updates": (1, 2.0), "4 envs, 2 steps": (4, 0.125), "2 envs, 2 steps, 3 updates": (2, 0.75)}


def make_spec(num_envs: int, ratio: float, **replay: Any) -> Spec:
    beta = dict(zip(("start", "end", "steps"), BETA, strict=True))
    sampling = {"kind": "prioritized", "alpha": ALPHA, "epsilon": EPSILON, "beta": {"kind": "linear", **beta}}
    return parse_spec(
        {
            "updates_per_step": ratio,
            "discount": DISCOUNT,
            "env": {"num_envs": num_envs},
            "network": {"torso": {"hidden": [16]}},
            "target": {"rule": "target", "every": 6},
            "optimizer": {"learning_rate": 1e-2},
            "exploration": {"epsilon": 0.5},
            "guard": {"skips_in_a_row": 1000},
            "replay": {
                "capacity": CAPACITY,
                "start": START,
                "batch_size": BATCH,
                "n_step": N_STEP,
                "sampling": sampling,
                **replay,
            },
        }
    )


def pipeline_of(spec: Spec, kind: type[Fused] = Fused) -> Fused:
    env = Counting()
    obs = jax.ShapeDtypeStruct(env.obs_spec.shape, env.obs_spec.dtype)
    return kind(spec, env, JaxEngine(spec, obs, env.num_actions))


class Replayed(NamedTuple):
    """A block again, stage by stage: the rows it began with, what it drew, and its TD errors."""

    kept: np.ndarray  # priorities after the block's rows were stored, before any was drawn
    drawn: Drawn
    td_KB: np.ndarray


class Run(NamedTuple):
    """A pipeline with its compiled stages, and its state after every block; `log` is all rows it stored, in order."""

    pipeline: Fused
    advance: Any
    stages: tuple[Any, Any, Any]
    states: list[FusedState]
    log: Item

    def blocks(self) -> Iterator[tuple[FusedState, FusedState]]:
        return pairwise(self.states)

    @property
    def rows(self) -> int:
        """Of one block."""
        return self.pipeline.block_plan.env_steps

    def leaves(self, state: FusedState) -> np.ndarray:
        return np.asarray(state.replay.priorities.sums[0]).reshape(-1)[: self.pipeline.replay.capacity]

    def replay(self, before: FusedState, after: FusedState) -> Replayed:
        """The stages of the block between two states, on the rows that it ended with."""
        insert, sample, learn = self.stages
        key = jax.random.fold_in(jax.random.wrap_key_data(before.key), before.blocks)
        start = int(before.replay.ring.position)
        items = jax.tree.map(lambda leaf: leaf[start : start + self.rows], after.replay.ring.rows)
        stored = insert(before.replay, items)
        jax.tree.map(np.testing.assert_array_equal, stored.ring, after.replay.ring)
        drawn = jax.device_get(sample(stored, jax.random.split(key)[1], after.env_steps))
        _, td_KB, _ = learn(before.learner, drawn, before.env_steps, key)
        return Replayed(self.leaves(before._replace(replay=stored)), drawn, np.asarray(td_KB))


@cache
def recorded(shape: str, compiled: str = "less optimised") -> Run:
    """A run of the shape; kept apart by how it was `compiled`, which is the marker's choice."""
    pipeline = pipeline_of(make_spec(*SHAPES[shape]))
    advance = jax.jit(pipeline.advance)
    states = [jax.device_get(jax.jit(pipeline.init)(jnp.uint32(3)))]
    for _ in range(BLOCKS):
        states.append(jax.device_get(advance(states[-1], jnp.int32(1))))
    rows = pipeline.block_plan.env_steps
    new = [
        jax.tree.map(lambda leaf: leaf[before.replay.ring.position :][:rows], after.replay.ring.rows)  # noqa: B023
        for before, after in pairwise(states)
    ]
    log = jax.tree.map(lambda *leaves: np.concatenate(leaves), *new)
    stages = jax.jit(pipeline.replay.insert), jax.jit(pipeline.replay.sample), jax.jit(pipeline.learn)
    return Run(pipeline, advance, stages, states, log)


@pytest.fixture(scope="module", params=SHAPES)
def run(request: pytest.FixtureRequest) -> Run:
    return recorded(request.param)


@pytest.fixture(scope="module", params=["2 envs, 2 steps, 3 updates", "1 env, 2 updates"])
def users_run(request: pytest.FixtureRequest) -> Run:
    return recorded(request.param, "as users compile")


# -- n-step -------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One step of one env, as its observation and action say."""

    episode: int
    t: int
    action: int

    @property
    def is_last(self) -> bool:
        return self.t + 1 == LENGTHS[self.episode % 4]

    @property
    def is_terminated(self) -> bool:
        return self.is_last and (self.episode // 4) % 3 != 1

    @property
    def reward(self) -> float:
        return 10.0 * (self.t + 1) + self.action


def steps_of(run: Run, env: int) -> list[Step]:
    """All steps that an env took: those of its rows, then those that wait in the window."""
    num_envs, held = run.pipeline.block_plan.num_envs, run.states[-1].actor.window.items
    stored = zip(run.log.s_tm1[env::num_envs], run.log.a_tm1[env::num_envs], strict=True)
    waiting = zip(held.s_tm1[:, env], held.a_tm1[:, env], strict=True)
    return [Step(int(obs[0]), int(obs[1]), int(action)) for obs, action in [*stored, *waiting]]


def test_every_row_from_the_first_on_is_an_n_step_transition_of_one_episode(run: Run) -> None:
    num_envs = run.pipeline.block_plan.num_envs
    spans = set()
    for env in range(num_envs):
        steps = steps_of(run, env)
        assert steps[0].t == 0, "the first row is the first step there was"
        for step, following in pairwise(steps):
            assert following.t == (0 if step.is_last else step.t + 1), "one row for every step, in order"
            assert (following.episode == step.episode) is not step.is_last
        for at, row in enumerate(range(env, run.log.r_t.size, num_envs)):
            reward, taken = 0.0, 0
            for step in steps[at : at + N_STEP]:
                reward += DISCOUNT**taken * step.reward
                taken += 1
                if step.is_last:
                    break
            spans.add(taken)
            assert run.log.r_t[row] == pytest.approx(reward, rel=1e-6)
            assert run.log.discount_t[row] == pytest.approx(0 if step.is_terminated else DISCOUNT**taken, rel=1e-6)
            assert run.log.s_tm1[row].tolist() == [steps[at].episode, steps[at].t]
            assert run.log.s_t[row].tolist() == [steps[at].episode, steps[at].t + taken]
    assert spans == {1, 2, 3}


def test_envs_play_episodes_of_their_own(run: Run) -> None:
    played = [{step.episode for step in steps_of(run, env)} for env in range(run.pipeline.block_plan.num_envs)]
    assert len(set.union(*played)) == sum(map(len, played))


def test_the_ring_holds_the_newest_rows_after_it_has_wrapped_around(run: Run) -> None:
    capacity = CAPACITY - CAPACITY % run.rows
    end = run.states[-1]
    stored = BLOCKS * run.rows
    assert (int(end.replay.ring.size), int(end.replay.ring.position)) == (min(stored, capacity), stored % capacity)
    if run.pipeline.block_plan.num_envs > 1:
        assert stored > 2 * capacity
    kept = min(stored, capacity)
    for in_ring, in_log in zip(jax.tree.leaves(end.replay.ring.rows), jax.tree.leaves(run.log), strict=True):
        np.testing.assert_array_equal(np.roll(in_ring, -end.replay.ring.position, axis=0)[-kept:], in_log[-kept:])


def test_steps_that_fill_the_window_are_not_counted(run: Run) -> None:
    """A run counts from its first block on; an episode that runs by then is counted whole when it ends."""
    start, end = run.states[0], run.states[-1]
    for number in (start.env_steps, start.blocks, start.episodes, *start.totals[1:]):
        assert number == 0
    assert start.replay.ring.size == 0
    assert int(end.env_steps) == BLOCKS * run.rows
    episodes = length = 0
    total = 0.0
    for env in range(run.pipeline.block_plan.num_envs):
        so_far: list[Step] = []
        for at, step in enumerate(steps_of(run, env)):
            so_far.append(step)
            if step.is_last:
                if at >= N_STEP - 1:
                    episodes, length = episodes + 1, length + len(so_far)
                    total += sum(step.reward for step in so_far)
                so_far = []
        assert end.actor.episode_length[env] == len(so_far)
        assert end.actor.episode_return[env] == sum(step.reward for step in so_far)
    assert (int(end.episodes), int(end.totals.episodes)) == (episodes, episodes)
    assert (float(end.totals.episode_length), float(end.totals.episode_return)) == (length, total)


# -- priorities ---------------------------------------------------------------------------------------


def test_new_rows_get_the_largest_priority_and_others_keep_theirs(run: Run) -> None:
    overwritten = 0
    for before, after in run.blocks():
        expected, start = run.leaves(before).copy(), int(before.replay.ring.position)
        is_full = start < before.replay.ring.size
        overwritten += bool(is_full and (expected[start : start + run.rows] != before.replay.priorities.largest).any())
        expected[start : start + run.rows] = before.replay.priorities.largest
        np.testing.assert_array_equal(run.replay(before, after).kept, expected)
    if run.pipeline.block_plan.num_envs > 1:
        assert overwritten > 10, "rows with other priorities were overwritten"


def test_before_the_learning_start_all_rows_have_the_first_priority(run: Run) -> None:
    waited = [state for state in run.states if state.env_steps < START]
    assert len(waited) >= 3
    for state in waited:
        size = int(state.replay.ring.size)
        assert run.leaves(state)[:size].tolist() == [1.0] * size
        assert not run.leaves(state)[size:].any()
        assert state.replay.priorities.largest == 1.0
        np.testing.assert_array_equal(state.learner.params, run.states[0].learner.params)


def test_weights_are_those_of_the_formula_with_beta_of_the_env_step(run: Run) -> None:
    first, last, steps = BETA
    seen = set()
    for before, after in run.blocks():
        kept, drawn, _ = run.replay(before, after)
        beta = first + (last - first) * min(int(after.env_steps) / steps, 1.0)
        priority_KB = kept.astype(np.float64)[drawn.places]
        probability_KB = priority_KB / kept.astype(np.float64).sum()
        weight_KB = (int(after.replay.ring.size) * probability_KB) ** -beta
        np.testing.assert_allclose(drawn.weight_KB, weight_KB / weight_KB.max(axis=1, keepdims=True), rtol=1e-5)
        seen.add(round(beta, 6))
        for stored, got in zip(jax.tree.leaves(after.replay.ring.rows), jax.tree.leaves(drawn.batches), strict=True):
            np.testing.assert_array_equal(got, stored[drawn.places])
    assert len(seen) > 5


def test_drawn_rows_get_the_priority_of_their_td_error_and_no_other_row_changes(run: Run) -> None:
    repeated = 0
    for before, after in run.blocks():
        kept, drawn, td_KB = run.replay(before, after)
        expected, largest = kept.astype(np.float64), float(before.replay.priorities.largest)
        if after.env_steps >= START:
            new: dict[int, list[float]] = {}
            for place, td in zip(drawn.places.ravel().tolist(), td_KB.ravel().tolist(), strict=True):
                new.setdefault(place, []).append((abs(td) + EPSILON) ** ALPHA)
            for place, found in new.items():
                expected[place] = max(found)
                repeated += max(found) > 1.0001 * min(found)
                largest = max(largest, *found)
        leaves = run.leaves(after)
        np.testing.assert_allclose(leaves, expected, rtol=1e-5)
        untouched = np.setdiff1d(np.arange(len(leaves)), drawn.places)
        np.testing.assert_array_equal(leaves[untouched], kept[untouched])
        np.testing.assert_allclose(after.replay.priorities.largest, largest, rtol=1e-5)
        device_tree.check(after.replay.priorities, int(after.replay.ring.size))
    if run.pipeline.block_plan.updates > 1:
        assert repeated, "a row drawn for two batches has two errors: the larger counts"


def test_the_td_errors_are_those_of_n_step_targets(run: Run) -> None:
    """Of a block's first batch, by the Q-values of its first weights and of the target net."""
    before, after = run.states[-2:]
    _, drawn, td_KB = run.replay(before, after)
    batch = jax.tree.map(lambda leaf: leaf[0], drawn.batches)
    q_BA, q_t_BA = (
        np.asarray(run.pipeline.engine.q_values(weights, obs), np.float64)
        for weights, obs in ((before.learner.params, batch.s_tm1), (before.learner.target, batch.s_t))
    )
    for row in range(BATCH):
        target = float(batch.r_t[row]) + float(batch.discount_t[row]) * q_t_BA[row].max()
        td = target - q_BA[row, batch.a_tm1[row]]
        np.testing.assert_allclose(abs(td_KB[0, row]), abs(td), rtol=1e-4, atol=1e-3 * abs(q_t_BA).max())


def test_importance_weights_reach_the_gradient() -> None:
    run = recorded("1 env, 2 updates")
    before, after = run.states[-2:]
    _, drawn, _ = run.replay(before, after)
    key = jax.random.fold_in(jax.random.wrap_key_data(before.key), before.blocks)
    learned, _, _ = run.stages[2](before.learner, drawn, before.env_steps, key)
    np.testing.assert_array_equal(learned.params, after.learner.params)
    assert drawn.weight_KB.min() < 0.9
    unweighted = drawn._replace(weight_KB=np.ones_like(drawn.weight_KB))
    other, _, _ = run.stages[2](before.learner, unweighted, before.env_steps, key)
    assert (np.asarray(other.params) != after.learner.params).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_td_errors_that_are_not_finite_leave_the_old_priority(run: Run, poison: float) -> None:
    """Every third row pays what is no number; the block draws some of them, and some of the others."""
    healthy = run.states[-1]
    reward = healthy.replay.ring.rows.r_t.copy()
    reward[::3] = poison
    ring = healthy.replay.ring._replace(rows=healthy.replay.ring.rows._replace(r_t=reward))
    before = healthy._replace(replay=healthy.replay._replace(ring=ring))
    poisoned_draws = other_draws = 0
    for _ in range(4):
        after = jax.device_get(run.advance(before, jnp.int32(1)))
        kept, drawn, td_KB = run.replay(before, after)
        leaves = run.leaves(after)
        is_poisoned = ~np.isfinite(after.replay.ring.rows.r_t)
        np.testing.assert_array_equal(leaves[is_poisoned], kept[is_poisoned])
        for place in np.unique(drawn.places):
            if is_poisoned[place]:
                poisoned_draws += 1
                assert not np.isfinite(td_KB[drawn.places == place]).any()
            elif np.isfinite(td_KB[drawn.places == place]).all():
                other_draws += 1
                found = (np.abs(td_KB[drawn.places == place].astype(np.float64)) + EPSILON) ** ALPHA
                np.testing.assert_allclose(leaves[place], found.max(), rtol=1e-5)
        device_tree.check(after.replay.priorities, int(after.replay.ring.size))
        assert np.isfinite(after.learner.params).all()
        before = after
    assert poisoned_draws > 3
    assert other_draws > 3


def test_rows_of_high_priority_are_drawn_more_often() -> None:
    """All draws of a block against the priorities it drew by: their mean chance is that of proportional draws."""
    run = recorded("4 envs, 2 steps")
    seen = expected = spread = 0.0
    for before, after in pairwise(run.states[5:]):
        kept, drawn, _ = run.replay(before, after)
        chance = kept.astype(np.float64) / kept.sum()
        seen += chance[drawn.places].sum()
        mean = (chance * chance).sum()
        expected += drawn.places.size * mean
        spread += drawn.places.size * ((chance**3).sum() - mean**2)
    assert abs(seen - expected) < 5 * np.sqrt(spread)
    uniform = sum(BATCH / CAPACITY for _ in run.states[6:])
    assert expected - uniform > 5 * np.sqrt(spread), "uniform draws would be seen"


# -- the same run another way -------------------------------------------------------------------------


def _digests(state: FusedState) -> dict[str, str]:
    return digests(to_arrays(state))


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_the_stages_one_by_one_end_in_the_same_bits(users_run: Run) -> None:
    stepwise = pipeline_of(users_run.pipeline.spec, Stepwise)
    assert isinstance(stepwise, Stepwise)
    state = stepwise.advance_by_stages(jax.device_put(users_run.states[0]), BLOCKS)
    assert _digests(state) == _digests(users_run.states[-1])


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_blocks_one_by_one_or_at_once_end_in_the_same_bits(users_run: Run) -> None:
    half = users_run.advance(users_run.states[0], jnp.int32(BLOCKS // 2))
    assert _digests(half) == _digests(users_run.states[BLOCKS // 2])
    assert _digests(users_run.advance(half, jnp.int32(BLOCKS - BLOCKS // 2))) == _digests(users_run.states[-1])


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_a_seed_among_two_is_the_run_alone() -> None:
    """The second seed is that of the recorded run."""
    run = recorded("2 envs, 2 steps, 3 updates", "as users compile")
    session = pipeline_of(
        run.pipeline.spec.model_copy(
            update={"evaluation": run.pipeline.spec.evaluation.model_copy(update={"every": 0}), "seeds": 2}
        )
    ).session(seeds([2, 3]))
    session.compile()
    session.begin()
    session.advance(BLOCKS)
    arrays, alone = session.arrays(), to_arrays(run.states[-1])
    assert {"replay/priorities/largest", "replay/priorities/sums/0", "actor/window/is_open"} <= set(arrays)
    assert set(arrays) == set(alone)
    for name, array in alone.items():
        np.testing.assert_array_equal(arrays[name][1], array, err_msg=name)
    assert (arrays["replay/priorities/sums/0"][0] != arrays["replay/priorities/sums/0"][1]).any()


def test_draws_that_fill_the_window_are_not_those_of_the_first_block() -> None:
    """No key is used twice: neither for two vector steps, nor for a step and what is made from it."""
    used: list[tuple[int, ...]] = []

    class Watched(Fused):
        def vector_step(self, carry: Any, params: Any, env_steps: Any, key: jax.Array) -> Any:
            for made in (key, *jax.random.split(key)):
                jax.debug.callback(lambda data: used.append(tuple(data.tolist())), jax.random.key_data(made))
            return super().vector_step(carry, params, env_steps, key)

    pipeline = pipeline_of(make_spec(*SHAPES["4 envs, 2 steps"]), Watched)
    state = pipeline.init(jnp.uint32(3))
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks)
    act_key, sample_key = jax.random.split(key)
    pipeline.collect(state, act_key)
    jax.effects_barrier()
    used += [tuple(np.asarray(jax.random.key_data(made)).tolist()) for made in (act_key, sample_key)]
    assert len(used) == 3 * (N_STEP - 1 + 2) + 2
    assert len(set(used)) == len(used)
