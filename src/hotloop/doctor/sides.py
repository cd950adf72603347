"""Two sides at work at once, actors and a learner: which of them holds a run in processes back, and what of it.

Who waits is not what holds the run back. What the learner takes more of a block, by a known time (a virtual slow-down),
the run feels entirely where the learner does, and not at all where it waits for the actors.
"""

from collections.abc import Mapping

from hotloop.doctor.examination import Stage
from hotloop.doctor.free_in_processes import ACTORS_WAIT, LEARNER_WAITS, SLOWER, WORK_OF_ACTORS, WORK_OF_LEARNER
from hotloop.doctor.model import BETWEEN, OF_ACTORS, OF_LEARNER, times_as_fast_without
from hotloop.doctor.slices import Comparison, Ratio

WORTH_SAYING = 0.05
"""Share of the time from which it is said that a side waits."""


def stages_of_sides(found: Comparison, around: float, delay: float, cores: int) -> dict[str, Stage]:
    """What slices showed of a run in processes.

    `around` are seconds of an env step for what goes on around the envs' own steps, `delay` those by which the learner
    was slower.
    """
    whole, seconds = 1 / found.env_steps_per_s, dict(found.stage_seconds)
    seconds["sample"] += seconds.pop("redraw")  # the same, between gradient steps
    own = max(0.0, seconds["step"] - around)
    seconds["hand over"] += seconds["step"] - own  # packing is on the way to handing over
    seconds["step"] = own
    always = ("step", "update")
    stages = {name: seconds[name] for name in (*OF_ACTORS, *OF_LEARNER) if seconds.get(name) or name in always}
    acting, learning = ({name: stages[name] for name in side if name in stages} for side in (OF_ACTORS, OF_LEARNER))
    learning[BETWEEN] = max(0.0, whole - sum(learning.values()) - seconds[LEARNER_WAITS])
    shorter = OF_ACTORS if sum(acting.values()) < sum(learning.values()) else OF_LEARNER
    work = _shared(seconds[WORK_OF_ACTORS] / cores, acting) | _shared(seconds[WORK_OF_LEARNER] / cores, learning)
    felt = None
    if SLOWER in found.times_as_fast:  # not if it was stopped before
        felt = felt_of_delay(found.times_as_fast[SLOWER], whole, delay)
    said = {
        **dict.fromkeys(OF_ACTORS, _waiting("the learner waits", "its", seconds[LEARNER_WAITS] / whole)),
        **dict.fromkeys(
            OF_LEARNER,
            (
                *_waiting("actors wait", "their", seconds[ACTORS_WAIT] / whole),
                *([] if felt is None else [f"of what the learner takes longer, the run feels {felt:.0%}"]),
            ),
        ),
    }
    return {
        name: Stage(
            each,
            name in shorter,
            times_as_fast_without(name, "processes", {**acting, **learning}, whole, work),
            found.times_as_fast.get(name),
            said[name],
        )
        for name, each in stages.items()
    }


def felt_of_delay(measured: Ratio, whole: float, delay: float) -> float:
    """Which part of a delay the run feels, 0 … 1: `delay` and `whole` are seconds of an env step."""
    return min(1.0, max(0.0, whole * (1 / measured.value - 1) / max(delay, 1e-12)))


def _shared(work: float, stages: Mapping[str, float]) -> dict[str, float]:
    """Work of a side, shared out by how long each of its stages takes."""
    total = max(sum(stages.values()), 1e-12)
    return {name: work * each / total for name, each in stages.items()}


def _waiting(who: str, whose: str, share: float) -> tuple[str, ...]:
    return (f"{who} {share:.0%} of {whose} time",) if share >= WORTH_SAYING else ()
