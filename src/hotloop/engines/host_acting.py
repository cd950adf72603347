"""Acting for environments on the host: small networks in NumPy, because a call into XLA costs more than they do."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import numpy as np
from threadpoolctl import ThreadpoolController

from hotloop.engines.jax.engine import JaxEngine
from hotloop.spec import Mlp, Network, ScalarHead, Spec

NUMPY_WORK = 2_000_000
"""Multiplications of a forward pass up to which NumPy is chosen: below, it takes about half of XLA's time (27 against
52 us for two layers of 64 and 16 envs); from about twice as many on they are level."""

QFunction = Callable[..., np.ndarray]
"""From observations (N, …) to Q-values (N, A), with weights that stand still; networks with noise take the two numbers
of a random key beside them, and without it give their mean."""

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0.0, out=x),
    "tanh": np.tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0.0))),
}


def choose_acting(spec: Spec, engine: JaxEngine, num_envs: int) -> tuple[Callable[[jax.Array], QFunction], str]:
    """Return `freeze(params) -> QFunction`, and which of the two it is. What it freezes is a copy."""
    network: Any = spec.network
    is_small = num_envs * engine.layout.size <= NUMPY_WORK
    if is_small and _is_plain(network) and spec.precision == "float32":
        return _numpy_acting(network, engine), "NumPy"
    mean = jax.jit(engine.q_values)
    drawn = jax.jit(lambda params, obs_N, key: engine.q_values(params, obs_N, jax.random.wrap_key_data(key)))

    def freeze(params: jax.Array) -> QFunction:
        kept = params.copy()

        def q(obs_N: Any, key: np.ndarray | None = None) -> np.ndarray:
            return np.asarray(mean(kept, obs_N) if key is None else drawn(kept, obs_N, key))

        return q

    return freeze, "XLA"


_thread_pools = cache(ThreadpoolController)


def one_blas_thread() -> AbstractContextManager[Any]:
    """NumPy on one thread while a run steps: a pool costs a handful of envs more than it brings (up to 10 times)."""
    return _thread_pools().limit(limits=1, user_api="blas")


def _is_plain(network: Any) -> bool:
    """Dense layers to Q-values, without normalization or noise."""
    # These very classes: one that is derived from them is built in another way.
    if not isinstance(network, Network) or type(network.torso) is not Mlp:
        return False
    torso, head = network.torso, network.head
    has_plain_head = type(head) is ScalarHead and head.noise is None
    return has_plain_head and torso.normalization == "none" and torso.activation in _ACTIVATIONS


def _numpy_acting(network: Network, engine: JaxEngine) -> Callable[[jax.Array], QFunction]:
    torso, head = network.torso, network.head
    assert isinstance(torso, Mlp)
    nonlinear, relu = _ACTIVATIONS[torso.activation], _ACTIVATIONS["relu"]
    spans = engine.layout.spans()

    def layers(params: np.ndarray, prefix: str, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = [spans[f"{prefix}/dense_{i}/{part}"] for i in range(count) for part in ("kernel", "bias")]
        arrays = [params[a:b].reshape(shape) for a, b, shape in parts]
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def freeze(params: jax.Array) -> QFunction:
        kept = np.array(params)
        body = layers(kept, "torso/layers", len(torso.hidden))
        if not head.dueling:
            last = layers(kept, "head", len(head.hidden) + 1)
            return lambda obs_N: _dense(last, _dense(body, _flat(obs_N), nonlinear, True), relu, False)
        value, advantage = (layers(kept, f"head/{part}", len(head.hidden) + 1) for part in ("value", "advantage"))

        def dueling(obs_N: Any) -> np.ndarray:
            x = _dense(body, _flat(obs_N), nonlinear, True)
            advantage_NA = _dense(advantage, x, relu, False)
            centred: np.ndarray = _dense(value, x, relu, False) + advantage_NA - advantage_NA.mean(-1, keepdims=True)
            return centred

        return dueling

    return freeze


def _flat(obs_N: Any) -> np.ndarray:
    leaves = [obs_N] if isinstance(obs_N, np.ndarray) else jax.tree.leaves(obs_N)
    flat = [leaf.reshape(len(leaf), -1).astype(np.float32, copy=False) for leaf in leaves]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)


def _dense(layers: list[tuple[np.ndarray, np.ndarray]], x: np.ndarray, nonlinear: Any, last: bool) -> np.ndarray:
    for i, (kernel, bias) in enumerate(layers):
        x = x @ kernel
        x += bias
        if last or i < len(layers) - 1:
            x = nonlinear(x)
    return x
