"""Which functions of an environment written in Python take the time, and which of their lines.

Python's own profiler around its steps; what it names first of the user's own code is then traced line by line.
"""

import cProfile
import sysconfig
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop import registry
from hotloop.envs.naming import import_registering, look_in_current_folder
from hotloop.errors import SpecError
from hotloop.profiling.figures import EnvProfile, Function
from hotloop.profiling.lines import Key, lines_of

if TYPE_CHECKING:
    from hotloop.envs.gym_types import Env, Options

SECONDS = 2.0
SHOWN = 15
LOOKED_INTO, WORTH_IT = 2, 0.1
"""Functions whose lines are looked at, and the share of the time from which on one is."""
HANDS_ON = ("step", "reset")
"""Functions of envs: a wrapper that calls another's waits for it, and its time is not the wrapper's."""
Stats = Mapping[Key, tuple[int, int, float, float, Mapping[Key, tuple[int, int, float, float]]]]
"""As Python's profiler keeps them: calls, all calls, seconds, seconds with callees, and the last two by caller."""


def profile_env(env_id: str, options: "Options", seconds: float = SECONDS) -> EnvProfile:
    """Step a Gymnasium env with random actions, first timed, then under the profiler, then line by line."""
    import gymnasium

    if registry.has_agents(env_id):
        raise SpecError(f"env {env_id} has several agents, and only Gymnasium envs are profiled by function")
    look_in_current_folder(env_id)
    try:
        import_registering(env_id)
        env = gymnasium.make(env_id, disable_env_checker=True, **options)
        try:
            env.action_space.seed(0)
            env.reset(seed=0)
            return profile_steps(env_id, lambda: _step(env), seconds)
        finally:
            env.close()
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env {env_id} cannot be profiled: {type(error).__name__}: {error}") from error


def profile_steps(name: str, step: Callable[[], object], seconds: float = SECONDS) -> EnvProfile:
    """Of an env that is open: each call of `step` makes a step in it, and resets it where an episode has ended."""
    plain_steps, plain_seconds = _repeat(step, seconds / 3)
    profiler = cProfile.Profile()
    with profiler:
        steps, profiled_seconds = _repeat(step, seconds / 3)
    profiler.create_stats()
    stats: Stats = profiler.stats
    rows = _rows(stats, steps)
    return {
        "env": name,
        "us_per_step": round(plain_seconds / plain_steps * 1e6, 2),
        "steps_per_s": round(plain_steps / plain_seconds, 1),
        "us_per_step_while_profiled": round(profiled_seconds / steps * 1e6, 2),
        "functions": rows[:SHOWN],
        "lines": lines_of(_worth_a_look(stats), _has_own_time, lambda: _repeat(step, seconds / 3)),
        "rendering": round(_rendering(stats), 4),
    }


def _step(env: "Env") -> None:
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()


def _repeat(step: Callable[[], object], seconds: float) -> tuple[int, float]:
    steps, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds or steps == 0:
        step()
        steps += 1
    return steps, spent


def _rows(stats: Stats, steps: int) -> list[Function]:
    """Functions by the time they take themselves, per env step; the user's own code is marked."""
    whole = _whole(stats)
    rows: list[Function] = []
    for (file, line, name), (_, calls, own, below, _) in stats.items():
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


def _worth_a_look(stats: Stats) -> dict[Key, float]:
    """Functions of the user's own by their shares: with what they call that is not theirs, as that is what their lines
    take."""
    whole, spent = _whole(stats), dict[Key, float]()
    for key, (_, _, _, below, callers) in stats.items():
        if _has_own_time(key[0], key[2]):
            spent[key] = spent.get(key, 0.0) + below
            for caller, (*_, with_callees) in callers.items():
                if caller != key:
                    spent[caller] = spent.get(caller, 0.0) - with_callees
    shares = {key: each / whole for key, each in spent.items() if whole and _is_yours(key[0])}
    most = sorted(shares, key=lambda key: -shares[key])[:LOOKED_INTO]
    return {key: min(1.0, shares[key]) for key in most if shares[key] >= WORTH_IT}


def _rendering(stats: Stats) -> float:
    """Share of the function that draws and takes most, with callees: of several, one calls the other."""
    drawn = [below for (_, _, name), (_, _, _, below, _) in stats.items() if _draws(name)]
    return min(1.0, max(drawn, default=0.0) / _whole(stats)) if _whole(stats) else 0.0


def _draws(name: str) -> bool:
    return name == "render" or name.startswith("_render")


def _whole(stats: Stats) -> float:
    return sum(own for _, _, own, _, _ in stats.values())


def _has_own_time(file: str, name: str) -> bool:
    """Whether what it takes is not the time of whoever calls it: it is the user's own, or another env's step."""
    return _is_yours(file) or (name in HANDS_ON and not file.startswith(("~", "<")))


@cache
def _is_yours(file: str) -> bool:
    """Neither built in, nor of the standard library, nor of an installed package, nor of this one."""
    if file.startswith(("~", "<")):
        return False
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    folders = [*(folder for folder in installed if folder), str(Path(__file__).parents[1])]
    is_installed = any(Path(file).is_relative_to(folder) for folder in folders)
    return not is_installed and not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])
