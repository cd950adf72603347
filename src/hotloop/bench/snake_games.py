"""Boards from real games: Snakes played by a careful policy, recorded step by step."""

from typing import TYPE_CHECKING

import numpy as np

from hotloop.bench.slow_baseline_flood import MOVES, Boards

if TYPE_CHECKING:
    from hotloop.envs.snake import SnakeState

NUM_ENVS, STEPS, GRID = 256, 1_000, 10
STRAIGHT_RIGHT_LEFT = (0, 1, -1)


class Games:
    """States of all games at all steps, as `hotloop.envs.snake.SnakeState` with leading axes (STEPS, NUM_ENVS)."""

    def __init__(self, seed: int = 0) -> None:
        self.states = _play(seed)

    def at(self, steps: np.ndarray, envs: np.ndarray) -> "Selection":
        """These states of these games."""
        return Selection(self.states._replace(**{k: v[steps, envs] for k, v in self.states._asdict().items()}))


class Selection:
    """Some states, for hotloop as rows of bits, and for the slow baseline as lists of cells."""

    def __init__(self, states: "SnakeState") -> None:
        self.states = states

    def as_bits(self) -> tuple[np.ndarray, np.ndarray]:
        """Bodies (N, G) and the cells a move straight, right, left leads to (N, 3, G); no bit where it is death."""
        boards = self.as_boards()
        starts = np.zeros((len(boards.length), 3, GRID), self.states.body.dtype)
        env, way = np.nonzero(boards.safe)
        x, y = boards.starts[env, way].T
        starts[env, way, y] = 1 << x
        return np.asarray(self.states.body), starts

    def as_boards(self) -> Boards:
        """The same states as the slow baseline's env holds them; the body's order is lost, but for the head."""
        state = self.states
        taken = (state.body[:, :, None] >> np.arange(GRID)) & 1 > 0  # (N, y, x)
        env, y, x = np.nonzero(taken)
        first = np.searchsorted(env, np.arange(len(taken)))
        cells = np.zeros((len(taken), GRID * GRID, 2), np.int64)
        cells[env, np.arange(len(env)) - first[env]] = np.stack([x, y], 1)
        heads = np.stack([state.x, state.y], 1).astype(np.int64)
        place = (cells == heads[:, None]).all(2).argmax(1)  # swap the head into the first place
        rows = np.arange(len(cells))
        cells[rows, place], cells[rows, 0] = cells[rows, 0].copy(), heads
        ways = np.asarray(MOVES)[(state.heading[:, None] + np.asarray(STRAIGHT_RIGHT_LEFT)) % 4]
        starts = heads[:, None] + ways
        inside = ((starts >= 0) & (starts < GRID)).all(2)
        x, y = np.clip(starts, 0, GRID - 1).transpose(2, 0, 1)
        safe = inside & ~taken[rows[:, None], y, x]
        food = np.stack([state.food_x, state.food_y], 1).astype(np.int64)
        length, heading = np.asarray(state.length, np.int64), np.asarray(state.heading, np.int64)
        return Boards(cells, length, heading, food, starts, safe)


def _play(seed: int) -> "SnakeState":
    """Towards the food while that leaves room, else wherever most room is left; now and then by chance."""
    import jax
    import jax.numpy as jnp

    from hotloop.envs.device import Obs, reset_all, step_all
    from hotloop.envs.snake import Snake, SnakeState

    env = Snake(grid=GRID, obs="flood")

    def step(carry: tuple[SnakeState, Obs], key: jax.Array) -> tuple[tuple[SnakeState, Obs], SnakeState]:
        state, obs = carry[0], jnp.asarray(carry[1])
        act_key, env_key = jax.random.split(key)
        room = obs[:, jnp.array([10, 12, 11])]  # of straight, left, right, as the actions are numbered
        heading = (state.heading[:, None] + jnp.array([0, -1, 1])) % 4
        nearer = jnp.take_along_axis(obs[:, 3:7], heading, axis=1)
        wish = 4 * room + nearer + 0.5 * jax.random.uniform(act_key, room.shape)
        state, after = step_all(env, state, jnp.argmax(wish, axis=1), env_key)
        return (state, after.obs), state

    def play(key: jax.Array) -> SnakeState:
        reset_key, step_key = jax.random.split(key)
        start = reset_all(env, reset_key, NUM_ENVS)
        return jax.lax.scan(step, start, jax.random.split(step_key, STEPS))[1]

    return jax.device_get(jax.jit(play)(jax.random.key(seed)))
