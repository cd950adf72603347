"""What the agent of the service-function-chain env sees: three branches of numbers between 0 and 1.

| branch | entries |
|---|---|
| `dc` (14,) | instances of each function installed in this DC; of these idle; free storage ÷ 2048; free CPU ÷ 119 |
| `dc_services` (6, 13), of the pending requests whose traffic is in this DC | whether there are such; functions that some of them have; functions that some of them still lack |
| `pending` (6, 10) | whether there are pending requests; how many; of the most urgent: remaining delay ÷ limit, Mbps of all its chains ÷ 1000; how many wait for each function |

How many, n, is shown as n / (1 + n): none, one and two differ most. A service without pending requests has zeros. The
traffic of a request is where its latest function is, and before the first one in its source.
"""  # noqa: E501

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.device import ObsSpec, ObsTree
from hotloop.envs.sfc_state import SfcState, Survey, remaining_ms
from hotloop.envs.sfc_tables import DC_CPU, DC_STORAGE, LIMIT_MS, LINK_KBPS, POSITION, S, V

SPEC: ObsTree = {
    "dc": ObsSpec((2 * V + 2,), np.float32, 0.0, 1.0),
    "dc_services": ObsSpec((S, 1 + 2 * V), np.float32, 0.0, 1.0),
    "pending": ObsSpec((S, 4 + V), np.float32, 0.0, 1.0),
}


def observe(state: SfcState, here: Survey) -> dict[str, jax.Array]:
    """The three branches."""
    return {"dc": _dc(here), "dc_services": _dc_services(state, here), "pending": _pending(state, here)}


def _dc(here: Survey) -> jax.Array:
    free = jnp.stack([here.free_storage / DC_STORAGE, here.free_cpu / DC_CPU[1]])
    return jnp.concatenate([_many(here.installed), _many(here.idle), free.astype(jnp.float32)])


def _dc_services(state: SfcState, here: Survey) -> jax.Array:
    stage, position = state.requests.stage, POSITION.T[..., None]
    is_here = here.pending & (state.requests.at == state.dc)
    in_chain = position < 99
    has, lacks = (jnp.any(is_here & in_chain & part, 2).T for part in (position < stage, position >= stage))
    return jnp.concatenate([jnp.any(is_here, 1)[:, None], has, lacks], 1).astype(jnp.float32)


def _pending(state: SfcState, here: Survey) -> jax.Array:
    count = jnp.sum(here.pending, 1, keepdims=True)
    urgency = jnp.where(here.pending, ((127 - remaining_ms(state)) << 20) + state.requests.kbps, 0)
    urgent = jnp.max(urgency, 1, keepdims=True)
    left = jnp.where(count > 0, 127 - (urgent >> 20), 0)
    kbps = urgent & ((1 << 20) - 1)
    waiting = jnp.sum(here.waits_for, 2).T
    parts = [count > 0, _many(count), left / LIMIT_MS[:, None], kbps / LINK_KBPS, _many(waiting)]
    return jnp.concatenate([part.astype(jnp.float32) for part in parts], 1)


def _many(count: jax.Array) -> jax.Array:
    return count.astype(jnp.float32) / (1.0 + count)
