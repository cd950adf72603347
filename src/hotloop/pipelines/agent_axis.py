"""The learners of several agents, shared out over the devices: what lies where, and what is compiled for it.

Unlike the members of `member_axis.py` they share envs: one program advances all of them. Where learners do not divide
by devices, idle ones fill up the last place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

EVERYWHERE, BY_LEARNER = False, True


class AgentAxis:
    """The leading axis of what each learner has of its own; the rest is the same on every device."""

    def __init__(self, count: int, layout: Any) -> None:
        """`layout` says of each part of a state whether it lies BY_LEARNER; a prefix of its tree."""
        self._layout = layout
        self.count, self.num_devices = count, min(count, len(jax.devices()))
        self.rows = -(-count // self.num_devices) * self.num_devices
        self.name = "learner" if self.num_devices > 1 else None
        self._mesh = Mesh(np.array(jax.devices()[: self.num_devices]), ("learner",))

    def jit(self, function: Callable[..., Any]) -> Any:
        """Jit what makes the state of all learners."""
        if self.name is None:
            return jax.jit(function)
        return jax.jit(function, out_shardings=self._shardings())

    def jit_in_place(self, function: Callable[[Any, Any], Any]) -> Any:
        """Jit `state = function(state, argument)`, in which each device sees its own learners."""
        if self.name is None:
            return jax.jit(function, donate_argnums=0)
        specs = jax.tree.map(lambda place: PartitionSpec("learner") if place else PartitionSpec(), self._layout)
        shared = jax.shard_map(
            function, mesh=self._mesh, in_specs=(specs, PartitionSpec()), out_specs=specs, check_vma=False
        )
        places = self._shardings()
        argument = NamedSharding(self._mesh, PartitionSpec())
        return jax.jit(shared, in_shardings=(places, argument), out_shardings=places, donate_argnums=0)

    def stack(self, values: Sequence[Any], idle: Any = None) -> Any:
        """The one value that all learners are given."""
        del idle
        return values[0]

    def put(self, state: Any) -> Any:
        """Bring a loaded state, without idle learners, to the devices."""
        places = [*range(self.count), *[self.count - 1] * (self.rows - self.count)]
        filled = self._on_learners(lambda leaf: np.asarray(leaf)[places], state)
        return jax.device_put(filled, self._full(self._shardings(), filled)) if self.name else jax.device_put(filled)

    def without_idle(self, state: Any) -> Any:
        """Leave idle learners out of a state."""
        return state if self.rows == self.count else self._on_learners(lambda leaf: leaf[: self.count], state)

    def member(self, arrays: Any, index: int) -> Any:
        """What belongs to one learner, on the first device."""
        return jax.device_put(jax.tree.map(lambda leaf: leaf[index], arrays), jax.devices()[0])

    def together(self, arrays: Any) -> Any:
        """What belongs to all learners, on the first device."""
        return jax.device_put(jax.tree.map(lambda leaf: leaf[: self.count], arrays), jax.devices()[0])

    def shapes(self, template: Any) -> Any:
        """Shapes of all rows: those that `init` makes."""
        return template

    def saved_shapes(self, template: Any) -> Any:
        """Shapes of what is saved."""

        def resized(leaf: Any) -> Any:
            return jax.ShapeDtypeStruct((self.count, *leaf.shape[1:]), leaf.dtype)

        return self._on_learners(resized, template)

    def _shardings(self) -> Any:
        def one(place: bool) -> NamedSharding:
            return NamedSharding(self._mesh, PartitionSpec("learner") if place else PartitionSpec())

        return jax.tree.map(one, self._layout)

    def _full(self, prefix: Any, state: Any) -> Any:
        """A prefix of a tree, spread to all of its leaves."""
        return jax.tree.map(lambda place, part: jax.tree.map(lambda _: place, part), prefix, state)

    def _on_learners(self, function: Callable[[Any], Any], state: Any) -> Any:
        def part(place: bool, below: Any) -> Any:
            return jax.tree.map(function, below) if place else below

        return jax.tree.map(part, self._layout, state)
