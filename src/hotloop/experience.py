"""What envs, replays, engines and runs hand to each other, whatever they are made of."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np

from hotloop.trees import Arrays, ArraySpec, Specs, Tree

A = TypeVar("A")
"""What it is made of: NumPy's arrays, those of an engine, or ArraySpecs."""


class Item(NamedTuple, Generic[A]):
    """One transition, or a batch of them. γ and termination are folded into `discount_t`."""

    s_tm1: Tree[A]
    a_tm1: A
    r_t: A
    discount_t: A
    s_t: Tree[A]
    legal_t: A | None = None  # which actions s_t allows, when the env says so


Items = Item[np.ndarray]


class Aimed(NamedTuple, Generic[A]):
    """States and actions whose Q-values are pulled towards targets that are known already: nothing is bootstrapped."""

    s_tm1: Tree[A]
    a_tm1: A
    target: A


def items_of(row: Item[ArraySpec], lead: tuple[int, ...], make: Callable[[Specs, tuple[int, ...]], Arrays]) -> Items:
    """Transitions with axes before those of `row`, of what `make` makes: `zeros_of` or `empty_of` of `trees.py`."""
    return cast(Items, make(row, lead))


def row_example(obs: Specs, num_actions: int | None = None) -> Item[ArraySpec]:
    """Shapes and dtypes of one transition, given those of one observation; `num_actions` of them if rows hold masks."""
    scalar = ArraySpec((), np.float32)
    legal = None if num_actions is None else ArraySpec((num_actions,), np.bool_)
    return Item(obs, ArraySpec((), np.int32), scalar, scalar, obs, legal)


METRICS = ("loss", "grad_norm", "q", "applied")
"""What an engine sums over its gradient steps, in this order; `applied` counts those that were not skipped."""


class Sequences(NamedTuple, Generic[A]):
    """A batch of stretches of S = burn-in + L + 1 steps; the first L behind the burn-in are learned from.

    `obs` and `first` are (…, S), what belongs to the learned steps is (…, L), `memory` is that of the first step.
    """

    obs: Tree[A]
    first: A
    a_tm1: A
    r_t: A
    discount_t: A
    truncated: A
    memory: Tree[A]


class Totals(NamedTuple, Generic[A]):
    """Sums since the last line of metrics."""

    update: A  # METRICS
    episodes: A
    episode_return: A
    episode_length: A


class VectorStep(NamedTuple):
    """A vector step of N envs: arrays (N, …), observations as trees of them."""

    obs: Arrays  # where the next step starts
    final_obs: Arrays  # the state this one led to
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray  # False where an env was only reset, or failed: nothing was done there
    began: np.ndarray  # `obs` is the first observation of an episode
    final_legal: np.ndarray | None = None  # which actions `final_obs` allows, bool (N, A); None with masks off
    legal: np.ndarray | None = None  # and which `obs` does
    # The env raised and was built anew. Envs always say it; who makes a step for a replay alone may leave it out.
    failed: np.ndarray = None  # type: ignore[assignment]
    info: Mapping[str, np.ndarray] = {}  # chosen keys of `info`, float64, NaN where there were none
