"""How training actions differ from the best known: chance in, actions out."""

from hotloop.learning.arrays import Array, Namespace


def epsilon_greedy(
    q_NA: Array, epsilon: Array, coin_N: Array, draw_N: Array, *, is_masked: bool, xp: Namespace
) -> Array:
    """The best action, or where the coin falls below ε a random one; illegal ones have a Q-value of -inf.

    `draw_N` (0 … 1) chooses: the whole part of its share of all (legal) actions is one of them.
    """
    if is_masked:
        rank_NA = xp.cumsum(q_NA > -xp.inf, axis=-1)  # the first action whose rank passes the draw
        random_N = xp.argmax(rank_NA > (draw_N[:, None] * rank_NA[:, -1:]).astype(xp.int32), axis=-1)
    else:
        num_actions = q_NA.shape[1]
        random_N = (draw_N * num_actions).astype(xp.int32)
        if draw_N.dtype.itemsize < 8:  # in float32 a draw just below 1 may become one action too many
            random_N = xp.minimum(random_N, num_actions - 1)
    return xp.where(coin_N < epsilon, random_N, q_NA.argmax(axis=-1))


def boltzmann(q_NA: Array, temperature: Array, gumbel_NA: Array, *, xp: Namespace) -> Array:
    """An action by softmax(Q / temperature)."""
    return xp.argmax(q_NA / temperature + gumbel_NA, axis=-1)
