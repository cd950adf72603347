"""PyTorch's own profiler: its operations, and the kernels of a GPU if there is one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from hotloop.engines.torch.setup import choose_device
from hotloop.engines.tracing import Trace


@contextmanager
def trace(folder: Path) -> Iterator[Trace]:
    """Trace what happens within; leaves torch.json.gz for Perfetto."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it says when it begins and ends
    activities = [ProfilerActivity.CPU]
    if choose_device().type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    path = folder / "torch.json.gz"
    with profile(activities=activities, experimental_config=_all_threads()) as profiler:
        yield Trace(path, record_function)
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


def _all_threads() -> Any:
    """Have it look at the learner's thread, too, which pipeline concurrent has; None before PyTorch 2.7 or so."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True)
    except (ImportError, TypeError):
        return None
