"""What the agent of the service-function-chain env sees: three branches of numbers between 0 and 1.

| branch | entries |
|---|---|
| `dc` (14,) | instances of each function installed in this DC; of these idle (both ÷ 10, at most 1); free storage ÷ 2048; free CPU ÷ 119 |
| `dc_services` (6, 13), of the pending requests of which this DC has a function | whether there are such; functions it has for them; functions that they still lack |
| `pending` (6, 10) | whether there are pending requests; how many ÷ places; of the most urgent: remaining delay ÷ limit, Mbps of all its chains ÷ 1000; how many wait for each function ÷ places |

Places: how many requests of the service can be alive at once. A service without pending requests has zeros.
"""  # noqa: E501

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec, ObsTree
from hotloop.envs.sfc_state import SfcState, Survey, remaining_ms
from hotloop.envs.sfc_tables import DC_CPU, DC_STORAGE, LIMIT_MS, LINK_KBPS, POSITION, S, V, places

MANY_INSTANCES = 10
SPEC: ObsTree = {
    "dc": ObsSpec((2 * V + 2,), np.float32, 0.0, 1.0),
    "dc_services": ObsSpec((S, 1 + 2 * V), np.float32, 0.0, 1.0),
    "pending": ObsSpec((S, 4 + V), np.float32, 0.0, 1.0),
}


def observe(state: SfcState, here: Survey, arrival_every: int) -> dict[str, jax.Array]:
    """The three branches."""
    return {
        "dc": _dc(here),
        "dc_services": _dc_services(state, here),
        "pending": _pending(state, here, places(arrival_every)[:, None].astype(np.float32)),
    }


def _dc(here: Survey) -> jax.Array:
    instances = jnp.concatenate([here.installed, here.idle]).astype(jnp.float32) / MANY_INSTANCES
    free = jnp.stack([here.free_storage / DC_STORAGE, here.free_cpu / DC_CPU[1]])
    return jnp.concatenate([jnp.minimum(instances, 1.0), free.astype(jnp.float32)])


def _dc_services(state: SfcState, here: Survey) -> jax.Array:
    is_here = here.pending & jnp.any(here.holds, 0)
    position = POSITION.T[..., None]
    lacks = (state.requests.stage <= position) & (position < 99)
    has, lacking = (jnp.any(is_here & part, 2).T for part in (here.holds, lacks))
    return jnp.concatenate([jnp.any(is_here, 1)[:, None], has, lacking], 1).astype(jnp.float32)


def _pending(state: SfcState, here: Survey, most: np.ndarray) -> jax.Array:
    count = jnp.sum(here.pending, 1, keepdims=True)
    urgency = jnp.where(here.pending, ((127 - remaining_ms(state)) << 20) + state.requests.kbps, 0)
    urgent = jnp.max(urgency, 1, keepdims=True)
    left = jnp.where(count > 0, 127 - (urgent >> 20), 0)
    kbps = urgent & ((1 << 20) - 1)
    waiting = jnp.sum(here.waits_for, 2).T
    parts = [count > 0, count / most, left / LIMIT_MS[:, None], kbps / LINK_KBPS, waiting / most]
    return jnp.concatenate([part.astype(jnp.float32) for part in parts], 1)
