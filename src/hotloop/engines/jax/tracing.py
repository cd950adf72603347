"""JAX's own profiler: XLA's operations, on the host and on GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from hotloop.engines.tracing import Trace


@contextmanager
def trace(folder: Path) -> Iterator[Trace]:
    """Trace what happens within; leaves jax.json.gz for Perfetto, and below plugins/ what TensorBoard reads."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # each call of a Python function would bury the rest
    path = folder / "jax.json.gz"
    with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
        yield Trace(path, jax.profiler.TraceAnnotation)
    [made] = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    made.rename(path)
    for twin in folder.glob("plugins/profile/*/*.trace.json.gz"):  # the same once more, which Perfetto does not open
        twin.unlink()
