"""A small env with several agents, for tests: each sees where it is and where its own goal is, on a line."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec


class LineState(NamedTuple):
    place: jax.Array
    goal: jax.Array
    t: jax.Array
    reached: jax.Array


@dataclass(frozen=True)
class Lines:
    """Agents on lines of `size` places: left, stay, right; +1 in each turn that ends on the own goal."""

    agents: int = 3
    size: int = 5
    turns: int = 8

    num_actions = 3
    render_fps = 5

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def agent_names(self) -> tuple[str, ...]:
        return tuple(f"walker_{i}" for i in range(self.agents))

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, -1.0, 1.0)

    def reset(self, key: jax.Array) -> tuple[LineState, jax.Array]:
        place, goal = jax.random.randint(key, (2, self.agents), 0, self.size)
        state = LineState(place, goal, jnp.int32(0), jnp.zeros(self.agents))
        return state, self._seen(state)

    def step(self, state: LineState, action_M: jax.Array, key: jax.Array) -> Any:
        place = jnp.clip(state.place + action_M - 1, 0, self.size - 1)
        reward = (place == state.goal).astype(jnp.float32)
        after = LineState(place, state.goal, state.t + 1, state.reached + reward)
        done = after.t >= self.turns
        info = {"reached": after.reached, "turns": after.t.astype(jnp.float32)}
        return after, self._seen(after), reward, jnp.bool_(False), done, info

    def _seen(self, state: LineState) -> jax.Array:
        return jnp.stack([state.place, state.goal], axis=-1).astype(jnp.float32) / self.size * 2 - 1

    def render(self, state: LineState) -> Any:
        from PIL import Image

        return Image.new("RGB", (8 * self.size, 8 * self.agents), (int(state.t) * 8 % 256, 0, 0))
