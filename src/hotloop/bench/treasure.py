"""Five agents hunting treasure: game, training and cost per agent, against one agent after the other in PyTorch.

Game: a turn of all agents with actions drawn before, and what each sees after it. Training: in each turn all act
by its network (256 quantiles) and takes one gradient step (batch 64), at the settings of `treasure_original` with ε 0,
so that both sides do the same work; hotloop writes its lines of metrics (a checkpoint, every 25,000 turns, is not in
it), and uses both cores as `hotloop.train` does, PyTorch one thread or two. Cost per agent: the same turn with 1 to 16
agents, on as many of the machine's cores as there are agents.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hotloop.bench.measure import COST, Result, Row, interleave, machine, paired_ratio
from hotloop.bench.treasure_original import ImprovedTraining, OriginalTraining
from hotloop.bench.treasure_original_game import AGENTS, MOVES
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

GAME_ROUNDS, TRAIN_ROUNDS, COST_ROUNDS = 9, 5, 7
PYTHON_TURNS, DEVICE_TURNS = 100, 2_000
"""Turns in a call, of each env."""
TRAIN_TURNS, WARM_TURNS, HOTLOOP_TURNS = 15, 120, 400
COUNTS = (1, 2, 4, 5, 8, 16)
SECONDS_PER_CALL = 1.0
PICTURE = Path("bench-treasure.png")


def run(reporter: Reporter) -> Result:
    """Game, training, cost per agent; then the picture."""
    from hotloop.engines.jax import setup
    from hotloop.spec import Agents

    threads = setup.start(load_spec("treasure").model_copy(update={"agents": Agents()}))["threads"]
    torch.set_num_threads(1)
    rows = [*games(reporter), *training(reporter)]
    costs = cost_per_agent(reporter)
    settings = {**machine(), "XLA threads": threads, "net": "IQN 625-250, 12 quantiles to learn, 256 to act, batch 64"}
    _draw(costs, PICTURE)
    return Result("treasure", {**settings, "picture": str(PICTURE.resolve())}, [*rows, *costs])


def games(reporter: Reporter) -> list[Row]:
    """Turns per second of one game, or of 64 side by side."""
    objects, slices = "game/cell by cell in Python", "game/sliced in NumPy"
    many, one = "game/hotloop, 64 envs", "game/hotloop, one env"
    cases = {
        objects: (_turns(OriginalTraining()), PYTHON_TURNS),
        slices: (_turns(ImprovedTraining()), PYTHON_TURNS),
        many: (_device_turns(64), 64 * DEVICE_TURNS),
        one: (_device_turns(1), DEVICE_TURNS),
    }
    seconds = interleave({name: call for name, (call, _) in cases.items()}, rounds=GAME_ROUNDS, reporter=reporter)
    speed = {name: [cases[name][1] / second for second in times] for name, times in seconds.items()}
    rows = [Row(name, statistics.median(speed[name]), "turns/s") for name in (objects, slices)]
    rows[1].against = objects
    rows[1].ratio, rows[1].spread = paired_ratio(speed[slices], speed[objects])
    for name in (many, one):
        for against in (objects, slices):
            ratio, spread = paired_ratio(speed[name], speed[against])
            rows.append(Row(name, statistics.median(speed[name]), "turns/s", ratio, against, spread))
    return rows


def training(reporter: Reporter) -> list[Row]:
    """Turns per second of whole trainings, from their first gradient steps on."""
    cases: dict[str, Callable[[], float]] = {}
    for threads in (1, 2):
        cases[f"training/its manner, {threads} torch thread(s)"] = _trainer(OriginalTraining, threads)
        cases[f"training/improved by hand, {threads} torch thread(s)"] = _trainer(ImprovedTraining, threads)
    pipelines = {"training/hotloop": "fused", "training/hotloop, an actor beside the learner": "processes"}
    cases |= {name: _hotloop_trainer(pipeline) for name, pipeline in pipelines.items()}
    speed: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(TRAIN_ROUNDS):
        for name in list(cases) if number % 2 == 0 else reversed(cases):
            with reporter.busy(f"{name} ({number + 1} of {TRAIN_ROUNDS})"):
                speed[name].append(cases[name]())
    torch.set_num_threads(1)
    rows = [Row(name, statistics.median(rates), "turns/s") for name, rates in speed.items() if name not in pipelines]
    first, fastest = rows[0].case, max(rows, key=lambda row: row.value).case
    for ours in pipelines:
        for against in dict.fromkeys([first, fastest]):
            ratio, spread = paired_ratio(speed[ours], speed[against])
            rows.append(Row(ours, statistics.median(speed[ours]), "turns/s", ratio, against, spread))
    rows[-1].note = "each turn: 5 agents act and take a gradient step each"
    return rows


def cost_per_agent(reporter: Reporter) -> list[Row]:
    """Milliseconds of a turn with a gradient step of each agent, divided by the agents; on the devices of a run."""
    import jax

    from hotloop.assembly import Assembly
    from hotloop.trial import begun, warm_up

    calls: dict[str, Callable[[], None]] = {}
    blocks: dict[str, int] = {}
    for count in COUNTS:
        with reporter.busy(f"compiling for {count} agents"):
            assembly = Assembly(_spec(10_000_000, agents=count))
            session = begun(assembly)
            warm_up(session, assembly.spec)
            started = time.perf_counter()
            session.advance(3)
            session.read()
            name = _agents(count)
            blocks[name] = max(3, round(SECONDS_PER_CALL / ((time.perf_counter() - started) / 3)))

        def call(session: object = session, times: int = blocks[name]) -> None:
            session.advance(times)  # type: ignore[attr-defined]
            session.read()  # type: ignore[attr-defined]  # sync

        calls[name] = call
    seconds = interleave(calls, rounds=COST_ROUNDS, reporter=reporter)
    each = {}
    for count in COUNTS:
        name = _agents(count)
        each[name] = [second / blocks[name] / count * 1e3 for second in seconds[name]]
    first = _agents(1)
    rows = [Row(first, statistics.median(each[first]), "ms/agent", columns={"devices": 1})]
    for count in COUNTS[1:]:
        times, devices = each[_agents(count)], min(count, len(jax.devices()))
        ratio, spread = paired_ratio(times, each[first])
        row = Row(_agents(count), statistics.median(times), "ms/agent", ratio, first, spread, means=COST)
        row.columns = {"devices": devices, "core-ms": round(row.value * devices, 2)}
        rows.append(row)
    return rows


def _agents(count: int) -> str:
    return f"cost per agent/{count} agent" + ("s" if count > 1 else "")


def _spec(turns: int, agents: int = AGENTS) -> Spec:
    """`treasure_original` without exploration and evaluations."""
    return load_spec(
        "treasure_original",
        {
            "env.options": {"agents": agents},
            "exploration.epsilon": {"kind": "constant", "value": 0.0},
            "replay.start": WARM_TURNS,
            "evaluation.every": 0,
            "stop.steps": turns,
            "log.every": 100,
        },
    )


def _turns(training: OriginalTraining) -> Callable[[], None]:
    drawn = np.random.default_rng(0).integers(len(MOVES), size=(PYTHON_TURNS, AGENTS)).tolist()

    def call() -> None:
        for actions in drawn:
            training.env_turn(actions)

    return call


def _device_turns(num_envs: int) -> Callable[[], None]:
    """Turns with autoreset inside one compiled loop; all that a turn yields is kept, or XLA would drop it."""
    import jax
    import jax.numpy as jnp

    from hotloop.envs.device import DeviceStep, reset_all, step_all
    from hotloop.envs.treasure import Treasure, TreasureState

    env, key = Treasure(), jax.random.key(0)
    drawn = jax.random.randint(key, (DEVICE_TURNS, num_envs, env.agents), 0, env.num_actions)

    def turn(i: jax.Array, carry: tuple[TreasureState, DeviceStep]) -> tuple[TreasureState, DeviceStep]:
        actions = jax.lax.dynamic_index_in_dim(drawn, i % DEVICE_TURNS, keepdims=False)
        return step_all(env, carry[0], actions, jax.random.fold_in(key, i))

    def turns(start: jax.Array, carry: tuple[TreasureState, DeviceStep]) -> tuple[TreasureState, DeviceStep]:
        after: tuple[TreasureState, DeviceStep] = jax.lax.fori_loop(start, start + DEVICE_TURNS, turn, carry)
        return after

    compiled, none = jax.jit(turns, donate_argnums=1), jnp.zeros((num_envs, env.agents), jnp.int32)
    carry = jax.jit(lambda: step_all(env, reset_all(env, key, num_envs)[0], none, key))()
    done = 0

    def call() -> None:
        nonlocal carry, done
        carry = jax.block_until_ready(compiled(jnp.int32(done), carry))
        done += DEVICE_TURNS

    return call


def _trainer(training_class: type[OriginalTraining], threads: int) -> Callable[[], float]:
    training = training_class(learning_start=WARM_TURNS)
    training.epsilon = 0.0

    def call() -> float:
        torch.set_num_threads(threads)
        while training.turns < WARM_TURNS + 10:  # not measured: all learn by then
            training.turn()
        started = time.perf_counter()
        for _ in range(TRAIN_TURNS):
            training.turn()
        return TRAIN_TURNS / (time.perf_counter() - started)

    return call


def _hotloop_trainer(pipeline: str) -> Callable[[], float]:
    import hotloop

    def call() -> float:
        with tempfile.TemporaryDirectory(prefix="hotloop-bench-") as folder:
            spec = load_spec(_spec(WARM_TURNS + HOTLOOP_TURNS), {"pipeline": pipeline})
            return float(hotloop.train(spec, out=Path(folder) / "run").env_steps_per_s)

    return call


def _draw(rows: list[Row], path: Path) -> None:
    """Cost per agent over the number of agents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    values = [row.value for row in rows]
    axes.bar([str(count) for count in COUNTS], values, color="#3f6f9e", width=0.6)
    for place, row in enumerate(rows):
        ratio = "" if row.ratio is None else f"\n{row.ratio:.2f} x"
        axes.text(place, row.value, f"{row.value:.1f} ms{ratio}", ha="center", va="bottom", fontsize=9)
    axes.set_ylim(0, max(values) * 1.25)
    axes.set_xlabel("agents, each with a network, a replay and an optimiser of its own")
    axes.set_ylabel("ms of a turn per agent")
    axes.set_title("One turn and one gradient step of each agent (IQN, batch 64), two cores", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
