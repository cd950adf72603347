"""Parcels against the naive twin: what actors pack and a learner takes in is what happened, whatever gets lost."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_replay import ListEnvs, NaiveReplay, Script
from test_host_replay import LONG, MIXED, SCRIPTS, assert_bits, assert_same, drawable, seen_in

from hotloop.episodes import Finished
from hotloop.errors import SpecError
from hotloop.experience import VectorStep
from hotloop.pipelines.first_errors import first_errors
from hotloop.replay.frames import Frames
from hotloop.replay.host import HostReplay
from hotloop.replay.packer import Packer
from hotloop.replay.parcels import form_of, frames_per_transition, rows_used, used
from hotloop.spec import Hindsight, Prioritized, Replay
from hotloop.trees import ArraySpec, leaves, num_bytes, zeros_of

GAMMA = 0.9
NUM_ACTIONS = 5
STORAGES = ("whole", "shared", "frames")


def spec_of(storage, capacity=100, n=1, stack=1, **more) -> Replay:
    as_frames = storage == "frames" and stack > 1
    kept = "auto" if as_frames else "shared" if storage == "frames" else storage
    return Replay(capacity=capacity, n_step=n, stacked_frames=stack if as_frames else 1, storage=kept, **more)


class Sender:
    """An actor's envs and packer; a naive replay and one that the same steps are inserted into see the same."""

    def __init__(self, spec, script=MIXED, num_envs=2, stack=1, vector_steps=8, masked=False, seed=0):
        self.envs = ListEnvs(script, num_envs, stack, seed)
        self.envs.shown = seed << 20  # no two actors show the same frame
        self.envs.frames = [self.envs._first(i) for i in range(num_envs)]
        self.random, self.masked = np.random.default_rng(seed), masked
        self.shape, self.num_actions = self.envs.shape(), NUM_ACTIONS if masked else None
        self.packer = Packer(spec, GAMMA, self.shape, num_envs, vector_steps, self.num_actions)
        self.slot: Any = zeros_of(self.packer.form, ())
        self.naive = NaiveReplay(spec.n_step, GAMMA)
        large = spec.model_copy(update={"capacity": 20_000})
        self.twin = HostReplay(large, GAMMA, self.shape, num_envs, None, self.num_actions)
        self.twin.allocate()
        for each in (self.packer, self.naive, self.twin):
            each.begin(self.envs.obs)
        self.sent = 0

    def step(self, finished=None) -> VectorStep:
        step = self.envs.step()
        if self.masked:
            step = step._replace(final_legal=self.random.random((len(step.valid), NUM_ACTIONS)) < 0.5)
        self.packer.push(step, finished)
        self.naive.insert(step)
        self.twin.insert(step, self.random)
        return step

    def fill(self):
        """As many steps as a parcel takes."""
        self.step()
        while not self.packer.is_full:
            self.step()
        return self.send()

    def send(self):
        """A parcel in its slot, and which rows of the twins it should hold."""
        parcel = self.packer.take()
        assert not self.packer.is_full
        copy_into(self.slot, parcel)
        overwrite(parcel)  # the packer goes on without it
        numbers = np.arange(self.sent, self.sent + int(self.slot.num_rows))
        self.sent += len(numbers)
        assert self.sent == len(self.naive.items) == self.twin.ring.inserted, "a step is packed when it is complete"
        return self.slot, [self.naive.items[i] for i in numbers], seen_in(self.twin, numbers)


class Receiver:
    """A learner's replay, and what it was given."""

    def __init__(self, spec, sender, vector_steps=8):
        room = frames_per_transition(spec, vector_steps)
        self.replay = HostReplay(spec, GAMMA, sender.shape, 0, None, sender.num_actions, room)
        self.replay.allocate()
        self.naive: list = []
        self.rows: list = []

    def take_in(self, parcel, naive, rows):
        self.replay.take_in(parcel)
        overwrite(parcel)
        self.naive += naive
        self.rows += [jax.tree.map(lambda leaf, i=i: leaf[i], rows) for i in range(len(naive))]
        self.check(len(naive))

    def check(self, newest):
        """What can be drawn is the newest of what came, in its order, to the bit."""
        replay = self.replay
        size, capacity = replay.size, replay.capacity
        assert min(newest, capacity) <= size <= min(len(self.naive), capacity)
        if not isinstance(replay.store, Frames):
            assert size == min(len(self.naive), capacity)
        if size:
            found = drawable(replay)
            assert_same(found, self.naive[-size:])
            assert_bits(found, jax.tree.map(lambda *each: np.stack(each), *self.rows[-size:]))


def copy_into(slot, parcel) -> None:
    """What of a parcel is used, as a ring copies it."""
    for to, new, count in zip(leaves(slot), leaves(parcel), rows_used(parcel), strict=True):
        to[slice(count) if to.ndim else ...] = new[slice(count) if new.ndim else ...]


def overwrite(parcel) -> None:
    """F23: every byte of it is 0xFF now."""
    for leaf in leaves(parcel):
        leaf.reshape(-1).view(np.uint8)[:] = 0xFF


def fits(spec, *senders) -> Replay:
    """A replay that has at least the room of a parcel."""
    return spec.model_copy(update={"capacity": max(spec.capacity, *(frames_in(each) for each in senders))})


def frames_in(sender) -> int:
    frames = sender.packer.form.frames
    return 1 if frames is None else leaves(frames)[0].shape[0]


# -- what is packed is what happened -------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=50, deadline=None)
@given(
    scripts=st.lists(SCRIPTS, min_size=1, max_size=3),
    capacity=st.integers(1, 80),
    n=st.integers(1, 5),
    stack=st.integers(1, 4),
    num_envs=st.integers(1, 3),
    vector_steps=st.integers(1, 9),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.booleans()), min_size=1, max_size=16),
    shape=st.sampled_from(["plain", "tree", "masked"]),
)
@example([Script(((1, "truncated"),))], 1, 5, 4, 3, 9, [(0, 12, False)] * 8, "plain")
@example([Script(((1, "both"),), ("any",), True)] * 3, 33, 3, 4, 2, 5, [(0, 9, False), (1, 9, False)] * 6, "masked")
@example([Script(((60, "truncated"),))] * 2, 20, 4, 3, 2, 7, [(0, 12, False), (1, 12, True)] * 8, "plain")
@example([Script(((5, "failed"), (3, "terminated")))], 20, 3, 3, 2, 4, [(0, 12, False)] * 8, "plain")
def test_a_replay_of_parcels_holds_what_happened_whatever_is_lost(
    storage, scripts, capacity, n, stack, num_envs, vector_steps, turns, shape
):
    """Actors with different numbers of envs in turns, each so many steps; where `is_lost`, its parcels are."""
    spec = spec_of(storage, capacity, n, stack)
    kept_tree = shape == "tree" and storage != "frames"
    senders = [
        Sender(spec, script._replace(tree=kept_tree), num_envs + i, stack, vector_steps, shape == "masked", i + 1)
        for i, script in enumerate(scripts)
    ]
    receiver = Receiver(fits(spec, *senders), senders[0], vector_steps)
    for who, steps, is_lost in turns:
        sender = senders[who % len(senders)]
        for _ in range(steps):
            sender.step()
            if sender.packer.is_full:
                sent = sender.send()
                if not is_lost:
                    receiver.take_in(*sent)
    for sender in senders:
        receiver.take_in(*sender.send())  # also one that is not full, or has nothing in it


@pytest.mark.parametrize(
    ("storage", "n", "stack"), [("frames", 1, 4), ("frames", 4, 3), ("shared", 3, 1), ("whole", 3, 1)]
)
def test_long_episodes_fill_all_of_a_replay_of_parcels(storage, n, stack):
    spec = spec_of(storage, 2000, n, stack)
    senders = [Sender(spec, Script(((500, "truncated"),)), 1 + i, stack, 16, seed=i) for i in range(2)]
    replay, came = Receiver(spec, senders[0], 16).replay, 0
    for turn in range(150):
        parcel, naive, _ = senders[turn % 2].fill()
        replay.take_in(parcel)
        came += len(naive)
        assert replay.size == min(2000, came)
    assert came > 3000


def test_parcels_among_steps_of_envs_of_its_own():
    """Rows stay in the order in which they lose their frames, so that the right ones are dropped."""
    spec = spec_of("frames", 60, 3, 4)
    sender, local = Sender(spec, MIXED, 1, 4, 6, seed=1), Sender(spec, MIXED, 2, 4, seed=2)
    receiver = Receiver(spec, sender)
    replay = receiver.replay = HostReplay(spec, GAMMA, sender.shape, 2)
    replay.allocate()
    replay.begin(local.envs.obs)
    for turn in range(120):
        step = local.envs.step()
        before = len(local.naive.items)
        local.naive.insert(step)
        replay.insert(step, local.random)
        receiver.naive += local.naive.items[before:]
        if turn % 7 == 0:
            parcel, naive, _ = sender.fill()
            replay.take_in(parcel)
            overwrite(parcel)
            receiver.naive += naive
        assert_same(drawable(replay), receiver.naive[len(receiver.naive) - replay.size :])
        places = np.arange(replay.ring.inserted - replay.size, replay.ring.inserted) % replay.capacity
        assert (np.diff(replay.written_at[places]) >= 0).all()
    assert replay.size > 20


@pytest.mark.parametrize("storage", STORAGES)
def test_a_full_packer_takes_no_step(storage):
    sender = Sender(spec_of(storage, stack=3), stack=3, vector_steps=5)
    while not sender.packer.is_full:
        sender.step()
    with pytest.raises(ValueError, match=r"full after . vector steps; take it"):
        sender.step()


@pytest.mark.parametrize("storage", STORAGES)
def test_beginning_anew_drops_what_was_not_taken(storage):
    sender = Sender(spec_of(storage, n=3, stack=2), LONG, stack=2)
    sender.fill()
    sender.step()
    sender.packer.begin(sender.envs.obs)
    sender.naive.begin(sender.envs.obs)
    done = len(sender.naive.items)
    for _ in range(4):
        step = sender.envs.step()
        sender.packer.push(step)
        sender.naive.insert(step)
    receiver = Receiver(spec_of(storage, n=3, stack=2), sender)
    parcel = sender.packer.take()
    assert int(parcel.account.env_steps_before) == 16
    receiver.replay.take_in(parcel)
    assert receiver.replay.size == 4
    assert_same(drawable(receiver.replay), sender.naive.items[done:])


# -- sizes ---------------------------------------------------------------------------------------------


def test_a_transition_of_mario_takes_19_kilobytes():
    """64 frames and the 8 of the running episode's stack, each once."""
    obs = ArraySpec((8, 128, 128), np.uint8)
    packer = Packer(Replay(stacked_frames=8), GAMMA, obs, 1, 64)
    frames = np.random.default_rng(0).integers(0, 255, (200, 128, 128), np.uint8)
    packer.begin(frames[None, :8])
    no, yes = np.zeros(1, bool), np.ones(1, bool)
    for t in range(1, 129):
        seen = frames[None, t : t + 8]
        packer.push(VectorStep(seen, seen, np.zeros(1, np.int32), np.ones(1, np.float32), no, no, yes, no))
        if t % 64 == 0:
            assert packer.is_full
            parcel = packer.take()
            assert (int(parcel.num_rows), int(parcel.num_frames)) == (64, 72)
            assert num_bytes(used(parcel)) / 64 <= 19_000
    assert num_bytes(packer.form) <= 1.2 * num_bytes(used(parcel)), "what is reserved for new episodes"


def test_frames_of_a_parcel_are_each_there_once():
    sender = Sender(spec_of("frames", n=3, stack=4), Script(((9, "truncated"),)), 2, 4, 12)
    for _ in range(6):
        parcel = used(sender.fill()[0])
        assert len({frame.tobytes() for frame in parcel.frames}) == len(parcel.frames)


# -- how it was made -----------------------------------------------------------------------------------


def test_the_account_sums_up_what_was_done():
    script = Script(((3, "truncated"), (2, "failed"), (1, "terminated")), next_step=True)
    spec = spec_of("shared")
    envs = ListEnvs(script, 3, 1)
    packer = Packer(spec, GAMMA, envs.shape(), 3, 4, info=("won", "score"))
    packer.begin(envs.obs)
    done = np.zeros(6)
    made = []
    for t in range(20):
        step = envs.step()
        finished = Finished(2, 1.5 * t, 3.0, {"won": 1.0, "score": float(t)}) if t % 3 == 0 else None
        packer.push(step, finished)
        done += [step.valid.sum(), *((2, 1.5 * t, 3.0, 1.0, t) if finished else [0] * 5)]
        if packer.is_full:
            made.append(jax.tree.map(np.array, packer.take(weights_version=10 + t).account))
    made.append(packer.take(7).account)
    assert len(made) >= 5
    found = np.zeros(6)
    for each in made:
        assert int(each.env_steps_before) == found[0], "what a lost parcel held is known from the next one"
        sums = (each.env_steps, each.episodes, each.episode_return, each.episode_length)
        found += [float(figure) for figure in (*sums, each.info["won"], each.info["score"])]
    assert found.tolist() == done.tolist()
    assert [int(each.weights_version) for each in made[:-1]] == [10 + t for t in range(20) if t % 4 == 3][
        : len(made) - 1
    ]


# -- priorities ----------------------------------------------------------------------------------------

BY_ERROR = Prioritized(kind="prioritized", alpha=0.7, epsilon=0.01)


@pytest.mark.parametrize("storage", STORAGES)
def test_first_priorities_follow_the_errors_of_a_parcel(storage):
    spec = spec_of(storage, 1000, sampling=BY_ERROR)
    sender = Sender(spec, vector_steps=6)
    receiver = Receiver(spec, sender)
    replay = receiver.replay
    parcel = sender.fill()[0]
    count = int(parcel.num_rows)
    replay.take_in(parcel)
    assert replay.tree.leaves[:count].tolist() == [1.0] * count, "without errors they have the largest"
    parcel = sender.fill()[0]
    errors = np.linspace(0, 9, int(parcel.num_rows), dtype=np.float32)
    parcel.error[: len(errors)] = errors
    parcel.error[[1, 3]] = np.nan, np.inf
    replay.take_in(parcel)
    expected = [(float(error) + 0.01) ** 0.7 for error in errors]
    assert replay.largest == pytest.approx(expected[-1])
    expected[1] = expected[3] = expected[-1]
    np.testing.assert_allclose(replay.tree.leaves[count : count + len(errors)], expected)
    assert replay.tree.total == pytest.approx(count + sum(expected))


def test_rows_that_lost_a_frame_cannot_be_drawn():
    spec = spec_of("frames", 60, 2, 4, sampling=BY_ERROR)
    sender = Sender(spec, Script(((1, "truncated"),)), 2, 4, 8)
    receiver = Receiver(spec, sender)
    for _ in range(30):
        receiver.take_in(*sender.fill())
        replay = receiver.replay
        assert np.count_nonzero(replay.tree.leaves) == replay.size
    assert replay.size < 60, "short episodes have more frames than transitions"


class Recorded:
    """A policy of sums and products that notes how many observations it was given."""

    def __init__(self, size):
        self.weights, self.given = np.random.default_rng(0).normal(size=(size, NUM_ACTIONS)), []

    def __call__(self, obs_N, draws=None):
        flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves(obs_N)], axis=1)
        self.given.append(len(flat))
        return (flat / 255 @ self.weights).astype(np.float32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("storage", "n", "stack"), [("whole", 1, 2), ("shared", 3, 1), ("frames", 1, 3), ("frames", 3, 2)]
)
def test_first_errors_are_the_formula_in_loops(storage, n, stack, masked):
    sender = Sender(spec_of(storage, n=n, stack=stack), MIXED, 2, stack, 7, masked)
    policy = Recorded(stack * 4)
    for _ in range(5):
        parcel, naive, rows = sender.fill()
        expected = []
        for i, item in enumerate(naive):
            q_tm1, q_t = Recorded(stack * 4)(item.s_tm1[None])[0], Recorded(stack * 4)(item.s_t[None])[0]
            legal = range(NUM_ACTIONS)
            if masked and rows.legal_t[i].any():
                legal = [action for action in legal if rows.legal_t[i][action]]
            target = item.r_t + item.discount_t * max(q_t[action] for action in legal)
            expected.append(abs(target - q_tm1[item.a_tm1]))
        found = first_errors(policy, parcel)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(set(policy.given)) == 1, "an engine would compile for each number of observations"
    assert len(policy.given) == (10 if storage == "whole" else 5)


def test_errors_that_are_not_finite_make_no_noise():
    sender = Sender(spec_of("whole"), vector_steps=4)
    parcel = sender.fill()[0]
    errors = first_errors(lambda obs, draws=None: np.full((len(obs), NUM_ACTIONS), np.inf, np.float32), parcel)
    assert len(errors) == int(parcel.num_rows)
    assert not np.isfinite(errors).any()


def test_a_parcel_without_rows_has_no_errors_and_changes_nothing():
    sender = Sender(spec_of("frames", n=5, stack=2), LONG, 1, 2, 3)
    parcel, naive, _ = sender.fill()
    assert naive == []
    assert first_errors(Recorded(8), parcel).shape == (0,)
    receiver = Receiver(spec_of("frames", n=5, stack=2), sender)
    receiver.replay.take_in(parcel)
    assert (receiver.replay.size, receiver.replay.store.written) == (0, 0)


# -- checkpoints, refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_a_replay_of_parcels_goes_on_from_a_checkpoint(storage):
    spec = spec_of(storage, 90, 3, 3, sampling=BY_ERROR)
    sender = Sender(spec, MIXED, 2, 3, 8)
    receiver = Receiver(spec, sender)
    for _ in range(20):
        receiver.take_in(*sender.fill())
    saved = jax.tree.map(np.array, receiver.replay.arrays())
    restored = Receiver(spec, sender)
    written = int(saved["store"].get("written", 0))
    template = restored.replay.template(int(saved["ring"]["inserted"]), written)
    assert [leaf.shape for leaf in leaves(template)] == [leaf.shape for leaf in leaves(saved)]
    restored.replay.restore(saved)
    assert_bits(drawable(restored.replay), drawable(receiver.replay))
    for _ in range(10):
        parcel = sender.fill()[0]
        receiver.replay.take_in(parcel)
        restored.replay.take_in(parcel)
        assert_bits(drawable(restored.replay), drawable(receiver.replay))
    assert_bits(restored.replay.arrays(), receiver.replay.arrays())


def test_hindsight_is_refused():
    goals = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), ArraySpec((3,), np.float32))
    with pytest.raises(SpecError, match=r"replay\.hindsight stores episodes whole.*use a pipeline"):
        form_of(Replay(hindsight=Hindsight()), goals, 1, 8)


def test_a_parcel_larger_than_the_replay_is_refused():
    sender = Sender(spec_of("frames", stack=3), LONG, 4, 3, 50)
    receiver = Receiver(spec_of("frames", 20, stack=3), sender)
    with pytest.raises(ValueError, match=r"a parcel of 212 frames does not fit.*replay\.capacity"):
        receiver.replay.take_in(sender.fill()[0])


@pytest.mark.parametrize("number", [-1, 1000])
def test_numbers_outside_of_a_parcel_are_refused(number):
    sender = Sender(spec_of("frames", stack=3), stack=3)
    receiver = Receiver(spec_of("frames", stack=3), sender)
    parcel = sender.fill()[0]
    parcel.rows.s_t[2, 1] = number
    with pytest.raises(ValueError, match=rf"have frames .*{number}.* but it has"):
        receiver.replay.take_in(parcel)
    assert receiver.replay.size == 0
