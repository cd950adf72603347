"""The Q-network of a spec: a torso and a head, or a module of the user's own, under one flat vector of weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import torch

from hotloop.engines.building import estimates_of, head_of, torso_of
from hotloop.engines.networks import RUNNING, HeadOutput, noise_size
from hotloop.engines.torch.arrays import TorchArrays, detached
from hotloop.engines.torch.flat import Layout
from hotloop.engines.torch.modules import Functions, Inputs, Mode, Params, perturbed, sequential
from hotloop.engines.torch.own import own_network
from hotloop.errors import NetworkFailed, SpecError
from hotloop.spec import Head, Network, ScalarHead, Spec
from hotloop.trees import ArraySpec, Shapes, Specs, named_leaves, tree_map, zeros_of

NAME = "torch"
HALVES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class QNetwork:
    """From observations to estimates of returns, and from these to Q-values; holds no weights."""

    def __init__(
        self, spec: Spec, obs: Shapes, num_actions: int, network: object, numbers: torch.dtype, device: torch.device
    ) -> None:
        """`network` is the user's own, if any; `numbers` are those of the weights."""
        self.num_actions, self.numbers, self.device = num_actions, numbers, device
        self._obs = cast(Specs, tree_map(lambda leaf: ArraySpec(leaf.shape, leaf.dtype), obs))
        frozen: set[str] = set()
        self.is_own = network is not None
        self._state_dict: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
        if network is None:
            self._functions = _composed(spec, num_actions)
        else:
            self._functions, frozen, self._state_dict = own_network(network, self._no_obs(), num_actions)
        self.head: Head = spec.network.head if isinstance(spec.network, Network) else ScalarHead()
        self.xp = TorchArrays(numbers, device)
        self.maths = estimates_of(spec, self.head, self.xp, detached)
        self.is_random = isinstance(spec.network, Network) and spec.network.is_random
        self._half = HALVES[spec.precision]
        params = self.fresh(0)
        self.layout, self.noise_size = Layout(params, numbers, device), noise_size(params)
        running = () if self.is_own else RUNNING  # names that are ours
        self.stands_apart = self._where(lambda name: name.rpartition("/")[2] in running or name in frozen)
        """Which numbers of the flat vector no optimiser moves: running averages, and what the user froze."""
        self._refuse_wrong_output()

    def fresh(self, seed: int) -> Params:
        """A tree of first weights."""
        with torch.no_grad():
            random = torch.Generator().manual_seed(seed)
            return self._functions.init(random, self._no_obs())

    def _no_obs(self) -> Any:
        """One observation of zeros, on the host."""
        return tree_map(torch.from_numpy, zeros_of(self._obs, (1,)))

    def estimate(self, params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[torch.Tensor]:
        """What the network says under a tree of weights, in the numbers of these."""
        if mode.noise is not None:
            params = perturbed(params, mode.noise)
        with self._in_precision():
            values, tau = self._functions.apply(params, obs_B, mode)
        return HeadOutput(values.to(self.numbers), tau)

    def _in_precision(self) -> AbstractContextManager[object]:
        """Products and convolutions in half the bits, where the spec asks for it; weights stay whole."""
        return nullcontext() if self._half is None else torch.autocast(self.device.type, self._half)

    @torch.no_grad()
    def q(self, params: Params, obs_B: Inputs, mode: Mode) -> torch.Tensor:
        """Q-values (B, A)."""
        return self.maths.q(self.estimate(params, obs_B, mode).values)

    def state_dict(self, weights: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies of flat weights by the names that a `torch.nn.Module` has for them."""
        named = named_leaves(self.layout.unflatten(weights.detach().clone()))
        return self._state_dict({name.replace("/", "."): cast(torch.Tensor, leaf) for name, leaf in named.items()})

    def empty_obs(self, count: int) -> Any:
        """Observations of zeros."""
        return tree_map(lambda leaf: torch.from_numpy(leaf).to(self.device), zeros_of(self._obs, (count,)))

    def _refuse_wrong_output(self) -> None:
        """A network gives one finite Q-value per action, for one observation and for several."""
        params = self.layout.unflatten(self.layout.flatten(self.fresh(0)))
        chance = self._chance()
        for count in (1, 2):
            try:
                q = self.q(params, self.empty_obs(count), Mode("act"))
            except NetworkFailed as error:
                raise SpecError(str(error)) from error
            if tuple(q.shape) != (count, self.num_actions):
                raise SpecError(
                    f"the network returns shape {tuple(q.shape)} for {count} observation(s), expected "
                    f"({count}, {self.num_actions}): one Q-value per action"
                )
            if not bool(torch.isfinite(q).all()):  # sync
                raise SpecError(f"the network returns {q.tolist()} for observations of zeros; expected finite Q-values")
        if not all(map(torch.equal, chance, self._chance())):
            raise SpecError(
                "the network draws random numbers in its forward pass, so a run could be neither repeated nor resumed; "
                "leave that out (of dropout: training=self.training; network.head.noise explores by noise)"
            )

    def _chance(self) -> list[torch.Tensor]:
        """Where torch's own streams of random numbers are."""
        streams = [torch.get_rng_state()]
        return [*streams, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else streams

    def _where(self, is_meant: Callable[[str], bool]) -> torch.Tensor | None:
        """Which numbers of the flat vector belong to parameters of certain names; None if none do."""
        mask = np.zeros(self.layout.size, bool)
        for name, (start, end, _) in self.layout.spans().items():
            mask[start:end] = is_meant(name)
        return torch.from_numpy(mask).to(self.device) if mask.any() else None


def _composed(spec: Spec, num_actions: int) -> Functions:
    network = spec.network
    assert isinstance(network, Network)  # one of the user's own would have been given
    torso, head = torso_of(network, NAME), head_of(network, NAME, num_actions)
    return sequential(torso=Functions(*torso), head=Functions(*head))
