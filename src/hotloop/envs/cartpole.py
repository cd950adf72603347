"""CartPole-v1 with Gymnasium's physics: balance a pole on a cart for 500 steps."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec

if TYPE_CHECKING:
    from PIL.Image import Image

GRAVITY = 9.8
CART_MASS = 1.0
POLE_MASS = 0.1
HALF_POLE = 0.5
PUSH = 10.0
SECONDS_PER_STEP = 0.02
X_LIMIT = 2.4
ANGLE_LIMIT = 12 * 2 * math.pi / 360


class CartPoleState(NamedTuple):
    """Position, speed, angle and angular speed, and how many steps the episode has lasted."""

    physics: jax.Array
    t: jax.Array


@dataclass(frozen=True)
class CartPole:
    """+1 per step; terminated beyond 2.4 units or 12 degrees; truncated after `max_steps`.

    `observe`: all four numbers, or only the positions (of the cart, and the angle): speeds must then be remembered.
    """

    max_steps: int = 500
    observe: str = "all"
    num_actions: int = 2
    render_fps: int = 50

    def __post_init__(self) -> None:
        if type(self.max_steps) is not int or not 1 <= self.max_steps < 2**31:
            raise TypeError(f"max_steps is {self.max_steps!r}, expected a whole number of 1 … {2**31 - 1}")
        if self.observe not in ("all", "positions"):
            raise TypeError(f"observe is {self.observe!r}, expected all or positions")

    @property
    def obs_spec(self) -> ObsSpec:
        """Position and angle are bounded at twice their limits, as in Gymnasium; speeds are not."""
        high = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)
        high = high[self._seen]
        return ObsSpec(high.shape, np.float32, -high, high)

    @property
    def _seen(self) -> slice:
        return slice(None) if self.observe == "all" else slice(None, None, 2)

    def reset(self, key: jax.Array) -> tuple[CartPoleState, jax.Array]:
        """Start near the upright, each number uniform in [-0.05, 0.05)."""
        physics = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return CartPoleState(physics, jnp.int32(0)), physics[self._seen]

    def step(
        self, state: CartPoleState, action: jax.Array, key: jax.Array
    ) -> tuple[CartPoleState, jax.Array, jax.Array, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Push left (0) or right (1) for one 20 ms Euler step."""
        del key  # the physics is deterministic
        _, speed, angle, spin = state.physics
        force = jnp.where(action == 1, PUSH, -PUSH)
        total_mass = CART_MASS + POLE_MASS
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (force + POLE_MASS * HALF_POLE * spin**2 * sin) / total_mass
        spin_rate = (GRAVITY * sin - cos * push) / (HALF_POLE * (4.0 / 3.0 - POLE_MASS * cos**2 / total_mass))
        acceleration = push - POLE_MASS * HALF_POLE * spin_rate * cos / total_mass
        physics = state.physics + SECONDS_PER_STEP * jnp.stack([speed, acceleration, spin, spin_rate])
        t = state.t + 1
        terminated = (jnp.abs(physics[0]) > X_LIMIT) | (jnp.abs(physics[2]) > ANGLE_LIMIT)
        truncated = t >= self.max_steps
        return CartPoleState(physics, t), physics[self._seen], jnp.float32(1.0), terminated, truncated, {}

    def render(self, state: CartPoleState) -> "Image":
        """Draw one state."""
        from hotloop.envs.cartpole_picture import draw

        return draw(np.asarray(state.physics), int(state.t), self.max_steps)
