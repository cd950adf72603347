"""The document's advice for `sfc`: train on fewer actions, smaller batches, a rarer target. What each costs and learns.

"Train every 4 to 10 actions" is tried at equal env steps, where fewer gradient steps are less work, and at equal
gradient steps, where the rarer ones see more of the env. Four envs at the workload's settings, the same seeds for all.
What the document's checklist asks for is checked of every run: the reward rises, nothing is NaN, the time falls, the
network is the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hotloop.bench.measure import Result, Row, machine
from hotloop.plain import Figures, number
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

ENV_STEPS, GRADIENT_STEPS, SEEDS = 40_000, 8_000, 2
EVERY = (1, 4, 5, 10, 50, 100)
SAME, LESS, OTHER = "the original", "less work", "same gradient steps, more env steps"
RARER_TARGET = "same work, another algorithm"
TARGET_CALLS = 10
"""Gradient steps between two copies of the target net, whatever the env steps between them."""
PICTURE = Path("bench-sfc-variants.png")


class Variant(NamedTuple):
    """What is changed, and what that makes of the work."""

    group: str
    name: str
    kind: str
    changes: Mapping[str, object]
    env_steps: int


class Curve(NamedTuple):
    """Env steps and mean training returns of a variant."""

    variant: Variant
    env_steps: list[float]
    returns: list[float]


def variants() -> list[Variant]:
    """All of them; the first is what the others are compared with."""
    found = []
    for every in EVERY:
        kind = SAME if every == 1 else LESS
        found.append(Variant("equal env steps", f"every {every}", kind, _trained_every(every), ENV_STEPS))
    for every in EVERY:
        steps, kind = GRADIENT_STEPS * every, SAME if every == 1 else OTHER
        found.append(Variant("equal gradient steps", f"every {every}", kind, _trained_every(every), steps))
    found.append(Variant("equal env steps", "batch 16", LESS, {"replay.batch_size": 16}, ENV_STEPS))
    found.append(Variant("equal env steps", "target every 50 calls", RARER_TARGET, {"target.every": 50}, ENV_STEPS))
    return found


def _trained_every(actions: int) -> dict[str, object]:
    return {"updates_per_step": 1 / actions, "target.every": TARGET_CALLS * actions}


def run(reporter: Reporter) -> Result:
    """Train them all, one after the other."""
    result = Result("sfc_variants", {**machine(), "envs": 4, "seeds": SEEDS, "picture": str(PICTURE.resolve())})
    curves = []
    for place, variant in enumerate(variants(), 1):
        row, curve = trained(variant, SEEDS, reporter)
        result.rows.append(row)
        curves.append(curve)
        reporter.show(place, len(variants()), {"variants": f"{variant.group}, {variant.name}"})
    _draw(curves, PICTURE)
    return result


def trained(variant: Variant, seeds: int, reporter: Reporter) -> tuple[Row, Curve]:
    """One variant: its mean return over the last quarter of training, and what the document's checklist asks for."""
    import hotloop
    from hotloop.listeners import Log

    lines: list[tuple[int, Figures]] = []

    def heard(log: Log) -> None:
        lines.append((log.env_steps, log.figures))

    with reporter.busy(f"{variant.group}, {variant.name}"):
        run = hotloop.train(spec_of(variant, seeds), out=None, on_log=heard)
    known = [(at, number(line, "ep_return_mean")) for at, line in lines if line.get("ep_return_mean") is not None]
    returns = [value for _, value in known]
    quarter = max(1, len(returns) // 4)
    first, last = (sum(part) / quarter for part in (returns[:quarter], returns[-quarter:]))
    row = Row(f"{variant.group}/{variant.name}", last, "return")
    row.columns = {
        "what it is": variant.kind,
        "env steps": variant.env_steps,
        "gradient steps": int(number(run.result, "updates")),
        "seconds": round(number(run.result, "seconds") - number(run.result, "compile_seconds"), 1),
        "return rises": "yes" if last > first else "no",
        "NaN": int(number(run.result, "skipped")),
        "weights": 177_294 if _weights(run.agent) == 177_294 else "other",
    }
    return row, Curve(variant, [float(at) for at, _ in known], returns)


def spec_of(variant: Variant, seeds: int) -> Spec:
    """The workload's settings on four envs, with what the variant changes."""
    return load_spec(
        "sfc_original",
        {
            "env.num_envs": 4,
            "env.options": {"full_steps": False},
            "exploration.epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": variant.env_steps // 2},
            "target.every": TARGET_CALLS,
            "seeds": seeds,
            "evaluation.every": 0,
            "stop.steps": variant.env_steps,
            "log.every": max(400, variant.env_steps // 25),
            **variant.changes,
        },
    )


def _weights(agent: object) -> int:
    engine = getattr(agent, "engine", None)
    return int(getattr(engine, "num_weights", 0))


def _draw(curves: list[Curve], path: Path) -> None:
    """Training returns over env steps, and over what was learned."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    groups = list(dict.fromkeys(curve.variant.group for curve in curves))
    for place, group in enumerate(groups):
        axes = figure.add_subplot(1, len(groups), place + 1)
        for curve in curves:
            if curve.variant.group == group:
                share = [step / curve.variant.env_steps for step in curve.env_steps]
                axes.plot(share, curve.returns, label=curve.variant.name, linewidth=1.5)
        axes.set_title(f"{group}: training return", loc="left", fontsize=11)
        axes.set_xlabel("share of the training")
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.savefig(path, dpi=120)
