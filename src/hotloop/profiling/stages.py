"""The stages of one block, each timed inside a loop of its own on the run's real shapes and its real state.

A stage called from Python would measure the call. Here each runs many times inside one compiled loop, on inputs
that differ from turn to turn, so that nothing can be computed once for all.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotloop.envs.device import Parted, step_all
from hotloop.pipelines.agents import Agents
from hotloop.pipelines.fused import Fused, FusedState
from hotloop.progress import Reporter

POOL = 64
"""Inputs a stage takes in turn: enough not to find them all in the nearest cache."""
ROUNDS = 9
SECONDS_PER_CALL = 0.05
MOST_TURNS = 1_000_000
UPDATE, FUSED = "update", "fused"


class Loop(NamedTuple):
    """A stage: `call(n)` runs it n times; one block holds `per_block` of it."""

    call: Callable[[int], None]
    per_block: int


class Stages(NamedTuple):
    """Seconds per block of each stage, of parts of the env's, of the whole update and block, an entry per round."""

    stages: dict[str, list[float]]
    parts: dict[str, list[float]]
    update: list[float]
    fused: list[float]


def measure(pipeline: Fused, state: FusedState, reporter: Reporter, rounds: int = ROUNDS) -> Stages:
    """Time all stages, interleaved; backward is what a gradient takes beyond the forward pass."""
    loops = stage_loops(pipeline, state)
    turns = {}
    for number, (name, loop) in enumerate(loops.items()):
        reporter.show(number, len(loops) + rounds, {"compiling stage": name})
        turns[name] = _turns(loop)
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        for name in list(loops) if number % 2 == 0 else list(reversed(loops)):
            started = time.perf_counter()
            loops[name].call(turns[name])
            seconds[name].append((time.perf_counter() - started) / turns[name] * loops[name].per_block)
        reporter.show(len(loops) + number + 1, len(loops) + rounds, {"rounds of": "all stages"})
    return _in_order(seconds)


def _in_order(seconds: dict[str, list[float]]) -> Stages:
    """Tell stages, parts and the whole apart."""
    fused, update = seconds.pop(FUSED), seconds.pop(UPDATE)
    gradient, forward = seconds.pop("gradient"), seconds["forward"]
    parts = {name: seconds.pop(name) for name in list(seconds) if name.startswith("env step: ")}
    optimiser, priorities = seconds.pop("optimiser"), seconds.pop("priorities", None)
    seconds.setdefault("target", [0.0] * len(fused))  # a rule without a target net
    seconds["backward"] = [max(both - one, 0.0) for both, one in zip(gradient, forward, strict=True)]
    seconds["optimiser"] = optimiser
    if priorities is not None:
        seconds["priorities"] = priorities
    return Stages(seconds, parts, update, fused)


class Joint(NamedTuple):
    """What a block is to its learners: of one it is all, of several each stage but the env's steps is done for each."""

    learners: int
    one: FusedState  # with the parts of the first learner
    explore: jax.Array  # ε of each row that a learner acts on
    pool: Any  # states, observations of the first learner, masks (or None) and actions of POOL vector steps
    items: Any  # what a block brings all learners
    insert: Callable[[Any, Any], Any]
    block: Callable[[FusedState], FusedState]


def _alone(pipeline: Fused, state: FusedState, key: jax.Array) -> Joint:
    explore_N = pipeline.engine.exploration(jnp.broadcast_to(state.env_steps, (pipeline.block_plan.num_envs,)))
    pool = jax.jit(lambda s: _pool(pipeline, s, key))(state)
    items = jax.jit(lambda s: pipeline.collect(s, key)[1])(state)
    return Joint(1, state, explore_N, pool, items, pipeline.replay.insert, pipeline.run_block)


def _of_agents(pipeline: Agents, state: FusedState, key: jax.Array) -> Joint:
    """On one device, for all learners, where a run may share them out."""
    part, num_envs = pipeline.all_of(pipeline.num_learners), pipeline.block_plan.num_envs
    explore_N = pipeline.engine.exploration(jnp.broadcast_to(state.env_steps, (num_envs,)))

    def steps(state: FusedState) -> Any:
        def one(carry: Any, i: jax.Array) -> Any:
            key_i, actor = jax.random.fold_in(key, i), carry[0]
            (after, *rest), items = pipeline.joint_step(carry, state.learner.params, state.env_steps, key_i, part)
            seen = jax.tree.map(lambda leaf: leaf[0], actor.obs)
            return (after, *rest), (actor.env, seen, None, pipeline.of_envs(items.a_tm1, part))

        return jax.lax.scan(one, (state.actor, state.totals, jnp.int32(0)), jnp.arange(POOL))[1]

    first = pipeline.first_learner(state)
    items = jax.jit(lambda s: pipeline.collect_jointly(s, key, part)[1])(state)
    return Joint(
        pipeline.num_learners,
        first,
        jnp.tile(explore_N, pipeline.per_learner),
        jax.jit(steps)(state),
        items,
        pipeline.insert_all,
        lambda state: pipeline.run_joint_block(state, part),
    )


def stage_loops(pipeline: Fused, whole: FusedState) -> dict[str, Loop]:
    """One loop per stage, in the order of a block; `gradient` is forward and backward, `update` all of learning."""
    engine, env, block, spec = pipeline.engine, pipeline.env, pipeline.block_plan, pipeline.spec
    key = jax.random.key(spec.seed)
    joint = _of_agents(pipeline, whole, key) if isinstance(pipeline, Agents) else _alone(pipeline, whole, key)
    state, explore_N, pool, items = joint.one, joint.explore, joint.pool, joint.items
    portions, updates = joint.learners * pipeline.portions, joint.learners * block.updates
    passes = portions * spec.replay.updates_per_batch
    keys = jax.random.split(key, POOL)
    drawn_by = jax.jit(lambda s: jax.lax.map(lambda k: pipeline.replay.sample(s.replay, k, s.env_steps), keys))
    draws = drawn_by(state)
    batches = draws.batches
    learner, drawn = state.learner, None
    if engine.is_random:
        drawn = jax.tree.map(lambda leaf: leaf[0], engine.draws(key, 1))
    outputs = jax.jit(jax.vmap(lambda batch: engine.target_outputs_of_batches(learner.target, batch, drawn)))(batches)
    first = jax.tree.map(lambda leaf: leaf[0, 0], (batches, outputs))
    in_one = jax.tree.map(lambda leaf: leaf[0], outputs)
    slope = jax.jit(lambda: engine.gradient(learner.params, first[0], first[1], None, drawn)[0])()
    gradients = jnp.stack([slope, 0.5 * slope])

    def turn(i: Any, inputs: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i % leaf.shape[0], keepdims=False), inputs)

    def at(i: Any) -> jax.Array:
        return jax.random.fold_in(key, i)

    def target(i: Any, carry: Any) -> Any:
        moved = engine.move_target(learner._replace(target=carry[0]), jnp.int32(i % 2))
        return moved.target, engine.target_outputs_of_batches(moved.target, turn(i, batches), drawn)

    tree = engine.layout.unflatten(learner.params)

    def forward(i: Any, _: Any) -> Any:
        def one(_: Any, batch: Any) -> Any:
            loss, (td_B, q) = engine.loss(tree, batch[0], batch[1], None, drawn)
            return (loss, td_B, q), None

        nothing = (jnp.float32(0), jnp.zeros(batches.r_t.shape[2:]), jnp.float32(0))
        return jax.lax.scan(one, nothing, turn(i, (batches, outputs)))[0]

    def gradient(i: Any, carry: Any) -> Any:
        def one(_: Any, batch: Any) -> Any:
            return engine.gradient(learner.params, batch[0], batch[1], None, drawn), None

        return jax.lax.scan(one, carry, turn(i, (batches, outputs)))[0]

    def optimiser(i: Any, carry: Any) -> Any:
        rate = engine.learning_rate(state.env_steps + i)  # of the turn: a constant would make a faster program
        return engine.step(carry[0], carry[1], turn(i, gradients), jnp.float32(0), rate)[:2]

    def priorities(i: Any, tree: Any) -> Any:
        drawn = turn(i, draws)
        return pipeline.replay.learned(tree, drawn, drawn.batches.r_t, jnp.bool_(True))

    env_states, obs, legal, actions = pool
    start = jax.tree.map(lambda leaf: leaf[0], env_states)
    stepped = jax.eval_shape(lambda: step_all(env, start, actions[0], key, pipeline.masked))
    bodies: dict[str, tuple[Any, Any, int]] = {
        "select": (
            lambda i, _: engine.act(learner.params, turn(i, obs), explore_N, at(i), turn(i, legal)),
            jnp.zeros(explore_N.shape, jnp.int32),
            joint.learners * block.vector_steps,
        ),
        "env step": (
            lambda i, c: step_all(env, c[0], turn(i, actions), at(i), pipeline.masked),
            (start, stepped[1]),
            block.vector_steps,
        ),
        **{
            f"env step: {name}": (
                lambda i, _, part=part: jax.vmap(part)(turn(i, env_states)),
                jax.eval_shape(jax.vmap(part), start),
                block.vector_steps,
            )
            for name, part in (env.parts() if isinstance(env, Parted) else {}).items()
        },
        "insert": (lambda i, storage: joint.insert(storage, items), whole.replay, 1),
        "sample": (
            lambda i, _: pipeline.replay.sample(state.replay, at(i), state.env_steps),
            jax.tree.map(lambda leaf: leaf[0], draws),
            portions,
        ),
        **({"target": (target, (learner.target, in_one), portions)} if engine.has_target else {}),
        "forward": (forward, (jnp.float32(0), jnp.zeros(batches.r_t.shape[2:]), jnp.float32(0)), passes),
        "gradient": (
            gradient,
            jax.eval_shape(lambda: engine.gradient(learner.params, first[0], first[1], None, drawn)),
            passes,
        ),
        "optimiser": (optimiser, (learner.params, learner.optimizer), updates),
        **({"priorities": (priorities, state.replay.priorities, portions)} if pipeline.replay.has_priorities else {}),
        UPDATE: (
            lambda i, s: engine.update(s, turn(i, batches), engine.learning_rate(state.env_steps + i), None, key)[0],
            learner,
            portions,
        ),
        FUSED: (lambda i, s: joint.block(s), whole, 1),
    }
    return {name: Loop(_loop(body, carry), per_block) for name, (body, carry, per_block) in bodies.items()}


def _pool(pipeline: Fused, state: FusedState, key: jax.Array) -> Any:
    """States, observations, masks (or None) and actions of POOL vector steps that follow."""
    num_envs = pipeline.block_plan.num_envs
    explore_N = pipeline.engine.exploration(jnp.broadcast_to(state.env_steps, (num_envs,)))

    def one(carry: Any, i: jax.Array) -> Any:
        env_state, obs_N, legal_N = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, i))
        action_N = pipeline.engine.act(state.learner.params, obs_N, explore_N, act_key, legal_N)
        next_state, t = step_all(pipeline.env, env_state, action_N, env_key, pipeline.masked)
        return (next_state, t.obs, t.legal), (env_state, obs_N, legal_N, action_N)

    return jax.lax.scan(one, (state.actor.env, state.actor.obs, state.actor.legal), jnp.arange(POOL))[1]


def _loop(body: Callable[[Any, Any], Any], start: Any) -> Callable[[int], None]:
    compiled = jax.jit(lambda n, carry: jax.lax.fori_loop(0, n, body, carry), donate_argnums=1)
    # All of it put there on purpose: an array that only happens to be somewhere comes back as one that was put, and
    # the second call would compile again.
    carry = jax.device_put(
        jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.copy(),
            start,
        ),
        jax.devices()[0],
    )

    def call(times: int) -> None:
        nonlocal carry
        carry = jax.block_until_ready(compiled(times, carry))

    return call


def _turns(loop: Loop) -> int:
    """Compile, and find out how many turns take about as long as wanted."""
    turns = 1
    loop.call(turns)
    while True:
        started = time.perf_counter()
        loop.call(turns)
        seconds = time.perf_counter() - started
        if seconds >= SECONDS_PER_CALL / 2 or turns == MOST_TURNS:
            return turns
        turns = min(MOST_TURNS, max(2 * turns, int(turns * SECONDS_PER_CALL / max(seconds, 1e-6))))


def median(values: list[float]) -> float:
    """The middle one."""
    return statistics.median(values)
