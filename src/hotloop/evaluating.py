"""An evaluation in mid-run: greedy episodes that Ctrl-C does not wait for, and what they say together."""

from typing import NamedTuple

from hotloop.interrupts import Interrupted, Interrupts
from hotloop.pipelines.session import Session
from hotloop.plain import Figures
from hotloop.progress import Reporter
from hotloop.runs import statistics


class Played(NamedTuple):
    """What greedy episodes came to: for each member, and for all of them."""

    each: list[dict[str, float]]
    together: Figures


def play(session: Session, attempt: int, interrupts: Interrupts, reporter: Reporter) -> Played | None:
    """Play greedy episodes with the present weights; None when someone could not wait for their end."""
    with reporter.counting("greedy episodes") as show, session.spans["evaluate"]:

        def tell(done: int, wanted: int) -> None:
            interrupts.raise_if_seen()
            show(done, wanted)

        try:
            played = session.evaluate(tell, attempt)
        except Interrupted:
            return None
    each = [episodes.summary() for episodes in played]
    return Played(each, statistics.together(each, session.members) if len(each) > 1 else {**each[0]})
