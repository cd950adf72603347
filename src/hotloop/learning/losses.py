"""How bad a TD error is, per sample, with PyTorch's scaling (the mean over the batch is taken by the engine)."""

from hotloop.learning.arrays import Array, Namespace


def mse(td_B: Array) -> Array:
    """Squared TD error; its slope is 2 td."""
    return td_B * td_B


def huber(td_B: Array, delta: float, *, xp: Namespace) -> Array:
    """Half the squared TD error within `delta`, a straight line of slope `delta` beyond."""
    magnitude_B = xp.abs(td_B)
    return xp.where(magnitude_B <= delta, 0.5 * td_B * td_B, delta * (magnitude_B - 0.5 * delta))
