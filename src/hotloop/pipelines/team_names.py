"""What belongs to which learner of a team, by name: in checkpoints, and among weights that actors take."""

from collections.abc import Mapping

import numpy as np

TEAM = "team"
"""Under which a checkpoint has what belongs to no single learner."""


def learner_name(index: int) -> str:
    """Under which a learner of a team has what is its own."""
    return f"learner-{index}"


def below(name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is under a name, without it."""
    start = f"{name}/"
    return {path.removeprefix(start): array for path, array in arrays.items() if path.startswith(start)}
