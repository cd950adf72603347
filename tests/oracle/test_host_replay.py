"""The host replay against its naive twin: what can be drawn is what happened, and is drawn as often as it should be."""

import copy
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_replay import H, ListEnvs, NaiveItem, NaiveReplay, Script, W

from hotloop.envs.bit_flip import BitFlip
from hotloop.errors import SpecError
from hotloop.experience import Item, VectorStep
from hotloop.replay.frames import Frames
from hotloop.replay.host import SHARED_FROM, Batches, HostReplay
from hotloop.replay.limiter import Limiter
from hotloop.spec import Hindsight, Prioritized, Replay

GAMMA = 0.9
LONG = Script(((1000, "terminated"),))
MIXED = Script(((3, "truncated"), (1, "terminated"), (7, "truncated"), (2, "both")), ("zeros", "any", "repeats"))


class Both:
    """A replay and its naive twin that see the same steps of the same envs."""

    def __init__(self, script=MIXED, capacity=20, n=1, stack=1, num_envs=2, storage="whole", seed=0, **more):
        self.envs = ListEnvs(script, num_envs, stack, seed)
        as_frames = storage == "frames" and stack > 1
        spec = Replay(
            capacity=capacity,
            n_step=n,
            stacked_frames=stack if as_frames else 1,
            storage="auto" if as_frames else "shared" if storage == "frames" else storage,
            **more,
        )
        self.replay = HostReplay(spec, GAMMA, self.envs.shape(), num_envs)
        self.replay.allocate()
        self.naive = NaiveReplay(n, GAMMA)
        self.random = np.random.default_rng(seed)
        self.replay.begin(self.envs.obs)
        self.naive.begin(self.envs.obs)

    def step(self):
        step = self.envs.step()
        self.naive.insert(step)
        self.replay.insert(step, self.random)
        return step

    def run(self, steps):
        for _ in range(steps):
            self.step()
        return self

    def check(self):
        """What can be drawn is the newest of the twin's, in its order; all of it where nothing is shared."""
        found, expected = drawable(self.replay), self.naive.items[-self.replay.spec.capacity :]
        assert self.replay.size <= len(expected)
        if not isinstance(self.replay.store, Frames):
            assert self.replay.size == len(expected)
        assert_same(found, expected[len(expected) - self.replay.size :])


def drawable(replay) -> Item:
    """All that can be drawn, oldest first."""
    return seen_in(replay, np.arange(replay.ring.inserted - replay.ring.size, replay.ring.inserted))


def seen_in(replay, numbers) -> Item:
    rows = replay.ring.take(numbers)
    return copied(rows._replace(s_tm1=replay.store.take(rows.s_tm1), s_t=replay.store.take(rows.s_t)))


def assert_same(found: Item, expected: list[NaiveItem]) -> None:
    if not expected:
        return
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
    assert_bits(found.s_tm1, stacked.s_tm1)
    assert_bits(found.s_t, stacked.s_t)
    assert found.a_tm1.tolist() == stacked.a_tm1.tolist()
    np.testing.assert_allclose(found.r_t, stacked.r_t, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.discount_t, stacked.discount_t, rtol=1e-6, atol=0)


def assert_bits(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


def copied(tree: Any) -> Any:
    return jax.tree.map(np.array, tree)


# -- what is stored ------------------------------------------------------------------------------------

ENDINGS = st.sampled_from(["terminated", "truncated", "both", "failed"])
LENGTHS = st.one_of(st.just(1), st.integers(1, 12), st.just(60))
SCRIPTS = st.builds(
    Script,
    episodes=st.lists(st.tuples(LENGTHS, ENDINGS), min_size=1, max_size=6).map(tuple),
    starts=st.lists(st.sampled_from(["zeros", "repeats", "any"]), min_size=1, max_size=3).map(tuple),
    next_step=st.booleans(),
    still=st.sampled_from([0, 0, 2, 5]),
)


@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
@settings(max_examples=200)
@given(
    script=SCRIPTS,
    capacity=st.integers(1, 40),
    n=st.integers(1, 5),
    stack=st.integers(1, 4),
    num_envs=st.integers(1, 4),
    steps=st.integers(1, 70),
    tree=st.booleans(),
)
@example(script=Script(((60, "truncated"),)), capacity=7, n=3, stack=3, num_envs=2, steps=70, tree=False)
@example(script=Script(((1, "truncated"),)), capacity=33, n=5, stack=4, num_envs=4, steps=70, tree=False)
@example(script=Script(((1, "truncated"),), next_step=True), capacity=33, n=1, stack=4, num_envs=4, steps=70, tree=True)
@example(script=Script(((9, "both"),)), capacity=2, n=5, stack=1, num_envs=4, steps=40, tree=True)
def test_what_can_be_drawn_is_what_happened(storage, script, capacity, n, stack, num_envs, steps, tree):
    script = script._replace(tree=tree and storage != "frames")
    both = Both(script, capacity, n, stack, num_envs, storage)
    both.check()
    kept = stack if storage == "frames" else 1
    can_fail = any(ending == "failed" for _, ending in script.episodes)
    # A transition costs one frame and an episode `kept` more; n - 1 of each env are not there yet.
    fewest = (capacity - kept * num_envs) // (kept + 1) - num_envs * (n - 1)
    for _ in range(steps):
        both.step()
        both.check()
        assert can_fail or both.replay.size >= min(len(both.naive.items), capacity, fewest)


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize(("n", "stack"), [(1, 1), (1, 4), (3, 4), (5, 2)])
def test_long_episodes_fill_all_of_a_replay_of_frames(n, stack, next_step):
    script = Script(((300, "terminated"), (350, "truncated")), ("any",), next_step)
    both = Both(script, 800, n, stack, 2, "frames")
    for step in range(1200):
        both.step()
        assert both.replay.size == min(800, len(both.naive.items))
        if step % 100 == 0:
            both.check()


@pytest.mark.parametrize(("n", "length"), [(1, 1), (5, 5), (3, 2)])
def test_frames_of_episodes_that_fail_push_out_whole_transitions(n, length):
    """Frames are written and no transition comes: the old ones must go with their frames."""
    both = Both(Script(((40, "terminated"), *[(length, "failed")] * 60), ("any",)), 30, n, 4, 1, "frames")
    for _ in range(40 + 60 * length):
        both.step()
        both.check()


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize(("n", "stack", "num_envs"), [(5, 4, 4), (1, 4, 4), (5, 1, 4), (3, 2, 2), (20, 3, 3)])
def test_a_slow_env_keeps_its_frames_among_fast_ones(n, stack, num_envs, next_step):
    """One long episode beside envs of one-step episodes: the most frames there can be before a transition is whole."""
    both = Both(
        Script(((200, "truncated"), *[(1, "truncated")] * 200), ("any",), next_step), 10, n, stack, num_envs, "frames"
    )
    for _ in range(150):
        both.step()
        both.check()


def test_a_new_beginning_pushes_out_whole_transitions():
    """As after a resume, when the envs begin anew: the first observations are frames too."""
    both = Both(LONG, 30, 4, 4, 2, "frames").run(40)
    for _ in range(20):
        envs = both.envs = ListEnvs(LONG, 2, 4, seed=1)
        envs.shown = 1000
        both.replay.begin(envs.obs)
        both.naive.begin(envs.obs)
        both.check()
        both.run(2)
        both.check()


def test_beginning_anew_drops_what_is_pending_and_nothing_else():
    for storage in ("whole", "shared", "frames"):
        both = Both(LONG, 60, 4, 2, 2, storage).run(10)
        before = both.replay.size
        assert before == 14
        both.replay.begin(both.envs.obs)
        both.naive.begin(both.envs.obs)
        both.run(3)
        assert both.replay.size == before, "the first transition is whole after n steps of its own"
        both.run(1).check()
        assert both.replay.size == before + 2


def test_large_observations_are_shared_and_small_ones_are_not():
    def store(size):
        return HostReplay(Replay(), GAMMA, jax.ShapeDtypeStruct((size,), np.uint8), 1).store

    assert isinstance(store(SHARED_FROM), Frames)
    assert not isinstance(store(SHARED_FROM - 1), Frames)


# -- nothing is a view (F23, tianshou #1281) -----------------------------------------------------------


def spoil(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        leaf[...] = np.nan if leaf.dtype.kind == "f" else True if leaf.dtype == bool else np.iinfo(leaf.dtype).max


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
@pytest.mark.parametrize("tree", [False, True])
def test_stored_items_do_not_change_with_the_arrays_they_came_from(storage, n, tree):
    both = Both(MIXED._replace(tree=tree and storage != "frames"), 25, n, 3, 3, storage)
    for _ in range(40):
        step = both.step()
        before, obs = drawable(both.replay), copied(step.obs)
        spoil(step)
        assert_bits(drawable(both.replay), before)
        # The next step starts from `obs`, which is the replay's until then; all else may stay spoilt.
        jax.tree.map(lambda leaf, kept: leaf.__setitem__(..., kept), step.obs, obs)
        both.check()


@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
def test_batches_are_copies(storage):
    both = Both(MIXED, 10, 2, 3, 2, storage).run(30)
    before = drawable(both.replay)
    drawn = both.replay.sample(both.random, (2, 16))
    spoil(drawn.items)
    assert_bits(drawable(both.replay), before)
    drawn = both.replay.sample(both.random, (2, 16))
    kept = copied(drawn)
    both.run(20)
    assert_bits(drawn, kept)


# -- known failures elsewhere --------------------------------------------------------------------------


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
def test_the_state_reached_at_a_time_limit_is_the_last_one_not_the_next_first(storage, next_step):
    """SB3 #934, CleanRL #460: a replay that stores observations once read the reset observation there."""
    both = Both(Script(((4, "truncated"),), ("any",), next_step), 50, 1, 2, 1, storage)
    ends = []
    for _ in range(20):
        step = both.step()
        if step.truncated[0]:
            ends.append(step.final_obs[0])
    rows = drawable(both.replay)
    assert len(ends) >= 4
    for i, last in enumerate(ends[:-1]):
        assert (rows.s_t[4 * i + 3] == last).all()
        assert (rows.s_t[4 * i + 3, 0] == rows.s_tm1[4 * i + 3, 1]).all()
        assert rows.discount_t[4 * i + 3] == np.float32(GAMMA), "a truncation does not cut the bootstrap"
        assert not frames_in(rows.s_tm1[4 * i + 4]) & frames_in(last), "the next one starts elsewhere"


@pytest.mark.parametrize("next_step", [False, True])
def test_no_stack_spans_a_truncation(next_step):
    """Dopamine #213: the frames of a stack came from two episodes."""
    both = Both(Script(((5, "truncated"), (2, "truncated")), ("any",), next_step), 60, 2, 4, 1, "frames")
    episodes = [frames_in(both.envs.obs[0])]
    for _ in range(50):
        step = both.step()
        if step.valid[0]:
            episodes[-1] |= frames_in(step.final_obs[0])
        if step.began[0]:
            episodes.append(frames_in(step.obs[0]))
    rows = drawable(both.replay)
    assert len(rows.r_t) >= 30
    for before, after in zip(rows.s_tm1, rows.s_t, strict=True):
        assert any(frames_in(before) | frames_in(after) <= episode for episode in episodes)


def frames_in(stack) -> set[bytes]:
    return {frame.tobytes() for frame in stack}


@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
def test_no_return_is_summed_over_the_write_head(storage):
    """FastTD3 #6: the newest n - 1 rows of a full ring took their rewards from the oldest."""
    both = Both(LONG, 8, 4, 1, 1, storage)
    rewards = [float(both.step().reward[0]) for _ in range(53)]
    found = drawable(both.replay).r_t
    assert len(found) == 8
    for back, summed in enumerate(found[::-1]):
        first = 53 - 4 - back
        assert summed == pytest.approx(sum(GAMMA**k * rewards[first + k] for k in range(4)), rel=1e-5)


# -- what is drawn -------------------------------------------------------------------------------------

SPREAD = Prioritized(kind="prioritized", alpha=0.7, epsilon=0.01)


@pytest.mark.parametrize("storage", ["whole", "frames"])
@pytest.mark.parametrize("sampling", [None, SPREAD])
def test_batches_hold_items_that_exist(storage, sampling):
    more = {"sampling": sampling} if sampling else {}
    both = Both(MIXED, 12, 2, 2, 2, storage, **more)
    for _ in range(40):
        both.step()
        if not both.replay.size:
            continue
        drawn = both.replay.sample(both.random, (3, 5))
        first = both.replay.ring.inserted - both.replay.size
        assert drawn.numbers.shape == (3, 5)
        assert (drawn.numbers >= first).all()
        assert (drawn.numbers < both.replay.ring.inserted).all()
        assert drawn.items.r_t.shape == drawn.items.a_tm1.shape == drawn.items.discount_t.shape == (3, 5)
        assert drawn.items.s_t.shape == drawn.items.s_tm1.shape == (3, 5, 2, H, W)
        assert (drawn.weight is not None) == bool(sampling)
        flat = jax.tree.map(lambda leaf: leaf.reshape(15, *leaf.shape[2:]), drawn.items)
        newest = both.naive.items
        assert_same(flat, [newest[number - both.replay.ring.inserted] for number in drawn.numbers.reshape(-1)])
        both.replay.learned(drawn, both.random.normal(size=(3, 5)))


def test_uniform_draws_are_uniform():
    both = Both(LONG, 10, num_envs=3).run(15)
    numbers = both.replay.sample(both.random, (100, 200)).numbers
    count = Counter(numbers.reshape(-1).tolist())
    assert sorted(count) == list(range(35, 45))
    assert sum((seen - 2000) ** 2 / 2000 for seen in count.values()) < 34, "chi-square of 9 degrees, one in 10,000"


@pytest.mark.parametrize("sampling", [None, SPREAD])
@pytest.mark.parametrize("storage", ["whole", "frames"])
def test_each_batch_has_one_of_the_newest(storage, sampling):
    more = {"sampling": sampling} if sampling else {}
    both = Both(LONG, 30, 1, 2, 1, storage, newest_in_batch=True, **more).run(4)
    drawn = both.replay.sample(both.random, (6, 8))
    assert drawn.numbers[:, 0].tolist() == [3, 2, 1, 0, 3, 2], "around again when there are fewer than batches"
    both.run(40)
    drawn = both.replay.sample(both.random, (6, 8))
    assert drawn.numbers[:, 0].tolist() == [43, 42, 41, 40, 39, 38]
    assert_same(jax.tree.map(lambda leaf: leaf[:, 0], drawn.items), both.naive.items[:-7:-1])
    assert len(set(drawn.numbers[:, 1:].reshape(-1).tolist())) > 10


def prioritised(storage="whole", capacity=16, steps=20, script=LONG, **more):
    return Both(script, capacity, 1, 2, 1, storage, sampling=SPREAD, **more).run(steps)


def teach(replay, numbers, td):
    """Let the replay know of TD errors as if these had been drawn."""
    numbers = np.asarray(numbers)
    replay.learned(Batches(None, numbers, None), np.asarray(td, np.float32).reshape(numbers.shape))


@pytest.mark.parametrize("storage", ["whole", "frames"])
def test_priorities_decide_how_often_and_with_what_weight(storage):
    both = prioritised(storage)
    replay = both.replay
    numbers = np.arange(4, 20)
    td = np.random.default_rng(3).normal(size=16) * 3
    teach(replay, numbers[None], td[None])
    wanted = (np.abs(td.astype(np.float32)).astype(np.float64) + 0.01) ** 0.7
    share = wanted / wanted.sum()
    for batch in (1, 7, 64):
        drawn = replay.sample(both.random, (20_000 // batch, batch), beta=0.5)
        total = drawn.numbers.size
        count = np.bincount(drawn.numbers.reshape(-1) - 4, minlength=16)
        chi_square = ((count - total * share) ** 2 / (total * share)).sum()
        assert chi_square < 45, "15 degrees, one in 10,000; strata make it smaller"
        raw = (16 * share[drawn.numbers - 4]) ** -0.5
        np.testing.assert_allclose(drawn.weight, raw / raw.max(axis=1, keepdims=True), rtol=1e-5)
        assert drawn.weight.dtype == np.float32
        even = replay.sample(both.random, (3, batch), beta=0.0)
        assert (even.weight == 1).all()


def test_each_batch_draws_from_every_stratum():
    both = prioritised(steps=27)
    replay = both.replay
    teach(replay, np.arange(11, 27)[None], np.linspace(0, 5, 16)[None])
    by_place = np.zeros(16)
    by_place[np.arange(11, 27) % 16] = (np.linspace(0, 5, 16) + 0.01) ** 0.7
    upper = np.cumsum(by_place)
    drawn = replay.sample(both.random, (500, 8)).numbers % 16
    low, high = np.add.outer([0, 1], np.arange(8)) * (upper[-1] / 8)
    assert (upper[drawn] > low - 1e-6).all()
    assert ((upper - by_place)[drawn] < high + 1e-6).all()
    for stratum in range(8):
        possible = {i for i in range(16) if upper[i] > low[stratum] and (upper - by_place)[i] < high[stratum]}
        likely = {i for i in possible if min(upper[i], high[stratum]) - max(upper[i] - by_place[i], low[stratum]) > 0.1}
        assert likely <= set(drawn[:, stratum].tolist()) <= possible


def test_new_items_get_the_largest_priority_so_far():
    both = prioritised()
    replay = both.replay
    assert replay.tree.priorities(np.arange(16)).tolist() == [1.0] * 16
    teach(replay, [[17, 18]], [[0.1, 0.2]])
    both.run(1)
    assert replay.tree.priorities(np.array([20 % 16])) == 1.0, "all seen so far were smaller than the first"
    teach(replay, [[17, 18]], [[-9.0, 0.2]])
    largest = float((np.float64(9) + 0.01) ** 0.7)
    teach(replay, [[17, 18]], [[0.0, 0.0]])
    both.run(2)
    assert replay.tree.priorities(np.array([21, 22]) % 16) == pytest.approx([largest, largest])
    assert replay.tree.priorities(np.array([17 % 16])) == pytest.approx(0.01**0.7)


def test_priorities_of_overwritten_rows_and_skipped_updates_are_left_alone():
    both = prioritised()
    replay = both.replay
    before = replay.tree.leaves
    teach(replay, [[3, 0, 2]], [[50.0, 50.0, 50.0]])  # 4 … 19 are there
    teach(replay, [[5, 6], [7, 8]], [[np.nan, np.inf], [-np.inf, np.nan]])
    assert_bits(replay.tree.leaves, before)
    teach(replay, [[3, 5, 6]], [[50.0, 2.0, np.nan]])
    changed = np.flatnonzero(replay.tree.leaves != before)
    assert changed.tolist() == [5]
    assert replay.largest == pytest.approx(2.01**0.7)
    drawn = replay.sample(both.random, (1, 400))
    both.run(10)
    inserted = replay.ring.inserted
    before = replay.tree.leaves
    replay.learned(drawn, np.full((1, 400), 7.0))
    changed = np.flatnonzero(replay.tree.leaves != before)
    still = {int(number) % 16 for number in drawn.numbers.reshape(-1) if number >= inserted - 16}
    assert set(changed.tolist()) == still
    assert still


def test_a_uniform_replay_learns_no_priorities():
    both = Both(LONG).run(5)
    both.replay.learned(both.replay.sample(both.random, (1, 4)), np.full((1, 4), np.nan))
    assert both.replay.sample(both.random, (1, 4)).weight is None


def test_what_lost_a_frame_is_never_drawn():
    """One-step episodes need five frames each, so the replay holds fewer than its capacity."""
    both = prioritised("frames", 400, 700, Script(((1, "terminated"),), ("any",)))
    replay = both.replay
    assert 100 < replay.size < 300
    assert np.count_nonzero(replay.tree.leaves) == replay.size
    teach(replay, np.arange(300, 700 - replay.size)[None], np.full((1, 400 - replay.size), 99.0))
    assert np.count_nonzero(replay.tree.leaves) == replay.size, "a dropped row stays so whatever it taught"
    drawn = replay.sample(both.random, (50, 64), beta=1.0)
    assert drawn.numbers.min() >= 700 - replay.size
    assert (drawn.weight == 1).all()
    both.check()


# -- checkpoints ---------------------------------------------------------------------------------------


def restored(both, **changes):
    """Another replay with the state of this one, beside the same envs and random numbers."""
    kept = copied(both.replay.arrays())
    template = both.replay.template(int(kept["ring"]["inserted"]), int(kept["store"].get("written", 0)))
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (kept, template)]
    assert shapes[0] == shapes[1]
    for path, change in changes.items():
        *inner, name = path.split("__")
        part = kept
        for key in inner:
            part = part[key]
        part[name] = change(part[name])
    other = copy.copy(both)
    other.replay = HostReplay(both.replay.spec, GAMMA, both.envs.shape(), both.replay.num_envs)
    other.replay.allocate()
    other.replay.begin(np.zeros_like(both.envs.obs))
    other.replay.restore(kept)
    other.replay.seen = both.envs.obs
    other.envs, other.random, other.naive = copy.deepcopy((both.envs, both.random, both.naive))
    return other


@pytest.mark.parametrize("steps", [0, 1, 9, 60])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
@pytest.mark.parametrize("sampling", [None, SPREAD])
def test_a_restored_replay_goes_on_to_the_bit(sampling, storage, n, steps):
    more = {"sampling": sampling} if sampling else {}
    one = Both(MIXED, 25, n, 3, 2, storage, **more)

    def learn(both):
        if both.replay.size:
            drawn = both.replay.sample(both.random, (2, 4), 0.6)
            both.replay.learned(drawn, 3 * both.random.normal(size=(2, 4)))
            return drawn
        return None

    for _ in range(steps):
        one.step()
        learn(one)
    other = restored(one)
    assert_bits(other.replay.arrays(), one.replay.arrays())
    for _ in range(30):
        one.step(), other.step()
        other.check()
        assert_bits(drawable(other.replay), drawable(one.replay))
        assert_bits(learn(other), learn(one))
    assert_bits(other.replay.arrays(), one.replay.arrays())


def some(value):
    """Change the last number of an array."""

    def change(array):
        array = np.array(array)
        array.reshape(-1)[-1] = value
        return array

    return change


def rows_with(name, value):
    return lambda rows: rows._replace(**{name: some(value)(getattr(rows, name))})


DAMAGE = {
    "more valid than inserted": {"ring__size": some(19), "ring__inserted": some(18)},
    "more valid than capacity": {"ring__size": some(26)},
    "negative size": {"ring__size": some(-1)},
    "frame not yet written": {"ring__rows": rows_with("s_t", 10**6)},
    "frame long gone": {"ring__rows": rows_with("s_tm1", -1)},
    "fewer frames written": {"store__written": some(5)},
    "env at a frame not yet written": {"stored_obs": some(10**6)},
    "pending step at a frame not yet written": {"delay__stored": some(10**6)},
    "pending more than n": {"delay__pending": some(5)},
    "pending less than none": {"delay__pending": some(-1)},
    "priority not a number": {"priorities": some(np.nan)},
    "priority below zero": {"priorities": some(-1.0)},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_numbers_are_refused(damage):
    both = Both(LONG, 25, 4, 3, 2, "frames", sampling=SPREAD).run(12)
    restored(both)
    with pytest.raises(ValueError, match=r"\w"):
        restored(both, **DAMAGE[damage])


# -- hindsight -----------------------------------------------------------------------------------------


class Judge:
    """Rewards that tell which goals they are for. Observations say which env, episode and step they are of."""

    calls = 0

    def compute_reward(self, reached, wanted, info):
        assert info == {}
        self.calls += 1
        return (reached[:, 2] - 1000 * wanted[:, 2]).astype(np.float64)


class StrictJudge(Judge):
    def compute_terminated(self, reached, wanted, info):
        return reached[:, 2] == wanted[:, 2]


class GoalEnvs:
    """N envs with observations that name env, episode and step; the goal is (env, episode, -1)."""

    def __init__(self, script: Script, num_envs: int) -> None:
        self.script, self.at = script, [(i, i, 0) for i in range(num_envs)]
        self.is_over, self.random = [False] * num_envs, np.random.default_rng(0)

    @staticmethod
    def see(at):
        reached = np.array(at, np.float32)
        return {
            "achieved_goal": reached,
            "desired_goal": np.stack([reached[:, 0], reached[:, 1], 0 * reached[:, 2] - 1], axis=1),
            "observation": reached + np.float32(0.5),
        }

    def step(self) -> VectorStep:
        count = len(self.at)
        terminated, truncated, valid, began = np.zeros((4, count), bool)
        reached = list(self.at)
        for i, (env, episode, t) in enumerate(self.at):
            length, ending = self.script.episodes[episode % len(self.script.episodes)]
            fresh, is_last = (env, episode + 1, 0), t + 1 >= length
            if self.is_over[i] or (is_last and ending == "failed"):
                began[i], self.is_over[i], self.at[i], reached[i] = True, False, fresh, fresh
                continue
            valid[i] = True
            self.at[i] = reached[i] = (env, episode, t + 1)
            if is_last:
                terminated[i], truncated[i] = ending == "terminated", ending == "truncated"
                self.is_over[i], began[i] = self.script.next_step, not self.script.next_step
                if began[i]:
                    self.at[i] = fresh
        action = self.random.integers(5, size=count).astype(np.int32)
        reward = self.random.normal(size=count).astype(np.float32)
        return VectorStep(self.see(self.at), self.see(reached), action, reward, terminated, truncated, valid, began)


def hindsight_replay(goals, relabelled, num_envs, judge, shape, capacity=100_000):
    spec = Replay(capacity=capacity, hindsight=Hindsight(goals=goals, relabelled=relabelled))
    replay = HostReplay(spec, GAMMA, shape, num_envs, judge)
    replay.allocate()
    return replay


def shape_of(obs_N):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), obs_N)


@pytest.mark.parametrize("next_step", [False, True])
@pytest.mark.parametrize("judge", [Judge, StrictJudge])
@pytest.mark.parametrize("relabelled", [1, 4])
@pytest.mark.parametrize("goals", ["final", "future", "episode"])
def test_hindsight_relabels_with_what_the_episode_reached(goals, relabelled, judge, next_step):
    script = Script(((9, "truncated"), (1, "terminated"), (5, "failed"), (150, "truncated"), (20, "terminated")))
    envs = GoalEnvs(script._replace(next_step=next_step), 3)
    obs = GoalEnvs.see(envs.at)
    replay = hindsight_replay(goals, relabelled, 3, judge(), shape_of(obs))
    replay.begin(obs)
    random = np.random.default_rng(1)
    taken: dict[tuple, list] = {}
    expected = 0
    chosen = []
    for _ in range(400):
        before = dict(enumerate(envs.at))
        step = envs.step()
        inserted = replay.ring.inserted
        replay.insert(step, random)
        ended = []
        for i, (env, episode, _) in before.items():
            if step.valid[i]:
                row = (before[i], int(step.action[i]), step.reward[i], bool(step.terminated[i]))
                taken.setdefault((env, episode), []).append(row)
            if step.terminated[i] or step.truncated[i]:
                ended.append((env, episode))
        expected += sum(len(taken[key]) * (1 + relabelled) for key in ended)
        assert replay.ring.inserted == expected, "episodes enter whole when they end, and only then"
        rows = seen_in(replay, np.arange(inserted, expected))
        at = 0
        for key in ended:
            episode = taken[key]
            for copy_number in range(1 + relabelled):
                here = slice(at, at + len(episode))
                part = jax.tree.map(lambda leaf, here=here: leaf[here], rows)
                at += len(episode)
                chosen += check_episode(part, key, episode, goals if copy_number else None, judge)
    assert expected > 2000
    assert {episode % 5 for _, episode, _, _, _ in chosen} == {0, 1, 3, 4}, "the episode that failed never enters"
    assert {length for *_, length in chosen} == {9, 1, 150, 20}
    later = Counter((goal > t + 1, goal == length, goal <= t) for _, _, t, goal, length in chosen if length > 5)
    assert (later[True, False, False] > 100) == (goals != "final"), "future: not always the last"
    assert (sum(count for (_, _, is_past), count in later.items() if is_past) > 100) == (goals == "episode")
    if goals == "future":
        spread = [(goal - t - 1) / (length - t - 1) for _, _, t, goal, length in chosen if length - t > 5]
        assert np.mean(spread) == pytest.approx(0.5, abs=0.05), "all later steps are as likely"


def check_episode(part: Item, key, episode, goals, judge) -> list[tuple]:
    """One copy of an episode; `goals` is None for the one as it was. Returns which goals were chosen."""
    env, number = key
    length = len(episode)
    chosen = []
    for t, ((_, _, at), action, reward, is_terminated) in enumerate(episode):
        row: Any = jax.tree.map(lambda leaf, t=t: leaf[t], part)
        assert at == t
        for seen, when in ((row.s_tm1, t), (row.s_t, t + 1)):
            assert seen["achieved_goal"].tolist() == [env, number, when]
            assert seen["observation"].tolist() == [env + 0.5, number + 0.5, when + 0.5]
        assert row.a_tm1 == action
        assert row.s_tm1["desired_goal"].tolist() == row.s_t["desired_goal"].tolist()
        wanted = row.s_t["desired_goal"].tolist()
        assert wanted[:2] == [env, number]
        as_it_was = 0.0 if is_terminated else np.float32(GAMMA)
        if goals is None:
            assert wanted[2] == -1
            assert row.r_t == reward
            assert row.discount_t == as_it_was
            continue
        goal = int(wanted[2])
        assert {"final": length, "future": t + 1, "episode": 1}[goals] <= goal <= length
        assert row.r_t == np.float32(t + 1 - 1000 * goal)
        assert row.discount_t == (as_it_was if judge is Judge else np.float32(GAMMA) * (goal != t + 1))
        chosen.append((env, number, t, goal, length))
    return chosen


def test_hindsight_takes_an_episode_longer_than_the_replay():
    envs = GoalEnvs(Script(((50, "truncated"),)), 1)
    obs = GoalEnvs.see(envs.at)
    replay = hindsight_replay("final", 2, 1, StrictJudge(), shape_of(obs), capacity=40)
    replay.begin(obs)
    for _ in range(50):
        replay.insert(envs.step(), np.random.default_rng(0))
    assert (replay.size, replay.ring.inserted) == (40, 150)
    rows = drawable(replay)
    assert rows.s_t["achieved_goal"][:, 2].tolist() == list(range(11, 51))
    assert (rows.s_t["desired_goal"][:, 2] == 50).all()


def test_running_episodes_are_forgotten_when_all_begin_anew():
    envs = GoalEnvs(Script(((10, "truncated"),)), 2)
    obs = GoalEnvs.see(envs.at)
    replay = hindsight_replay("future", 1, 2, Judge(), shape_of(obs))
    replay.begin(obs)
    for _ in range(7):
        replay.insert(envs.step(), np.random.default_rng(0))
    envs = GoalEnvs(Script(((3, "truncated"),)), 2)
    replay.begin(GoalEnvs.see(envs.at))
    for _ in range(3):
        replay.insert(envs.step(), np.random.default_rng(0))
    assert replay.size == 2 * 3 * 2
    assert set(drawable(replay).s_tm1["achieved_goal"][:, 2].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("goals", ["final", "future", "episode"])
def test_hindsight_on_bit_flip(goals):
    env = BitFlip(bits=5)
    seen, _ = env.reset(seed=0)

    def batch(obs):
        return {name: np.asarray(part, np.uint8)[None] for name, part in obs.items()}

    replay = hindsight_replay(goals, 3, 1, BitFlip(bits=5), shape_of(batch(seen)))
    replay.begin(batch(seen))
    random = np.random.default_rng(0)
    whole = solved = 0
    for number in range(400):
        action = int(random.integers(5))
        final, reward, terminated, truncated, _ = env.step(action)
        solved += terminated
        seen = env.reset()[0] if terminated or truncated else final
        over = np.array([terminated or truncated])
        flags = (np.array([terminated]), np.array([truncated]), np.array([True]), over)
        values = (np.array([action], np.int32), np.array([reward], np.float32))
        replay.insert(VectorStep(batch(seen), batch(final), *values, *flags), random)
        if terminated or truncated:
            whole = number + 1
    assert replay.size == 4 * whole
    rows = drawable(replay)
    is_there = (rows.s_t["achieved_goal"] == rows.s_t["desired_goal"]).all(axis=1)
    assert is_there.sum() > solved + 3 * 80 / (1 if goals == "final" else 2), "each copy reaches its goal somewhere"
    assert rows.r_t.tolist() == np.where(is_there, 0.0, -1.0).tolist()
    assert rows.discount_t.tolist() == np.where(is_there, 0, np.float32(GAMMA)).tolist()
    flipped = rows.s_tm1["observation"] != rows.s_t["observation"]
    assert (flipped == np.eye(5, dtype=bool)[rows.a_tm1]).all()
    for part in (rows.s_tm1, rows.s_t):
        assert_bits(part["observation"], part["achieved_goal"])
    assert_bits(rows.s_tm1["desired_goal"], rows.s_t["desired_goal"])


def test_hindsight_without_goals_is_refused():
    spec = Replay(hindsight=Hindsight())
    plain = jax.ShapeDtypeStruct((3,), np.float32)
    with pytest.raises(SpecError, match=r"needs observations with 'achieved_goal'.*no parts"):
        HostReplay(spec, GAMMA, plain, 1, Judge())
    with pytest.raises(SpecError, match=r"have \['achieved_goal', 'observation'\]"):
        HostReplay(spec, GAMMA, {"observation": plain, "achieved_goal": plain}, 1, Judge())
    goals = {"observation": plain, "achieved_goal": plain, "desired_goal": plain}
    with pytest.raises(SpecError, match="compute_reward"):
        HostReplay(spec, GAMMA, goals, 1, object())


# -- observations that are no stacks -------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [1, 2])
def test_an_observation_that_is_no_stack_moved_on_names_its_env(wrong):
    both = Both(LONG, 20, 1, 3, 4, "frames").run(5)
    step = both.envs.step()
    step.final_obs[wrong, 0, 0, 0] ^= 1
    with pytest.raises(SpecError, match=rf"stacked_frames is 3.*env {wrong} .*use stacked_frames: 1"):
        both.replay.insert(step, both.random)


def test_the_newest_frame_and_a_new_episode_may_be_anything():
    both = Both(Script(((3, "truncated"), (2, "failed")), ("any",), True), 20, 1, 3, 2, "frames")
    for _ in range(20):
        both.step()
        both.check()


@pytest.mark.parametrize("shape", [(4, 8, 8), (8, 8, 3), ()])
def test_stacked_frames_must_be_the_first_axis(shape):
    with pytest.raises(SpecError, match=r"stacked_frames is 3, but an observation has shape"):
        HostReplay(Replay(stacked_frames=3), GAMMA, jax.ShapeDtypeStruct(shape, np.uint8), 1)


def test_stacked_frames_are_one_array():
    image = jax.ShapeDtypeStruct((3, 8, 8), np.uint8)
    with pytest.raises(SpecError, match=r"shape \(3, 8, 8\), \(3, 8, 8\)"):
        HostReplay(Replay(stacked_frames=3), GAMMA, {"a": image, "b": image}, 1)


def test_stacked_frames_alone_in_a_dict_work_or_are_refused():
    """A Dict space with one part."""
    envs = ListEnvs(LONG, 2, 3)
    try:
        replay = HostReplay(Replay(capacity=8, stacked_frames=3), GAMMA, {"image": envs.shape()}, 2)
    except SpecError:
        return
    replay.allocate()
    replay.begin({"image": envs.obs})


# -- the replay ratio ----------------------------------------------------------------------------------


@given(st.integers(1, 50), st.lists(st.floats(0, 1), max_size=100))
def test_the_limiter_keeps_the_ratio_exactly(per_block, shares):
    limiter = Limiter(per_block)
    earned = taken = 0
    for share in shares:
        collected = round(share * per_block)  # fewer than a block's where an env was only reset
        limiter.earn(collected)
        earned += collected
        taken += limiter.take()
        assert taken == earned // per_block
        assert limiter.owed == earned % per_block


@pytest.mark.parametrize("late", [2, 3, 1000])
def test_the_limiter_never_catches_up_in_a_burst(late):
    limiter = Limiter(8)
    for _ in range(late):
        limiter.earn(8)
    assert [limiter.take() for _ in range(5)] == [True, True, False, False, False]
    limiter.earn(7)
    assert not limiter.take()
    limiter.earn(1)
    assert limiter.take()
    assert limiter.owed == 0


# -- memory --------------------------------------------------------------------------------------------


def planned(shape, **spec):
    envs = spec.pop("envs")
    return HostReplay(Replay(**spec), GAMMA, jax.ShapeDtypeStruct(shape, np.uint8), envs).num_bytes()


def test_stacks_need_little_more_memory_than_their_frames():
    assert planned((8, 128, 128), capacity=50_000, stacked_frames=8, envs=8) <= 0.9 * 2**30
    assert planned((8, 128, 128), capacity=50_000, stacked_frames=8, envs=8) > 50_000 * 128 * 128
    assert planned((4, 84, 84), capacity=1_000_000, stacked_frames=4, envs=8) <= 7.5e9
    assert planned((4, 84, 84), capacity=1_000_000, envs=8) > 4 * 7e9


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("sampling", [None, SPREAD])
@pytest.mark.parametrize("storage", ["whole", "shared", "frames"])
def test_the_memory_said_beforehand_is_what_is_allocated(storage, sampling, n):
    more = {"sampling": sampling} if sampling else {}
    both = Both(LONG, 2000, n, 4, 2, storage, **more)
    said = both.replay.num_bytes()
    both.run(10)
    replay = both.replay
    held = [
        replay.ring.rows,
        replay.written_at,
        replay.delay.arrays(),
        replay.stored_obs,
        getattr(replay.store, "frames", ()),
    ]
    if sampling:
        held.append(replay.tree._nodes)
    assert said == pytest.approx(sum(leaf.nbytes for leaf in jax.tree.leaves(held)), rel=0.02)
