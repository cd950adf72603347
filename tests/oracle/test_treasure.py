"""The device env Treasure against a naive one that goes from agent to agent and from cell to cell."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_treasure import STEPS, NaiveTreasure, growth_of, inside, starts_of
from scipy.stats import chisquare

from hotloop.envs import treasure_scripts as scripts
from hotloop.envs.device import make_env
from hotloop.envs.treasure import AGENT, EMPTY, GEM, MOVES, SAND, WALL, Treasure, TreasureState
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised

FOOD_AND_BONE = {"food": {"value": 5, "rate": 0.05}, "bone": {"value": -10, "rate": 0.03}}
CASES = [
    Treasure(turns=30),
    Treasure(grid=5, agents=6, radius=1, gem_rate=0.3, frames=2, turns=11),  # crowded
    Treasure(grid=6, agents=1, radius=0, gem_rate=0.5, frames=1, turns=9),
    Treasure(grid=7, agents=3, radius=6, gem_rate=0.2, gem_value=2.5, frames=3, turns=12),  # sees everything
    Treasure(grid=12, agents=4, radius=3, gem_rate=0.04, frames=2, turns=20, things=FOOD_AND_BONE),
    Treasure(grid=4, agents=4, radius=2, frames=2, turns=5),  # no cell is empty
]
EPOCHS = 3
WALK = Treasure(grid=5, agents=3, radius=2, gem_rate=0.0, frames=2, turns=4)
"""Here nothing grows by itself: tests put things where they want them."""


class Epochs(NamedTuple):
    """What happened in EPOCHS epochs of random play: leading axes epochs, turns."""

    starts: Any
    first_growth: Any
    first_obs: Any
    action: Any
    growth: Any
    state: TreasureState
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]


@cache
def played(number: int) -> Epochs:
    env = CASES[number]

    def epoch(key: jax.Array) -> Epochs:
        def turn(state: TreasureState, turn_key: jax.Array) -> Any:
            act_key, step_key = jax.random.split(turn_key)
            action = jax.random.randint(act_key, (env.agents,), 0, 4)
            state, *rest = env.step(state, action, step_key)
            return state, (action, env.draw_growth(step_key), state, *rest)

        state, obs = env.reset(key)
        turns = jax.lax.scan(turn, state, jax.random.split(jax.random.fold_in(key, 1), env.turns))[1]
        return Epochs(*env.first_draws(key), obs, *turns)

    return jax.device_get(jax.jit(jax.vmap(epoch))(jax.random.split(jax.random.key(number), EPOCHS)))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_random_play_is_that_of_the_naive_twin(number: int) -> None:
    env, epochs = CASES[number], played(number)
    values = {"gem": env.gem_value, **{name: thing["value"] for name, thing in env.things.items()}}
    options = {"grid": env.grid, "radius": env.radius, "frames": env.frames, "turns": env.turns, "values": values}
    for e in range(EPOCHS):
        first = growth_of(env.grid, list(values), epochs.first_growth[e])
        twin = NaiveTreasure(starts_of(env.grid, epochs.starts[e]), first, **options)
        assert _observations(twin).tolist() == epochs.first_obs[e].tolist()
        for t in range(env.turns):
            growth = growth_of(env.grid, list(values), epochs.growth[e, t])
            rewards, terminated, truncated = twin.step(epochs.action[e, t], growth)
            where = f"epoch {e}, turn {t}"
            assert epochs.reward[e, t].tolist() == rewards, where
            assert (epochs.terminated[e, t], epochs.truncated[e, t]) == (terminated, truncated), where
            np.testing.assert_array_equal(epochs.obs[e, t], _observations(twin), where)
            for figure, name in zip(("gems", *env.things), values, strict=True):
                assert epochs.info[figure][e, t].tolist() == [found[name] for found in twin.found], where
            assert starts_of(env.grid, epochs.state.cell[e, t]) == twin.agents, where


def test_the_cases_contain_what_they_are_there_for() -> None:
    """Bumps, blocked moves, cells that were left and entered in one turn, and every kind of find."""
    rewards = np.concatenate([played(number).reward.ravel() for number in range(len(CASES))])
    assert {-1.0, 0.0, 10.0, 2.5, 5.0, -10.0, -1.0} <= set(rewards.tolist())
    crowded = played(1)
    cells = np.concatenate([crowded.starts[:, None], crowded.state.cell], axis=1)
    stayed = (cells[:, 1:] == cells[:, :-1]) & (crowded.reward == 0)
    assert stayed.any(), "blocked by an agent"
    followed = (cells[:, 1:, 1:, None] == cells[:, :-1, None, :]) & (cells[:, 1:, 1:] != cells[:, :-1, 1:])[..., None]
    assert followed.any(), "into a cell that another has just left"


def test_the_size_and_the_numbers_of_an_observation_are_those_of_the_workload() -> None:
    env = Treasure()
    assert env.frame_shape == (5, 5, 5)
    assert env.obs_spec == ((625,), np.uint8, 0, 1)
    assert env.agent_names == ("agent_0", "agent_1", "agent_2", "agent_3", "agent_4")
    frames = played(0).obs.reshape(EPOCHS, 30, 5, 5, 5, 25)
    assert not frames[..., EMPTY, :].any(), "there is sand everywhere, so nothing is empty"
    assert (frames[:, 4:].sum(-2) == 1).all(), "a cell is one thing"
    assert [frames[:, t].any((-1, -2)).sum(-1).tolist() for t in range(5)] == [
        [[seen] * 5] * EPOCHS for seen in (2, 3, 4, 5, 5)
    ], "what was before the epoch is zeros"


# -- rules one by one ---------------------------------------------------------------------------------


def placed(cells: list[tuple[int, int]], gems: list[tuple[int, int]] = ()) -> TreasureState:
    """A state of WALK with agents and gems at (x, y)."""
    state, _ = _reset(jax.random.key(0))
    number = {cell: i for i, cell in enumerate(inside(WALK.grid))}
    things = jnp.zeros(9, jnp.uint8).at[jnp.array([number[gem] for gem in gems], int)].set(1)
    return state._replace(cell=jnp.array([number[cell] for cell in cells], jnp.int32), things=things)


def after(state: TreasureState, *actions: int) -> tuple[list[tuple[int, int]], list[float]]:
    moved, _, reward, *_ = _step(state, jnp.array(actions), jax.random.key(1))
    return starts_of(WALK.grid, moved.cell), reward.tolist()


_reset, _step = jax.jit(WALK.reset), jax.jit(WALK.step)
UP, RIGHT, DOWN, LEFT = range(4)


def test_who_moves_first_may_be_followed_and_who_moves_later_may_not() -> None:
    state = placed([(1, 1), (2, 1), (3, 3)])
    assert after(state, DOWN, LEFT, UP) == ([(1, 2), (1, 1), (3, 2)], [0, 0, 0])
    assert after(state, RIGHT, DOWN, UP) == ([(1, 1), (2, 2), (3, 2)], [0, 0, 0]), "agent 1 was there still"


def test_of_two_that_want_one_gem_the_first_number_gets_it() -> None:
    state = placed([(1, 2), (3, 2), (3, 3)], gems=[(2, 2)])
    assert after(state, RIGHT, LEFT, RIGHT) == ([(2, 2), (3, 2), (3, 3)], [10, 0, -1])


def test_agents_cannot_change_places() -> None:
    assert after(placed([(1, 1), (2, 1), (3, 3)]), RIGHT, LEFT, UP)[0] == [(1, 1), (2, 1), (3, 2)]


def test_nothing_grows_under_an_agent_or_over_a_thing() -> None:
    env = Treasure(grid=4, agents=2, gem_rate=1.0, things={"bone": {"value": -1, "rate": 0.0}})
    state, _ = env.reset(jax.random.key(0))
    assert int((state.things == 1).sum()) == 2
    bones = state._replace(things=state.things * 2)
    stayed = jax.jit(env.step)(bones, jnp.array([_bump(c) for c in state.cell]), jax.random.key(1))[0]
    assert stayed.things.tolist() == bones.things.tolist()


def test_starts_and_growth_are_drawn_evenly() -> None:
    env = Treasure(things={"food": {"value": 5, "rate": 0.1}})
    starts, growth = jax.device_get(jax.jit(jax.vmap(env.first_draws))(jax.random.split(jax.random.key(0), 4000)))
    assert all(len(set(cells)) == 5 for cells in starts.tolist())
    for agent in range(5):
        assert chisquare(np.bincount(starts[:, agent], minlength=64)).pvalue > 1e-4
    kinds = np.bincount(growth.ravel(), minlength=3)
    assert chisquare(kinds, growth.size * np.array([0.88, 0.02, 0.1])).pvalue > 1e-4
    assert chisquare((growth == 2).sum(0)).pvalue > 1e-4
    both = (growth[:, :32] == 2) & (growth[:, 32:] == 2)  # two cells share a word of the draw
    assert both.mean() == pytest.approx(0.01, abs=0.0015)


def test_rates_of_zero_and_one_are_never_and_always() -> None:
    keys = jax.random.split(jax.random.key(0), 200)
    assert not jax.vmap(Treasure(gem_rate=0.0).draw_growth)(keys).any()
    assert (jax.vmap(Treasure(gem_rate=1).draw_growth)(keys) == 1).all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"agents": 0}, "agents is 0, but within the walls of grid 10 there is room for 1 … 64"),
        ({"grid": 4, "agents": 5}, "agents is 5, but within the walls of grid 4 there is room for 1 … 4"),
        ({"grid": 2}, "grid is 2, expected 3 … 64 cells a side, walls included"),
        ({"grid": 10.0}, "grid is 10.0, expected a whole number"),
        ({"radius": 10}, "radius is 10, expected 0 … 9: no farther than the grid (10)"),
        ({"radius": -1}, "radius is -1, expected 0 … 9: no farther than the grid (10)"),
        ({"frames": 0}, "frames is 0, expected 1 or more"),
        ({"turns": 0}, f"turns is 0, expected 1 … {2**31 - 1}"),
        ({"gem_rate": 1.5}, "the rate of gem is 1.5, expected a probability: 0 … 1"),
        ({"gem_rate": float("nan")}, "the rate of gem is nan, expected a probability: 0 … 1"),
        ({"gem_value": "much"}, "the value of gem is 'much', expected a number"),
        ({"things": {"food": {"value": 5, "rate": -0.1}}}, "the rate of things.food is -0.1, expected a probability"),
        ({"things": {"food": {"value": 5, "rate": 0.99}}}, "the rates of gem, food add up to 1.01, expected 1 or less"),
        ({"things": {"food": {"value": 5}}}, "things.food is {'value': 5}, expected value and rate"),
        ({"things": {"wall": {"value": 5, "rate": 0.1}}}, "things has 'wall', expected a name of letters other than"),
        ({"things": ["food"]}, "things is ['food'], expected names, each with value and rate"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_env("treasure", options)
    assert str(caught.value).startswith(f"env.options: {complaint}")


# -- scripts ------------------------------------------------------------------------------------------


def test_greedy_finds_about_twice_what_random_does_and_nobody_more_than_grows() -> None:
    env = Treasure()
    by_chance, by_sight = (
        scripts.gems_per_epoch(env, script, epochs=200) for script in (scripts.random, scripts.greedy)
    )
    assert by_chance.shape == by_sight.shape == (200, 5)
    assert scripts.supply_per_epoch(env) == pytest.approx(11.8)
    assert 5 < by_chance.mean() < 6.5
    assert 10 < by_sight.mean() < 11.8


def test_greedy_goes_to_the_nearest_gem_and_round_an_agent() -> None:
    def actions(gems: list[tuple[int, int]], agents: list[tuple[int, int]] = ()) -> set[int]:
        frame = np.zeros((5, 5, 5), np.uint8)
        frame[SAND] = 1
        for channel, cells in ((GEM, gems), (AGENT, [(0, 0), *agents]), (WALL, [])):
            for dx, dy in cells:
                frame[:, 2 + dy, 2 + dx] = np.eye(5)[channel]
        keys = jax.random.split(jax.random.key(0), 60)
        return set(jax.vmap(scripts.greedy, (None, 0))(jnp.asarray(frame), keys).tolist())

    assert actions([(0, -2), (1, 0)]) == {RIGHT}
    assert actions([(-1, 2)]) == {LEFT, DOWN}
    assert actions([(-1, 2)], [(-1, 0)]) == {DOWN}
    assert actions([(0, -1), (0, 1)]) == {UP, DOWN}, "equally near"
    assert actions([], [(1, 0)]) == {UP, DOWN, LEFT}, "none in sight"
    assert actions([(2, 0)], [(1, 0)]) == {UP, DOWN, LEFT}, "blocked"


def test_the_moves_are_those_of_the_table() -> None:
    assert MOVES == STEPS


# -- the picture --------------------------------------------------------------------------------------


def test_a_state_can_be_drawn_and_what_changes_shows() -> None:
    env = CASES[4]
    state, _ = env.reset(jax.random.key(0))
    image = env.render(jax.device_get(state))
    assert min(image.size) >= 300
    assert env.render(jax.device_get(state)).tobytes() == image.tobytes()
    changes = {
        "things": state.things.at[jnp.argmin(state.things)].set(2),
        "cell": state.cell[::-1],
        "found": state.found.at[1, 0].set(3),
        "t": state.t + 1,
    }
    for name, changed in changes.items():
        assert env.render(jax.device_get(state._replace(**{name: changed}))).tobytes() != image.tobytes(), name


# -- helpers ------------------------------------------------------------------------------------------


def _observations(twin: NaiveTreasure) -> np.ndarray:
    return np.stack([twin.observation(number) for number in range(len(twin.agents))])


def _bump(cell: Any) -> int:
    """A move into the wall, from a cell of grid 4."""
    return UP if cell < 2 else DOWN
