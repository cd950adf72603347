"""Several seeds of a run in one program: each the run it would be alone, bit for bit, shared out over the devices.

A device runs its seeds one after the other (`lax.map`), devices run side by side (`shard_map`). On a CPU every core
is made a device. `vmap` would put the seeds into one batched product instead; on a CPU that took half as long again
per seed as one after the other, and its last bits differ from those of a run alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hotloop.engines.jax.setup import devices_for


class SeedAxis:
    """The leading axis of every array of a run with several seeds; with one seed there is none."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.num_devices = devices_for(count, len(jax.devices()))
        mesh = Mesh(np.array(jax.devices()[: self.num_devices]), ("seed",))
        self._specs = PartitionSpec("seed")
        self._sharding = NamedSharding(mesh, self._specs) if count > 1 else None
        self._mesh = mesh

    def jit(self, function: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        """Jit a function of one seed as a function of all of them."""
        if self._sharding is None:
            return jax.jit(function, donate_argnums=donate)

        def every(*args: Any) -> Any:
            return jax.lax.map(lambda one: function(*one), args)

        shared = jax.shard_map(every, mesh=self._mesh, in_specs=self._specs, out_specs=self._specs, check_vma=False)
        return jax.jit(shared, in_shardings=self._sharding, out_shardings=self._sharding, donate_argnums=donate)

    def stack(self, values: Sequence[Any]) -> Any:
        """One value per seed as an argument of a jitted function."""
        return jnp.stack(values) if self._sharding is not None else values[0]

    def put(self, state: Any) -> Any:
        """Bring a loaded state to the devices."""
        return state if self._sharding is None else jax.device_put(state, self._sharding)

    def one(self, arrays: Any, index: int) -> Any:
        """What belongs to one seed."""
        return jax.tree.map(lambda leaf: leaf[index], arrays) if self._sharding is not None else arrays

    def shapes(self, template: Any) -> Any:
        """Shapes for all seeds, given those of one."""
        if self._sharding is None:
            return template
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((self.count, *leaf.shape), leaf.dtype), template)
