"""How the running episodes of N envs on the host have gone so far. On the device: `pipelines/vector_step.py`."""

from typing import NamedTuple

import numpy as np

from hotloop.experience import VectorStep


class Finished(NamedTuple):
    """Sums over the episodes that ended in a vector step."""

    episodes: int
    episode_return: float
    episode_length: float
    info: dict[str, float]


class RunningEpisodes:
    """Return and length of each env's episode, float64 and int64 (N,)."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs, np.float64)
        self.lengths = np.zeros(num_envs, np.int64)

    def add(self, step: VectorStep) -> None:
        """Count a step; where an env was only reset, or failed, nothing was done."""
        self.returns += np.where(step.valid, step.reward, 0.0)
        self.lengths += step.valid

    def begin_anew(self, where_N: np.ndarray) -> None:
        """These are over."""
        if where_N.any():
            self.returns[where_N] = 0.0
            self.lengths[where_N] = 0
