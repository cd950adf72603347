"""The torso and the head of a spec, built by whom the registry names; what a plug-in raises is one line."""

from collections.abc import Callable
from typing import Any

import jax

from hotloop import registry
from hotloop.engines.jax.modules import Functions
from hotloop.spec import Network

OURS = "hotloop."
TORSO_REMEDY = (
    "have it take such an observation, choose a part (env.observe, of a Gymnasium env), "
    "or use torso mlp, which takes any"
)
HEAD_REMEDY = "its input is the torso's features (B, F)"


def torso_of(network: Network, engine: str) -> Functions:
    """From observations (B, …) to features (B, F)."""
    torso = network.torso
    what = f"torso '{torso.kind}'"
    return _built(what, torso.record, engine, (torso, network.init), "an observation", TORSO_REMEDY)


def head_of(network: Network, engine: str, num_actions: int) -> Functions:
    """From features (B, F) to a HeadOutput."""
    head = network.head
    what = f"head '{head.kind}'"
    return _built(what, head.record, engine, (head, num_actions, network.init), "features", HEAD_REMEDY)


def _built(
    what: str,
    record: registry.HeadRecord | registry.TorsoRecord,
    engine: str,
    given: tuple[Any, ...],
    seen: str,
    remedy: str,
) -> Functions:
    target = record.builders.get(engine, OURS)
    if target.startswith(OURS):  # whose complaints are made for users, and whose mistakes are not theirs
        functions: Functions = registry.builder(record, engine)(*given)
        return functions
    try:
        made = registry.imported(target)(*given)
    except Exception as error:  # whatever someone else's code raises
        raise ValueError(f"{what} cannot be built by {target}: {_said(error)}") from error
    if not (callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None))):
        raise ValueError(f"{what}: {target} returned {type(made).__name__}, expected Functions(init, apply)")

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, inputs: Any, *more: Any) -> Any:
            try:
                return function(first, inputs, *more)
            except Exception as error:  # whatever someone else's code raises
                raise ValueError(
                    f"{what} of {target} failed on {seen} of shape {_shapes(inputs)}: {_said(error)}; {remedy}"
                ) from error

        return call

    return Functions(told(made.init), told(made.apply))


def _shapes(inputs: Any) -> str:
    """Shapes of a tree of batches, without the batch axis."""
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{leaf.shape[1:]}", inputs)).replace("'", "")


def _said(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
