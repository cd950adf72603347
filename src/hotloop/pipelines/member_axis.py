"""Several members of a run in one program, each with a state of its own: shared out over the devices.

The members are seeds: each is the run it would be alone, bit for bit. A device runs its members one after the other,
devices run side by side (`shard_map`); on a CPU the cores are made devices. `vmap` would put the members into one
batched product instead: on a CPU that took half as long again per member as one after the other, and its last bits
differ from those of a run alone.

When the members do not divide by the devices, idle ones fill up the last row: they are advanced by no blocks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class MemberAxis:
    """The leading axis of every array of a run with several members; with one there is none.

    One member may have its batches split over `devices`: its state then lies on each of them.
    """

    def __init__(self, count: int, devices: int = 1) -> None:
        self.count = count
        self.num_devices = min(count, len(jax.devices()))
        self.rows = -(-count // self.num_devices) * self.num_devices if count > 1 else 1
        self._mesh = Mesh(np.array(jax.devices()[: self.num_devices]), ("member",))
        self._spec = PartitionSpec("member")
        self._sharding = NamedSharding(self._mesh, self._spec) if count > 1 else None
        everywhere = Mesh(np.array(jax.devices()[:devices]), ("batch",)) if devices > 1 else None
        self._everywhere = NamedSharding(everywhere, PartitionSpec()) if everywhere is not None else None

    def jit(self, function: Callable[..., Any]) -> Any:
        """Jit a function of one member as a function of all of them."""
        if self._sharding is None:
            return jax.jit(function, **self._placed())
        return self._shared(lambda *args: jax.lax.map(lambda one: function(*one), args))

    def jit_in_place(self, function: Callable[[Any, Any], Any]) -> Any:
        """Jit `state = function(state, argument)` for all members, with room for one more than they take."""
        if self._sharding is None:
            return jax.jit(function, donate_argnums=0, **self._placed())

        def every(states: Any, arguments: Any) -> Any:
            def one(i: jax.Array, states: Any) -> Any:
                state, argument = jax.tree.map(
                    lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), (states, arguments)
                )
                return jax.tree.map(
                    lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, i, 0),
                    states,
                    function(state, argument),
                )

            return jax.lax.fori_loop(0, self.rows // self.num_devices, one, states)

        return self._shared(every, donate=(0,))

    def stack(self, values: Sequence[Any], idle: Any = None) -> Any:
        """One value per member as an argument of a jitted function; idle ones get `idle`, or the first one's."""
        if self._sharding is None:
            return values[0]
        fill = [values[0] if idle is None else idle] * (self.rows - self.count)
        return jnp.stack([*values, *fill])

    def put(self, state: Any) -> Any:
        """Bring a loaded state, without idle members, to the devices."""
        if self._sharding is None:
            return state if self._everywhere is None else jax.device_put(state, self._everywhere)
        places = [*range(self.count), *[0] * (self.rows - self.count)]
        return jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[places], state), self._sharding)

    def without_idle(self, host_arrays: Any) -> Any:
        """Leave idle members out of arrays on the host."""
        return host_arrays if self.rows == self.count else jax.tree.map(lambda leaf: leaf[: self.count], host_arrays)

    def member(self, arrays: Any, index: int) -> Any:
        """What belongs to one member, on the first device."""
        if self._sharding is None:
            return arrays if self._everywhere is None else jax.device_put(arrays, jax.devices()[0])
        return jax.device_put(jax.tree.map(lambda leaf: leaf[index], arrays), jax.devices()[0])

    def shapes(self, template: Any) -> Any:
        """Shapes of all rows, idle ones included, given those of one member."""
        return self._with_axis(template, self.rows)

    def saved_shapes(self, template: Any) -> Any:
        """Shapes of what is saved, given those of one member."""
        return self._with_axis(template, self.count)

    def _placed(self) -> dict[str, Any]:
        """Where arguments and results lie, if that is not left to JAX."""
        place = self._everywhere
        return {} if place is None else {"in_shardings": place, "out_shardings": place}

    def _with_axis(self, template: Any, rows: int) -> Any:
        if self._sharding is None:
            return template
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), template)

    def _shared(self, function: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        spec, sharding = self._spec, self._sharding
        shared = jax.shard_map(function, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(shared, in_shardings=sharding, out_shardings=sharding, donate_argnums=donate)
