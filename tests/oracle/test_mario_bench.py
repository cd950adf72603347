"""The loop of `bench mario` is honest: it learns by the formula, draws by priority, counts what it loses."""

import copy
import math
from dataclasses import replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from hotloop.bench import mario, mario_alone, mario_memory, mario_playing, mario_table
from hotloop.bench.mario_alone import ADVICE, Outcome, outcome_of, random_experiences, verdict
from hotloop.bench.mario_original import (
    DISCOUNT,
    OPTIMIZED,
    TAU,
    Channel,
    Collector,
    Learner,
    Sender,
    Sizes,
    Switches,
    new_network,
)
from hotloop.bench.mario_original_network import PictureNetwork, follow, gflop_of_sample, layers_of, weights_of
from hotloop.bench.mario_original_pipeline import Pipeline, Ran
from hotloop.bench.mario_original_replay import ALPHA, BETA, Priorities, StackedReplay, bytes_of, bytes_of_frames
from hotloop.bench.mario_table import ENVS, MOST_ENVS, hotloop_measured, hotloop_spec, pipeline_measured
from hotloop.blocks import LONGEST_BLOCK
from hotloop.progress import Silent
from hotloop.registry import BENCHES
from hotloop.spec.reading import load_spec

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TINY = Sizes(picture=36, stack=2, skip=16, idle_steps=2, noop_max=0, start=8, room=64)
SMALL = Switches(batch=8, buffer=64, threads=1)
EXACT = [
    "in-place ReLU when acting",
    "a queue per collector",
    "a queue per collector, 16 at once",
    "16 at once, with the lock",
    "pre-allocated batches",
    "uint8 converted after the transfer",
    "in-place ReLU",
    "cache cleared every 4 batches",
]

FIGURES: mario_table.Figures = {
    "env_steps_per_s": 100.0,
    "env_steps": 1000,
    "updates": 40,
    "samples_per_insert": 1.0,
    "learner": {"update": 0.5, "transfer": 0.25, "wait": 0.2},
    "actors": {"hand over": 0.01, "wait": 0.4},
    "weights_lag": None,
    "here_us": 1.0,
    "actors_us": 1.0,
    "cores": 1.9,
    "rest_seconds": 0.0,
    "used_at_rest": 0.0,
    "update_ms": 1.0,
}
"""Of a training that never was."""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mario_alone, mario_memory, mario_playing, mario_table):
        monkeypatch.setattr(module, "SIZES", TINY)
    for name, value in {"CHECKED": TINY, "CHECKED_BATCH": 4, "CHECKED_ROUNDS": 6, "CHECKED_TURNS": 24}.items():
        monkeypatch.setattr(mario_alone, name, value)
    for name in ("BATCH", "ROUNDS", "TURNS", "EXPERIENCES", "STORED"):
        monkeypatch.setattr(mario_alone, name, {"BATCH": 4, "ROUNDS": 2, "STORED": 32}.get(name, 16))
    for name, value in {"BUFFERS": (100, 200), "BATCH": 8, "STORED": 64, "ROUNDS": 2}.items():
        monkeypatch.setattr(mario_memory, name, value)
    monkeypatch.setattr(mario_playing, "ROUNDS", 2)
    monkeypatch.setattr(mario_playing, "SECONDS", 0.3)
    monkeypatch.setattr(mario_table, "SLICE_SECONDS", 0.5)
    monkeypatch.setattr(mario_table, "HOTLOOP_SECONDS", 0.5)


@cache
def original() -> Outcome:
    return outcome_of(Switches(threads=1))


def learner_of(switches: Switches = SMALL) -> Learner:
    learner = Learner(TINY, switches)
    learner.store(random_experiences(50, TINY))
    with torch.no_grad():
        for weight in learner.target.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3))
    return learner


def naive_loss(learner: Learner, seed: int) -> tuple[float, list[float]]:
    """One transition after the other, from networks as they are, of the batch that this seed draws."""
    replay, online, target = learner.replay, copy.deepcopy(learner.online).eval(), learner.target
    drawn = replay.sample(learner.switches.batch, np.random.default_rng(seed))
    total, errors = 0.0, []
    chances = replay.priorities.values / replay.priorities.values.sum()
    rarest = max((len(replay) * chances[place]) ** -BETA for place in drawn.places)
    for place in drawn.places:
        with torch.no_grad():
            q, after, slow = (
                net(torch.tensor(stacks[place][None] / 255.0, dtype=torch.float32))[0].numpy()
                for net, stacks in (
                    (online, replay.state),
                    (online, replay.next_state),
                    (target, replay.next_state),
                )
            )
        wanted = replay.reward[place] + (0.0 if replay.terminated[place] else DISCOUNT * slow[after.argmax()])
        error = float(wanted - q[replay.action[place]])
        huber = 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
        total += (len(replay) * chances[place]) ** -BETA / rarest * huber
        errors.append(error)
    return total / len(drawn.places), errors


def test_target_and_loss_are_those_of_the_formula() -> None:
    learner = learner_of()
    expected, errors = naive_loss(learner, seed=5)
    learner.random = np.random.default_rng(5)
    drawn = learner.draw()
    learner.learn(drawn)
    assert learner.loss == pytest.approx(expected, rel=1e-4)
    last = dict(zip(drawn.places.tolist(), errors, strict=True))
    for place, error in last.items():
        assert learner.replay.priorities.values[place] == pytest.approx(abs(error) ** ALPHA, rel=1e-3)


def test_four_accumulated_batches_make_the_step_of_their_mean_gradient() -> None:
    learner, whole = learner_of(replace(SMALL, accumulates=4)), learner_of(replace(SMALL, accumulates=1))
    start = weights_of(learner.online)
    for number in range(4):
        assert all((start[name] == value).all() for name, value in weights_of(learner.online).items()), number
        drawn = learner.draw()
        learner.learn(drawn)
        loss, _ = whole._loss(drawn)
        (loss / 4).backward()
    whole.optimizer.step()
    for name, value in weights_of(whole.online).items():
        np.testing.assert_array_equal(weights_of(learner.online)[name], value)
    assert learner.batches == 4


def test_places_are_drawn_in_proportion_to_their_priorities() -> None:
    priorities, random = Priorities(6), np.random.default_rng(0)
    errors = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    priorities.update(np.arange(5), errors)
    drawn, weight = priorities.draw(200_000, 5, random)
    chance = (errors + 1e-6) ** ALPHA / ((errors + 1e-6) ** ALPHA).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=6)[:5] / 200_000, chance, atol=0.005)
    likely, rarest = (drawn == 4).argmax(), weight.max()
    assert rarest == 1.0
    assert weight[likely] == pytest.approx((chance[4] / chance[drawn].min()) ** -BETA, rel=1e-5)


def test_a_full_replay_overwrites_the_oldest() -> None:
    replay = StackedReplay(8, TINY.shape)
    experiences = random_experiences(11, TINY)
    for experience in experiences:
        replay.add(experience)
    assert len(replay) == 8
    np.testing.assert_array_equal(replay.state[2], experiences[10].state)
    np.testing.assert_array_equal(replay.next_state[3], experiences[3].next_state)


def test_the_target_net_follows_with_its_running_statistics() -> None:
    online, target = (new_network(TINY, Switches(normalised=True)) for _ in range(2))
    online(torch.rand(4, *TINY.shape))
    before, ahead = weights_of(target), weights_of(online)
    follow(target, online, TAU)
    after = weights_of(target)
    moved = [name for name in after if name.endswith("running_mean")]
    assert len(moved) == 3
    for name in moved:
        np.testing.assert_allclose(after[name], TAU * ahead[name] + (1 - TAU) * before[name], rtol=1e-5, atol=1e-7)
        assert (after[name] != before[name]).any()


def test_a_compiled_learner_gives_weights_under_their_own_names() -> None:
    learner = Learner(TINY, replace(SMALL, compiled=True, sync_every=0))
    weights = learner.weights_if_due()
    assert weights is not None
    collector = Collector(TINY, SMALL, lambda experience: None)
    collector.take(weights)
    collector.close()


@pytest.mark.parametrize("switches", [SMALL, replace(SMALL, own_queues=True, together=3, collectors=2)])
def test_queues_lose_nothing_and_keep_each_collectors_order(switches: Switches) -> None:
    channel, experiences = Channel(get_context("spawn"), TINY, switches), random_experiences(20, TINY)
    senders = [Sender(channel, number) for number in range(2)]
    for number, experience in enumerate(experiences):
        senders[number % 2].send(experience)
    for sender in senders:
        sender.flush()
        assert (sender.handed.experiences, sender.handed.dropped) == (10, 0)
    taken = channel.take_exactly(20)
    expected = experiences[::2] + experiences[1::2] if switches.own_queues else experiences
    for found, sent in zip(taken, expected, strict=True):
        np.testing.assert_array_equal(found.state, sent.state)
        np.testing.assert_array_equal(found.next_state, sent.next_state)
        assert found[1:3] == sent[1:3]
        assert found[4:] == sent[4:]


@pytest.mark.parametrize(("together", "dropped"), [(1, 6), (3, 6)])
def test_what_a_full_queue_drops_is_counted(together: int, dropped: int) -> None:
    switches = replace(SMALL, own_queues=True, together=together)
    channel = Channel(get_context("spawn"), replace(TINY, room=6), switches)
    sender = Sender(channel, 0)
    for experience in random_experiences(12, TINY):
        sender.send(experience)
    assert (sender.handed.experiences, sender.handed.dropped) == (6, dropped)
    assert len(channel.take_exactly(6)) == 6


def test_all_advice_that_changes_nothing_together_gives_the_same_bits() -> None:
    together = Switches(
        threads=1,
        own_queues=True,
        together=16,
        preallocated=True,
        converts_after=True,
        in_place=True,
        clears_every=4,
    )
    for name in EXACT:
        named = {key: on for key, on in vars(ADVICE[name].switches).items() if on != vars(Switches())[key]}
        assert replace(together, **named) == together, name
    assert any(
        (one != other).any() for one, other in zip(*(each.values() for each in original().acting[::5]), strict=True)
    )
    assert verdict(outcome_of(together), original()) == "bits"


@pytest.mark.heavy
@pytest.mark.parametrize("name", EXACT)
def test_advice_that_changes_nothing_gives_the_same_bits(name: str) -> None:
    assert verdict(outcome_of(replace(ADVICE[name].switches, threads=1)), original()) == "bits"


@pytest.mark.heavy
def test_a_compiled_learner_differs_by_rounding_alone() -> None:
    assert verdict(outcome_of(replace(ADVICE["torch.compile"].switches, threads=1)), original()) in ("bits", "rounding")


@pytest.mark.parametrize(
    "name",
    ["batch 512", "accumulation of 4", "BatchNorm, He, no bias", "weights every epoch", "16 episodes per epoch"],
)
def test_advice_that_is_another_algorithm_comes_to_something_else(name: str) -> None:
    assert verdict(outcome_of(replace(ADVICE[name].switches, threads=1)), original()).startswith("no")


def test_arithmetic_and_memory_are_those_of_the_shapes() -> None:
    network = PictureNetwork(8, 128, 12)
    products = [layer.multiplications for layer in layers_of(8, 128, 12)]
    assert products[:4] == [31**2 * 32 * 8 * 64, 14**2 * 64 * 32 * 16, 12**2 * 64 * 64 * 9, 9216 * 512]
    assert network.layers[7].in_features == 9216
    assert gflop_of_sample(8, 128, 12) == pytest.approx(2 * (5 * sum(products) - products[0]) / 1e9)
    assert bytes_of(50_000, 8, 128) == 50_000 * 262_144
    assert math.isclose(bytes_of_frames(50_000, 128) / 2**30, 0.763, rel_tol=1e-3)


def test_the_optimised_configuration_is_the_documents() -> None:
    assert (OPTIMIZED.collectors, OPTIMIZED.buffer, OPTIMIZED.batch) == (4, 50_000, 512)
    assert (OPTIMIZED.accumulates, OPTIMIZED.episodes, OPTIMIZED.sync_every) == (4, 16, 5)
    original = Switches()
    assert (original.collectors, original.buffer, original.batch) == (2, 10_000, 256)
    assert (original.episodes, original.sync_every) == (8, 3)


def test_a_pipeline_learns_rests_and_ends() -> None:
    pipeline = Pipeline(TINY, replace(SMALL, own_queues=True, episodes=1, sync_every=1))
    try:
        pipeline.wait_until_ready()
        pipeline.warm_up()
        ran = pipeline.run(1.0)
        assert ran.taken > 0 < ran.batches
        assert 0 < ran.learning_seconds <= ran.seconds
        assert ran.handed > 0
        assert ran.syncs > 0 < ran.episodes
        again = ran.and_then(pipeline.run(0.2))
        assert again.seconds > ran.seconds
    finally:
        pipeline.close()
    assert not any(process.is_alive() for process in pipeline._processes)


def test_lines_of_the_table_are_what_was_counted() -> None:
    ran = Ran(10.0, 500, 20, 4, 6.0, 1, 480, 20, 0.25, 1.0)
    measured = pipeline_measured(ran, Switches(batch=256, episodes=8))
    assert measured.values == {
        "experience rate": 50.0,
        "training throughput": 2.0,
        "utilisation": 60.0,
        "lock wait": 2.0,
        "epoch time": 20.0,
    }
    assert "20 dropped" in measured.notes["experience rate"]
    assert (measured.experiences_per_batch, measured.experiences_per_epoch) == (25.0, 1000.0)


@pytest.mark.parametrize("switches", [Switches(), OPTIMIZED])
@pytest.mark.parametrize("per_batch", [3.0, 100.3, 8_224.0])  # from a fast learner to one that hardly ever comes to it
def test_hotloop_is_given_the_same_work(switches: Switches, per_batch: float) -> None:
    spec = load_spec("mario_128", hotloop_spec(switches, per_batch))
    every = round(1 / spec.updates_per_step)
    wanted = min(MOST_ENVS * LONGEST_BLOCK, max(ENVS, per_batch * switches.accumulates))
    assert every == pytest.approx(wanted, abs=spec.env.num_envs / 2)
    assert spec.env.num_envs <= MOST_ENVS
    assert spec.replay.batch_size == switches.batch * switches.accumulates
    assert spec.optimizer.accumulate == switches.accumulates
    assert spec.block_plan.env_steps % every == 0


def test_rows_of_advice_and_memory_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: piece for name, piece in ADVICE.items() if not piece.switches.compiled}
    monkeypatch.setattr(mario_alone, "ADVICE", kept)
    rows = mario_alone.alone_rows(dict.fromkeys(kept, "bits"), Silent())
    assert len(rows) == len(kept) + len(mario_alone.UNITS)
    assert all(row.value > 0 for row in rows)
    rows = [*mario_memory.memory_rows(), *mario_memory.drawing_rows(Silent())]
    assert len(rows) == 8
    assert mario_alone.settings()


@pytest.mark.heavy
def test_hotloop_trains_at_the_settings_of_the_optimised_pipeline() -> None:
    switches = replace(OPTIMIZED, batch=8, buffer=2048, collectors=2)
    theirs = pipeline_measured(Ran(1.0, 500, 20, 4, 0.6, 1, 480, 20, 0.25, 1.0), switches)
    ours = mario_table._hotloop(switches, theirs)
    assert ours.experiences_per_batch == 24
    assert all(value > 0 for value in ours.values.values())


@pytest.mark.heavy
def test_all_rows_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mario_table, "_hotloop", lambda switches, theirs: hotloop_measured(FIGURES, switches, theirs))
    configurations = {
        mario_table.ORIGINAL: replace(SMALL, buffer=2048),
        mario_table.OPTIMISED: replace(OPTIMIZED, batch=8, buffer=2048, collectors=2, together=4, compiled=False),
    }
    monkeypatch.setattr(mario_table, "CONFIGURATIONS", configurations)
    pieces = {name: ADVICE[name] for name in ("one thread when acting", "a queue per collector", "accumulation of 4")}
    monkeypatch.setattr(mario_alone, "ADVICE", pieces)
    monkeypatch.setattr(mario_playing, "GROUPS", dict(list(mario_playing.GROUPS.items())[:2]))
    result = mario.run(Silent())
    assert len(result.rows) == 20 + len(pieces) + 4 + 2 + 8
    assert result.as_json()["rows"]
    assert "mario" in BENCHES


def test_lines_of_hotloop_are_those_of_its_figures() -> None:
    theirs = pipeline_measured(Ran(10.0, 500, 20, 4, 6.0, 1, 480, 20, 0.25, 1.0), Switches())
    ours = hotloop_measured(FIGURES, Switches(), theirs)
    assert ours.values["training throughput"] == 4.0
    assert ours.values["utilisation"] == 75.0
    assert ours.values["lock wait"] == pytest.approx(0.2)
    assert ours.values["epoch time"] == 10.0
