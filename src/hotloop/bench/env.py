"""Env steps per second of 256 Snakes on one core, random actions: hotloop's against the slow baseline's."""

import statistics
from collections.abc import Callable

from hotloop.bench.measure import Result, Row, interleave, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec.reading import load_spec

NUM_ENVS = 256
ROUNDS = 9
HOTLOOP_STEPS, BASELINE_STEPS = 500, 5
"""Vector steps per call: as many as take a fair fraction of a second."""
BASELINE = {"basic": "off", "flood": "bfs"}


def run(reporter: Reporter) -> Result:
    """Time every kind of observation, interleaved; resets are part of it."""
    from hotloop.engines.jax import setup

    setup.start(load_spec({}))
    from hotloop.envs.snake_features import SIZES

    cases = {f"baseline/{obs}": baseline_loop(flood) for obs, flood in BASELINE.items()}
    cases |= {f"hotloop/{obs}": hotloop_loop(obs) for obs in SIZES}
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    result = Result("env", {**machine(), "envs": NUM_ENVS, "grid": 10, "actions": "random", "threads": 1})
    speed: dict[str, list[float]] = {}
    for name, times in seconds.items():
        who, _, obs = name.partition("/")
        steps = NUM_ENVS * (BASELINE_STEPS if who == "baseline" else HOTLOOP_STEPS)
        speed[name] = [steps / second for second in times]
        row = Row(name, statistics.median(speed[name]), "steps/s")
        if who == "hotloop" and obs in BASELINE:
            row.against = f"baseline/{obs}"
            row.ratio, row.spread = paired_ratio(speed[name], speed[row.against])
        result.rows.append(row)
    return result


def hotloop_loop(obs: str) -> Callable[[], None]:
    """Vector steps with autoreset inside one compiled loop; everything a step yields is kept, or XLA would drop it."""
    import jax
    import jax.numpy as jnp

    from hotloop.envs.device import DeviceStep, reset_all, step_all
    from hotloop.envs.snake import Snake, SnakeState

    env, key = Snake(obs=obs), jax.random.key(0)

    def step(i: jax.Array, carry: tuple[SnakeState, DeviceStep]) -> tuple[SnakeState, DeviceStep]:
        action_key, env_key = jax.random.split(jax.random.fold_in(key, i))
        actions = jax.random.randint(action_key, (NUM_ENVS,), 0, env.num_actions)
        return step_all(env, carry[0], actions, env_key)

    def steps(start: jax.Array, carry: tuple[SnakeState, DeviceStep]) -> tuple[SnakeState, DeviceStep]:
        return jax.lax.fori_loop(start, start + HOTLOOP_STEPS, step, carry)

    compiled = jax.jit(steps, donate_argnums=1)
    state, _ = jax.jit(lambda: reset_all(env, key, NUM_ENVS))()
    carry = jax.jit(lambda s: step_all(env, s, jnp.zeros(NUM_ENVS, jnp.int32), key))(state)
    done = 0

    def call() -> None:
        nonlocal carry, done
        carry = jax.block_until_ready(compiled(jnp.int32(done), carry))
        done += HOTLOOP_STEPS

    return call


def baseline_loop(flood: str) -> Callable[[], None]:
    """Vector steps of the slow baseline's env; `off` leaves the flood features out, which makes it `basic`."""
    import torch

    from hotloop.bench.slow_baseline_env import ACTIONS, SlowSnakes
    from hotloop.bench.slow_baseline_flood import by_bfs, off

    torch.set_num_threads(1)
    env = SlowSnakes(NUM_ENVS, {"bfs": by_bfs, "off": off}[flood], seed=0)
    env.reset()
    random = torch.Generator().manual_seed(0)

    def call() -> None:
        for _ in range(BASELINE_STEPS):
            env.step(torch.randint(0, ACTIONS, (NUM_ENVS,), generator=random))

    return call
