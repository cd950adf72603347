"""What envs, replays, engines and runs hand to each other, whatever they are made of."""

from typing import Any, NamedTuple

import numpy as np

from hotloop.trees import ArraySpec


class Item(NamedTuple):
    """One transition, or a batch of them. γ and termination are folded into `discount_t`."""

    s_tm1: Any
    a_tm1: Any
    r_t: Any
    discount_t: Any
    s_t: Any
    legal_t: Any = None  # which actions s_t allows, when the env says so


class Aimed(NamedTuple):
    """States and actions whose Q-values are pulled towards targets that are known already: nothing is bootstrapped."""

    s_tm1: Any
    a_tm1: Any
    target: Any


def row_example(obs: Any, num_actions: int | None = None) -> Item:
    """Shapes and dtypes of one transition, given those of one observation; `num_actions` of them if rows hold masks."""
    scalar = ArraySpec((), np.float32)
    legal = None if num_actions is None else ArraySpec((num_actions,), np.bool_)
    return Item(obs, ArraySpec((), np.int32), scalar, scalar, obs, legal)


METRICS = ("loss", "grad_norm", "q", "applied")
"""What an engine sums over its gradient steps, in this order; `applied` counts those that were not skipped."""


class Totals(NamedTuple):
    """Sums since the last line of metrics."""

    update: Any  # METRICS
    episodes: Any
    episode_return: Any
    episode_length: Any


class VectorStep(NamedTuple):
    """A vector step of N envs: arrays (N, …), observations as trees of them."""

    obs: Any  # where the next step starts
    final_obs: Any  # the state this one led to
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray  # False where an env was only reset, or failed: nothing was done there
    began: np.ndarray  # `obs` is the first observation of an episode
    final_legal: np.ndarray | None = None  # which actions `final_obs` allows, bool (N, A); None with masks off
    legal: np.ndarray | None = None  # and which `obs` does
    failed: Any = None  # the env raised and was built anew
    info: Any = None  # chosen keys of `info` by name, float64, NaN where the env gave none
