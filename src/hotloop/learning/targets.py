"""What a Q-value is pulled towards: r_t + discount_t x value of s_t."""

from hotloop.learning.arrays import Array, Namespace


def value_of(values_BA: Array, a_B: Array, *, xp: Namespace) -> Array:
    """What is estimated for the action taken: (B,) of Q-values (B, A), (B, N) of distributions (B, A, N).

    A masked sum: for a handful of actions faster than a gather.
    """
    num_actions = values_BA.shape[1]
    taken_BA = a_B[:, None] == xp.arange(num_actions)
    taken_BA = taken_BA.reshape(*taken_BA.shape, *[1] * (values_BA.ndim - 2))
    return xp.sum(xp.where(taken_BA, values_BA, xp.zeros_like(values_BA)), axis=1)


def legal_only(q_BA: Array, legal_BA: Array | None, *, xp: Namespace) -> Array:
    """Q-values with illegal actions at -inf; where no action is legal, all are."""
    if legal_BA is None:
        return q_BA
    return xp.where(legal_BA | ~xp.any(legal_BA, axis=-1, keepdims=True), q_BA, -xp.inf)


def best_value(values_BA: Array, q_BA: Array, *, xp: Namespace) -> Array:
    """What is estimated for the action that `q_BA` calls best: its own Q-values, or another network's (Double DQN)."""
    return xp.max(q_BA, axis=-1) if values_BA is q_BA else value_of(values_BA, xp.argmax(q_BA, axis=-1), xp=xp)


def log_policy(q_BA: Array, temperature: float, *, xp: Namespace) -> Array:
    """Log-probabilities of softmax(Q / temperature), times the temperature."""
    best_B1 = xp.max(q_BA, axis=-1, keepdims=True)
    shifted_BA = q_BA - best_B1
    return shifted_BA - temperature * xp.log(xp.sum(xp.exp(shifted_BA / temperature), axis=-1, keepdims=True))


def soft_value(values_BA: Array, q_BA: Array, temperature: float, *, xp: Namespace) -> Array:
    """Mean over the softmax policy of the estimate less the policy's scaled log-probability (Munchausen DQN)."""
    scaled_BA = log_policy(q_BA, temperature, xp=xp)
    policy_BA = xp.exp(scaled_BA / temperature)
    scaled_BA = xp.where(policy_BA > 0, scaled_BA, 0.0)  # of an illegal action it is -inf
    shape = (*q_BA.shape, *[1] * (values_BA.ndim - 2))
    return xp.sum(policy_BA.reshape(shape) * (values_BA - scaled_BA.reshape(shape)), axis=1)


def bootstrapped(r_t_B: Array, discount_t_B: Array, v_t_B: Array) -> Array:
    """One-step target. γ and termination are already folded into discount_t."""
    return r_t_B + discount_t_B * v_t_B
