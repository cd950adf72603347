"""A pipeline's state as named arrays, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from hotloop.runs.checkpoint import digest


def to_arrays(state: Any) -> dict[str, np.ndarray]:
    """Name every array of a state by its path, e.g. `learner/params`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}  # sync


def from_arrays(template: Any, arrays: Mapping[str, np.ndarray], put: Callable[[Any], Any] = jax.device_put) -> Any:
    """Rebuild a state shaped like `template`, or raise ValueError naming what does not fit; `put` takes it in."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(template)
    names = [_name(path) for path, _ in leaves]
    missing, unknown = sorted(set(names) - set(arrays)), sorted(set(arrays) - set(names))
    if missing or unknown:
        raise ValueError(f"the checkpoint lacks {missing or 'nothing'} and has unknown {unknown or 'nothing'}")
    rebuilt = []
    for name, (_, leaf) in zip(names, leaves, strict=True):
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(
                f"the checkpoint's {name} is {array.dtype}{array.shape}, expected {leaf.dtype}{leaf.shape}"
            )
        rebuilt.append(put(array))
    return jax.tree.unflatten(treedef, rebuilt)


def digests(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """One digest per part of the state (learner, actor, ring, …) and one of `all` that training depends on.

    The sums since the last line of metrics are not: when a line is written depends on the clock.
    """
    parts = sorted({name.split("/")[0] for name in arrays})
    each = {part: digest({n: a for n, a in arrays.items() if n.split("/")[0] == part}) for part in parts}
    return {**each, "all": digest({n: a for n, a in arrays.items() if n.split("/")[0] != "totals"})}


def _name(path: Any) -> str:
    return "/".join(str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part)))) for part in path)
