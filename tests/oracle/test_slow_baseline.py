"""The benchmarks' baseline is honest: it plays hotloop's Snake, and its exact remedies change nothing."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch

from hotloop.bench.slow_baseline import SlowTraining, Switches
from hotloop.bench.slow_baseline_env import SlowSnakes
from hotloop.bench.slow_baseline_flood import Boards, Cached, by_bfs, by_growth
from hotloop.envs.snake import Snake

pytestmark = [pytest.mark.less_optimised, pytest.mark.usefixtures("one_torch_thread")]

NUM_ENVS, STEPS = 24, 75
SMALL: dict[str, Any] = {"num_envs": 64, "gradient_steps": 2}
COMPARED_STEPS = 1_536
NEAR: dict[str, float] = {"rtol": 0, "atol": 1e-6}
"""XLA may multiply by 1 / x where PyTorch divides by x."""


def by_both(boards: Boards, grid: int) -> np.ndarray:
    counts = by_bfs(boards, grid)
    np.testing.assert_array_equal(by_growth(boards, grid), counts)
    return counts


@pytest.mark.parametrize("grid", [6, pytest.param(10, marks=pytest.mark.heavy)])
def test_the_slow_env_plays_by_the_same_rules(grid: int) -> None:
    """Both get the same actions; hotloop's gets the food that the slow baseline's has drawn."""
    ours, theirs = Snake(grid=grid, max_steps=60), SlowSnakes(NUM_ENVS, by_both, seed=1, grid=grid, max_steps=60)
    keys = jax.random.split(jax.random.key(0), NUM_ENVS)
    step, observe = jax.jit(jax.vmap(ours.step)), jax.jit(jax.vmap(ours.observe))
    fresh, _ = jax.device_get(jax.jit(jax.vmap(ours.reset))(keys))
    random = np.random.default_rng(0)
    obs = theirs.reset()
    state = _with_food(fresh, theirs)
    np.testing.assert_allclose(obs.numpy(), observe(state), **NEAR)
    deaths = time_outs = foods = 0
    for _ in range(STEPS):
        actions = _careful(obs.numpy(), random)
        state, before_reset, reward, terminated, truncated, info = jax.device_get(step(state, actions, keys))
        outcome = theirs.step(torch.from_numpy(actions))
        obs = outcome.obs
        np.testing.assert_allclose(outcome.reward, reward, **NEAR)
        np.testing.assert_array_equal(outcome.terminated, terminated)
        np.testing.assert_array_equal(outcome.truncated, truncated)
        np.testing.assert_array_equal(outcome.score, info["score"])
        ended, ate = terminated | truncated, np.isclose(reward, 10.0) | np.isclose(reward, 5.0)
        known = truncated & ~ate  # where the food before the reset was the same in both
        np.testing.assert_allclose(outcome.last_obs[known], before_reset[known], **NEAR)
        np.testing.assert_array_equal(outcome.last_obs[~truncated], obs[~truncated])
        state = jax.tree.map(lambda new, old: np.where(_like(ended, old), new, old), fresh, state)  # noqa: B023
        state = _with_food(state, theirs)
        np.testing.assert_allclose(obs.numpy(), observe(state), **NEAR)
        deaths, time_outs, foods = deaths + terminated.sum(), time_outs + known.sum(), foods + ate.sum()
    assert min(deaths, time_outs) > 0
    assert foods > 5 * NUM_ENVS, "bodies grew"


def test_the_last_food_wins_the_slow_game() -> None:
    env = SlowSnakes(1, by_both, seed=0, grid=5)
    env.reset()
    rows = [[(x, y) for x in (range(5) if y % 2 == 0 else range(4, -1, -1))] for y in range(5)]
    path = [cell for row in rows for cell in row]
    env.bodies[0, :24] = torch.tensor(path[23::-1])
    env.lengths[0], env.headings[0], env.foods[0] = 24, 1, torch.tensor(path[24])
    outcome = env.step(torch.tensor([0]))
    assert (outcome.reward.item(), outcome.terminated.item(), outcome.score.item()) == (10.0, True, 22)
    assert env.lengths.tolist() == [3]


@pytest.mark.parametrize(
    "remedy",
    [
        {"push": "batched"},
        {"transfer": "batched"},
        {"flood": "vectorised"},
        {"logging": False},
        {"push": "batched", "transfer": "batched", "flood": "vectorised", "logging": False},
    ],
    ids=lambda remedy: "+".join(remedy),
)
def test_an_exact_remedy_ends_with_the_same_weights_and_replay(remedy: dict[str, Any]) -> None:
    assert trained(**remedy).digest() == trained().digest()


def test_training_without_flood_fill_is_something_else() -> None:
    assert trained(flood="off").digest() != trained().digest()


def test_a_cache_for_similar_states_gives_wrong_features() -> None:
    training = trained(flood="cached")
    assert 0 < training.cache.wrong <= training.cache.found < training.cache.asked
    assert training.digest() != trained().digest()


def test_a_cache_is_right_about_a_state_it_has_seen() -> None:
    flood = Cached(audit=True)
    env = SlowSnakes(1, flood, seed=0)
    env.reset()
    env.observe()
    assert (flood.asked, flood.found, flood.wrong) == (6, 3, 0)


def test_fewer_gradient_steps_are_another_result() -> None:
    assert trained(gradient_steps=1).digest() != trained().digest()


def test_the_target_is_copied_when_a_thousand_is_passed_not_only_when_it_is_met() -> None:
    training = SlowTraining(Switches(num_envs=256, gradient_steps=1, flood="off"))
    was_copied = {}
    for _ in range(8):
        training.vector_step()
        pairs = zip(training.online.parameters(), training.target.parameters(), strict=True)
        was_copied[training.env_steps] = all(torch.equal(a, b) for a, b in pairs)
    learning = {steps: copied for steps, copied in was_copied.items() if steps >= 1_000}
    assert learning == {1024: True, 1280: False, 1536: False, 1792: False, 2048: True}


@cache
def trained(**switches: Any) -> SlowTraining:
    training = SlowTraining(Switches(**{**SMALL, **switches}), audit=True)
    training.advance(COMPARED_STEPS)
    assert training.updates > 0
    return training


def _careful(obs: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Towards the food, where there is room; now and then anywhere."""
    room = obs[:, [10, 12, 11]]  # of straight, left, right, as the actions are numbered
    heading = np.where(obs[:, 7:10].any(1), obs[:, 7:10].argmax(1), 3)
    turned = (heading[:, None] + [0, -1, 1]) % 4
    wish = 4 * room + np.take_along_axis(obs[:, 3:7], turned, axis=1) + 0.5 * random.random(room.shape)
    anything = random.integers(0, 3, len(obs))
    return np.where(random.random(len(obs)) < 0.03, anything, wish.argmax(1))


def _with_food(state: Any, env: SlowSnakes) -> Any:
    return state._replace(food_x=env.foods[:, 0].int().numpy(), food_y=env.foods[:, 1].int().numpy())


def _like(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    return mask.reshape(-1, *(1,) * (array.ndim - 1))
