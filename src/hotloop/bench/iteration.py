"""One fused iteration against the sum of its stages, each timed inside a loop of its own.

A stage called from Python would measure the call; here each runs thousands of times inside one compiled loop
with its output fed back, so that nothing can be left out or computed once.
"""

import statistics
from collections.abc import Callable
from typing import Any

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec_reading import load_spec

REPEATS = 1_000
ROUNDS = 25
POOL = 64


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
    cases = stage_loops(spec)
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    stages = [name for name in cases if name != "fused"]
    total = [sum(times) for times in zip(*(seconds[name] for name in stages), strict=True)]
    settings = {"net": "120-84", "batch": 128, "envs": 10, "updates_per_step": 0.1}
    result = Result("iteration", {**machine(), **settings})
    for name in stages:
        result.rows.append(Row(name, statistics.median(seconds[name]) / REPEATS * 1e6, "us/iteration"))
    result.rows.append(Row("sum of stages", statistics.median(total) / REPEATS * 1e6, "us/iteration"))
    row = Row("fused", statistics.median(seconds["fused"]) / REPEATS * 1e6, "us/iteration", against="sum of stages")
    row.ratio, row.spread = paired_ratio(seconds["fused"], total)
    row.means = COST
    result.rows.append(row)
    return result


def stage_loops(spec: Spec) -> dict[str, Callable[[], None]]:
    """One call each for `act`, `env step`, `insert`, `sample`, `update`, and the whole `fused` block."""
    from hotloop.engines.jax import setup

    setup.start(spec)
    import jax
    import jax.numpy as jnp

    from hotloop.assembly import Assembly
    from hotloop.envs.device import step_all
    from hotloop.replay import ring

    pipeline = Assembly(spec).pipeline
    engine, env, num_envs = pipeline.engine, pipeline.env, spec.env.num_envs
    warm_up = -(-2 * spec.replay.capacity // spec.block.env_steps)
    state = jax.jit(pipeline.advance)(jax.jit(pipeline.init)(jnp.uint32(0)), warm_up)
    shape = (spec.block.updates, spec.replay.batch_size)
    key = jax.random.key(1)
    batches = jax.jit(lambda r: ring.sample(r, key, shape))(state.ring)
    pool = jax.jit(lambda r: ring.sample(r, key, (POOL, *shape)))(state.ring)
    explore_N = engine.exploration(jnp.full(num_envs, 50_000, jnp.int32))
    action_N = jnp.zeros(num_envs, jnp.int32)
    items = jax.jit(lambda s: pipeline.collect(s, key)[1])(state)

    def at(i: Any) -> Any:
        return jax.random.fold_in(key, i)

    def act(i: Any, obs_N: Any) -> Any:
        chosen_N = engine.act(state.learner.params, obs_N, explore_N, at(i))
        return obs_N + 1e-6 * chosen_N[:, None]  # fed back, or XLA would act once for all

    def env_step(i: Any, carry: Any) -> Any:
        env_state, transition = step_all(env, carry[0], action_N, at(i))
        return env_state, transition

    def update(i: Any, learner: Any) -> Any:
        # Other batches each time: of the same ones, XLA would ask the target net only once.
        batches = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i % POOL, keepdims=False), pool)
        return engine.update(learner, batches, engine.learning_rate(i))[0]

    first = jax.jit(lambda s: step_all(env, s.actor.env, action_N, key))(state)
    bodies: dict[str, tuple[Any, Any]] = {
        "act": (act, state.actor.obs),
        "env step": (env_step, first),
        "insert": (lambda i, r: ring.insert(r, items), state.ring),
        "sample": (lambda i, _: ring.sample(state.ring, at(i), shape), batches),
        "update": (update, state.learner),
        "fused": (lambda i, s: pipeline.block(s), state),
    }
    return {name: _loop(body, start) for name, (body, start) in bodies.items()}


def _loop(body: Callable[[Any, Any], Any], start: Any) -> Callable[[], None]:
    import jax
    import jax.numpy as jnp

    compiled = jax.jit(lambda n, carry: jax.lax.fori_loop(0, n, body, carry), donate_argnums=1)
    carry = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), start)

    def call() -> None:
        nonlocal carry
        carry = jax.block_until_ready(compiled(REPEATS, carry))

    return call
