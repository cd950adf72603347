"""Actions of envs for which no network is asked."""

import numpy as np


def random_actions(
    num_actions: int, num_envs: int, legal_NA: np.ndarray | None, random: np.random.Generator
) -> np.ndarray:
    """One of each env, among the legal ones if some are not, int32 (N,)."""
    if legal_NA is None:
        return random.integers(num_actions, size=num_envs, dtype=np.int32)
    chosen: np.ndarray = np.argmax(random.random(legal_NA.shape) * legal_NA, axis=-1)
    return chosen.astype(np.int32)
