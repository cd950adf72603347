"""An env whose rewards are not finite for a while."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec


class PoisonedState(NamedTuple):
    phase: jax.Array
    t: jax.Array


@dataclass(frozen=True)
class Poisoned:
    """Pays 1 per step, but `poison` from step `first` to before step `end`; its episodes last for ever."""

    poison: str = "nan"
    first: int = 50
    end: int = 1 << 30

    num_actions = 2
    obs_spec = ObsSpec((4,), np.float32, -np.ones(4, np.float32), np.ones(4, np.float32))

    def reset(self, key):
        state = PoisonedState(jax.random.uniform(key, (4,), jnp.float32, -3.0, 3.0), jnp.int32(0))
        return state, jnp.sin(state.phase)

    def step(self, state, action, key):
        state = PoisonedState(state.phase, state.t + 1)
        is_poisoned = (state.t >= self.first) & (state.t < self.end)
        reward = jnp.where(is_poisoned, float(self.poison), 1.0).astype(jnp.float32)
        never = jnp.bool_(False)
        return state, jnp.sin(state.phase + 0.3 * state.t), reward, never, never, {}
