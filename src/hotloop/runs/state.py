"""The state of a run as named arrays, and back."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotloop.runs.checkpoint import digest
from hotloop.trees import named_leaves, with_leaves


def to_arrays(state: object) -> dict[str, np.ndarray]:
    """Name every array of a state by its path, e.g. `learner/params`."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(state).items()}  # sync


def from_arrays(
    template: object, arrays: Mapping[str, np.ndarray], put: Callable[[np.ndarray], object] = lambda array: array
) -> Any:  # what `template` describes
    """Rebuild a state shaped like `template`, or raise ValueError naming what does not fit; `put` takes it in."""
    expected = named_leaves(template)
    missing, unknown = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected))
    if missing or unknown:
        raise ValueError(f"the checkpoint lacks {missing or 'nothing'} and has unknown {unknown or 'nothing'}")
    for name, leaf in expected.items():
        array = arrays[name]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(
                f"the checkpoint's {name} is {array.dtype}{array.shape}, expected {leaf.dtype}{leaf.shape}"
            )
    return with_leaves(template, [put(arrays[name]) for name in expected])


def digests(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """One digest per part of the state (learner, actor, ring, …) and one of `all` that training depends on.

    The sums since the last line of metrics are not: when a line is written depends on the clock.
    """
    parts = sorted({name.split("/")[0] for name in arrays})
    each = {part: digest({n: a for n, a in arrays.items() if n.split("/")[0] == part}) for part in parts}
    return {**each, "all": digest({n: a for n, a in arrays.items() if n.split("/")[0] != "totals"})}
