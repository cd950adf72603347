"""Acting for environments on the host: small networks in NumPy, because a call into XLA costs more than they do."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hotloop.engines.jax.engine import JaxEngine
from hotloop.spec import DuelingHead, Mlp, Network, Spec

NUMPY_WORK = 2_000_000
"""Multiplications of a forward pass up to which NumPy is chosen: below, it takes about half of XLA's time (27 against
52 us for two layers of 64 and 16 envs); from about twice as many on they are level."""

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0))),
}


def q_function(spec: Spec, engine: JaxEngine, num_envs: int) -> tuple[Callable[[Any, Any], np.ndarray], str]:
    """Return `q(params, obs_N) -> (N, A)` on host arrays, and which of the two it is."""
    network: Any = spec.network
    is_small = num_envs * engine.layout.size <= NUMPY_WORK
    is_dense = isinstance(network, Network) and isinstance(network.torso, Mlp)
    if is_small and is_dense and network.torso.activation in _ACTIVATIONS:
        return _numpy_q(network, engine), "NumPy"
    compiled = jax.jit(engine.q_values)
    return lambda params, obs_N: np.asarray(compiled(params, obs_N)), "XLA"


def _numpy_q(network: Network, engine: JaxEngine) -> Callable[[Any, Any], np.ndarray]:
    torso, head = network.torso, network.head
    assert isinstance(torso, Mlp)
    nonlinear = _ACTIVATIONS[torso.activation]
    spans = engine.layout.spans()

    def layers(params: np.ndarray, prefix: str, x: np.ndarray, count: int, last: bool, activation: Any) -> np.ndarray:
        for i in range(count):
            (a, b, kernel), (c, d, bias) = spans[f"{prefix}/dense_{i}/kernel"], spans[f"{prefix}/dense_{i}/bias"]
            x = x @ params[a:b].reshape(kernel)
            x += params[c:d].reshape(bias)
            if last or i < count - 1:
                x = activation(x)
        return x

    def q(params: np.ndarray, obs_N: Any) -> np.ndarray:
        leaves = [leaf.reshape(len(leaf), -1).astype(np.float32, copy=False) for leaf in jax.tree.leaves(obs_N)]
        x = leaves[0] if len(leaves) == 1 else np.concatenate(leaves, axis=-1)
        x = layers(params, "torso/layers", x, len(torso.hidden), True, nonlinear)
        if not isinstance(head, DuelingHead):
            return layers(params, "head", x, 1, False, nonlinear)
        depth, relu = len(head.hidden) + 1, _ACTIVATIONS["relu"]
        advantage = layers(params, "head/advantage", x, depth, False, relu)
        value = layers(params, "head/value", x, depth, False, relu)
        centred: np.ndarray = value + advantage - advantage.mean(-1, keepdims=True)
        return centred

    return q
