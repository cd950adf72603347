"""What two processes that work without pause get done here, over one: envs that work bring no more.

Two virtual cores may be two threads of one.
"""

import statistics
import subprocess
import sys

from hotloop.bench.measure import Row, interleave, paired_ratio
from hotloop.bench.processes_envs import OBSERVED, fall, work_of
from hotloop.progress import Reporter

PROCESSES, ROUNDS, SECONDS = 2, 7, 0.5


def ceiling(reporter: Reporter) -> Row:
    """Work of both per second over that of one alone."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "hotloop.bench.processes_ceiling", str(work_of(SECONDS))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]

    def at_once(some: list[subprocess.Popen[str]]) -> None:
        for worker in some:
            assert worker.stdin
            print(file=worker.stdin, flush=True)
        for worker in some:
            assert worker.stdout
            worker.stdout.readline()

    cases = {"one": lambda: at_once(workers[:1]), "both": lambda: at_once(workers)}
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    for worker in workers:
        worker.communicate()
    ratio, (low, high) = paired_ratio(seconds["one"], seconds["both"])
    spread = PROCESSES * low, PROCESSES * high
    done = 1 / statistics.median(seconds["one"])
    case, note = "ceiling/two processes that only work", "what the cores bring now; only envs that wait can bring more"
    return Row(case, PROCESSES * ratio * done, "pieces/s", PROCESSES * ratio, "one of them", spread, note=note)


def _serve(work: int) -> None:
    for _ in sys.stdin:
        fall([0.5] * OBSERVED, [0.0] * OBSERVED, work)
        print(flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
