"""The device Snake, which computes on rows of bits, against a naive one that walks from cell to cell."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_snake import DOWN, LEFT, RIGHT, STEPS, UP, Cell, NaiveSnake, neighbour, reach
from scipy.stats import chisquare

from hotloop.envs import boards
from hotloop.envs.device import make_env
from hotloop.envs.snake import Snake, SnakeState
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised

KINDS = ("basic", "flood", "selective", "enhanced", "grid")
GRIDS = (5, 8, 10, 16, 17, 32)
Board = tuple[list[Cell], int, Cell, int]
"""Body, heading, food and time, as `NaiveSnake.place` takes them."""


class Case(NamedTuple):
    """How many games of how many steps are played, and by which rules."""

    grid: int
    kind: str
    actions: str
    start_length: int
    max_steps: int
    num_envs: int
    steps: int


CASES = [
    Case(5, "basic", "absolute", start_length=1, max_steps=25, num_envs=24, steps=160),
    Case(8, "selective", "relative", start_length=2, max_steps=40, num_envs=24, steps=120),
    Case(10, "flood", "relative", start_length=3, max_steps=200, num_envs=24, steps=210),
    Case(16, "enhanced", "relative", start_length=3, max_steps=60, num_envs=16, steps=80),
    Case(17, "grid", "absolute", start_length=3, max_steps=60, num_envs=16, steps=80),
    Case(32, "enhanced", "relative", start_length=17, max_steps=50, num_envs=12, steps=60),
]
PARAMS = [pytest.param(case, marks=pytest.mark.heavy if case.kind == "enhanced" else ()) for case in CASES]
ALL_KINDS = [CASES[2], CASES[4]]
"""Here every kind of observation is looked at, elsewhere one; the rows are of 16 bits here and of 32 there."""
NAIVE = ("reward", "terminated", "truncated", "score", "heading", "length", "t", "food", "is_tail_bitten")


class Moves(NamedTuple):
    """What happened, step after step: leading axes steps, num_envs."""

    action: Any
    after: SnakeState
    obs: Any
    reward: Any
    terminated: Any
    truncated: Any
    score: Any


class Games(NamedTuple):
    """Games of the device env, and the same ones played by the naive snake."""

    env: Snake
    moves: Moves
    seen: dict[str, np.ndarray]
    naive: dict[str, np.ndarray]
    naive_seen: dict[str, np.ndarray]
    has_food: np.ndarray  # all boards but those of won games
    bodies: list[tuple[list[Cell], list[Cell]]]
    is_food_on_free_cell: list[bool]


@cache
def games_of(case: Case) -> Games:
    """Half of the envs always begin with a long body; all kinds of players, from careful to careless."""
    env = Snake(case.grid, case.kind, case.actions, case.start_length, case.max_steps)
    random = np.random.default_rng(CASES.index(case))
    begin = [_fresh_board(env, random) for _ in range(50)] + [_long_board(env, random) for _ in range(100)]
    num_long = case.num_envs // 2
    fresh, long = (1 + case.steps, case.num_envs - num_long), (1 + case.steps, num_long)
    chosen = np.concatenate([random.integers(50, size=fresh), random.integers(50, 150, size=long)], axis=1)
    all_begun = jax.tree.map(lambda leaf: leaf[chosen], _stacked(state_of(env, *board) for board in begin))
    first, later = (jax.tree.map(itemgetter(part), all_begun) for part in (0, slice(1, None)))
    luck = Luck.draw(random, case.steps, case.num_envs)
    moves = jax.device_get(jax.jit(partial(_play, env))(first, later, luck))
    seen = {case.kind: moves.obs}
    if case in ALL_KINDS:
        seen |= jax.device_get(_see_everything(case.grid, moves.after))
    return _replayed(env, [[begin[i] for i in row] for row in chosen], moves, seen)


@pytest.fixture(params=PARAMS, ids=lambda case: f"{case.grid}-{case.kind}-{case.actions}")
def games(request: pytest.FixtureRequest) -> Games:
    return games_of(request.param)


def test_every_reward_flag_and_score_is_the_naive_snakes(games: Games) -> None:
    moves, naive = games.moves, games.naive
    for name in ("terminated", "truncated", "score"):
        np.testing.assert_array_equal(getattr(moves, name), naive[name], err_msg=name)
    assert moves.reward.dtype == np.float32
    np.testing.assert_allclose(moves.reward, naive["reward"], rtol=1e-6, atol=0)
    is_event = np.isin(naive["reward"], (10, -10, 5, -15))
    np.testing.assert_array_equal(moves.reward[is_event], naive["reward"][is_event])
    assert is_event.any()


def test_the_body_is_the_naive_snakes_after_every_step(games: Games) -> None:
    for ours, theirs in games.bodies:
        assert ours == theirs
    for name in ("heading", "length", "t"):
        np.testing.assert_array_equal(getattr(games.moves.after, name), games.naive[name], err_msg=name)


def test_food_only_moves_when_eaten_and_only_to_free_cells(games: Games) -> None:
    assert len(games.is_food_on_free_cell) > 5
    assert all(games.is_food_on_free_cell)
    food = np.stack([games.moves.after.food_x, games.moves.after.food_y], axis=-1)
    np.testing.assert_array_equal(food[games.has_food], games.naive["food"][games.has_food])


def test_every_observation_is_the_naive_snakes(games: Games) -> None:
    for kind, all_seen in games.seen.items():
        seen, expected = (boards[games.has_food] for boards in (all_seen, games.naive_seen[kind]))
        assert (seen.shape, seen.dtype) == (expected.shape, expected.dtype)
        exact = 21 if kind == "enhanced" else None  # the last two, a distance and a length, may be rounded otherwise
        np.testing.assert_array_equal(seen[..., :exact], expected[..., :exact], err_msg=kind)
        np.testing.assert_allclose(seen, expected, rtol=1e-6, atol=0, err_msg=kind)


def test_a_step_returns_what_observe_shows() -> None:
    for case in ALL_KINDS:
        games = games_of(case)
        assert set(games.seen) == set(KINDS)
        np.testing.assert_array_equal(games.moves.obs, games.seen[case.kind])


@pytest.mark.heavy
def test_the_games_have_long_bodies_traps_and_tails_out_of_reach() -> None:
    lengths = games_of(CASES[2]).naive["length"]
    grown = lengths[:, : lengths.shape[1] // 2].max()  # by eating alone: these began with three cells
    assert grown > 20, f"the longest snake that grew on a 10x10 grid has {grown} cells"
    totals: Counter[str] = Counter()
    for games in map(games_of, CASES):
        naive, features = games.naive, games.naive_seen["enhanced"]
        flood, tail_in_reach = features[..., 10:13], features[..., 20]
        is_part = (flood > 0) & (flood < 1)
        unequal = np.where(flood > 0, flood, 9).min(-1) < flood.max(-1)
        totals += Counter(
            {
                "a long body": (naive["length"] > 0.3 * games.env.grid**2).sum(),
                "a way into a part of the board": is_part.any(-1).sum(),
                "ways into different parts": unequal.sum(),
                "a tail out of reach": (tail_in_reach == 0).sum(),
                "no way out": features[..., :3].all(-1).sum(),
                "an end by time": naive["truncated"].sum(),
                "a meal": (naive["reward"] == 10).sum(),
                "a death": (naive["reward"] == -10).sum(),
                "a bitten tail": naive["is_tail_bitten"].sum(),
                "a full board": (~games.has_food).sum(),
            }
        )
    few = {"a bitten tail": 10, "a full board": 1, "an end by time": 50}
    assert all(count >= few.get(name, 500) for name, count in totals.items()), totals


@pytest.mark.parametrize(
    ("grid", "start_length", "kind"),
    [(5, 1, "basic"), (5, 3, "enhanced"), (8, 5, "grid"), (17, 9, "flood"), (32, 17, "selective")],
)
def test_a_game_begins_in_the_middle_heading_right(grid: int, start_length: int, kind: str) -> None:
    env = Snake(grid, kind, start_length=start_length)
    state, obs = jax.device_get(jax.jit(env.reset)(jax.random.key(grid)))
    naive = NaiveSnake(grid, start_length=start_length)
    assert env.cells_of(state) == list(naive.body)
    assert env.cells_of(state)[0] == (grid // 2, grid // 2)
    assert (int(state.heading), int(state.t), int(state.length)) == (RIGHT, 0, start_length)
    naive.food = _food_of(state)
    assert naive.food in naive.free()
    np.testing.assert_allclose(obs, naive.observations()[kind], rtol=1e-6, atol=0)


# -- boards -------------------------------------------------------------------------------------------


@cache
def flooded(grid: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """360 boards of all densities: free cells, starts (none, one or a few) and what a search reaches from them."""
    random = np.random.default_rng(grid)
    every = [(x, y) for y in range(grid) for x in range(grid)]
    halls, end = _corridors(grid), (1, (grid - 1) // 2 * 2)
    free_and_starts = [(halls, {(0, 0)}), (halls, {end}), (set(every), {(grid // 2, 0)}), (set(every), set())]
    while len(free_and_starts) < 360:
        is_free = random.uniform(size=len(every)) > random.uniform(0, 0.7)
        free = {every[i] for i in np.flatnonzero(is_free)}
        wanted = min(int(random.choice([0, 1, 1, 1, 1, 3])), len(free))
        free_and_starts.append((free, {_any_of(free, random) for _ in range(wanted)}))
    return tuple(  # type: ignore[return-value]
        np.stack([_rows(cells, grid) for cells in column])
        for column in zip(*((free, start, reach(free, start)) for free, start in free_and_starts), strict=True)
    )


def _batched(rows: Any) -> Any:
    return rows.reshape(18, 20, rows.shape[-1])


BATCHINGS: dict[str, Callable[..., Any]] = {
    "vmap": jax.vmap(boards.flood_fill),
    "leading axes": lambda free, start: boards.flood_fill(_batched(free), _batched(start)),
    "nested vmaps": lambda free, start: jax.vmap(jax.vmap(boards.flood_fill))(_batched(free), _batched(start)),
    "vmap over leading axes": lambda free, start: jax.vmap(boards.flood_fill)(_batched(free), _batched(start)),
    "vmap over the second axis": lambda free, start: jax.vmap(boards.flood_fill, (1, 1), 1)(
        _batched(free), _batched(start)
    ),
}


@pytest.mark.parametrize(
    ("grid", "batching"), [(grid, way) for way in BATCHINGS for grid in (GRIDS if way == "vmap" else (16, 32))]
)
def test_flood_fill_reaches_what_a_search_reaches(grid: int, batching: str) -> None:
    free, start, reached = flooded(grid)
    ours = jax.jit(BATCHINGS[batching])(free, start)
    assert ours.dtype == reached.dtype
    np.testing.assert_array_equal(np.asarray(ours).reshape(reached.shape), reached)


@pytest.mark.parametrize("grid", [8, 17])
def test_flood_fill_of_one_board_needs_neither_vmap_nor_jit(grid: int) -> None:
    free, start, reached = flooded(grid)
    fill = jax.jit(boards.flood_fill)
    for i in range(60):
        np.testing.assert_array_equal(fill(free[i], start[i]), reached[i])
    np.testing.assert_array_equal(boards.flood_fill(free[1], start[1]), reached[1])


def test_flood_fills_can_share_the_free_cells_or_the_start() -> None:
    grid, random = 17, np.random.default_rng(0)
    every = [(x, y) for y in range(grid) for x in range(grid)]
    common = {(2, 2)}
    frees = [{cell for cell in every if random.uniform() > 0.4} | common for _ in range(6)]
    starts = [[{_any_of(free, random)} for _ in range(3)] for free in frees]
    free, one = np.stack([_rows(each, grid) for each in frees]), _rows(common, grid)
    several = np.stack([np.stack([_rows(each, grid) for each in three]) for three in starts])

    def expected(free: set[Cell], start: set[Cell]) -> np.ndarray:
        return _rows(reach(free, start), grid)

    shared_free = jax.jit(jax.vmap(boards.flood_fill, (None, 0)))(free[0], several[0])
    np.testing.assert_array_equal(shared_free, [expected(frees[0], start) for start in starts[0]])
    shared_start = jax.jit(jax.vmap(boards.flood_fill, (0, None)))(free, one)
    np.testing.assert_array_equal(shared_start, [expected(each, common) for each in frees])
    each_its_three = [[expected(f, start) for start in three] for f, three in zip(frees, starts, strict=True)]
    as_batch = jax.jit(jax.vmap(boards.flood_fill))(free, several)
    np.testing.assert_array_equal(as_batch, each_its_three)
    nested = jax.jit(jax.vmap(jax.vmap(boards.flood_fill, (None, 0))))(free, several)
    np.testing.assert_array_equal(nested, each_its_three)
    twice = jax.jit(jax.vmap(jax.vmap(boards.flood_fill)))(
        free.reshape(2, 3, grid), several.reshape(2, 3, *several.shape[1:])
    )
    np.testing.assert_array_equal(np.reshape(twice, several.shape), each_its_three)
    crossed = jax.jit(jax.vmap(jax.vmap(boards.flood_fill, (0, None)), (None, 0)))(free, np.stack([one, one]))
    np.testing.assert_array_equal(crossed, [shared_start, shared_start])


@pytest.mark.parametrize("grid", GRIDS)
def test_the_kth_cell_is_the_kth_of_the_sorted_cells(grid: int) -> None:
    rows = flooded(grid)[0][:40]
    x, y = jax.jit(jax.vmap(jax.vmap(boards.kth_cell, (None, 0)), (0, None)))(rows, np.arange(grid**2))
    for board, found_x, found_y in zip(rows, np.asarray(x), np.asarray(y), strict=True):
        by_row = [(int(x), int(y)) for y in range(grid) for x in range(grid) if int(board[y]) >> x & 1]
        assert list(zip(found_x.tolist(), found_y.tolist(), strict=True))[: len(by_row)] == by_row
    assert (rows == rows.dtype.type((1 << grid) - 1)).all(1).any(), "a full board should be among them"


# -- food ---------------------------------------------------------------------------------------------


def test_food_is_uniform_over_the_free_cells_when_a_game_begins() -> None:
    state, _ = jax.jit(jax.vmap(Snake(8, "basic").reset))(jax.random.split(jax.random.key(0), 20_000))
    _assert_uniform(state, NaiveSnake(8).free())


def test_food_is_uniform_over_the_free_cells_after_a_meal() -> None:
    env = Snake(10, "basic")
    body = _winding(10)[44:3:-1]
    head, heading = body[0], _heading_of(body)
    food = neighbour(head, heading)
    state = state_of(env, body, heading, food)
    keys = jax.random.split(jax.random.key(1), 20_000)
    after, _, reward, *_ = jax.jit(jax.vmap(env.step, (None, None, 0)))(state, 0, keys)
    assert set(reward.tolist()) == {10.0}
    _assert_uniform(after, {(x, y) for x in range(10) for y in range(10)} - {*body, food})


# -- edges --------------------------------------------------------------------------------------------


@cache
def stepper(env: Snake) -> Callable[..., Any]:
    return jax.jit(env.step)


def step(env: Snake, state: SnakeState, action: int) -> tuple[SnakeState, float, bool, bool, int]:
    state, _, reward, terminated, truncated, info = stepper(env)(state, jnp.int32(action), jax.random.key(0))
    return jax.device_get(state), float(reward), bool(terminated), bool(truncated), int(info["score"])


@pytest.mark.parametrize("heading", range(4))
def test_reversing_is_ignored_with_absolute_actions(heading: int) -> None:
    env = Snake(10, "basic", "absolute", max_steps=20)
    behind = neighbour((5, 5), (heading + 2) % 4)
    for body in ([(5, 5), behind, neighbour(behind, (heading + 2) % 4)], [(5, 5)]):
        state, _, terminated, _, _ = step(env, state_of(env, body, heading, (0, 0)), (heading + 2) % 4)
        assert not terminated
        assert int(state.heading) == heading
        assert env.cells_of(state) == [neighbour((5, 5), heading), *body[:-1]]


@pytest.mark.parametrize(
    ("actions", "action", "heading"),
    [
        *(("relative", 0, UP), ("relative", 1, LEFT), ("relative", 2, RIGHT)),
        *(("absolute", UP, UP), ("absolute", LEFT, LEFT), ("absolute", RIGHT, RIGHT), ("absolute", DOWN, UP)),
    ],
)
def test_actions_turn_the_snake(actions: str, action: int, heading: int) -> None:
    env = Snake(10, "basic", actions, max_steps=20)
    state, *_ = step(env, state_of(env, [(5, 5), (5, 6), (5, 7)], UP, (0, 0)), action)
    assert int(state.heading) == heading
    assert env.cells_of(state) == [neighbour((5, 5), heading), (5, 5), (5, 6)]


def test_biting_the_cell_that_the_tail_is_about_to_leave_is_death() -> None:
    env = Snake(10, "basic", max_steps=20)
    loop = [(4, 4), (4, 5), (5, 5), (5, 4)]
    before = state_of(env, loop, UP, (0, 0))
    after, reward, terminated, truncated, score = step(env, before, 2)
    assert (reward, terminated, truncated, score) == (-10.0, True, False, 1)
    assert env.cells_of(after) == loop, "the board stays as it was"
    assert int(after.heading) == RIGHT, "only the heading has turned"
    assert _food_of(after) == (0, 0)
    np.testing.assert_array_equal(after.body, before.body)


@pytest.mark.parametrize(
    ("head", "heading"), [((5, 0), UP), ((9, 5), RIGHT), ((5, 9), DOWN), ((0, 5), LEFT), ((0, 0), UP), ((9, 9), RIGHT)]
)
def test_leaving_the_grid_is_death(head: Cell, heading: int) -> None:
    env = Snake(10, "basic", max_steps=20)
    after, reward, terminated, truncated, score = step(env, state_of(env, [head], heading, (3, 3)), 0)
    assert (reward, terminated, truncated, score) == (-10.0, True, False, -2)
    assert env.cells_of(after) == [head]


@pytest.mark.parametrize(
    ("food", "action", "reward", "terminated", "score"),
    [
        ((5, 5), 1, -15.0, True, 1),  # into its own tail
        ((3, 4), 0, 5.0, False, 2),  # food straight on
        ((0, 4), 0, -5.01 + 0.05, False, 1),
        ((9, 4), 0, -5.01 - 0.05, False, 1),
    ],
)
def test_the_last_step_costs_five_whatever_else_happens(
    food: Cell, action: int, reward: float, terminated: bool, score: int
) -> None:
    env = Snake(10, "basic", max_steps=20)
    body = [(4, 4), (5, 4), (5, 5), (4, 5)]
    for t, is_last in ((18, False), (19, True)):
        state = state_of(env, body, LEFT, food, t)
        _, our_reward, our_terminated, truncated, our_score = step(env, state, action)
        assert our_reward == pytest.approx(reward + (0 if is_last else 5), rel=1e-6)
        assert (our_terminated, truncated, our_score) == (terminated, is_last, score)


def test_a_game_is_truncated_after_exactly_max_steps_steps() -> None:
    env = Snake(10, "basic", max_steps=20)
    state, ends = state_of(env, [(5, 5), (4, 5), (3, 5)], RIGHT, (0, 0)), []
    for _ in range(20):
        state, _, terminated, truncated, _ = step(env, state, 2)  # round and round
        assert not terminated
        ends.append(truncated)
    assert ends == [False] * 19 + [True]


@pytest.mark.parametrize("t", [30, 999], ids=["in time", "in the last step"])
@pytest.mark.parametrize("kind", ["enhanced", "grid"])
def test_the_last_food_fills_the_board_and_wins(kind: str, t: int) -> None:
    env = Snake(5, kind)
    path = _winding(5)
    state = state_of(env, path[1:], _heading_of(path[1:]), path[0], t)
    after, obs, reward, terminated, truncated, info = stepper(env)(state, jnp.int32(0), jax.random.key(0))
    assert (float(reward), bool(terminated), bool(truncated)) == ((10.0, True, False) if t == 30 else (5.0, True, True))
    assert (int(info["score"]), int(after.length)) == (22, 25)
    assert env.cells_of(jax.device_get(after)) == path
    assert np.isfinite(obs).all()
    assert (obs >= env.obs_spec.low).all()
    assert (obs <= env.obs_spec.high).all()


def test_a_board_with_one_meal_to_go_is_not_won_yet() -> None:
    env = Snake(5, "enhanced")
    path = _winding(5)
    state = state_of(env, path[2:], _heading_of(path[1:]), path[1])
    after, reward, terminated, _, score = step(env, state, 0)
    assert (reward, terminated, score) == (10.0, False, 21)
    assert _food_of(after) == path[0], "the only free cell"


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"grid": 3}, "grid is 3, expected 5 … 32"),
        ({"grid": 33}, "grid is 33, expected 5 … 32"),
        ({"grid": 10.0}, "grid is 10.0, expected a whole number"),
        ({"grid": "10"}, "grid is '10', expected a whole number"),
        ({"grid": True}, "grid is True, expected a whole number"),
        ({"obs": "floood"}, "unknown obs 'floood'; did you mean 'flood'?"),
        ({"obs": 3}, "unknown obs 3; "),
        ({"actions": "rel"}, "unknown actions 'rel'; "),
        ({"start_length": 7}, "start_length is 7, "),
        ({"start_length": 0}, "start_length is 0, "),
        ({"max_steps": 0}, "max_steps is 0, expected 1 …"),
        ({"max_steps": 1e3}, "max_steps is 1000.0, expected a whole number"),
        ({"gird": 10}, "gird"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_in_one_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_env("snake", options)
    message = str(caught.value)
    assert message.startswith("env.options: ")
    assert complaint in message
    assert "\n" not in message


@pytest.mark.parametrize("options", [{"obs": ["flood"]}, {"actions": {}}, {"obs": None}], ids=str)
def test_options_of_a_wrong_type_are_refused_as_well(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"^env.options: unknown "):
        make_env("snake", options)


# -- helpers ------------------------------------------------------------------------------------------


def state_of(env: Snake, body: list[Cell], heading: int, food: Cell, t: int = 0) -> SnakeState:
    """The state of a board, given head first."""
    left_by = dict(zip(body[1:], (_heading_of(pair) for pair in pairwise(body)), strict=True))
    left_by[body[0]] = heading
    (x, y), (tail_x, tail_y) = body[0], body[-1]
    return SnakeState(
        body=_rows(set(body), env.grid),
        left_by_low=_rows({cell for cell in body if left_by[cell] & 1}, env.grid),
        left_by_high=_rows({cell for cell in body if left_by[cell] & 2}, env.grid),
        **{
            name: np.int32(value)
            for name, value in {
                **{"x": x, "y": y, "tail_x": tail_x, "tail_y": tail_y, "heading": heading},
                **{"food_x": food[0], "food_y": food[1], "length": len(body), "t": t},
            }.items()
        },
    )


def _rows(cells: set[Cell], grid: int) -> np.ndarray:
    rows = np.zeros(grid, np.uint16 if grid <= 16 else np.uint32)
    for x, y in cells:
        rows[y] |= rows.dtype.type(1 << x)
    return rows


def _heading_of(body: Any) -> int:
    """The heading from the second cell to the first."""
    (x, y), (from_x, from_y) = body[:2]
    return STEPS.index((x - from_x, y - from_y))


def _food_of(state: SnakeState) -> Cell:
    return int(state.food_x), int(state.food_y)


def _stacked(states: Any) -> SnakeState:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def _winding(grid: int) -> list[Cell]:
    """A path through all cells, row by row, to and fro."""
    return [(x if y % 2 == 0 else grid - 1 - x, y) for y in range(grid) for x in range(grid)]


def _corridors(grid: int) -> set[Cell]:
    """The longest way through a board: walls in every other row, open at alternate ends."""
    openings = {((grid - 1) * (y // 2 % 2 == 0), y) for y in range(1, grid, 2)}
    return {(x, y) for y in range(0, grid, 2) for x in range(grid)} | openings


def _fresh_board(env: Snake, random: np.random.Generator) -> Board:
    snake = NaiveSnake(env.grid, env.actions, env.start_length, env.max_steps)
    return list(snake.body), snake.heading, _any_of(snake.free(), random), 0


def _long_board(env: Snake, random: np.random.Generator) -> Board:
    """The longest of some random walks, its head on the end that is boxed in or on the other."""
    every = {(x, y) for x in range(env.grid) for y in range(env.grid)}
    longest: list[Cell] = []
    for _ in range(6):
        walk = [_any_of(every, random)]
        while ways := {cell for d in range(4) if (cell := neighbour(walk[-1], d)) in every and cell not in walk}:
            walk.append(_any_of(ways, random))
        longest = max(longest, walk[: env.grid**2 - 1], key=len)
    body = longest[:: random.choice([1, -1])]
    return body, _heading_of(body), _any_of(every - set(body), random), int(random.integers(10))


def _any_of(cells: set[Cell], random: np.random.Generator) -> Cell:
    return sorted(cells)[random.integers(len(cells))]


class Luck(NamedTuple):
    """What is random in the games, drawn beforehand: leading axes steps, num_envs."""

    taste: np.ndarray
    care: np.ndarray
    action: np.ndarray
    key: np.ndarray

    @classmethod
    def draw(cls, random: np.random.Generator, *lead: int) -> "Luck":
        return cls(
            taste=random.uniform(0, 0.1, (*lead, 3)).astype(np.float32),
            care=random.uniform(size=lead).astype(np.float32),
            action=random.integers(12, size=lead, dtype=np.int32),
            key=random.integers(2**32, size=(*lead, 2), dtype=np.uint32),
        )


def _play(env: Snake, begun: SnakeState, restarts: SnakeState, luck: Luck) -> Moves:
    """Avoid death and go for the food, unless careless."""
    carelessness = jnp.asarray([0.0, 0.01, 0.0, 0.1, 0.3, 1.0])[jnp.arange(begun.x.shape[0]) % 6]

    def choose(state: SnakeState, luck: Luck, carelessness: jax.Array) -> jax.Array:
        seen = replace(env, obs="basic").observe(state)
        headings = (state.heading + jnp.asarray([0, -1, 1])) % 4
        best = jnp.argmax(seen[3:7][headings] - 10 * seen[:3] + luck.taste)
        wise = headings[best] if env.actions == "absolute" else best
        return jnp.where(luck.care < carelessness, luck.action % env.num_actions, wise)

    def one(state: SnakeState, xs: tuple[SnakeState, Luck]) -> tuple[SnakeState, Moves]:
        restart, luck = xs
        action = jax.vmap(choose)(state, luck, carelessness)
        keys = jax.random.wrap_key_data(luck.key)
        after, obs, reward, terminated, truncated, info = jax.vmap(env.step)(state, action, keys)
        done = terminated | truncated
        going_on = jax.tree.map(
            lambda new, old: jnp.where(done.reshape(-1, *(1,) * (old.ndim - 1)), new, old), restart, after
        )
        return going_on, Moves(action, after, obs, reward, terminated, truncated, info["score"])

    return jax.lax.scan(one, begun, (restarts, luck))[1]


@partial(jax.jit, static_argnums=0)
def _see_everything(grid: int, states: SnakeState) -> dict[str, jax.Array]:
    return {kind: jax.vmap(jax.vmap(Snake(grid, kind).observe))(states) for kind in KINDS}


def _replayed(env: Snake, begin: list[list[Board]], moves: Moves, seen: dict[str, np.ndarray]) -> Games:
    """Play the recorded actions once more, naively; only the food is the device env's."""
    steps, num_envs = moves.reward.shape
    naive: dict[str, list[Any]] = {name: [] for name in NAIVE}
    naive_seen: dict[str, list[np.ndarray]] = {kind: [] for kind in KINDS}
    bodies, is_food_on_free_cell = [], []
    snake = NaiveSnake(env.grid, env.actions, env.start_length, env.max_steps)
    for i in range(num_envs):
        snake.place(*begin[0][i])
        for t in range(steps):
            after = SnakeState(*(leaf[t, i] for leaf in moves.after))
            outcome = snake.step(int(moves.action[t, i]))
            bodies.append((env.cells_of(after), list(snake.body)))
            if snake.head == snake.food and len(snake.body) < env.grid**2:
                snake.food = _food_of(after)
                is_food_on_free_cell.append(snake.food in snake.free())
            is_tail_bitten = outcome[1] and neighbour(snake.head, snake.heading) == snake.tail
            board = (snake.heading, len(snake.body), snake.t, snake.food, is_tail_bitten)
            for name, value in zip(NAIVE, (*outcome, *board), strict=True):
                naive[name].append(value)
            for kind, obs in snake.observations().items():
                naive_seen[kind].append(obs)
            if moves.terminated[t, i] or moves.truncated[t, i]:
                snake.place(*begin[t + 1][i])

    def by_step(values: list[Any]) -> np.ndarray:
        array = np.asarray(values)
        return np.swapaxes(array.reshape(num_envs, steps, *array.shape[1:]), 0, 1)

    naive_arrays = {name: by_step(values) for name, values in naive.items()}
    return Games(
        env=env,
        moves=moves,
        seen=seen,
        naive=naive_arrays,
        naive_seen={kind: by_step(values) for kind, values in naive_seen.items()},
        has_food=naive_arrays["length"] < env.grid**2,
        bodies=bodies,
        is_food_on_free_cell=is_food_on_free_cell,
    )


def _assert_uniform(states: SnakeState, cells: set[Cell]) -> None:
    where, times = np.unique(np.stack([states.food_x, states.food_y], axis=-1), axis=0, return_counts=True)
    assert {(int(x), int(y)) for x, y in where} == cells
    assert chisquare(times).pvalue > 0.001
