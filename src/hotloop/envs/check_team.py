"""What an env with several agents does wrong, in plain words, and what a turn of it costs."""

import time
from contextlib import closing

import numpy as np

from hotloop.envs.findings import SECONDS, STEPS, VECTOR, Finding, Report
from hotloop.envs.gym_types import Options
from hotloop.envs.naming import look_in_current_folder
from hotloop.envs.team import TeamEnvs, TeamStep, open_team
from hotloop.errors import EnvFailed, NotFinite, SpecError
from hotloop.trees import leaves


def check_team(env_id: str, options: Options, observe: tuple[str, ...] = ()) -> Report:
    """Step the env with random actions of all agents and watch; never raises for what the env itself does."""
    findings: list[Finding] = []

    def opened(num_envs: int) -> TeamEnvs:
        return open_team(env_id, num_envs, options, observe=observe)

    try:
        look_in_current_folder(env_id)
        with closing(opened(1)) as team:
            names, each = team.spaces.names, team.spaces.each
            findings.append(Finding("ok", f"{len(names)} agents: {', '.join(names)}"))
            findings += [
                Finding("ok", f"{name}: observations {spaces.observation}, actions {spaces.action}")
                for name, spaces in zip(names, each, strict=True)
            ]
            findings += _watch(team)
            before = _trace(team)
        with closing(opened(1)) as team:
            is_same = _trace(team) == before
        findings.append(
            Finding("ok", "the same seed and actions give the same episode")
            if is_same
            else Finding("note", "the same seed and actions give another episode: runs on it cannot be repeated")
        )
        return Report(findings, _cost(opened(1)), _cost(opened(VECTOR)))
    except (SpecError, EnvFailed, NotFinite) as error:
        return Report([*findings, Finding("wrong", str(error))], None, None)


def _watch(team: TeamEnvs) -> list[Finding]:
    random, ended, left = np.random.default_rng(0), 0, False
    team.reset(0)
    for _ in range(STEPS):
        step = _random_turn(team, random)
        if team.failures:
            return [Finding("wrong", f"it raised {team.last_failure}")]
        ended += int(step.ended[0])
        left |= not all(each.valid[0] for each in step.by_agent)
    found = [Finding("note", "agents come or go while others go on; each learns from its own turns")] if left else []
    ending = Finding("ok", f"{ended} episodes ended in {STEPS} random turns")
    if not ended:
        ending = Finding("note", f"no episode ended for all agents in {STEPS} random turns; give it a time limit")
    return [*found, ending]


def _trace(team: TeamEnvs) -> list[bytes]:
    """All that is seen and earned in a hundred turns by a seed."""
    random, first = np.random.default_rng(1), team.reset(7)
    seen = [leaf.tobytes() for each in first for leaf in leaves(each)]
    for _ in range(STEPS // 5):
        for each in _random_turn(team, random).by_agent:
            seen += [leaf.tobytes() for leaf in leaves(each.final_obs)] + [each.reward.tobytes()]
    return seen


def _random_turn(team: TeamEnvs, random: np.random.Generator) -> TeamStep:
    sizes = [spaces.actions.size for spaces in team.spaces.each]
    return team.step([random.integers(size, size=team.num_envs).astype(np.int32) for size in sizes])


def _cost(opened: TeamEnvs) -> float:
    """Microseconds per turn of one env, resets included."""
    random = np.random.default_rng(0)
    with closing(opened) as team:
        team.reset(0)
        steps, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < SECONDS or steps == 0:
            _random_turn(team, random)
            steps += team.num_envs
    return spent / steps * 1e6
