"""The on-policy program against naive accounts of it: λ-returns, whole blocks, and what repeats to the bit."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop import members
from hotloop.engines.jax.engine import JaxEngine
from hotloop.envs.device import ObsSpec
from hotloop.errors import SpecError
from hotloop.experience import METRICS
from hotloop.learning.returns import lambda_returns
from hotloop.pipelines.on_policy import MOST_PACKED, Collected, OnPolicy, OnPolicyState, orders
from hotloop.runs.state import digests, to_arrays
from hotloop.spec import Spec
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

DISCOUNT, TRACE, CLIP, DELTA = 0.9, 0.65, 0.4, 0.7
NUM_ENVS, STEPS, EPOCHS, MINIBATCHES = 3, 8, 2, 2
ROWS, EPISODES, DECAY = NUM_ENVS * STEPS, 60, 40
LENGTHS = (1, 2, 3, 11)


@dataclass(frozen=True)
class Trail:
    """An observation tells the episode's number (drawn by its reset) and the steps so far; both are small numbers.

    Of every three episodes one terminates, one is truncated, and one does both in its last step.
    """

    num_actions: int = 2
    reward_scale: float = 1.0

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((3,), np.float32, -np.ones(3), np.full(3, 2.0))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.stack([jax.random.randint(key, (), 0, 1000), 0])
        return state, seen(state, jnp)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        state = state + jnp.array([0, 1])
        over = state[1] >= jnp.array(LENGTHS)[state[0] % 4]
        ending = (state[0] // 4) % 3
        reward = paid(state, action, jnp) * self.reward_scale
        return (state, seen(state, jnp), reward, over & (ending != 1), over & (ending != 0), {})


def seen(state: Any, xp: Any) -> Any:
    """The observation of episode number and steps."""
    return xp.stack([state[0] / 500.0 - 1.0, xp.sin(state[0] * 1.0), state[1] / 6.0])


def paid(state: Any, action: Any, xp: Any) -> Any:
    """The reward for the action that led to this state."""
    return xp.cos(state[0] + 3.0 * action) + 0.2 * state[1]


def make_spec(**more: Any) -> Spec:
    return parse_spec(
        {
            "discount": DISCOUNT,
            "env": {"num_envs": NUM_ENVS},
            "network": {"torso": {"hidden": [4], "activation": "tanh", "normalization": "layer"}},
            "loss": {"kind": "mse"},
            "optimizer": {
                "kind": "sgd",
                "learning_rate": {"kind": "linear", "start": 0.3, "end": 0.1, "steps": DECAY * ROWS},
                "clip": CLIP,
            },
            "exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.0, "steps": 1000}},
            "on_policy": {"steps": STEPS, "epochs": EPOCHS, "minibatches": MINIBATCHES, "trace": TRACE},
            "stop": {"episodes": EPISODES},
            **more,
        }
    )


def build(spec: Spec, engine: type[JaxEngine] = JaxEngine, env: Trail | None = None) -> OnPolicy:
    env = env or Trail()
    obs = jax.ShapeDtypeStruct(env.obs_spec.shape, env.obs_spec.dtype)
    return OnPolicy(spec, env, engine(spec, obs, env.num_actions))


class Recording(NamedTuple):
    """A run seen after every block (`states[0]` is before the first), and the steps that each block collected."""

    pipeline: OnPolicy
    advance: Any
    states: list[OnPolicyState]
    steps: list[Collected]


@pytest.fixture(scope="module", params=["mse", "huber, accumulated"])
def run(request: pytest.FixtureRequest) -> Recording:
    more: dict[str, Any] = {}
    if request.param != "mse":
        more = {"loss": {"kind": "huber", "delta": DELTA}}
        more["optimizer"] = {**make_spec().optimizer.model_dump(), "accumulate": 3}
    return record(build(make_spec(**more)))


def record(pipeline: OnPolicy) -> Recording:
    advance, collect = (jax.jit(pipeline.advance), jax.jit(lambda state: pipeline.collect(state, block_keys(state)[0])))
    states, steps = [jax.device_get(jax.jit(pipeline.init)(jnp.uint32(3)))], []
    while states[-1].episodes < EPISODES:
        steps.append(jax.device_get(collect(states[-1])[1]))
        states.append(jax.device_get(advance(states[-1], jnp.int32(1))))
    return Recording(pipeline, advance, states, steps)


def block_keys(state: OnPolicyState) -> tuple[jax.Array, jax.Array]:
    """Keys of the next block: for acting, and for shuffling."""
    both = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(state.key), state.blocks))
    return both[0], both[1]


# -- λ-returns ----------------------------------------------------------------------------------------


def numpy_scan(step: Any, carry: Any, inputs: Any, reverse: bool = False) -> Any:
    """What `jax.lax.scan` does, as a loop."""
    outputs: list[Any] = []
    count = len(inputs[0])
    for i in reversed(range(count)) if reverse else range(count):
        carry, output = step(carry, tuple(leaf[i] for leaf in inputs))
        outputs.append(output)
    return carry, np.stack(outputs[::-1] if reverse else outputs)


def weighted_n_step_returns(r: Any, terminated: Any, ended: Any, v: Any, trace: float) -> np.ndarray:
    """λ-returns of one env by their definition: a weighted mean of its n-step returns, looking forward."""
    out = np.zeros(len(r))
    for t in range(len(r)):
        n_step, total = [], 0.0
        for k in range(t, len(r)):
            total += DISCOUNT ** (k - t) * r[k]
            n_step.append(total + (0.0 if terminated[k] else DISCOUNT ** (k - t + 1) * v[k]))
            if ended[k]:
                break
        weights = [(1 - trace) * trace**n for n in range(len(n_step) - 1)] + [trace ** (len(n_step) - 1)]
        assert sum(weights) == pytest.approx(1.0)
        out[t] = np.dot(weights, n_step)
    return out


@pytest.mark.parametrize("trace", [0.0, 0.65, 1.0])
def test_lambda_returns_are_weighted_n_step_returns(trace: float) -> None:
    rng = np.random.default_rng(7)
    steps, num_envs = 24, 40
    r, v = rng.normal(size=(2, steps, num_envs))
    terminated, truncated = rng.random((2, steps, num_envs)) < 0.15
    truncated[-1], terminated[-1] = (np.arange(num_envs) % 2 == 0, np.arange(num_envs) % 3 == 0)
    ended = terminated | truncated
    assert (terminated & truncated).any()
    discount = DISCOUNT * (1.0 - terminated)
    columns = zip(r.T, terminated.T, ended.T, v.T, strict=True)
    expected = np.stack([weighted_n_step_returns(*column, trace) for column in columns], axis=1)

    found = lambda_returns(r, discount, ended, v, trace, xp=np, scan=numpy_scan)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    on_device = jax.jit(lambda *arrays: lambda_returns(*arrays, trace, xp=jnp, scan=jax.lax.scan))
    single = [leaf.astype(np.float32) for leaf in (r, discount)] + [ended, v.astype(np.float32)]
    np.testing.assert_allclose(on_device(*single), expected, rtol=2e-5, atol=2e-5)


def test_nothing_beyond_an_end_reaches_back() -> None:
    """Two steps of one episode, then one of the next; what follows a truncation may be anything at all."""
    r, v = np.array([[1.0], [2.0], [np.nan]]), np.array([[10.0], [20.0], [np.nan]])
    ended, discount = np.array([[False], [True], [False]]), np.full((3, 1), 0.5)
    found = lambda_returns(r, discount, ended, v, 0.5, xp=np, scan=numpy_scan)
    assert found[1, 0] == 2.0 + 0.5 * 20.0
    assert found[0, 0] == 1.0 + 0.5 * (0.5 * 12.0 + 0.5 * 10.0)


# -- what is collected --------------------------------------------------------------------------------


class Row(NamedTuple):
    """One step of one env, as the rules of the env say."""

    obs: np.ndarray
    reward: float
    next_obs: np.ndarray
    terminated: bool
    ended: bool


def relive(state: np.ndarray, action: int) -> tuple[Row, np.ndarray]:
    """One step by the env's rules, in plain Python."""
    after = state + np.array([0, 1])
    over = after[1] >= LENGTHS[after[0] % 4]
    ending = (after[0] // 4) % 3
    terminated, truncated = bool(over and ending != 1), bool(over and ending != 0)
    row = Row(seen(state, np), float(paid(after, action, np)), seen(after, np), terminated, terminated or truncated)
    return row, after


def relived(run: Recording) -> list[list[list[Row]]]:
    """All rows by block, step and env: the envs stepped again by hand with the actions that were taken."""
    where, blocks = run.states[0].actor.env, []
    for number, steps in enumerate(run.steps):
        rows = []
        for t in range(STEPS):
            both = [relive(where[n], int(steps.a_tm1[t, n])) for n in range(NUM_ENVS)]
            rows.append([row for row, _ in both])
            # Only a reset draws: its state is read from the observation that follows.
            following = steps.s_tm1[t + 1] if t + 1 < STEPS else run.states[number + 1].actor.obs
            begun = [np.array([round(float(following[n, 0] + 1.0) * 500), 0]) for n in range(NUM_ENVS)]
            where = [begun[n] if row.ended else after for n, (row, after) in enumerate(both)]
        blocks.append(rows)
    return blocks


def test_every_row_is_a_step_of_one_episode(run: Recording) -> None:
    ends = set()
    for steps, rows in zip(run.steps, relived(run), strict=True):
        for t, n in np.ndindex(STEPS, NUM_ENVS):
            row = rows[t][n]
            np.testing.assert_allclose(steps.s_tm1[t, n], row.obs, atol=1e-5)
            np.testing.assert_allclose(steps.r_t[t, n], row.reward, atol=1e-4)
            assert steps.discount_t[t, n] == np.float32(0.0 if row.terminated else DISCOUNT)
            assert bool(steps.ended[t, n]) == row.ended
            ends.add((row.terminated, row.ended))
    assert ends == {(False, False), (True, True), (False, True)}, "the run should have seen every way to go on"


def test_steps_episodes_and_returns_are_counted_exactly(run: Recording) -> None:
    returns, lengths = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, int)
    episodes, total_return, total_length = 0, 0.0, 0
    for number, (state, rows) in enumerate(zip(run.states[1:], relived(run), strict=True), start=1):
        for t, n in np.ndindex(STEPS, NUM_ENVS):
            returns[n], lengths[n] = returns[n] + rows[t][n].reward, lengths[n] + 1
            if rows[t][n].ended:
                episodes, total_return = episodes + 1, total_return + returns[n]
                total_length += lengths[n]
                returns[n], lengths[n] = 0.0, 0
        assert (int(state.blocks), int(state.env_steps), int(state.first_update_at)) == (number, number * ROWS, ROWS)
        assert int(state.episodes) == int(state.totals.episodes) == episodes
        assert float(state.totals.episode_return) == pytest.approx(total_return, rel=1e-4)
        assert float(state.totals.episode_length) == total_length
        np.testing.assert_allclose(state.actor.episode_return, returns, atol=1e-3)
        np.testing.assert_array_equal(state.actor.episode_length, lengths)
        assert int(state.learner.updates) == number * EPOCHS * MINIBATCHES
        assert float(state.totals.update[METRICS.index("applied")]) == number * EPOCHS * MINIBATCHES


class Telltale(JaxEngine):
    """An engine whose action is 1000 x (1 - ε): with the spec's ε, the env step whose ε it was."""

    def explore(self, q_NA: jax.Array, explore_N: jax.Array, key: jax.Array, is_masked: bool = False) -> jax.Array:
        return jnp.round(1000 * (1 - explore_N)).astype(jnp.int32)


def test_epsilon_is_that_of_each_env_step() -> None:
    pipeline = build(make_spec(), Telltale)
    state = jax.jit(pipeline.init)(jnp.uint32(0))._replace(env_steps=jnp.int32(5 * ROWS))
    _, steps, _ = jax.jit(pipeline.collect)(state, jax.random.key(0))
    assert steps.a_tm1.reshape(-1).tolist() == list(range(5 * ROWS, 6 * ROWS))


# -- what is learned ----------------------------------------------------------------------------------


class Twin:
    """The network, its loss and plain gradient descent in float64; gradients by finite differences."""

    def __init__(self, run: Recording) -> None:
        self.spans = run.pipeline.engine.layout.spans()
        self.spec = run.pipeline.spec

    def q(self, vector: np.ndarray, obs: np.ndarray) -> np.ndarray:
        weights = {name: vector[start:end].reshape(shape) for name, (start, end, shape) in self.spans.items()}
        x = obs @ weights["torso/layers/dense_0/kernel"]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = np.tanh(x * weights["torso/layers/norm_0/scale"] + weights["torso/layers/norm_0/offset"])
        return np.asarray(x @ weights["head/dense_0/kernel"] + weights["head/dense_0/bias"])

    def loss(self, vector: np.ndarray, obs: np.ndarray, actions: np.ndarray, targets: np.ndarray) -> float:
        td = targets - self.q(vector, obs)[np.arange(len(actions)), actions]
        if self.spec.loss.kind == "mse":
            return float(np.mean(td**2))
        return float(np.mean(np.where(abs(td) <= DELTA, 0.5 * td**2, DELTA * (abs(td) - 0.5 * DELTA))))

    def step(self, vector: np.ndarray, rate: float, *batch: np.ndarray) -> tuple[np.ndarray, float]:
        gradient, width = np.zeros_like(vector), 1e-6
        for i in range(vector.size):
            nudge = np.zeros_like(vector)
            nudge[i] = width
            gradient[i] = (self.loss(vector + nudge, *batch) - self.loss(vector - nudge, *batch)) / (2 * width)
        norm = float(np.linalg.norm(gradient))
        return vector - rate * gradient * min(1.0, CLIP / norm), norm

    def targets(self, vector: np.ndarray, rows: list[list[Row]]) -> np.ndarray:
        """λ-returns (T, N) by the weights of the collection."""
        out = np.zeros((STEPS, NUM_ENVS))
        for n in range(NUM_ENVS):
            mine = [rows[t][n] for t in range(STEPS)]
            v = [self.q(vector, row.next_obs[None]).max() for row in mine]
            columns = zip(*((row.reward, row.terminated, row.ended) for row in mine), strict=True)
            out[:, n] = weighted_n_step_returns(*columns, v, TRACE)
        return out


def test_a_block_equals_its_naive_twin(run: Recording) -> None:
    twin, clipped = Twin(run), []
    for number in (0, 1, len(run.steps) - 1):
        before, after, steps, rows = (
            run.states[number],
            run.states[number + 1],
            run.steps[number],
            relived(run)[number],
        )
        vector = before.learner.params.astype(np.float64)
        target_TN = twin.targets(vector, rows)
        rate = 0.3 - 0.2 * number / DECAY
        obs = np.array([[row.obs for row in line] for line in rows]).reshape(ROWS, 3)
        for order in order_of(run, number):
            batch = (obs[order], steps.a_tm1.reshape(-1)[order], target_TN.reshape(-1)[order])
            vector, norm = twin.step(vector, rate, *batch)
            clipped.append(norm > CLIP)
        np.testing.assert_allclose(after.learner.params, vector, rtol=1e-4, atol=1e-4)
        assert np.abs(after.learner.params - before.learner.params).max() > 0.02, "far more than the tolerance"
    assert any(clipped)
    assert run.states[0].learner.target.size == 0


def order_of(run: Recording, number: int) -> np.ndarray:
    """Which rows are in each minibatch of a block (K, B)."""
    rows = np.arange(ROWS, dtype=np.int32).reshape(STEPS, NUM_ENVS)
    numbered = run.steps[number]._replace(s_tm1=rows[..., None], a_tm1=rows)
    shuffle = jax.jit(run.pipeline.shuffle)
    batches = shuffle(numbered, rows.astype(np.float32), block_keys(run.states[number])[1])
    np.testing.assert_array_equal(batches.s_tm1[..., 0], batches.a_tm1)
    np.testing.assert_array_equal(batches.target, batches.a_tm1)
    return np.asarray(batches.a_tm1)


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(run: Recording) -> None:
    orders = [order_of(run, number) for number in range(4)]
    epochs = [tuple(epoch) for order in orders for epoch in order.reshape(EPOCHS, ROWS)]
    assert all(order.shape == (EPOCHS * MINIBATCHES, ROWS // MINIBATCHES) for order in orders)
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert len(set(epochs)) == len(epochs)
    assert tuple(range(ROWS)) not in epochs


@pytest.mark.parametrize("count", [1, 2, 1000, 1024, MOST_PACKED, MOST_PACKED + 1])
def test_orders_are_permutations_in_which_every_row_comes_anywhere(count: int) -> None:
    first, second = np.asarray(orders(jax.random.key(count), 2, count))
    np.testing.assert_array_equal(np.sort(first), np.arange(count))
    np.testing.assert_array_equal(np.sort(second), np.arange(count))
    if count >= 1000:
        for one, other in ((first, np.arange(count)), (second, np.arange(count)), (first, second)):
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(count)


# -- repeatability ------------------------------------------------------------------------------------


def test_advancing_twice_equals_advancing_at_once_bit_for_bit(run: Recording) -> None:
    start, blocks = run.states[0], len(run.steps)
    half = jax.device_get(run.advance(start, jnp.int32(blocks // 2)))
    twice = run.advance(half, jnp.int32(blocks - blocks // 2))
    at_once = run.advance(start, jnp.int32(blocks))
    assert _digest(twice) == _digest(at_once) == _digest(run.states[-1])
    assert _digest(half) == _digest(run.states[blocks // 2]) != _digest(twice)


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_two_seeds_are_each_the_run_alone_and_resume_to_the_bit() -> None:
    pipeline = build(make_spec(evaluation={"every": 0}, stop={}))

    def session(seeds: list[int]) -> Any:
        made = pipeline.session(members.seeds(seeds))
        made.compile()
        return made

    one, two = session([5]), session([5, 6])
    alone = {}
    for seed in (5, 6):
        one.members = members.seeds([seed])
        one.begin()
        one.advance(4)
        alone[seed] = one.arrays()
    two.begin()
    two.advance(2)
    saved = two.arrays()
    two.begin()
    assert two.restore(saved) == []
    two.advance(2)
    together = two.arrays()
    for index, seed in enumerate((5, 6)):
        assert set(together) == set(alone[seed])
        for name, array in alone[seed].items():
            np.testing.assert_array_equal(together[name][index], array, err_msg=name)
    assert (together["learner/params"][0] != together["learner/params"][1]).any()
    assert together["env_steps"].tolist() == [4 * ROWS] * 2
    assert two.read().steps.tolist() == [4 * ROWS] * 2
    assert sum(array.nbytes for array in alone[5].values()) < 4096, "no transition outlives its block"


# -- stop rules the device sees -----------------------------------------------------------------------


def test_updates_that_are_not_finite_end_the_program_and_leave_the_weights() -> None:
    spec = make_spec(guard={"skips_in_a_row": 7})
    pipeline = build(spec, env=Trail(reward_scale=float("nan")))
    start = jax.jit(pipeline.init)(jnp.uint32(3))
    end = jax.jit(pipeline.advance)(start, jnp.int32(1000))
    assert int(end.blocks) == 2, "7 skips need 2 blocks of 4"
    assert (int(end.learner.updates), int(end.learner.skipped), int(end.learner.skipped_in_a_row)) == (0, 8, 8)
    np.testing.assert_array_equal(end.learner.params, start.learner.params)
    assert float(end.totals.update[METRICS.index("loss")]) == 0.0


def test_a_run_stops_in_the_block_that_finishes_the_last_episode_asked_for(run: Recording) -> None:
    before, end = run.states[-2:]
    assert before.episodes < EPISODES <= end.episodes
    assert _digest(run.advance(run.states[0], jnp.int32(10_000))) == _digest(end)
    assert _digest(run.advance(end, jnp.int32(5))) == _digest(end), "a finished run stays as it is"


# -- what it asks for ---------------------------------------------------------------------------------


def test_an_action_mask_is_refused() -> None:
    with pytest.raises(SpecError, match=r"env\.action_mask is true, but on_policy learns with all actions"):
        build(make_spec(env={"num_envs": NUM_ENVS, "action_mask": True}))


def test_the_memory_it_announces_is_that_of_a_blocks_steps(run: Recording) -> None:
    [steps] = run.steps[:1]
    flags = steps.ended.nbytes * 3  # announced as four bytes each
    assert run.pipeline.num_bytes() == sum(leaf.nbytes for leaf in steps) + flags


def test_consecutive_blocks_go_on_where_the_last_one_ended(run: Recording) -> None:
    for state, steps in zip(run.states, run.steps, strict=False):
        np.testing.assert_array_equal(steps.s_tm1[0], state.actor.obs)


def _digest(state: OnPolicyState) -> str:
    return digests(to_arrays(state))["all"]
