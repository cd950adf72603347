"""The torso, the head and the estimates of a spec, by whom the registry names; what a plug-in does wrong is one line.

For every engine: what is built is an `init`/`apply` pair of the engine's own `Functions`.
"""

from collections.abc import Callable
from typing import Any

from hotloop import registry
from hotloop.errors import SpecError, said
from hotloop.learning.estimates import Estimate
from hotloop.spec import Head, Network, Spec
from hotloop.trees import tree_map

Pair = tuple[Callable[..., Any], Callable[..., Any]]
"""`init` and `apply`."""
OURS = "hotloop."
TORSO_REMEDY = (
    "have it take such an observation, choose a part (env.observe, of a Gymnasium env), "
    "or use torso mlp, which takes any"
)
HEAD_REMEDY = "its input is the torso's features (B, F)"


def torso_of(network: Network, engine: str) -> Pair:
    """From observations (B, …) to features (B, F)."""
    torso = network.torso
    what = f"torso '{torso.kind}'"
    return _built(what, torso.record, engine, (torso, network.init), "an observation", TORSO_REMEDY)


def head_of(network: Network, engine: str, num_actions: int) -> Pair:
    """From features (B, F) to a HeadOutput."""
    head = network.head
    what = f"head '{head.kind}'"
    return _built(what, head.record, engine, (head, num_actions, network.init), "features", HEAD_REMEDY)


def estimates_of(spec: Spec, head: Head, xp: Any, constant: Callable[..., Any]) -> Estimate:
    """The maths of what the head says, in the arrays of `xp`."""
    target = head.record.estimates
    try:
        estimate: Estimate = registry.imported(target)(head, spec.loss, xp=xp, constant=constant)
    except Exception as error:  # whatever someone else's code raises
        if target.startswith(OURS):
            raise
        raise SpecError(f"head '{head.kind}': its estimates cannot be made by {target}: {said(error)}") from error
    return estimate


def _built(
    what: str,
    record: registry.HeadRecord | registry.TorsoRecord,
    engine: str,
    given: tuple[Any, ...],
    seen: str,
    remedy: str,
) -> Pair:
    target = record.builders.get(engine, OURS)
    if target.startswith(OURS):  # whose complaints are made for users, and whose mistakes are not theirs
        functions: Pair = registry.builder(record, engine)(*given)
        return functions
    try:
        made = registry.imported(target)(*given)
    except Exception as error:  # whatever someone else's code raises
        raise SpecError(f"{what} cannot be built by {target}: {said(error)}") from error
    if not (callable(getattr(made, "init", None)) and callable(getattr(made, "apply", None))):
        raise SpecError(f"{what}: {target} returned {type(made).__name__}, expected Functions(init, apply)")

    def told(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, inputs: Any, *more: Any) -> Any:
            try:
                return function(first, inputs, *more)
            except Exception as error:  # whatever someone else's code raises
                raise SpecError(
                    f"{what} of {target} failed on {seen} of shape {_shapes(inputs)}: {said(error)}; {remedy}"
                ) from error

        return call

    apply = told(made.apply)

    def apply_head(*inputs: Any) -> Any:
        output = apply(*inputs)
        if not (isinstance(output, tuple) and len(output) == 2):
            raise SpecError(f"{what} of {target} gives {type(output).__name__}, expected HeadOutput(values, tau)")
        return output

    return told(made.init), apply_head if isinstance(record, registry.HeadRecord) else apply


def _shapes(inputs: Any) -> str:
    """Shapes of a tree of batches, without the batch axis."""
    return str(tree_map(_shape, inputs)).replace("'", "")


def _shape(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    return f"{leaf.dtype}{tuple(leaf.shape[1:])}".removeprefix("torch.")
