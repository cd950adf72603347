"""What a Gymnasium env does wrong, in plain words, and what one step of it costs."""

import time
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np

from hotloop.envs.host import HostEnvs, make_vector_env
from hotloop.envs.host_spaces import actions, observations
from hotloop.spec_reading import SpecError

STEPS = 500
SECONDS = 0.5
VECTOR = 16


class Finding(NamedTuple):
    """`level` is ok, note (works, but know it) or wrong (training on it would fail or learn nonsense)."""

    level: str
    text: str


class Report(NamedTuple):
    """All findings, and microseconds per step of one env alone and of one among sixteen."""

    findings: list[Finding]
    us_per_step: float | None
    us_per_step_of_16: float | None

    @property
    def is_sound(self) -> bool:
        """Nothing is wrong with it."""
        return all(finding.level != "wrong" for finding in self.findings)


def check_env(env_id: str, options: dict[str, Any]) -> Report:
    """Step the env with random actions and watch; never raises for what the env itself does."""
    try:
        make_vector_env(env_id, 1, options).close()  # says what is wrong with an id, a package or an option
        env = gym.make(env_id, disable_env_checker=True, **options)
    except SpecError as error:
        return Report([Finding("wrong", str(error))], None, None)
    except Exception as error:
        return Report([Finding("wrong", f"it cannot be made: {type(error).__name__}: {error}")], None, None)
    findings: list[Finding] = []
    for what, read in (
        ("observations", lambda: observations(env.observation_space)),
        ("actions", lambda: actions(env.action_space)),
    ):
        try:
            read()
            findings.append(Finding("ok", f"{what}: {getattr(env, what[:-1] + '_space')}"))
        except SpecError as error:
            findings.append(Finding("wrong", str(error)))
    if any(finding.level == "wrong" for finding in findings):
        return Report(findings, None, None)
    try:
        findings += _watch(env)
        findings += _repeats(env_id, options)
        findings += _vector(env_id, options)
        cost, cost_of_16 = _cost(env_id, options, 1), _cost(env_id, options, VECTOR)
    except Exception as error:
        where = "" if not str(error) else f": {error}"
        return Report([*findings, Finding("wrong", f"it raised {type(error).__name__}{where}")], None, None)
    finally:
        env.close()
    return Report(findings, cost, cost_of_16)


def _watch(env: Any) -> list[Finding]:
    """One env, step by step: is what it returns what it says?"""
    found: dict[str, Finding] = {}

    def note(key: str, level: str, text: str) -> None:
        found.setdefault(key, Finding(level, text))

    env.action_space.seed(0)
    answer = env.reset(seed=0)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return [Finding("wrong", "reset() must return (observation, info)")]
    obs, ended = answer[0], 0
    _check_obs(env, obs, "reset()", note)
    before = obs
    for _ in range(STEPS):
        answer = env.step(env.action_space.sample())
        if not (isinstance(answer, tuple) and len(answer) == 5):
            return [Finding("wrong", "step() must return (observation, reward, terminated, truncated, info)")]
        obs, reward, terminated, truncated, _ = answer
        _check_obs(env, obs, "step()", note)
        if not np.isscalar(reward) and np.ndim(reward) != 0:
            note(
                "reward", "wrong", f"the reward is a {type(reward).__name__} of shape {np.shape(reward)}, not a number"
            )
        elif not np.isfinite(float(reward)):
            note("finite reward", "wrong", f"a reward is {reward}: every value that learns from it would be lost")
        if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
            note("flags", "wrong", "terminated and truncated must be True or False")
        if any(_shares(a, b) for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(obs), strict=False)):
            note(
                "alias", "note", "it reuses its observation array; hotloop copies, but code that keeps it will be wrong"
            )
        before = obs
        if terminated or truncated:
            ended += 1
            before = env.reset()[0]
    if not ended:
        note("endless", "note", f"no episode ended in {STEPS} random steps; give it a time limit (max_episode_steps)")
    else:
        note("ends", "ok", f"{ended} episodes ended in {STEPS} random steps")
    return list(found.values())


def _check_obs(env: Any, obs: Any, where: str, note: Any) -> None:
    for leaf in jax.tree.leaves(obs):
        if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(leaf).all():
            note("finite obs", "wrong", f"an observation of {where} holds NaN or infinity")
            return
    if not env.observation_space.contains(obs):
        seen = ", ".join(f"{np.asarray(leaf).dtype}{np.shape(leaf)}" for leaf in jax.tree.leaves(obs))
        note("space", "wrong", f"an observation of {where} ({seen}) is not in its space {env.observation_space}")


def _shares(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)


def _repeats(env_id: str, options: dict[str, Any]) -> list[Finding]:
    """The same seed and actions twice."""
    seen = []
    for _ in range(2):
        env = gym.make(env_id, disable_env_checker=True, **options)
        env.action_space.seed(1)
        trace: list[Any] = [jax.tree.map(np.copy, env.reset(seed=7)[0])]
        for _ in range(STEPS // 5):
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            trace += [jax.tree.map(np.copy, obs), float(reward)]
            if terminated or truncated:
                trace.append(jax.tree.map(np.copy, env.reset()[0]))
        env.close()
        seen.append(jax.tree.leaves(trace))
    same = len(seen[0]) == len(seen[1]) and all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))
    if same:
        return [Finding("ok", "the same seed and actions give the same episode")]
    text = "the same seed and actions give another episode: runs on it cannot be repeated; draw from self.np_random"
    return [Finding("note", text)]


def _vector(env_id: str, options: dict[str, Any]) -> list[Finding]:
    envs = HostEnvs(make_vector_env(env_id, 2, options))
    random = np.random.default_rng(0)
    envs.reset(0)
    for _ in range(STEPS // 5):
        envs.step(random.integers(envs.actions.size, size=2).astype(np.int32))
    how = type(getattr(envs.env, "unwrapped", envs.env)).__name__
    envs.close()
    return [Finding("ok", f"as a vector: {how}, autoreset {envs.autoreset.value}")]


def _cost(env_id: str, options: dict[str, Any], num_envs: int) -> float:
    """Microseconds per env step, resets included."""
    envs = HostEnvs(make_vector_env(env_id, num_envs, options))
    random = np.random.default_rng(0)
    envs.reset(0)
    steps, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS or steps == 0:
        envs.step(random.integers(envs.actions.size, size=num_envs).astype(np.int32))
        steps += num_envs
    envs.close()
    return spent / steps * 1e6
