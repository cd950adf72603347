"""λ-returns: targets that look further ahead than one step, from a stretch of steps in the order they happened."""

from hotloop.learning.arrays import Array, Namespace, Scan


def lambda_returns(
    r_TN: Array,
    discount_TN: Array,
    ended_TN: Array,
    v_TN: Array,
    trace: float,
    *,
    xp: Namespace,
    scan: Scan,
) -> Array:
    """R = r + discount x [λ R of the next step + (1 - λ) v], backwards from the last step, with λ = `trace`.

    `v_TN` is the value of the state that each step led to, not of the one after a reset. A step that ended its episode
    (terminated or truncated) and the last one bootstrap from it alone: beyond them lies nothing of the same episode.
    γ and termination are folded into `discount_TN`, so a truncated step keeps its bootstrap. `scan` is `jax.lax.scan`
    or works like it.
    """

    def earlier(return_N: Array, step: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        r_N, discount_N, ended_N, v_N = step
        ahead_N = xp.where(ended_N, v_N, trace * return_N + (1.0 - trace) * v_N)
        return_N = r_N + discount_N * ahead_N
        return return_N, return_N

    return scan(earlier, v_TN[-1], (r_TN, discount_TN, ended_TN, v_TN), reverse=True)[1]
