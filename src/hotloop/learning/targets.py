"""What a Q-value is pulled towards: r_t + discount_t x value of s_t."""

from typing import Any

Array = Any


def value_of(q_BA: Array, a_B: Array, *, xp: Any) -> Array:
    """Q-value of the action taken, shape (B,). A masked sum: for a handful of actions faster than a gather."""
    num_actions = q_BA.shape[-1]
    taken_BA = a_B[..., None] == xp.arange(num_actions)
    return xp.sum(xp.where(taken_BA, q_BA, xp.zeros_like(q_BA)), axis=-1)


def max_value(q_t_BA: Array, *, xp: Any) -> Array:
    """Value of s_t when the same network chooses and values the action (vanilla and target-net DQN)."""
    return xp.max(q_t_BA, axis=-1)


def double_value(q_t_BA: Array, q_t_selector_BA: Array, *, xp: Any) -> Array:
    """Value of s_t when the selector (online) network chooses and the target network values (Double DQN)."""
    return value_of(q_t_BA, xp.argmax(q_t_selector_BA, axis=-1), xp=xp)


def bootstrapped(r_t_B: Array, discount_t_B: Array, v_t_B: Array) -> Array:
    """One-step target. γ and termination are already folded into discount_t."""
    return r_t_B + discount_t_B * v_t_B
