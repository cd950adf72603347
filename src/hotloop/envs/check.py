"""What a Gymnasium env does wrong, in plain words, and what one step of it costs."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import gymnasium as gym
import numpy as np

from hotloop import registry
from hotloop.envs.findings import SECONDS, STEPS, VECTOR, Finding, Report
from hotloop.envs.gym_types import Env, Options, Raw, Space
from hotloop.envs.host import HostEnvs, make_vector_env, open_envs
from hotloop.envs.host_spaces import actions, observations
from hotloop.envs.naming import look_in_current_folder
from hotloop.envs.serial import MASK
from hotloop.errors import SpecError
from hotloop.trees import leaves, tree_map

See = Callable[[Raw], Raw]
"""Leaves of an observation what the agent will see."""


MASKED = Finding("ok", f"info['{MASK}'] names its legal actions; env.action_mask: true keeps to them")


def check_env(env_id: str, options: Options, observe: tuple[str, ...] = ()) -> Report:
    """Step the env with random actions and watch; never raises for what the env itself does.

    `observe` chooses keys of a Dict observation, as `env.observe` does.
    """
    if registry.is_device_env(env_id):
        raise SpecError(
            f"{env_id} is a device env, and only Gymnasium envs are checked; give a Gymnasium id, or module:Id "
            "(ours are in hotloop.envs.gymnasium: hotloop.envs.gymnasium:hotloop/CartPole-v1)"
        )
    if registry.has_agents(env_id):
        from hotloop.envs.check_team import check_team

        return check_team(env_id, options, observe)
    try:
        look_in_current_folder(env_id)
        make_vector_env(env_id, 1, options).close()  # says what is wrong with an id, a package or an option
        env = gym.make(env_id, disable_env_checker=True, **options)
    except SpecError as error:
        return Report([Finding("wrong", str(error))], None, None)
    except Exception as error:
        return Report([Finding("wrong", f"it cannot be made: {type(error).__name__}: {error}")], None, None)
    findings: list[Finding] = []
    seen_by_agent: Space = env.observation_space
    for what in ("observations", "actions"):
        try:
            if what == "actions":
                actions(env.action_space)
            else:
                seen_by_agent = observations(env.observation_space, observe).space
            seen = f" (seen: {', '.join(observe)})" if observe and what == "observations" else ""
            findings.append(Finding("ok", f"{what}: {getattr(env, what[:-1] + '_space')}{seen}"))
        except SpecError as error:
            findings.append(Finding("wrong", str(error)))
    if any(finding.level == "wrong" for finding in findings):
        env.close()
        return Report(findings, None, None)
    try:
        findings += _watch(env, partial(_chosen, observe), seen_by_agent)
        findings += _repeats(env_id, options, partial(_chosen, observe))
        masked = MASKED in findings
        begin = partial(_begun, env_id, options, masked, observe)
        findings += _vector(begin(2))
        cost, cost_of_16 = _cost(begin(1)), _cost(begin(VECTOR))
    except Exception as error:
        where = "" if not str(error) else f": {error}"
        return Report([*findings, Finding("wrong", f"it raised {type(error).__name__}{where}")], None, None)
    finally:
        env.close()
    return Report(findings, cost, cost_of_16)


def _chosen(observe: tuple[str, ...], obs: Raw) -> Raw:
    """What the agent will see of an observation."""
    return {name: obs[name] for name in observe if name in obs} if observe and isinstance(obs, Mapping) else obs


def _watch(env: Env, see: See, space: Space) -> list[Finding]:
    """One env, step by step: is what it returns, and `see` leaves, of the space it says?"""
    found: dict[str, Finding] = {}

    def note(key: str, level: str, text: str) -> None:
        found.setdefault(key, Finding(level, text))

    choose = _chooser(env, 0)
    answer: object = env.reset(seed=0)  # whatever it may return
    if not (isinstance(answer, tuple) and len(answer) == 2):
        return [Finding("wrong", "reset() must return (observation, info)")]
    (obs, info), ended = answer, 0
    names_legal = isinstance(info, dict) and MASK in info
    before = see(obs)
    _check_obs(space, before, "reset()", note)
    for _ in range(STEPS):
        if names_legal and _mask(env, info) is None:
            mask = info.get(MASK)
            seen = "is missing in a step" if mask is None else f"is {getattr(mask, 'shape', type(mask).__name__)}"
            size = actions(env.action_space).size
            note("mask", "note", f"info['{MASK}'] {seen}, expected ({size},): env.action_mask: true would be refused")
        stepped: object = env.step(choose(info))
        if not (isinstance(stepped, tuple) and len(stepped) == 5):
            return [Finding("wrong", "step() must return (observation, reward, terminated, truncated, info)")]
        obs, reward, terminated, truncated, info = see(stepped[0]), *stepped[1:]
        _check_obs(space, obs, "step()", note)
        if not np.isscalar(reward) and np.ndim(reward) != 0:
            note(
                "reward", "wrong", f"the reward is a {type(reward).__name__} of shape {np.shape(reward)}, not a number"
            )
        elif not np.isfinite(float(reward)):
            note("finite reward", "wrong", f"a reward is {reward}: every value that learns from it would be lost")
        if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
            note("flags", "wrong", "terminated and truncated must be True or False")
        if any(_shares(a, b) for a, b in zip(leaves(before), leaves(obs), strict=False)):
            note(
                "alias", "note", "it reuses its observation array; hotloop copies, but code that keeps it will be wrong"
            )
        before = obs
        if terminated or truncated:
            ended += 1
            obs, info = env.reset()
            before = see(obs)
    if not ended:
        note("endless", "note", f"no episode ended in {STEPS} random steps; give it a time limit (max_episode_steps)")
    else:
        note("ends", "ok", f"{ended} episodes ended in {STEPS} random steps")
    if names_legal:
        found.setdefault("mask", MASKED)
    return list(found.values())


def _mask(env: Env, info: object) -> np.ndarray | None:
    """Which actions `info` calls legal; None if it does not say, or not of each action."""
    mask = info.get(MASK) if isinstance(info, dict) else None
    if mask is None or isinstance(mask, tuple) or np.shape(mask) != (actions(env.action_space).size,):
        return None
    return np.asarray(mask).astype(bool)


def _chooser(env: Env, seed: int) -> Callable[[object], Raw]:
    """Random actions: those that the last `info` calls legal, if it does."""
    numbered, random = actions(env.action_space), np.random.default_rng(seed)

    def choose(info: object) -> Raw:
        legal = _mask(env, info)
        among = np.arange(numbered.size) if legal is None or not legal.any() else np.flatnonzero(legal)
        return numbered.decode(random.choice(among, 1))[0]

    return choose


def _check_obs(space: Space, obs: Raw, where: str, note: Callable[[str, str, str], None]) -> None:
    for leaf in leaves(obs):
        if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(leaf).all():
            note("finite obs", "wrong", f"an observation of {where} holds NaN or infinity")
            return
    if not space.contains(obs):
        seen = ", ".join(f"{np.asarray(leaf).dtype}{np.shape(leaf)}" for leaf in leaves(obs))
        note("space", "wrong", f"an observation of {where} ({seen}) is not in its space {space}")


def _shares(a: object, b: object) -> bool:
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.shares_memory(a, b)


def _repeats(env_id: str, options: Options, see: See) -> list[Finding]:
    """The same seed and actions twice."""
    seen = []
    for _ in range(2):
        with closing(gym.make(env_id, disable_env_checker=True, **options)) as env:
            choose = _chooser(env, 1)
            obs, info = env.reset(seed=7)
            trace: list[Raw] = [tree_map(np.copy, see(obs))]
            for _ in range(STEPS // 5):
                obs, reward, terminated, truncated, info = env.step(choose(info))
                trace += [tree_map(np.copy, see(obs)), float(reward)]
                if terminated or truncated:
                    obs, info = env.reset()
                    trace.append(tree_map(np.copy, see(obs)))
        seen.append(leaves(trace))
    same = len(seen[0]) == len(seen[1]) and all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))
    if same:
        return [Finding("ok", "the same seed and actions give the same episode")]
    text = "the same seed and actions give another episode: runs on it cannot be repeated; draw from self.np_random"
    return [Finding("note", text)]


def _begun(env_id: str, options: Options, masked: bool, observe: tuple[str, ...], num_envs: int) -> HostEnvs:
    envs = open_envs(env_id, num_envs, options, observe=observe)
    try:
        if masked:
            envs.mask_actions(env_id)
        envs.reset(0)
    except BaseException:
        envs.close()
        raise
    return envs


def _random_actions(envs: HostEnvs, random: np.random.Generator) -> np.ndarray:
    if envs.legal is None:
        return random.integers(envs.actions.size, size=envs.num_envs).astype(np.int32)
    drawn: np.ndarray = np.argmax(np.where(envs.legal, random.random(envs.legal.shape), -1.0), axis=-1)
    return drawn.astype(np.int32)


def _vector(begun: HostEnvs) -> list[Finding]:
    random = np.random.default_rng(0)
    with closing(begun) as envs:
        for _ in range(STEPS // 5):
            envs.step(_random_actions(envs, random))
    how = type(getattr(envs.env, "unwrapped", envs.env)).__name__
    return [Finding("ok", f"as a vector: {how}, autoreset {envs.autoreset.value}")]


def _cost(begun: HostEnvs) -> float:
    """Microseconds per env step, resets included."""
    random = np.random.default_rng(0)
    with closing(begun) as envs:
        steps, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < SECONDS or steps == 0:
            envs.step(_random_actions(envs, random))
            steps += envs.num_envs
    return spent / steps * 1e6
