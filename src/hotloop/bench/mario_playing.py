"""Collectors in processes that play while the learner only takes what they send: queues, threads, how many."""

import statistics
from typing import NamedTuple

from hotloop.bench.mario_original import OPTIMIZED, Sizes, Switches
from hotloop.bench.mario_original_pipeline import Pipeline, Ran
from hotloop.bench.measure import Row, paired_ratio
from hotloop.progress import Reporter

SIZES = Sizes()
ROUNDS, SECONDS = 5, 3.0
ORIGINAL = "2 collectors, one queue with a lock"


class Group(NamedTuple):
    """Collectors of one kind."""

    switches: Switches
    says: str = ""


GROUPS: dict[str, Group] = {
    ORIGINAL: Group(Switches()),
    "2 collectors, a queue each": Group(Switches(own_queues=True), "+60-80 % experiences"),
    f"2 collectors, a queue each, {OPTIMIZED.together} at once": Group(
        Switches(own_queues=True, together=OPTIMIZED.together), "+60-80 % experiences"
    ),
    "2 collectors, one thread each": Group(Switches(threads=1), "less contention"),
    "4 collectors, one thread each": Group(Switches(threads=1, collectors=4), "more collectors"),
}


def playing_rows(reporter: Reporter) -> list[Row]:
    """Experiences a second of each group, in turns."""
    with reporter.busy("starting collectors in processes of their own"):
        groups = {name: Pipeline(SIZES, group.switches, learns=False) for name, group in GROUPS.items()}
    try:
        ran = _measure(groups, reporter)
    finally:
        for pipeline in groups.values():
            pipeline.close()
    rates = {name: [max(1, each.taken) / each.seconds for each in runs] for name, runs in ran.items()}
    rows = []
    for name, runs in ran.items():
        row = Row(f"collecting/{name}", statistics.median(rates[name]), "exp/s")
        total = Ran()
        for each in runs:
            total = total.and_then(each)
        sent = max(1, total.handed + total.dropped)
        row.columns = {
            "same result": None if name == ORIGINAL else "order by chance",
            "document says": GROUPS[name].says or None,
            "hand-over, ms": total.handing_seconds / sent * 1e3,
            "lock wait, ms": total.lock_seconds / sent * 1e3,
            "dropped": total.dropped,
        }
        if name != ORIGINAL:
            row.against = f"collecting/{ORIGINAL}"
            row.ratio, row.spread = paired_ratio(rates[name], rates[ORIGINAL])
        rows.append(row)
    return rows


def _measure(groups: dict[str, Pipeline], reporter: Reporter) -> dict[str, list[Ran]]:
    for pipeline in groups.values():
        pipeline.wait_until_ready()
    for pipeline in groups.values():
        pipeline.run(SECONDS / 2)
    ran: dict[str, list[Ran]] = {name: [] for name in groups}
    for number in range(ROUNDS):
        for name in list(groups) if number % 2 == 0 else reversed(groups):
            ran[name].append(groups[name].run(SECONDS))
        reporter.show(number + 1, ROUNDS, {"rounds of": " | ".join(groups)})
    return ran
