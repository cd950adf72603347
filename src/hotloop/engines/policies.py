"""Acting for environments on the host: small networks in NumPy, because a call of an engine costs more than they do."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
from threadpoolctl import ThreadpoolController

from hotloop.engines.protocol import Engine, Policy, Weights
from hotloop.spec import Mlp, Network, ScalarHead, Spec
from hotloop.trees import Arrays, leaves

NUMPY_WORK = 2_000_000
"""Multiplications of a forward pass up to which NumPy is chosen: below, it takes about half of XLA's time (27 against
52 us for two layers of 64 and 16 envs); from about twice as many on they are level."""

Activation = Callable[[np.ndarray], np.ndarray]

_ACTIVATIONS: dict[str, Activation] = {
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "tanh": np.tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0))),
}


def choose_policy(spec: Spec, engine: Engine, num_envs: int) -> tuple[Callable[[Weights], Policy], str]:
    """Return `freeze(weights) -> Policy`, and which of the two it is: NumPy, or the engine's own."""
    is_small = num_envs * engine.num_weights <= NUMPY_WORK
    if is_small and isinstance(network := spec.network, Network) and _is_plain(network) and spec.precision == "float32":
        return lambda weights: numpy_policy(network, engine.to_named(weights)), "NumPy"
    return engine.freeze, "the engine"


_thread_pools = cache(ThreadpoolController)


def one_blas_thread() -> AbstractContextManager[object]:
    """NumPy on one thread while a run steps: a pool costs a handful of envs more than it brings (up to 10 times)."""
    limited: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limited


def _is_plain(network: Network) -> bool:
    """Dense layers to Q-values, without normalization or noise."""
    # These very classes: one that is derived from them is built in another way.
    torso, head = network.torso, network.head
    if type(torso) is not Mlp:
        return False
    has_plain_head = type(head) is ScalarHead and head.noise is None
    return has_plain_head and torso.normalization == "none" and torso.activation in _ACTIVATIONS


def numpy_policy(network: Network, weights: dict[str, np.ndarray]) -> Policy:
    """Dense layers, plain or dueling, by the names every engine gives them."""
    torso, head = network.torso, network.head
    assert isinstance(torso, Mlp)
    nonlinear, relu = _ACTIVATIONS[torso.activation], _ACTIVATIONS["relu"]

    def layers(prefix: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(weights[f"{prefix}/dense_{i}/kernel"], weights[f"{prefix}/dense_{i}/bias"]) for i in range(count)]

    body, trunk = layers("torso/layers", len(torso.hidden)), layers("head/trunk", len(head.trunk))
    depth = len(head.hidden) + 1

    def features(obs_N: Arrays) -> np.ndarray:
        return _dense(trunk, _dense(body, _flat(obs_N), nonlinear, True), relu, True)

    if not head.dueling:
        last = layers("head", depth)
        return lambda obs_N, draws=None: _dense(last, features(obs_N), relu, False)
    value, advantage = layers("head/value", depth), layers("head/advantage", depth)

    def dueling(obs_N: Arrays, draws: Arrays = None) -> np.ndarray:
        x = features(obs_N)
        advantage_NA = _dense(advantage, x, relu, False)
        centred: np.ndarray = _dense(value, x, relu, False) + advantage_NA - advantage_NA.mean(-1, keepdims=True)
        return centred

    return dueling


def _flat(obs_N: Arrays) -> np.ndarray:
    flat = [leaf.reshape(len(leaf), -1).astype(np.float32, copy=False) for leaf in leaves(obs_N)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)


def _dense(layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray, nonlinear: Activation, last: bool) -> np.ndarray:
    for i, (kernel, bias) in enumerate(layers):
        x = x @ kernel
        x += bias
        if last or i < len(layers) - 1:
            x = nonlinear(x)
    return x
