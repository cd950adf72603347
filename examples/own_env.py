"""Train on a device env of your own: two pure functions, and a description of what they return."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hotloop
from hotloop.envs.device import ObsSpec


@dataclass(frozen=True)
class Corridor:
    """Walk right to the end of a corridor: -0.1 a step, +1 at the end, truncated after 50 steps."""

    length: int = 10
    num_actions: int = 2

    @property
    def obs_spec(self) -> ObsSpec:
        """Position, scaled to 0 … 1."""
        return ObsSpec((1,), np.float32, np.zeros(1, np.float32), np.ones(1, np.float32))

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        """Start anywhere but at the end."""
        position = jax.random.randint(key, (), 0, self.length - 1)
        return (position, jnp.int32(0)), self._obs(position)

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, ...]:
        """Move left (0) or right (1)."""
        position, t = state
        position = jnp.clip(position + jnp.where(action == 1, 1, -1), 0, self.length - 1)
        terminated = position == self.length - 1
        reward = jnp.where(terminated, 1.0, -0.1)
        return (position, t + 1), self._obs(position), reward, terminated, t + 1 >= 50, {}

    def _obs(self, position: jax.Array) -> jax.Array:
        return (position / (self.length - 1)).astype(jnp.float32)[None]


if __name__ == "__main__":
    run = hotloop.train({"name": "corridor"}, device_env=Corridor(), **{"stop.steps": 20_000})
    print(run)
