"""CartPole training against Stable-Baselines3: same network, batch, replay ratio, optimiser and env count."""

import time
from collections.abc import Callable

from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec_reading import load_spec

ENVS = (1, 4, 16)
ROUNDS = 7
SECONDS_PER_CASE = 1.5
WARM_UP_STEPS = 4_000
BATCH, HIDDEN, RATIO = 64, [64, 64], 0.25
GYMNASIUM = "hotloop/16-envs/gymnasium"


def run(reporter: Reporter) -> Result:
    """Measure env steps per second of all cases, interleaved, after a warm-up beyond the learning start."""
    specs = {count: _spec(count) for count in ENVS}
    from hotloop.engines.jax import setup

    setup.start(specs[1])
    advance: dict[str, Callable[[int], None]] = {}
    for count in ENVS:
        advance[_name("sb3", count)] = sb3_trainer(count)
    for count in ENVS:
        advance[_name("hotloop", count)] = hotloop_trainer(specs[count])
    advance[GYMNASIUM] = gymnasium_trainer(_spec(16, "CartPole-v1"))
    steps = {name: _steps_for(step, SECONDS_PER_CASE) for name, step in advance.items()}
    speed: dict[str, list[float]] = {name: [] for name in advance}
    for number in range(ROUNDS):
        for name in list(advance) if number % 2 == 0 else list(reversed(advance)):
            started = time.perf_counter()
            advance[name](steps[name])
            speed[name].append(steps[name] / (time.perf_counter() - started))
        reporter.show(number + 1, ROUNDS, {"rounds of": "SB3 and hotloop"})
    settings = {"net": "64-64", "batch": BATCH, "updates_per_step": RATIO, "torch threads": 1}
    result = Result("train", {**machine(), **settings})
    for count in ENVS:
        result.rows.append(_row(speed, _name("sb3", count), None))
    for count in ENVS:
        row = _row(speed, _name("hotloop", count), "sb3/1-env")
        equal = _name("sb3", count)
        if count > 1:
            ratio, (low, high) = paired_ratio(speed[row.case], speed[equal])
            row.note = f"{ratio:.1f} ({low:.1f}–{high:.1f}) times as fast as {equal}"
        result.rows.append(row)
    row = _row(speed, GYMNASIUM, "sb3/1-env")
    ratio, (low, high) = paired_ratio(speed[GYMNASIUM], speed["sb3/16-envs"])
    row.note = f"Gymnasium's own CartPole; {ratio:.1f} ({low:.1f}–{high:.1f}) times as fast as sb3/16-envs"
    result.rows.append(row)
    return result


def gymnasium_trainer(spec: Spec) -> Callable[[int], None]:
    """Return `advance(env_steps)` over the sync pipeline."""
    from hotloop.assembly import Assembly

    session = Assembly(spec).session([spec.seed])
    session.compile()
    session.begin()

    def advance(env_steps: int) -> None:
        goal = session.read().env_steps + env_steps  # steps in which an env is only reset do not count
        while (steps := session.read().env_steps) < goal:
            session.advance(-(-(goal - steps) // spec.block.env_steps))

    advance(WARM_UP_STEPS)
    return advance


def hotloop_trainer(spec: Spec) -> Callable[[int], None]:
    """Return `advance(env_steps)` over the fused program."""
    import jax
    import jax.numpy as jnp

    from hotloop.assembly import Assembly

    pipeline = Assembly(spec).pipeline
    compiled = jax.jit(pipeline.advance, donate_argnums=0)
    state = jax.jit(pipeline.init)(jnp.uint32(spec.seed))

    def advance(env_steps: int) -> None:
        nonlocal state
        state = jax.block_until_ready(compiled(state, jnp.int32(env_steps // spec.block.env_steps)))

    advance(WARM_UP_STEPS)
    return advance


def sb3_trainer(num_envs: int) -> Callable[[int], None]:
    """Return `advance(env_steps)` over SB3's DQN on Gymnasium's CartPole."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    block = load_spec({}, {"env.num_envs": num_envs, "updates_per_step": RATIO}).block
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=num_envs, seed=0),
        learning_rate=1e-3,
        buffer_size=100_000,
        learning_starts=1_000,
        batch_size=BATCH,
        train_freq=block.vector_steps,
        gradient_steps=block.updates,
        target_update_interval=512,
        exploration_fraction=0.01,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": HIDDEN},
        seed=0,
        device="cpu",
    )
    model.learn(WARM_UP_STEPS)

    def advance(env_steps: int) -> None:
        model.learn(env_steps, reset_num_timesteps=False)

    return advance


def _spec(num_envs: int, env_id: str = "cartpole") -> Spec:
    return load_spec(
        {},
        {
            "env.id": env_id,
            "env.num_envs": num_envs,
            "updates_per_step": RATIO,
            "network.torso.hidden": HIDDEN,
            "replay.batch_size": BATCH,
            "target.rule": "target",
            "target.every": 512,
            "exploration.epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 1_000},
            "optimizer.learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-4, "steps": 10_000_000},
        },
    )


def _name(who: str, count: int) -> str:
    return f"{who}/{count}-env" + ("s" if count > 1 else "")


def _steps_for(advance: Callable[[int], None], seconds: float) -> int:
    started = time.perf_counter()
    advance(1_600)
    advance_for = int(1_600 * seconds / (time.perf_counter() - started))
    return max(640, advance_for - advance_for % 64)


def _row(speed: dict[str, list[float]], name: str, against: str | None) -> Row:
    middle = sorted(speed[name])[len(speed[name]) // 2]
    row = Row(name, middle, "steps/s", against=against)
    if against is not None:
        row.ratio, row.spread = paired_ratio(speed[name], speed[against])
    return row
