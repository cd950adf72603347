"""Service function chains: one gradient step, decisions per second, and the time of 50 decisions, split into its parts.

The gradient step (batch 32) is compared with eager PyTorch and with its own matrix products. Decisions are env steps
with actions by the network, on one core. Fifty decisions are what a document called an episode: 12.5 s with a gradient
step on each, 2.5 s with a batch of 16 on every fifth, by its own estimate; here beside each other at its settings.
"""

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hotloop.bench.measure import COST, FASTER, Result, Row, interleave, machine, paired_ratio
from hotloop.bench.sfc_original import ATTENTION, BRANCH, DC_SIZE, PENDING_SIZE, ROWS, SERVICE_SIZE
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

if TYPE_CHECKING:
    from hotloop.engines.jax.engine import JaxEngine

K, ROUNDS = 32, 40
BATCH, ACTIONS = 32, 13
NUM_ENVS, DECISIONS = 64, 200
"""Of one call of the decisions' loop: envs, and vector steps."""
FIFTY = 50
SHAPES = {"dc": (DC_SIZE,), "dc_services": (ROWS, SERVICE_SIZE), "pending": (ROWS, PENDING_SIZE)}
PARTS = {
    "forward": ("target", "forward"),
    "backward": ("backward",),
    "optimiser": ("optimiser",),
    "env": ("env step",),
    "acting": ("select",),
    "replay": ("insert", "sample"),
}
"""What the document tells apart, and the stages of a block that belong to it."""
SAID = {"every action, batch 32": 12.5, "every 5th, batch 16": 2.5}


def run(reporter: Reporter) -> Result:
    """All three."""
    from hotloop.engines.jax import setup

    setup.start(load_spec("sfc"))
    result = Result("sfc", {**machine(), "net": "three branches, attention, 177,294 weights", "threads": 1})
    result.rows += [*updates(reporter), *decisions(reporter), *fifty_decisions(reporter)]
    return result


def updates(reporter: Reporter) -> list[Row]:
    """Microseconds of one gradient step."""
    torch, products, ours = "update/torch eager", "update/its matrix products", "update/hotloop"
    cases = {torch: torch_updates(), products: matrix_products(), ours: hotloop_updates()}
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    rows = [Row(name, statistics.median(times) / K * 1e6, "us/update") for name, times in seconds.items()]
    rows[2].against, rows[2].means = torch, FASTER
    rows[2].ratio, rows[2].spread = paired_ratio(seconds[torch], seconds[ours])
    cost, spread = paired_ratio(seconds[ours], seconds[products])
    return [*rows, Row(ours, rows[2].value, rows[2].unit, cost, products, spread, COST, "batch 32, everything on")]


def decisions(reporter: Reporter) -> list[Row]:
    """Decisions per second of 64 envs whose actions the network chooses, on one core."""
    ours, one = "decisions/hotloop, 64 envs", "decisions/torch eager, the network alone, one state at a time"
    alone = "decisions/torch eager, the network alone, 64 states at a time"
    cases = {one: torch_decisions(1), alone: torch_decisions(NUM_ENVS), ours: hotloop_decisions()}
    counts = {one: DECISIONS, alone: NUM_ENVS * DECISIONS, ours: NUM_ENVS * DECISIONS}
    seconds = interleave(cases, rounds=9, reporter=reporter)
    speed = {name: [counts[name] / second for second in times] for name, times in seconds.items()}
    ratio, spread = paired_ratio(speed[ours], speed[alone])
    note = "env, legal actions and network"
    return [
        Row(one, statistics.median(speed[one]), "decisions/s"),
        Row(alone, statistics.median(speed[alone]), "decisions/s"),
        Row(ours, statistics.median(speed[ours]), "decisions/s", ratio, alone, spread, note=note),
    ]


def fifty_decisions(reporter: Reporter) -> list[Row]:
    """Seconds of 50 decisions with their training, at the document's settings and at its remedy's, by parts."""
    from hotloop.assembly import Assembly
    from hotloop.pipelines.fused import Fused
    from hotloop.profiling import stages
    from hotloop.trial import begun, warm_up

    rows = []
    for name, changes in (
        ("every action, batch 32", {}),
        ("every 5th, batch 16", {"updates_per_step": 0.2, "replay.batch_size": 16, "target.every": 250}),
    ):
        with Assembly(load_spec("sfc_original", {"evaluation.every": 0, **changes})) as assembly:
            session = begun(assembly)
            warm_up(session, assembly.spec)
            assert isinstance(assembly.pipeline, Fused)
            timed = stages.measure(assembly.pipeline, session.first_state(), reporter)  # type: ignore[attr-defined]
            blocks = FIFTY / assembly.spec.block_plan.env_steps
            seconds = [blocks * each for each in timed.fused]
            row = Row(f"50 decisions/{name}", statistics.median(seconds), "s")
            row.columns = {
                **{
                    f"{part} ms": round(1e3 * blocks * sum(statistics.median(timed.stages[one]) for one in of), 3)
                    for part, of in PARTS.items()
                },
                "document's estimate": f"{SAID[name]:g} s",
            }
            rows.append(row)
    rows[1].note = "a fifth of the gradient steps on half the batch: less work, another algorithm"
    return rows


# -- one gradient step ------------------------------------------------------------------------------------


def hotloop_updates() -> Callable[[], None]:
    """K updates by one call of the engine, as the pipelines make it."""
    import jax
    import jax.numpy as jnp

    from hotloop.engines.jax.engine import LearnerState
    from hotloop.experience import Item

    engine = _engine(load_spec("sfc_original"))
    batches = Item(*jax.tree.map(jnp.asarray, _batches()))

    def update(state: LearnerState, batches: Item[jax.Array]) -> tuple[LearnerState, jax.Array, jax.Array]:
        learned: tuple[LearnerState, jax.Array, jax.Array] = engine.update(
            state, batches, engine.learning_rate(jnp.int32(1000))
        )
        return learned

    compiled = jax.jit(update, donate_argnums=0)
    state = engine.init(jax.random.key(0))

    def call() -> None:
        nonlocal state
        state, _, sums = compiled(state, batches)
        jax.block_until_ready((state, sums))

    return call


def matrix_products() -> Callable[[], None]:
    """The matrix products that K updates cannot do without, and nothing between them.

    Each layer is (rows of a batch, inputs, outputs, whether what it sees needs a gradient): forward by the online and
    the target net, and on the way back a product for its weights and, unless it sees the observation, for its inputs.
    """
    import jax
    import jax.numpy as jnp

    layers = [
        (BATCH, DC_SIZE, 128, False),
        (BATCH, 128, BRANCH, True),
        *((BATCH * ROWS, size, BRANCH, False) for size in (SERVICE_SIZE, PENDING_SIZE)),
        *((BATCH, ROWS * BRANCH, BRANCH, True) for _ in range(2)),
        (BATCH * 3, BRANCH, ATTENTION, True),
        (BATCH * 3, ATTENTION, 1, True),
        *((BATCH, wide, high, True) for wide, high in ((4 * BRANCH, 256), (256, 128), (128, 64), (64, ACTIONS))),
    ]
    rng = np.random.default_rng(0)

    def array(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 0.1, shape), jnp.float32)

    online, target = ([array(wide, high) for _, wide, high, _ in layers] for _ in range(2))
    inputs_K = [array(K, rows, wide) for rows, wide, _, _ in layers]
    slopes_K = [array(K, rows, high) for rows, _, high, _ in layers]
    Made = list[list[jax.Array]]

    def one(before: Made, given: tuple[list[jax.Array], list[jax.Array]]) -> tuple[Made, None]:
        del before
        inputs, slopes = given
        made: Made = []
        for place, (_, _, _, goes_back) in enumerate(layers):
            x, slope = inputs[place], slopes[place]
            products = [x @ online[place], x @ target[place], x.T @ slope]
            made.append([*products, slope @ online[place].T] if goes_back else products)
        return made, None

    def all_of_them(inputs_K: list[jax.Array], slopes_K: list[jax.Array]) -> Made:
        first = jax.tree.map(lambda leaf: leaf[0], (inputs_K, slopes_K))
        shapes = jax.eval_shape(lambda given: one([], given)[0], first)
        start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        made: Made = jax.lax.scan(one, start, (inputs_K, slopes_K))[0]
        return made

    compiled = jax.jit(all_of_them)

    def call() -> None:
        jax.block_until_ready(compiled(inputs_K, slopes_K))

    return call


def torch_updates() -> Callable[[], None]:
    """K updates in eager PyTorch."""
    import torch

    from hotloop.bench.sfc_original import AttentionLearner

    torch.set_num_threads(1)
    learner = AttentionLearner()
    s_tm1, a_tm1, r_t, discount_t, s_t = _batches()
    arrays = [torch.from_numpy(each) for each in (a_tm1, r_t, discount_t)]
    before, after = ({name: torch.from_numpy(part) for name, part in state.items()} for state in (s_tm1, s_t))

    def call() -> None:
        for k in range(K):
            now, then = ({name: part[k] for name, part in state.items()} for state in (before, after))
            learner.learn((now, arrays[0][k].long(), arrays[1][k], arrays[2][k], then))

    return call


# -- decisions --------------------------------------------------------------------------------------------


def hotloop_decisions() -> Callable[[], None]:
    """Vector steps of 64 envs inside one compiled loop, with exploring actions of the network among the legal ones."""
    import jax
    import jax.numpy as jnp

    from hotloop.envs.device import Obs, legal_actions, reset_all, step_all
    from hotloop.envs.sfc import Sfc

    env, engine, key = Sfc(), _engine(load_spec("sfc_original", {"env.action_mask": True})), jax.random.key(0)
    params = engine.init(key).params
    explore_N = jnp.full(NUM_ENVS, 0.05)

    def steps(start: jax.Array, carry: object) -> object:
        def step(i: jax.Array, carry: tuple[object, Obs, jax.Array, jax.Array]) -> object:
            state, obs, legal, total = carry
            act_key, env_key = jax.random.split(jax.random.fold_in(key, i))
            action = engine.act(params, obs, explore_N, act_key, legal)
            state, t = step_all(env, state, action, env_key, masked=True)
            return state, t.obs, t.legal, total + t.reward

        return jax.lax.fori_loop(start, start + DECISIONS, step, carry)

    compiled = jax.jit(steps, donate_argnums=1)
    state, obs = jax.jit(lambda: reset_all(env, key, NUM_ENVS))()
    carry: object = (state, obs, jax.jit(lambda s: legal_actions(env, s))(state), jnp.zeros(NUM_ENVS))
    done = 0

    def call() -> None:
        nonlocal carry, done
        carry = jax.block_until_ready(compiled(jnp.int32(done), carry))
        done += DECISIONS

    return call


def torch_decisions(at_once: int) -> Callable[[], None]:
    """The network asked for so many states at a time: 1 is what code does that plays one env."""
    import torch

    from hotloop.bench.sfc_original import AttentionNet

    torch.set_num_threads(1)
    net, (states, *_) = AttentionNet(), _batches()
    flat = {name: part.reshape(-1, *part.shape[2:]) for name, part in states.items()}
    places = len(flat["dc"]) // at_once

    def call() -> None:
        for i in range(DECISIONS):
            first = i % places * at_once
            some = {name: torch.from_numpy(part[first : first + at_once]) for name, part in flat.items()}
            with torch.no_grad():
                net(some).argmax(1).tolist()

    return call


def _engine(spec: Spec) -> "JaxEngine":
    import jax
    import jax.numpy as jnp

    from hotloop.engines.jax.engine import JaxEngine

    obs = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    return JaxEngine(spec, obs, ACTIONS)


def _batches() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)

    def states() -> dict[str, np.ndarray]:
        return {name: rng.random((K, BATCH, *shape)).astype(np.float32) for name, shape in SHAPES.items()}

    action = rng.integers(0, ACTIONS, (K, BATCH)).astype(np.int32)
    return (
        states(),
        action,
        rng.normal(size=(K, BATCH)).astype(np.float32),
        np.full((K, BATCH), 0.99, np.float32),
        states(),
    )
