"""Pipeline `processes` against `sync` and `concurrent` at equal work: env steps per second, and what holds each back.

Every training is a process of its own that takes turns with the others of its case, past its learning start, with
lines of metrics written; a pipeline gets the threads that a run of it gets, unless the case names them. What actors
made ahead while they rested is used up before a turn counts. The ratio of samples drawn to transitions stored is
checked to be the same. `sync` has ways of its own to step envs side by side (`env.vectorization`): they are shown
where they help.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hotloop.bench import processes_picture
from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.bench.processes_ceiling import ceiling
from hotloop.bench.processes_envs import work_of
from hotloop.plain import Json
from hotloop.progress import Reporter
from hotloop.trainer_process import Figures, Orders, Trainer

ROUNDS, SECONDS, WARM_SECONDS = 5, 2.5, 0.5
ENVS, BATCH, UPDATES_PER_STEP = 8, 64, 0.25
SLOW_SECONDS = 0.005
"""Of a step of a slow env."""
SAME_WORK = 0.02
"""Samples per insert of the trainings of a case may differ by this share: a turn ends with a block."""
MOST_AT_REST = 0.05
"""Cores that a training may use while others are measured."""
PICTURE = Path("bench-processes.png")

SYNC, CONCURRENT, PROCESSES, FUSED = "sync", "concurrent", "processes", "fused"
Spec = Mapping[str, object]
COMMON: Spec = {
    "updates_per_step": UPDATES_PER_STEP,
    "env.num_envs": ENVS,
    "replay": {"capacity": 20_000, "start": 128, "batch_size": BATCH},
    "evaluation.every": 0,
    "log.every": 1_000,
    "stop": {"steps": 10**9},
}
SMALL: Spec = {**COMMON, "network.torso": {"hidden": [64, 64]}}
LARGE: Spec = {**COMMON, "network.torso": {"hidden": [256, 256]}}
PONG: Spec = {
    "replay.capacity": 20_000,
    "replay.start": 512,
    "evaluation.every": 0,
    "log.every": 1_000,
    "stop": {"steps": 10**9},
}
TREASURE: Spec = {"replay.start": 512, "evaluation.every": 0, "log.every": 1_000, "stop": {"steps": 10**9}}
ONE_THREAD = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "PJRT_NPROC": "1"}


class Target(NamedTuple):
    """What is asked for: at least so many times as fast, as sync or as the faster of sync and concurrent."""

    at_least: float
    is_of_faster: bool = False


class Case(NamedTuple):
    """Trainings that do the same work."""

    name: str
    about: str
    trainings: Mapping[str, Orders]
    target: Target | None
    aimed: str = PROCESSES
    """The training that the target is for."""


def run(reporter: Reporter) -> Result:
    """The ceiling, then case by case, then the picture."""
    top = ceiling(reporter)
    with reporter.busy("finding the env whose steps cost what updates cost"):
        update_seconds = _update_seconds()
    cases = _cases(update_seconds)
    rows, at_rest = [top], 0.0
    for case in cases:
        found = _measure(case, reporter)
        refuse_other_work(case.name, found)
        at_rest = max(at_rest, refuse_restless(case.name, found))
        rows += rows_of(case, found)
    processes_picture.draw(rows, {f"{case.name}/{case.aimed}": case.target for case in cases}, PICTURE)
    settings = {
        **{case.name: case.about for case in cases},
        "at equal work": f"samples per insert differ by less than {SAME_WORK:.0%} (checked)",
        "trainings at rest": f"use at most {at_rest:.3f} cores (checked)",
        "us/step here, of actors": "microseconds of a processor for an env step: the learner's process, and others",
        "picture": str(PICTURE.resolve()),
    }
    return Result("processes", {**machine(), **settings}, rows)


def rows_of(case: Case, found: Mapping[str, list[Figures]]) -> list[Row]:
    """A row for each training, against sync."""
    speed = {name: [turn["env_steps_per_s"] for turn in turns] for name, turns in found.items()}
    here = [name for name in (SYNC, CONCURRENT) if name in speed]
    faster = max(here, key=lambda name: statistics.median(speed[name]))
    rows = []
    for name, turns in found.items():
        row = Row(f"{case.name}/{name}", statistics.median(speed[name]), "env steps/s", columns=_columns(turns))
        if name != SYNC:
            row.against = f"{case.name}/{SYNC}"
            row.ratio, row.spread = paired_ratio(speed[name], speed[SYNC])
        if name.startswith(PROCESSES):
            against_faster = paired_ratio(speed[name], speed[faster])
            row.note = _note(case, name, row, faster, against_faster[0])
        rows.append(row)
    return rows


def refuse_other_work(case: str, found: Mapping[str, list[Figures]]) -> None:
    """Raise if one training drew more samples for each transition than another."""
    ratios = {
        name: sum(turn["updates"] for turn in turns) / sum(turn["env_steps"] for turn in turns)
        for name, turns in found.items()
    }
    if max(ratios.values()) > (1 + SAME_WORK) * min(ratios.values()):
        said = ", ".join(f"{name} {ratio:.4f}" for name, ratio in ratios.items())
        raise ValueError(f"trainings of {case} do not do the same work: updates per env step are {said}")


def refuse_restless(case: str, found: Mapping[str, list[Figures]]) -> float:
    """Raise if a training worked while others were measured; returns the cores that the busiest used then."""
    used = {
        name: sum(turn["used_at_rest"] for turn in turns) / max(1e-9, sum(turn["rest_seconds"] for turn in turns))
        for name, turns in found.items()
    }
    busiest = max(used, key=lambda name: used[name])
    if used[busiest] > MOST_AT_REST:
        raise ValueError(f"{case}/{busiest} used {used[busiest]:.2f} cores while others were measured")
    return used[busiest]


def _cases(update_seconds: float) -> list[Case]:
    spin = {"work": work_of(update_seconds * UPDATES_PER_STEP)}
    slow, waiting = {"work": work_of(SLOW_SECONDS)}, {"waits": SLOW_SECONDS}
    two, one_each = {"actors.count": 2}, {"actors.count": ENVS}
    return [
        Case(
            "balanced",
            f"an env whose step works {update_seconds * UPDATES_PER_STEP * 1e3:.2f} ms, as much as its share of an "
            f"update ({update_seconds * 1e3:.2f} ms, net 256-256, batch {BATCH}); 1 actor",
            {name: _working(_in(LARGE, name), spin) for name in (SYNC, CONCURRENT, PROCESSES)},
            Target(1.6),
        ),
        Case(
            "slow env",
            "a step works 5 ms in Python; net 64-64; 2 actors",
            {
                SYNC: _working(_in(SMALL, SYNC), slow),
                CONCURRENT: _working(_in(SMALL, CONCURRENT), slow),
                "sync, envs async": _working({**_in(SMALL, SYNC), "env.vectorization": "async"}, slow),
                PROCESSES: _working({**_in(SMALL, PROCESSES), **two}, slow),
            },
            Target(1.8),
        ),
        Case(
            "waiting env",
            "a step waits 5 ms, as for a simulator in another program; net 64-64; 2 actors, or one for each env",
            {
                SYNC: _working(_in(SMALL, SYNC), waiting),
                CONCURRENT: _working(_in(SMALL, CONCURRENT), waiting),
                "sync, envs in threads": _working({**_in(SMALL, SYNC), "env.vectorization": "threads"}, waiting),
                PROCESSES: _working({**_in(SMALL, PROCESSES), **two}, waiting),
                f"{PROCESSES}, {ENVS} actors": _working({**_in(SMALL, PROCESSES), **one_each}, waiting),
            },
            Target(1.8),
        ),
        Case(
            "pong",
            "preset pong with a small replay; 1 actor; XLA's threads as a run has them, or one",
            {
                **{name: Orders(_in(PONG, name), "pong") for name in (SYNC, CONCURRENT, PROCESSES)},
                "sync, 1 thread": Orders(_in(PONG, SYNC), "pong", variables=ONE_THREAD),
                f"{PROCESSES}, 1 thread": Orders(_in(PONG, PROCESSES), "pong", variables=ONE_THREAD),
            },
            Target(1.2, is_of_faster=True),
        ),
        Case(
            "treasure",
            "preset treasure, five agents with networks of their own; 1 actor",
            {name: Orders(_in(TREASURE, name), "treasure") for name in (SYNC, FUSED, PROCESSES)},
            Target(1.0),
        ),
        Case(
            "cartpole",
            "CartPole-v1, a step of which takes microseconds; net 64-64; 1 actor",
            {name: Orders({**_in(SMALL, name), "env.id": "CartPole-v1"}) for name in (SYNC, CONCURRENT, PROCESSES)},
            None,
        ),
    ]


def _working(spec: Mapping[str, object], arguments: Mapping[str, float]) -> Orders:
    """A training on envs that work and wait."""
    return Orders(spec, env="hotloop.bench.processes_envs:WorkingEnv", arguments=arguments)


def _in(spec: Spec, pipeline: str) -> dict[str, object]:
    return {**spec, "pipeline": pipeline}


def _update_seconds() -> float:
    """Of one gradient step of the large net, its draw included, where nothing runs beside it."""
    trainer = Trainer(_working(_in(LARGE, SYNC), {"work": 0}))
    trainer.train(WARM_SECONDS)
    seconds = min(trainer.train(WARM_SECONDS)["update_ms"] for _ in range(4)) / 1e3  # as `work_of`: undisturbed
    trainer.close()
    return seconds


def _measure(case: Case, reporter: Reporter) -> dict[str, list[Figures]]:
    """What each training did in each of its turns."""
    with reporter.busy(f"{case.name}: starting {len(case.trainings)} trainings"):
        trainers = {name: Trainer(orders) for name, orders in case.trainings.items()}
        for trainer in trainers.values():
            trainer.train(WARM_SECONDS)
    found: dict[str, list[Figures]] = {name: [] for name in trainers}
    for number in range(ROUNDS):
        for name in list(trainers) if number % 2 == 0 else reversed(trainers):
            found[name].append(trainers[name].train(SECONDS))
        reporter.show(number + 1, ROUNDS, {f"{case.name}, rounds of": " | ".join(trainers)})
    for trainer in trainers.values():
        trainer.close()
    return found


def _note(case: Case, name: str, row: Row, faster: str, against_faster: float) -> str:
    said = f"{against_faster:.2f} times as fast as {faster}" if faster != SYNC else ""
    if case.target is None or name != case.aimed:
        return said
    of, ratio = (f"the faster, {faster}", against_faster) if case.target.is_of_faster else (SYNC, row.ratio or 0.0)
    reached = "reached" if ratio >= case.target.at_least else "NOT reached"
    return f"{said}; target {case.target.at_least:g} x {of}: {reached}".lstrip("; ")


def _columns(turns: list[Figures]) -> dict[str, Json]:
    learner, actors = (_shares([turn[who] for turn in turns]) for who in ("learner", "actors"))
    lags = [lag for turn in turns if (lag := turn["weights_lag"]) is not None]
    return {
        "us/step here": round(statistics.median(turn["here_us"] for turn in turns)),
        "of actors": round(statistics.median(turn["actors_us"] for turn in turns)),
        "cores": round(statistics.median(turn["cores"] for turn in turns), 2),
        "learner": learner,
        "actors": actors,
        "samples/insert": round(statistics.median(turn["samples_per_insert"] for turn in turns), 2),
        "weights lag": statistics.mean(lags) if lags else None,
    }


def _shares(turns: list[dict[str, float]]) -> str | None:
    """The largest shares of the time, in words."""
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    largest = sorted(medians.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in largest if share >= 0.03) or None
