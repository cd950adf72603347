"""Mario by a document that would make such a pipeline fast: its table of expected figures, and each piece of advice.

The document's pipeline (`mario_original.py`) is collectors in processes, one transition at a time through a queue with
a lock, and a learner in eager PyTorch; what was plainly wrong in it is corrected. None of its figures was measured, so
they stand here beside ours, and hotloop at the same settings beside both. Each piece of advice is timed alone, and
whether it leaves the result as it was is checked.
"""

from hotloop.bench.mario_alone import alone_rows, same_or_not
from hotloop.bench.mario_alone import settings as alone_settings
from hotloop.bench.mario_memory import drawing_rows, memory_rows
from hotloop.bench.mario_playing import playing_rows
from hotloop.bench.mario_table import settings as table_settings
from hotloop.bench.mario_table import table_rows
from hotloop.bench.measure import Result, machine
from hotloop.progress import Reporter

NOT_MEASURED = (
    "custom kernels: a gradient step is bound by convolutions and matrix products, which the vendors' libraries have, "
    "and a compiler joins what is between them; CUDA's cache, pinned memory, several GPUs: there is none here"
)


def run(reporter: Reporter) -> Result:
    """Results, each piece of advice alone, collectors together, buffers, then the table."""
    with reporter.busy("which pieces of advice leave the result as it was?"):
        verdicts = same_or_not()
    pieces = [*alone_rows(verdicts, reporter), *playing_rows(reporter), *memory_rows(), *drawing_rows(reporter)]
    settings = {**machine(), **table_settings(), **alone_settings(), "not measured": NOT_MEASURED}
    return Result("mario", settings, [*table_rows(reporter), *pieces])
