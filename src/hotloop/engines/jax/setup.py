"""Threads, memory, compilation cache and devices: what must be decided before JAX starts."""

import ctypes
import os
import sys
from itertools import pairwise

from hotloop import registry
from hotloop.engines.program_cache import program_cache
from hotloop.spec import Network, Spec

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of <malloc.h>
_EIGEN, _INTRA = "xla_cpu_multi_thread_eigen", "intra_op_parallelism_threads"
_DEVICES = "xla_force_host_platform_device_count"
_POOL = "PJRT_NPROC"
"""Threads of XLA's pool. The flags above are for Eigen; the library that does its products has only this one."""


VARIABLES = ("XLA_FLAGS", _POOL)
_chosen: list[str] = []
"""Flags that were chosen in this process, and what was said of them."""
_before: dict[str, str] = {}
"""Variables of the environment as they were before that."""
WORTH_A_POOL = 12_000_000
"""Multiplications of a matrix product from which on several threads are faster than one: measured on two cores, an
update of 256-256 took 1.1 times as long with batch 128 (8 million), and 0.7 times with batch 192 (13 million)."""
NARROWEST = 0.5
"""Rows of a batch for each column of a layer below which XLA's threads are slower than one, however large the product:
an update of 1024-1024 took 3.6, 2.3 and 1.2 times as long with batch 64, 128 and 256, and half as long with 512."""


def choose_threads(spec: Spec) -> int:
    """As the spec says; else one XLA thread for small networks (handing work to a pool costs more than the work), all
    for large ones."""
    if spec.threads is not None:
        return spec.threads
    products = dense_products(spec)
    is_large = any(rows * wide * high >= WORTH_A_POOL for rows, wide, high in products)
    is_large &= all(rows >= NARROWEST * max(wide, high) for rows, wide, high in products)
    return max(1, (os.cpu_count() or 1) // _side_by_side(spec)) if is_large or spec.sees_images else 1


def _side_by_side(spec: Spec) -> int:
    """Who is trained side by side, each on a device if there are enough; agents are not counted yet, but fill them."""
    if spec.agents is None:
        return spec.seeds
    on_host = spec.env.id.startswith(registry.PETTINGZOO)  # where they learn one after the other
    return 1 if spec.has_shared_weights or on_host else os.cpu_count() or 1


def dense_products(spec: Spec) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of the products between dense layers, for one batch; none of a network of the user's."""
    if not isinstance(spec.network, Network) or spec.network.torso.dense_widths is None:
        return []
    head, torso, batch = spec.network.head, spec.network.torso.dense_widths, spec.replay.batch_size
    if spec.on_policy is not None:
        batch = spec.block_plan.env_steps // spec.on_policy.minibatches
    if spec.replay.sequence is not None:
        batch *= spec.replay.sequence.burn_in + spec.replay.sequence.length
    stacks = spec.network.torso.dense_stacks
    products = [(batch, wide, high) for widths in stacks for wide, high in pairwise(widths)]
    rows = batch * head.rows_per_sample
    return products + [(rows, wide, high) for wide, high in pairwise((*torso[-1:], *head.trunk, *head.hidden))]


def start(spec: Spec, steps_meanwhile: bool = False) -> dict[str, str]:
    """Start JAX for this spec and say what was chosen. Flags the user has set are kept."""
    threads, flags = choose_threads(spec), os.environ.get("XLA_FLAGS", "")
    if spec.sees_images:
        _keep_large_memory()
    if _chosen and flags == _chosen[0]:  # for a run before this one
        said = _chosen[1]
    elif _EIGEN in flags or _INTRA in flags or _POOL in os.environ:
        pool = f", {_POOL}={os.environ[_POOL]}" if _POOL in os.environ else ""
        said = f"XLA_FLAGS={flags}{pool}"
    elif _already_running():
        said = "as this process started JAX"
    else:
        multi = "true" if threads > 1 else "false"
        _before.update({name: os.environ[name] for name in VARIABLES if name in os.environ})
        devices = max(min(_side_by_side(spec), os.cpu_count() or 1), spec.devices)
        # First of all: what follows a flag without dashes is not read.
        more = f"--{_DEVICES}={devices} " if devices > 1 and _DEVICES not in flags else ""
        os.environ["XLA_FLAGS"] = f"{more}{flags} --{_EIGEN}={multi} {_INTRA}={threads}".strip()
        os.environ[_POOL] = str(threads * devices)
        why = "chosen for this network" if spec.threads is None else "as the spec says"
        said = f"{threads} ({why})" + (f" on each of {devices} CPU devices" if more else "")
        _chosen[:] = [os.environ["XLA_FLAGS"], said.replace("this network", "the first network of this process")]
    import jax

    if steps_meanwhile:  # the update runs on the thread that asks for it, and acting never waits behind it
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.config.update("jax_compilation_cache_dir", str(program_cache("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return {"threads": said, "device": jax.devices()[0].device_kind, "backend": jax.default_backend()}


def users_variables() -> dict[str, str]:
    """Variables of the environment that say something of threads, without what was chosen here."""
    if _chosen and os.environ.get("XLA_FLAGS") == _chosen[0]:
        return dict(_before)
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _keep_large_memory() -> None:
    """Have glibc keep freed memory instead of giving it back to the system.

    XLA takes the temporary memory of a program anew in each call: 50 to 300 MB for a batch of images, of which each
    page would be a page fault, each time. Kept, an update of the Nature CNN takes 45 instead of 60 ms.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return
    for option, value in ((_MMAP_THRESHOLD, 2**31 - 1), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 256 << 20)):
        mallopt(option, value)


def _already_running() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(bridge and getattr(bridge, "_backends", None))
