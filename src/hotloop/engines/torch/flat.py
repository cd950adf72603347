"""A network's parameters as views of one flat vector, and back; the order is that of every engine."""

from collections.abc import Mapping

import numpy as np
import torch

from hotloop.engines.named import NamedSpans
from hotloop.engines.torch.modules import Params
from hotloop.trees import named_leaves, with_leaves

NUMBERS = {torch.float32: np.float32, torch.float64: np.float64}


class Layout(NamedSpans):
    """Where each named parameter lives in the flat vector."""

    def __init__(self, params: Params, numbers: torch.dtype, device: torch.device) -> None:
        """Take the structure of `params`, a tree of tensors."""
        named = named_leaves(params)
        self._form, self._device, self._numbers = params, device, numbers
        super().__init__(list(named), [tuple(leaf.shape) for leaf in named.values()], NUMBERS[numbers])

    def unflatten(self, vector: torch.Tensor) -> Params:
        """Views of the vector as the network's own tree.

        They are split off in one operation, so that the gradient of the vector is one too.
        """
        pieces = zip(vector.split(self.sizes), self.shapes, strict=True)
        return with_leaves(self._form, [piece.view(shape) for piece, shape in pieces])

    def flatten(self, params: Params) -> torch.Tensor:
        """One vector from the network's own tree."""
        pieces = [leaf.reshape(-1) for leaf in named_leaves(params).values()]  # type: ignore[attr-defined]
        return torch.cat(pieces).to(self._device, self._numbers)

    def to_named(self, vector: torch.Tensor) -> dict[str, np.ndarray]:
        """Named arrays, views of one copy of the vector."""
        return self.split(vector.detach().to("cpu", copy=True).numpy())  # sync

    def from_named(self, arrays: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Take named arrays back, or raise ValueError naming what does not fit this network."""
        return torch.from_numpy(self.joined(arrays)).to(self._device)
