"""One fused iteration against the sum of its stages, as `hotloop profile` times them."""

import statistics

from hotloop.bench.measure import COST, Result, Row, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec.reading import load_spec

ROUNDS = 25


def run(reporter: Reporter) -> Result:
    """Net 120-84, batch 128, 10 envs, one update per ten env steps."""
    spec = load_spec(
        {},
        {
            "env.num_envs": 10,
            "updates_per_step": 0.1,
            "network.torso.hidden": [120, 84],
            "replay.batch_size": 128,
            "replay.capacity": 10_000,
            "target.rule": "target",
            "optimizer.learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-4, "steps": 10_000_000},
        },
    )
    from hotloop.assembly import Assembly
    from hotloop.pipelines.fused import Fused

    pipeline = Assembly(spec).pipeline
    assert isinstance(pipeline, Fused)
    import jax
    import jax.numpy as jnp

    from hotloop.profiling.stages import measure

    warm_up = -(-2 * spec.replay.capacity // spec.block_plan.env_steps)
    state = jax.jit(pipeline.advance)(jax.jit(pipeline.init)(jnp.uint32(0)), warm_up)
    timed = measure(pipeline, state, reporter, ROUNDS)
    settings = {"net": "120-84", "batch": 128, "envs": 10, "updates_per_step": 0.1}
    result = Result("iteration", {**machine(), **settings})
    stages = {name: timed.stages[name] for name in ("select", "env step", "insert", "sample")}
    stages["update"] = timed.update
    total = [sum(times) for times in zip(*stages.values(), strict=True)]
    for name, seconds in {**stages, "sum of stages": total}.items():
        result.rows.append(Row(name, statistics.median(seconds) * 1e6, "us/iteration"))
    row = Row("fused", statistics.median(timed.fused) * 1e6, "us/iteration", against="sum of stages", means=COST)
    row.ratio, row.spread = paired_ratio(timed.fused, total)
    result.rows.append(row)
    return result
