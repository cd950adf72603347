"""Threads and device: what is decided before the first tensor, and what this engine cannot do."""

import os
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

from hotloop.engines.program_cache import program_cache
from hotloop.errors import SpecError
from hotloop.spec import Network, Spec

if TYPE_CHECKING:
    import torch

DEVICE = "HOTLOOP_TORCH_DEVICE"
"""Names the device: cpu, cuda or cuda:1. Without it, it is the first GPU if there is one."""
_PROGRAMS = "TORCHINDUCTOR_CACHE_DIR"
"""Where Inductor keeps what it compiles; by itself it would choose a folder below /tmp."""
WORTH_COMPILING = 60.0
"""Seconds of eager gradient steps in a run from which on compiling is tried: it takes half of that, once."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
WORTH_A_POOL = 12_000_000
"""Multiplications of a layer from which on all cores work on it; below, they would wait for each other."""


def start(spec: Spec, steps_meanwhile: bool = False) -> dict[str, str]:
    """Start torch for this spec and say what was chosen; threads that the user has set are kept."""
    del steps_meanwhile  # an update runs on the thread that asks for it in any case
    refuse(spec)
    import torch

    chosen = next((name for name in THREADS if name in os.environ), None)
    if chosen is None:
        threads = choose_threads(spec)
        torch.set_num_threads(threads)
        said = f"{threads} ({'chosen for this network' if spec.threads is None else 'as the spec says'})"
    else:
        said = f"{chosen}={os.environ[chosen]}"
    os.environ.setdefault(_PROGRAMS, str(program_cache("torch")))
    device = choose_device()
    if device.type == "cuda":  # should JAX start as well, for a device env, it leaves the GPU's memory to torch
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"threads": said, "device": name, "backend": f"torch {device.type}"}


def refuse(spec: Spec) -> None:
    """Raise SpecError for what this engine cannot do."""
    if find_spec("torch") is None:
        raise SpecError("engine torch needs PyTorch, which is not installed; pip install 'hotloop[torch]'")
    if spec.devices > 1:
        _refuse_devices(spec)


def _refuse_devices(spec: Spec) -> None:
    if spec.torch.mode == "compiled":
        raise SpecError(
            f"torch.mode is compiled, but devices is {spec.devices}: a program does not wait for another device in "
            "its midst; use torch.mode eager, or devices: 1"
        )
    if isinstance(spec.network, Network) and spec.network.torso.normalizes_batches:
        raise SpecError(
            f"normalization: batch with devices: {spec.devices}: each would normalize its share by itself; use layer, "
            "or engine jax"
        )


def choose_device() -> "torch.device":
    """The device that the environment names, else the first GPU, else the CPU."""
    import torch

    wanted = os.environ.get(DEVICE)
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise SpecError(f"{DEVICE} is {wanted!r}, expected cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise SpecError(f"{DEVICE} is {wanted!r}, expected cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SpecError(f"{DEVICE} is {wanted!r}, but torch sees no GPU here; use cpu, or leave it out")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise SpecError(f"{DEVICE} is {wanted!r}, but torch sees {count} GPU(s); use a lower number")
    return device


def choose_threads(spec: Spec) -> int:
    """As the spec says; else one thread for small networks (handing work to a pool costs more than the work), all for
    large ones.

    One for a network of the user's own, unless its record says that it sees images: OMP_NUM_THREADS says otherwise.
    """
    network, batch = spec.network, spec.replay.batch_size
    if spec.threads is not None:
        return spec.threads
    if spec.sees_images:
        return os.cpu_count() or 1
    if not isinstance(network, Network):
        return 1
    head, torso = network.head, network.torso
    stacks = [*torso.dense_stacks[:-1], (*(torso.dense_widths or ()), *head.trunk, *head.hidden)]
    rows = batch * head.rows_per_sample
    is_large = any(rows * a * b >= WORTH_A_POOL for widths in stacks for a, b in pairwise(widths))
    return (os.cpu_count() or 1) if is_large else 1
