"""One observation of a Gymnasium space or a batch of them: told apart by shape, whatever their dtype and bounds."""

from collections.abc import Iterable, Mapping

import numpy as np
from gymnasium import spaces

from hotloop.envs.gym_types import Raw, Space
from hotloop.trees import tree_map

Bound = int | np.ndarray


def batched(space: Space, obs: Raw) -> tuple[Raw, bool]:
    """`obs` as a batch, and whether it was one observation alone; raises ValueError for what is neither.

    A batch is what a vector env gives, arrays with one axis more (in a Dict or Tuple space a dict or tuple of them), or
    a list of observations.
    """
    batch, count = _batched(space, obs, "observation")
    return batch, count is None


def _batched(space: Space, obs: Raw, what: str) -> tuple[Raw, int | None]:
    """The batch, and how many observations it has; None for one that came alone."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return _listed(space, obs, what)
        if set(obs) != set(space.keys()):
            raise ValueError(f"{what} has the parts {_names(obs)}, expected {_names(space.keys())}")
        parts = {name: _batched(part, obs[name], f"{what}['{name}']") for name, part in space.items()}
        return {name: batch for name, (batch, _) in parts.items()}, _count([n for _, n in parts.values()], what)
    if isinstance(space, spaces.Tuple):
        # A tuple is that of the parts, a list one of observations; each may be the other, if only that fits.
        readings = (_in_parts, _listed) if isinstance(obs, tuple) else (_listed, _in_parts)
        try:
            return readings[0](space, obs, what)
        except ValueError:
            return readings[1](space, obs, what)
    return _array(space, obs, what)


def _in_parts(space: spaces.Tuple, obs: Raw, what: str) -> tuple[Raw, int | None]:
    if not isinstance(obs, list | tuple) or len(obs) != len(space):
        raise ValueError(f"{what} is {_seen(obs)}, expected the {len(space)} parts of {space}, or a batch of it")
    parts = [_batched(part, one, f"{what}[{i}]") for i, (part, one) in enumerate(zip(space, obs, strict=True))]
    return tuple(batch for batch, _ in parts), _count([count for _, count in parts], what)


def _listed(space: Space, obs: Raw, what: str) -> tuple[Raw, int | None]:
    if not isinstance(obs, list | tuple) or not obs:
        raise ValueError(f"{what} is {_seen(obs)}, expected {space}, or a batch of it")
    each = [_batched(space, one, f"{what} {i} of the list") for i, one in enumerate(obs)]
    if any(count is not None for _, count in each):
        raise ValueError(f"{what} is a list of batches, expected {space}, or a batch of it")
    return tree_map(lambda *leaves: np.concatenate(leaves), *(batch for batch, _ in each)), len(each)


def _array(space: Space, obs: Raw, what: str) -> tuple[np.ndarray, int | None]:
    shape = tuple(space.shape or ())
    try:
        array = np.asarray(obs)
    except ValueError:  # parts of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what} is {_seen(obs)}, expected numbers of shape {shape}, or a batch of it")
    is_single, is_batch = array.shape == shape, array.ndim == len(shape) + 1 and array.shape[1:] == shape
    if not is_single and not (is_batch and len(array)):
        raise ValueError(f"{what} has shape {array.shape}, expected {shape} or a batch of it")
    if (bounds := _bounds_of_whole_numbers(space)) is not None:
        low, high = bounds
        if ((array != np.floor(array)) | (array < low) | (array > high)).any():
            said = f"whole numbers from {_plain(low)} to {_plain(high)}"
            raise ValueError(f"{what} holds other than {said}, as {space} has")
        if array.dtype.kind != "u":
            array = array.astype(np.int64)
    return (array[None], None) if is_single else (array, len(array))


def _bounds_of_whole_numbers(space: Space) -> tuple[Bound, Bound] | None:
    """Where a space's numbers are places in an array, or bytes, lowest and highest; None elsewhere."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        lowest, sizes = np.asarray(space.start, np.int64), np.asarray(space.nvec, np.int64)
        return lowest, lowest + sizes - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return (0, 255) if space.dtype == np.uint8 else None


def _count(counts: list[int | None], what: str) -> int | None:
    """The number that all parts agree on."""
    if len(set(counts)) > 1:
        said = [f"a batch of {count}" if count is not None else "one observation" for count in counts]
        raise ValueError(f"the parts of {what} do not agree: they are {', '.join(said)}")
    return counts[0] if counts else None


def _names(parts: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, parts))) or "none"


def _plain(bound: Bound) -> object:
    return bound if np.ndim(bound) == 0 else np.asarray(bound).tolist()


def _seen(obs: object) -> str:
    if isinstance(obs, list | tuple):
        return f"a {type(obs).__name__} of {len(obs)}"
    return f"a {type(obs).__name__}" + (f" of shape {obs.shape}" if isinstance(obs, np.ndarray) else "")
