"""Which functions of an environment written in Python take the time: Python's own profiler around its steps."""

import cProfile
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop import registry
from hotloop.envs.naming import import_registering, look_in_current_folder
from hotloop.errors import SpecError
from hotloop.profiling.figures import EnvProfile, Function

if TYPE_CHECKING:
    from hotloop.envs.gym_types import Env, Options

SECONDS = 2.0
SHOWN = 15


def profile_env(env_id: str, options: "Options", seconds: float = SECONDS) -> EnvProfile:
    """Step a Gymnasium env with random actions, first timed, then under the profiler."""
    import gymnasium

    if registry.has_agents(env_id):
        raise SpecError(f"env {env_id} has several agents, and only Gymnasium envs are profiled by function")
    profiler = cProfile.Profile()
    look_in_current_folder(env_id)
    try:
        import_registering(env_id)
        env = gymnasium.make(env_id, disable_env_checker=True, **options)
        try:
            env.action_space.seed(0)
            plain_steps, plain_seconds = _step_for(env, seconds / 2)
            with profiler:
                steps, profiled_seconds = _step_for(env, seconds / 2)
        finally:
            env.close()
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env {env_id} cannot be profiled: {type(error).__name__}: {error}") from error
    rows = _rows(profiler, steps)
    return {
        "env": env_id,
        "us_per_step": round(plain_seconds / plain_steps * 1e6, 2),
        "steps_per_s": round(plain_steps / plain_seconds, 1),
        "us_per_step_while_profiled": round(profiled_seconds / steps * 1e6, 2),
        "functions": rows[:SHOWN],
    }


def _step_for(env: "Env", seconds: float) -> tuple[int, float]:
    env.reset(seed=0)
    steps, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds or steps == 0:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        steps += 1
        if terminated or truncated:
            env.reset()
    return steps, spent


def _rows(profiler: cProfile.Profile, steps: int) -> list[Function]:
    """Functions by the time they take themselves, per env step; the user's own code is marked."""
    profiler.create_stats()
    whole = sum(own for _, _, own, _, _ in profiler.stats.values())
    rows: list[Function] = []
    for (file, line, name), (_, calls, own, below, _) in profiler.stats.items():
        if file == __file__:
            continue
        rows.append(
            {
                "function": name if file == "~" else f"{_short(file)}:{line} {name}",
                "yours": _is_yours(file),
                "calls_per_step": round(calls / steps, 3),
                "own_us_per_step": round(own / steps * 1e6, 3),
                "with_callees_us_per_step": round(below / steps * 1e6, 3),
                "share": round(own / whole, 4) if whole else 0.0,
            }
        )
    return sorted(rows, key=lambda row: -row["own_us_per_step"])


def _is_yours(file: str) -> bool:
    """Neither built in, nor of the standard library, nor of an installed package."""
    if file.startswith(("~", "<")):
        return False
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return not any(Path(file).is_relative_to(folder) for folder in installed if folder)


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])
