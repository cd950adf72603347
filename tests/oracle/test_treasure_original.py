"""The slow multi-agent training is honest: it plays the same game, and what it learns is what the formulas say."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from naive_treasure import NaiveTreasure, growth_of, starts_of
from scipy.stats import chisquare

from hotloop.bench.treasure_original import (
    CLIP,
    DISCOUNT,
    EPSILON_FACTOR,
    LEARNING_RATE,
    SOFT,
    STACK,
    STEPS,
    ImprovedTraining,
    Learner,
    OriginalTraining,
)
from hotloop.bench.treasure_original_game import FRAME_SIZE, RandomDraws
from hotloop.bench.treasure_original_iqn import Batch, IqnNetwork, NoisyLinear, Taus, loss_of, quantile_huber
from hotloop.bench.treasure_original_replay import FrameReplay
from hotloop.envs.treasure import Treasure

pytestmark = [pytest.mark.usefixtures("one_torch_thread"), pytest.mark.less_optimised]

TRAININGS = [OriginalTraining, ImprovedTraining]
EPOCHS = 2


# -- the game -----------------------------------------------------------------------------------------


class Played(NamedTuple):
    """Epochs of the device env with random actions, and the draws they took; leading axes epochs, turns."""

    starts: Any
    first_growth: Any
    first_obs: Any
    action: Any
    growth: Any
    obs: Any
    reward: Any


class GivenDraws:
    """The draws of epochs that were played elsewhere."""

    def __init__(self, played: Played) -> None:
        self.all_starts = iter(played.starts.tolist())
        growth = np.concatenate([played.first_growth[:, None], played.growth], axis=1)
        self.all_growth = iter(growth.reshape(-1, growth.shape[-1]) == 1)

    def starts(self) -> Sequence[int]:
        return next(self.all_starts)

    def growth(self) -> np.ndarray:
        return next(self.all_growth)


@pytest.fixture(scope="module")
def played() -> Played:
    """An epoch more than is looked at: the last one begins another."""
    env = Treasure()

    def epoch(key: jax.Array) -> Played:
        def turn(state: Any, turn_key: jax.Array) -> Any:
            action = jax.random.randint(turn_key, (env.agents,), 0, 4)
            state, obs, reward, *_ = env.step(state, action, turn_key)
            return state, (action, env.draw_growth(turn_key), obs, reward)

        state, obs = env.reset(key)
        turns = jax.lax.scan(turn, state, jax.random.split(jax.random.fold_in(key, 1), env.turns))[1]
        return Played(*env.first_draws(key), obs, *turns)

    return jax.device_get(jax.jit(jax.vmap(epoch))(jax.random.split(jax.random.key(7), EPOCHS + 1)))


@pytest.mark.parametrize("kind", TRAININGS)
def test_the_game_and_its_observations_are_those_of_the_device_env(
    kind: type[OriginalTraining], played: Played
) -> None:
    training = kind(draws=GivenDraws(played))
    for epoch in range(EPOCHS):
        for t in range(50):
            before = played.first_obs[epoch] if t == 0 else played.obs[epoch, t - 1]
            np.testing.assert_array_equal(training.observations(), before)
            turn = training.env_turn(played.action[epoch, t].tolist())
            assert turn.rewards == played.reward[epoch, t].tolist()
            np.testing.assert_array_equal(turn.frames, played.obs[epoch, t][:, -FRAME_SIZE:])
            assert turn.is_over == (t == 49)
    assert training.epsilon == pytest.approx(EPSILON_FACTOR**EPOCHS)
    expected = (played.reward[:EPOCHS] == 10).sum(1)
    assert training.gems_per_epoch == expected.tolist()
    assert expected.sum() > 20


def test_the_game_is_that_of_the_naive_twin(played: Played) -> None:
    training = OriginalTraining(draws=GivenDraws(played))
    twin = NaiveTreasure(starts_of(10, played.starts[0]), growth_of(10, ["gem"], played.first_growth[0]))
    for t in range(50):
        turn = training.env_turn(played.action[0, t].tolist())
        rewards, _, truncated = twin.step(played.action[0, t], growth_of(10, ["gem"], played.growth[0, t]))
        assert (turn.rewards, turn.is_over) == (rewards, truncated)
        np.testing.assert_array_equal(turn.frames, [stack[-1] for stack in twin.stacks])


def test_its_own_chance_is_that_of_the_rules() -> None:
    draws = RandomDraws(0)
    starts = np.array([draws.starts() for _ in range(2000)])
    assert all(len(set(cells)) == 5 for cells in starts.tolist())
    assert chisquare(np.bincount(starts.ravel(), minlength=64)).pvalue > 1e-4
    growth = np.array([draws.growth() for _ in range(2000)])
    assert growth.mean() == pytest.approx(0.02, abs=0.002)


# -- what is remembered -------------------------------------------------------------------------------

SIZE, TURNS = 3, 7


class Row(NamedTuple):
    """What a list of epochs says of one transition."""

    s_tm1: list[float]
    a_tm1: int
    r_t: float
    s_t: list[float]
    discount_t: float


def remembered(rows: int, capacity: int) -> tuple[FrameReplay, dict[int, Row]]:
    """A replay with so many rows of epochs of seven turns, and its complete transitions by number of their row."""
    replay, random = FrameReplay(capacity, SIZE, stack=STACK, steps=STEPS, discount=DISCOUNT), np.random.default_rng(0)
    frames = random.integers(0, 2, (rows, SIZE))
    actions, rewards = random.integers(0, 4, rows), random.normal(size=rows).astype(np.float32)
    turns = [row % (TURNS + 1) for row in range(rows)]
    for row, turn in enumerate(turns):
        if turn == TURNS:
            replay.end(turn, frames[row])
        else:
            replay.add(turn, frames[row], int(actions[row]), float(rewards[row]))

    def stack(row: int) -> list[float]:
        back = [row - i if turns[row] >= i else None for i in reversed(range(STACK))]
        assert all(i is None or i >= 0 for i in back)
        return [float(x) for i in back for x in ([0] * SIZE if i is None else frames[i])]

    expected = {}
    for row, turn in enumerate(turns):
        count = min(STEPS, TURNS - turn)
        oldest = row - min(turn, STACK - 1)
        if turn < TURNS and row + count < rows and oldest >= rows - capacity:
            total = sum(DISCOUNT**i * float(rewards[row + i]) for i in range(count))
            expected[row] = Row(stack(row), int(actions[row]), total, stack(row + count), DISCOUNT**count)
    return replay, expected


@pytest.mark.parametrize(("rows", "capacity"), [(5, 20), (20, 20), (24, 20), (61, 20), (60, 21), (64, 24)])
def test_transitions_are_those_of_a_list_of_epochs(rows: int, capacity: int) -> None:
    replay, expected = remembered(rows, capacity)
    held = np.arange(rows - len(replay), rows)
    complete = held[replay.is_complete(held)]
    assert complete.tolist() == list(expected)
    assert len(complete) > 0
    batch = replay.transitions(complete)
    for i, row in enumerate(complete.tolist()):
        for found, wanted in zip(batch, expected[row], strict=True):
            np.testing.assert_allclose(found[i], wanted, rtol=1e-5, atol=1e-6)
    assert {round(float(discount), 4) for discount in batch.discount_t} <= {0.99, 0.9801, 0.9703}


def test_every_complete_transition_is_drawn_as_often() -> None:
    replay, expected = remembered(61, 20)
    counts = dict.fromkeys(expected, 0)
    rows = {(*row.s_tm1, row.a_tm1, round(row.r_t, 3)): number for number, row in expected.items()}
    assert len(rows) == len(expected), "told apart"
    batch = replay.sample(3_000, np.random.default_rng(0))
    for s_tm1, a_tm1, r_t in zip(batch.s_tm1.tolist(), batch.a_tm1.tolist(), batch.r_t.tolist(), strict=True):
        key = min(rows, key=lambda row: (row[:-1] != (*s_tm1, a_tm1), abs(row[-1] - r_t)))
        counts[rows[key]] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_turns_that_were_not_remembered_are_noticed() -> None:
    training = OriginalTraining(gradient_steps=0)
    training.turn()
    training.env_turn()
    with pytest.raises(ValueError, match="a row of turn 2 was added, expected turn 1"):
        training.turn()


# -- what is learned ----------------------------------------------------------------------------------

OBS, ACTIONS, HIDDEN, BATCH = 4, 3, 6, 5


def a_batch(random: np.random.Generator) -> tuple[Batch, Taus]:
    batch = Batch(
        torch.from_numpy(random.normal(size=(BATCH, OBS))),
        torch.from_numpy(random.integers(0, ACTIONS, BATCH)),
        torch.from_numpy(3 * random.normal(size=BATCH)),
        torch.from_numpy(random.normal(size=(BATCH, OBS))),
        torch.from_numpy(random.choice([0.99, 0.9801], BATCH)),
    )
    return batch, Taus(*torch.from_numpy(random.random((3, BATCH, 4))))


def naive_quantile(network: IqnNetwork, obs: np.ndarray, tau: float) -> np.ndarray:
    """Quantiles of all actions (A,) at one fraction, layer by layer."""

    def dense(layer: Any, x: list[float]) -> list[float]:
        weight, bias = layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()
        if isinstance(layer, NoisyLinear):
            noise_in, noise_out = layer.noise_in.numpy(), layer.noise_out.numpy()
            assert (noise_in != 0).all(), "noise is on"
            for i in range(len(bias)):
                bias[i] += layer.bias_sigma[i].item() * noise_out[i]
                for j in range(len(x)):
                    weight[i, j] += layer.weight_sigma[i, j].item() * noise_out[i] * noise_in[j]
        return [sum(weight[i, j] * x[j] for j in range(len(x))) + bias[i] for i in range(len(bias))]

    def relu(x: list[float]) -> list[float]:
        return [max(0.0, value) for value in x]

    features = relu(dense(network.torso, obs.tolist()))
    embedded = relu(dense(network.embedding, [math.cos(math.pi * i * tau) for i in range(64)]))
    mixed = relu(dense(network.mixed, [a * b for a, b in zip(features, embedded, strict=True)]))
    advantage, (value,) = dense(network.advantage, mixed), dense(network.value, mixed)
    return np.array([value + a - sum(advantage) / len(advantage) for a in advantage])


def naive_loss(online: IqnNetwork, target: IqnNetwork, batch: Batch, taus: Taus) -> float:
    total = 0.0
    for b in range(BATCH):
        s_tm1, a_tm1, r_t, s_t, discount_t = (field[b].numpy() for field in batch)
        choice = np.mean([naive_quantile(online, s_t, tau) for tau in taus.choice[b].tolist()], axis=0)
        best = int(np.argmax(choice))
        goals = [r_t + discount_t * naive_quantile(target, s_t, tau)[best] for tau in taus.target[b].tolist()]
        for tau in taus.online[b].tolist():
            own = naive_quantile(online, s_tm1, tau)[int(a_tm1)]
            for goal in goals:
                error = goal - own
                huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
                total += abs(tau - (error < 0)) * huber / len(goals)
    return total / BATCH


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_is_that_of_the_formulas_in_loops(seed: int) -> None:
    torch.manual_seed(seed)
    networks = [IqnNetwork(OBS, ACTIONS, HIDDEN).double() for _ in range(2)]
    for network in networks:
        network.draw_noise(torch.Generator().manual_seed(seed))
    batch, taus = a_batch(np.random.default_rng(seed))
    assert loss_of(*networks, batch, taus).item() == pytest.approx(naive_loss(*networks, batch, taus), rel=1e-6)


def test_the_target_has_no_gradient_and_the_estimate_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    online, target = (IqnNetwork(OBS, ACTIONS, HIDDEN).double() for _ in range(2))
    for network in (online, target):
        network.draw_noise(torch.Generator().manual_seed(1))
    batch, taus = a_batch(np.random.default_rng(5))
    loss_of(online, target, batch, taus).backward()
    assert all(weight.grad is None for weight in target.parameters())
    fixed = IqnNetwork(OBS, ACTIONS, HIDDEN).double()
    fixed.load_state_dict(online.state_dict())
    fixed.draw_noise(torch.Generator().manual_seed(1))

    def moved_loss(by: float) -> float:
        """With goals by weights that do not move: semi-gradients."""
        with torch.no_grad():
            weight = online.mixed.weight
            weight[1, 2] += by
            best = fixed(batch.s_t, taus.choice).mean(1).argmax(1)
            ahead = target(batch.s_t, taus.target)[torch.arange(BATCH), :, best]
            taken = online(batch.s_tm1, taus.online)[torch.arange(BATCH), :, batch.a_tm1]
            loss = quantile_huber(taken, taus.online, batch.r_t[:, None] + batch.discount_t[:, None] * ahead)
            weight[1, 2] -= by
        return loss.item()

    slope = (moved_loss(1e-6) - moved_loss(-1e-6)) / 2e-6
    assert online.mixed.weight.grad[1, 2].item() == pytest.approx(slope, rel=1e-4)
    assert abs(slope) > 1e-6


def test_a_gradient_step_is_clipped_adam_and_a_thousandth_of_the_way_for_the_target() -> None:
    training = OriginalTraining(gradient_steps=0)
    for _ in range(90):
        training.turn()
    learner: Learner = training.learners[0]
    assert learner.optimizer.defaults["lr"] == LEARNING_RATE == 2.5e-4
    assert type(learner.optimizer) is torch.optim.Adam
    before = [weight.detach().clone() for weight in learner.online.parameters()]
    learner.optimizer = torch.optim.SGD(learner.online.parameters(), lr=1.0)  # so that a step is the clipped gradient
    learner.replay.reward *= 1000
    assert learner.learn() > CLIP
    moved = torch.cat([(new - old).ravel() for new, old in zip(learner.online.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(CLIP, rel=1e-3)
    for slow, fast, old in zip(learner.target.parameters(), learner.online.parameters(), before, strict=True):
        torch.testing.assert_close(slow, (1 - SOFT) * old + SOFT * fast)


def test_acting_is_random_by_epsilon_and_else_the_best_mean() -> None:
    learner = Learner(100, 8, seed=0)
    obs = np.random.default_rng(0).integers(0, 2, 625).astype(np.float32)
    counts = np.bincount([learner.act(obs, 1.0) for _ in range(2000)], minlength=4)
    assert chisquare(counts).pvalue > 1e-4
    with torch.no_grad():
        learner.online.advantage.bias[2] += 100
    assert {learner.act(obs, 0.0) for _ in range(5)} == {2}


def test_improved_by_hand_ends_with_the_same_weights() -> None:
    ends = []
    for kind, seed in ((OriginalTraining, 0), (ImprovedTraining, 0), (ImprovedTraining, 1)):
        training = kind(seed=seed, batch_size=8, capacity=64, learning_start=60)
        training.epsilon = 0.5
        for _ in range(70):
            training.turn()
        assert [learner.updates for learner in training.learners] == [12] * 5
        ends.append(training.weights())
    np.testing.assert_allclose(ends[1], ends[0], atol=2e-5)
    assert np.abs(ends[2] - ends[0]).max() > 1e-2
