"""The document's own table: its original and its optimised pipeline beside what it expects, then hotloop at the same.

Both pipelines live in processes of their own and take turns. hotloop trains afterwards (pipeline `processes`), with as
many gradient steps for each experience as the pipeline that it stands beside came to take.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hotloop.bench.mario_original import DISCOUNT, EPSILON, LEARNING_RATE, OPTIMIZED, TAU, Sizes, Switches
from hotloop.bench.mario_original_pipeline import Pipeline, Ran
from hotloop.bench.mario_original_replay import ALPHA, BETA
from hotloop.bench.measure import COST, FASTER, Row
from hotloop.blocks import LONGEST_BLOCK
from hotloop.progress import Reporter
from hotloop.trainer_process import Figures, Orders, Trainer

SIZES = Sizes()
SLICES, SLICE_SECONDS, FEWEST_BATCHES, HOTLOOP_SECONDS = 2, 45.0, 3, 45.0
LONGEST_PARCEL = 16
"""Steps of an actor's envs: what actors are ahead is learned from before a turn begins, and a gradient step may take
most of a minute."""
ENVS, MOST_ENVS = 8, 32
ORIGINAL, OPTIMISED = "mario_original", "mario_optimized"
CONFIGURATIONS: dict[str, Switches] = {ORIGINAL: Switches(), OPTIMISED: OPTIMIZED}


@dataclass(frozen=True)
class Metric:
    """A line of the document's table."""

    unit: str
    expected: Mapping[str, str]
    means: str


METRICS: dict[str, Metric] = {
    "experience rate": Metric("exp/s", {ORIGINAL: "~1000 exp/s", OPTIMISED: "~1800 exp/s (+80 %)"}, FASTER),
    "training throughput": Metric("batch/s", {ORIGINAL: "~4 batch/s", OPTIMISED: "~10 batch/s (+150 %)"}, FASTER),
    "utilisation": Metric("%", {ORIGINAL: "~60 %", OPTIMISED: "~85 % (+42 %)"}, "times that of"),
    "lock wait": Metric("ms/experience", {ORIGINAL: "~50 ms", OPTIMISED: "~5 ms (-90 %)"}, COST),
    "epoch time": Metric("s", {ORIGINAL: "~30 s", OPTIMISED: "~12 s (-60 %)"}, COST),
}


@dataclass(frozen=True)
class Measured:
    """A line each of the document's table, by the same names; and what each is worth here."""

    values: Mapping[str, float]
    notes: Mapping[str, str]
    experiences_per_batch: float
    experiences_per_epoch: float


def table_rows(reporter: Reporter) -> list[Row]:
    """Five rows for each configuration in the document's manner, and five for hotloop beside it."""
    measured = {name: pipeline_measured(ran, CONFIGURATIONS[name]) for name, ran in _ran(reporter).items()}
    beside: dict[str, Measured] = {}
    for name, theirs in measured.items():
        with reporter.busy(f"hotloop at the settings of {name}"):
            beside[name] = _hotloop(CONFIGURATIONS[name], theirs)
    rows = []
    for line, metric in METRICS.items():
        for name, theirs in measured.items():
            row = Row(f"{line}/{name}", theirs.values[line], metric.unit, means=metric.means, note=theirs.notes[line])
            row.columns = {"document says": metric.expected[name]}
            if name != ORIGINAL:
                _compare(row, f"{line}/{ORIGINAL}", measured[ORIGINAL].values[line])
            ours = Row(f"{line}/hotloop as {name}", beside[name].values[line], metric.unit, means=metric.means)
            ours.note = beside[name].notes[line]
            _compare(ours, row.case, row.value)
            rows += [row, ours]
    return rows


def settings() -> dict[str, object]:
    """Without which the rows mean nothing."""
    return {
        "table": f"{SLICES} x {SLICE_SECONDS:g} s, and at least {FEWEST_BATCHES} batches, of each pipeline in turns "
        f"after its first optimiser step, {HOTLOOP_SECONDS:g} s of hotloop; ratios are of whole runs, without a spread",
        "experiences": f"stacks {SIZES.shape} uint8, {SIZES.experience_bytes:,} bytes each; {SIZES.gflop:.2g} GFLOP "
        "for each sample of a batch",
    }


def pipeline_measured(ran: Ran, switches: Switches) -> Measured:
    """The lines of the table, from what was counted."""
    sent, batches, episodes = max(1, ran.handed + ran.dropped), max(1, ran.batches), max(1, ran.episodes)
    per_batch = switches.batch * SIZES.gflop
    speed = per_batch * ran.batches / max(ran.learning_seconds, 1e-9)
    epoch = switches.episodes * ran.seconds / episodes
    return Measured(
        {
            "experience rate": ran.taken / ran.seconds,
            "training throughput": ran.batches / ran.seconds,
            "utilisation": 100 * ran.learning_seconds / ran.seconds,
            "lock wait": ran.handing_seconds / sent * 1e3,
            "epoch time": epoch,
        },
        {
            "experience rate": f"{ran.taken:,} taken, {ran.dropped:,} dropped by full queues; the emulator is the "
            "same for all",
            "training throughput": f"bound by arithmetic: {per_batch:.3g} GFLOP a batch at {speed:.3g} GFLOP/s",
            "utilisation": "share of the learner's time that is gradient steps; here they are the CPU's, which "
            "collectors want too",
            "lock wait": f"of a collector's time, {ran.lock_seconds / sent * 1e3:.2g} ms of it for the lock; pickling "
            "goes on in a thread beside it",
            "epoch time": f"{switches.episodes} episodes; {ran.episodes:,} ended in {ran.seconds:.0f} s, "
            f"{ran.syncs} hand-overs of weights",
        },
        ran.taken / batches,
        ran.taken / episodes * switches.episodes,
    )


def hotloop_spec(switches: Switches, experiences_per_batch: float) -> dict[str, object]:
    """What `mario_128` is changed to; batches that make one step are parts of a larger one.

    A pipeline that learns very rarely takes more envs here: a gradient step has at most so many vector steps. More than
    a collector of ours can open in time they are not: then hotloop learns more often, and the rows' notes say so. It
    computes in float32: in bfloat16 XLA takes over a minute for one of these gradient steps on a CPU.
    """
    wanted = experiences_per_batch * switches.accumulates
    envs = min(MOST_ENVS, ENVS * max(1, math.ceil(wanted / (ENVS * LONGEST_BLOCK))))
    steps = envs * min(LONGEST_BLOCK, max(1, round(wanted / envs)))
    batch = switches.batch * switches.accumulates
    return {
        "pipeline": "processes",
        "actors.count": switches.collectors,
        "actors.steps_per_parcel": min(LONGEST_PARCEL, steps // envs),
        "updates_per_step": 1 / steps,
        "discount": DISCOUNT,
        "env.num_envs": envs,
        "env.vectorization": "sync",
        "env.options": {
            "size": SIZES.picture,
            "skip": SIZES.skip,
            "stack": SIZES.stack,
            "actions": "complex",
            "patience": SIZES.idle_steps,
            "noop_max": SIZES.noop_max,
        },
        "network.torso.normalization": _normalization(switches),
        "network.init": "he" if switches.normalised else "default",
        "target.every": steps,
        "target.tau": TAU,
        "optimizer.learning_rate": LEARNING_RATE,
        "optimizer.clip": None,
        "optimizer.accumulate": switches.accumulates,
        "exploration.epsilon": EPSILON,
        "replay.capacity": switches.buffer,
        "replay.start": max(SIZES.start, batch),
        "replay.batch_size": batch,
        "replay.stacked_frames": SIZES.stack,
        "replay.sampling": {"kind": "prioritized", "alpha": ALPHA, "beta": BETA},
        "evaluation.every": 0,
    }


def hotloop_measured(figures: Figures, switches: Switches, theirs: Measured) -> Measured:
    """The same lines of a training with hotloop."""
    rate = figures["env_steps_per_s"]
    batches = rate * figures["updates"] / figures["env_steps"] * switches.accumulates
    learning = sum(figures["learner"].get(stage, 0.0) for stage in ("transfer", "update"))
    per_batch = switches.batch * SIZES.gflop
    speed = per_batch * batches / max(learning, 1e-9)
    per_experience = figures["env_steps"] / max(1, figures["updates"]) / switches.accumulates
    waited = figures["actors"].get("wait", 0.0)
    return Measured(
        {
            "experience rate": rate,
            "training throughput": batches,
            "utilisation": 100 * learning,
            "lock wait": figures["actors"].get("hand over", 0.0) * switches.collectors / rate * 1e3,
            "epoch time": theirs.experiences_per_epoch / rate,
        },
        {
            "experience rate": f"{figures['cores']:.2g} cores in use; none is dropped, actors wait for the learner "
            f"{waited:.0%} of their time, as the ratio is kept",
            "training throughput": f"{per_experience:.4g} experiences a batch, beside "
            f"{theirs.experiences_per_batch:.4g}; {per_batch:.3g} GFLOP a batch at {speed:.3g} GFLOP/s",
            "utilisation": "; ".join(["stages transfer and update of the learner", *_differs(switches)]),
            "lock wait": "of an actor's time, through shared memory; there is no lock",
            "epoch time": f"as many experiences as an epoch had there: {theirs.experiences_per_epoch:,.0f}",
        },
        per_experience,
        theirs.experiences_per_epoch,
    )


def _ran(reporter: Reporter) -> dict[str, Ran]:
    with reporter.busy("starting both pipelines: collectors, first batches, compiling"):
        pipelines = {name: Pipeline(SIZES, switches) for name, switches in CONFIGURATIONS.items()}
    ran = {name: Ran() for name in pipelines}
    try:
        for pipeline in pipelines.values():
            pipeline.wait_until_ready()
        for pipeline in pipelines.values():
            pipeline.warm_up()
        for number in range(SLICES):
            for name in list(pipelines) if number % 2 == 0 else reversed(pipelines):
                ran[name] = ran[name].and_then(pipelines[name].run(SLICE_SECONDS, FEWEST_BATCHES))
            reporter.show(number + 1, SLICES, {"rounds of": " | ".join(pipelines)})
    finally:
        for pipeline in pipelines.values():
            pipeline.close()
    return ran


def _hotloop(switches: Switches, theirs: Measured) -> Measured:
    trainer = Trainer(Orders(hotloop_spec(switches, theirs.experiences_per_batch), "mario_128"))
    try:
        return hotloop_measured(trainer.train(HOTLOOP_SECONDS), switches, theirs)
    finally:
        trainer.close()


def _normalization(switches: Switches) -> str:
    """Parts of a batch would each be normalised by themselves, which hotloop refuses: by layer then."""
    return "none" if not switches.normalised else "layer" if switches.accumulates > 1 else "batch"


def _differs(switches: Switches) -> Iterator[str]:
    """In what hotloop does not do as that pipeline does."""
    if switches.bfloat16:
        yield "float32, as bfloat16 is slow on a CPU"
    if _normalization(switches) == "layer":
        yield "LayerNorm, as parts of a batch have no BatchNorm here"


def _compare(row: Row, against: str, value: float) -> None:
    row.against, row.ratio = against, row.value / value if value else None
