"""Simple players of Treasure, for comparison: each chooses by the newest frame of one agent alone."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.treasure import AGENT, GEM, MOVES, WALL, Treasure, TreasureState

Script = Callable[[jax.Array, jax.Array], jax.Array]
"""`script(frame, key) -> action`: frame (channels, rows, columns), the agent in its middle."""


def gems_per_epoch(env: Treasure, script: Script, epochs: int, seed: int = 0) -> np.ndarray:
    """Play epochs in which all agents follow a script; how many gems each agent found in each, (epochs, M)."""
    keys = jax.random.split(jax.random.key(seed), epochs)
    return np.asarray(jax.jit(jax.vmap(partial(_gems_of_an_epoch, env, script)))(keys))


def supply_per_epoch(env: Treasure) -> float:
    """Gems per agent and epoch that would grow if each were taken at once: no team finds more on average."""
    empty_cells = (env.grid - 2) ** 2 - env.agents
    return empty_cells * env.gem_rate * env.turns / env.agents


def random(frame: jax.Array, key: jax.Array) -> jax.Array:
    """Any move."""
    del frame
    return jax.random.randint(key, (), 0, len(MOVES))


def greedy(frame: jax.Array, key: jax.Array) -> jax.Array:
    """A step towards the nearest gem in sight, else any; never into a wall or an agent if there is another way.

    Of gems that are equally near, and of moves that are equally good, one is drawn.
    """
    radius = frame.shape[-1] // 2
    line = np.arange(-radius, radius + 1)
    distance = np.abs(line)[:, None] + np.abs(line)
    gem_key, move_key = jax.random.split(key)
    far = 4 * radius + 2
    chance = jax.random.uniform(gem_key, distance.shape)  # less than one step: it decides between equals
    score = jnp.where(frame[GEM] > 0, distance + chance, far)
    nearest = jnp.argmin(score)
    to_y, to_x = nearest // len(line) - radius, nearest % len(line) - radius
    is_in_sight = score.min() < far
    is_nearer = jnp.stack([dx * to_x + dy * to_y > 0 for dx, dy in MOVES]) & is_in_sight
    if radius == 0:
        is_free = jnp.ones(len(MOVES), bool)
    else:
        is_free = jnp.stack([frame[jnp.array([WALL, AGENT]), radius + dy, radius + dx].sum() == 0 for dx, dy in MOVES])
    wish = 2 * is_free + (is_nearer & is_free) + jax.random.uniform(move_key, (len(MOVES),))
    return jnp.argmax(wish)


def newest_frame(env: Treasure, obs: jax.Array) -> jax.Array:
    """The last frame of one agent's observation, (channels, rows, columns)."""
    return obs.reshape(env.frames, *env.frame_shape)[-1]


def _gems_of_an_epoch(env: Treasure, script: Script, key: jax.Array) -> jax.Array:
    reset_key, turns_key = jax.random.split(key)

    def turn(state: TreasureState, turn_key: jax.Array) -> tuple[TreasureState, None]:
        act_key, step_key = jax.random.split(turn_key)
        frame_M = jax.vmap(partial(newest_frame, env))(state.frames)
        action_M = jax.vmap(script)(frame_M, jax.random.split(act_key, env.agents))
        return env.step(state, action_M.astype(jnp.int32), step_key)[0], None

    begun, _ = env.reset(reset_key)
    ended, _ = jax.lax.scan(turn, begun, jax.random.split(turns_key, env.turns))
    return ended.found[:, 0]
