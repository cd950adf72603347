"""First priorities by whoever made the transitions: TD errors by the policy that acted."""

from typing import cast

import numpy as np

from hotloop.engines.protocol import Policy
from hotloop.learning import targets
from hotloop.replay.frames import observations
from hotloop.replay.parcels import Packed, used
from hotloop.spec import Network, Prioritized, Spec
from hotloop.trees import leaves


def are_told(spec: Spec) -> bool:
    """Whether actors tell the first errors of what they make."""
    sampling = spec.replay.sampling
    by_largest = isinstance(sampling, Prioritized) and sampling.first_error is None
    return by_largest and spec.actors.first_errors and errors_are_of_returns(spec)


def errors_are_of_returns(spec: Spec) -> bool:
    """Whether the learner's errors, by which it draws, are TD errors of Q-values: those that actors can tell."""
    network = spec.network
    are_of_head = network.head.errors_are_of_returns if isinstance(network, Network) else True
    return are_of_head and spec.target.munchausen is None


def first_errors(policy: Policy, parcel: Packed) -> np.ndarray:
    """|r_t + discount_t x best legal Q(s_t) - Q(s_tm1, a_tm1)| of a parcel's rows, float32 (rows,), for its `error`.

    The policy always gets as many observations as the parcel has room for: an engine compiles for each number of them.
    """
    rows = used(parcel).rows
    if not len(rows.r_t):
        return np.zeros(0, np.float32)
    q_tm1_BA, q_t_BA = _q_values(policy, parcel)
    best_B = np.max(targets.legal_only(q_t_BA, rows.legal_t, xp=np), axis=-1)
    taken_B = q_tm1_BA[np.arange(len(rows.r_t)), rows.a_tm1]
    with np.errstate(invalid="ignore", over="ignore"):  # the replay knows what to do with what is not finite
        error_B: np.ndarray = np.abs(targets.bootstrapped(rows.r_t, rows.discount_t, best_B) - taken_B)
    return error_B.astype(np.float32)


def _q_values(policy: Policy, parcel: Packed) -> tuple[np.ndarray, np.ndarray]:
    """Q-values (rows, A) before and after each transition."""
    count = int(parcel.num_rows)
    if parcel.frames is None:
        return policy(parcel.rows.s_tm1)[:count], policy(parcel.rows.s_t)[:count]
    before, after = cast(tuple[np.ndarray, np.ndarray], (parcel.rows.s_tm1, parcel.rows.s_t))
    stacks = np.concatenate([before[:count], after[:count]])
    # Each observation brought a newest frame of its own: that tells them apart, and each is looked at once.
    _, where, which = np.unique(stacks[:, -1], return_index=True, return_inverse=True)
    filled = np.resize(where, len(leaves(parcel.frames)[0]))  # the rest are repeats
    q_UA = policy(observations(parcel.frames, stacks[filled]))
    return q_UA[which[:count]], q_UA[which[count:]]
