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

QFunction = Callable[[Any], np.ndarray]
"""From observations (N, …) to Q-values (N, A), with weights that stand still."""

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
    is_dense = isinstance(network, Network) and isinstance(network.torso, Mlp)
    if is_small and is_dense and network.torso.activation in _ACTIVATIONS:
        return _numpy_acting(network, engine), "NumPy"
    compiled = jax.jit(engine.q_values)

    def freeze(params: jax.Array) -> QFunction:
        kept = params.copy()
        return lambda obs_N: np.asarray(compiled(kept, obs_N))

    return freeze, "XLA"


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
        if not isinstance(head, DuelingHead):
            last = layers(kept, "head", 1)
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
