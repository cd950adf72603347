"""CartPole training against Stable-Baselines3: same network, batch, replay ratio, optimiser and env count.

On both sides the whole loop is timed, from the first update to the stop: that of `hotloop.train` with the metrics and
checkpoints it writes, SB3's `learn` with what it does around its steps.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hotloop.bench.measure import Result, Row, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

ENVS = (1, 4, 16)
ROUNDS = 7
SECONDS_PER_CASE = 3.0
WARM_UP_STEPS = 4_000
BATCH, HIDDEN, RATIO = 64, [64, 64], 0.25
GYMNASIUM = "hotloop/16-envs/gymnasium"


def run(reporter: Reporter) -> Result:
    """Measure env steps per second of all cases, interleaved."""
    cases: dict[str, Callable[[int], float]] = {_name("sb3", count): sb3_trainer(count) for count in ENVS}
    cases |= {_name("hotloop", count): hotloop_trainer(_spec(count)) for count in ENVS}
    cases[GYMNASIUM] = hotloop_trainer(_spec(16, "CartPole-v1"))
    steps = {}
    for name, train in cases.items():
        with reporter.busy(f"how long does {name} take?"):
            steps[name] = _whole_blocks(train(4 * WARM_UP_STEPS) * SECONDS_PER_CASE)
    speed: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(ROUNDS):
        for name in list(cases) if number % 2 == 0 else list(reversed(cases)):
            speed[name].append(cases[name](steps[name]))
        reporter.show(number + 1, ROUNDS, {"rounds of": "SB3 and hotloop"})
    settings = {"net": "64-64", "batch": BATCH, "updates_per_step": RATIO, "torch threads": 1}
    result = Result("train", {**machine(), **settings, "timed": "the whole loop, logging and saving included"})
    for name, rates in speed.items():
        row = Row(name, sorted(rates)[ROUNDS // 2], "steps/s")
        if name.startswith("hotloop"):
            row.against = _name("sb3", int(name.split("/")[1].partition("-")[0]))
            row.ratio, row.spread = paired_ratio(rates, speed[row.against])
            row.note = "Gymnasium's own CartPole" if name == GYMNASIUM else "the env on the device"
        result.rows.append(row)
    return result


def hotloop_trainer(spec: Spec) -> Callable[[int], float]:
    """Return `train(env_steps)`, a whole run of `hotloop.train`: its env steps per second from the first update on."""
    import hotloop

    def train(env_steps: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            done = hotloop.train(load_spec(spec, {"stop.steps": env_steps}), out=Path(folder) / "run")
        return float(done.env_steps_per_s)

    return train


def sb3_trainer(num_envs: int) -> Callable[[int], float]:
    """Return `train(env_steps)`: env steps per second of SB3's whole `learn` on Gymnasium's CartPole."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    block = load_spec({}, {"env.num_envs": num_envs, "updates_per_step": RATIO}).block_plan
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

    def train(env_steps: int) -> float:
        before, started = model.num_timesteps, time.perf_counter()
        model.learn(env_steps, reset_num_timesteps=False)
        return float((model.num_timesteps - before) / (time.perf_counter() - started))

    return train


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
            "evaluation.every": 0,
            "log.checkpoint_every": 10_000,
            "optimizer.learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-4, "steps": 10_000_000},
        },
    )


def _name(who: str, count: int) -> str:
    return f"{who}/{count}-env" + ("s" if count > 1 else "")


def _whole_blocks(env_steps: float) -> int:
    return max(2 * WARM_UP_STEPS, int(env_steps) // 64 * 64)
