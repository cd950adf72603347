"""An env of several agents that takes no time: as `recorded_env.py`, for PettingZoo's ParallelEnvs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

import numpy as np

from hotloop.doctor.recorded_env import RECORDED, only, seconds_of_steps, space_of
from hotloop.envs.gym_types import Infos, Make, Raw, Space
from hotloop.envs.own import OwnEnvId
from hotloop.envs.team import TeamEnvs, TeamStep, open_team
from hotloop.errors import SpecError
from hotloop.pipeline_trial import agents_act_at_random


class Turn(NamedTuple):
    """What an env returns of a step, by the agents that acted, and who acts next."""

    obs: dict[str, Raw]
    reward: dict[str, float]
    terminated: dict[str, bool]
    truncated: dict[str, bool]
    infos: dict[str, Infos]
    agents: list[str]


class TeamRecording(NamedTuple):
    """The beginning of an episode, cut off if it is long."""

    observation: dict[str, Space]
    action: dict[str, Space]
    first: dict[str, Raw]
    """By those who act at first."""
    turns: list[Turn]


def record_team(envs: TeamEnvs, seed: int, info_keys: tuple[str, ...]) -> TeamRecording:
    """Let the agents of a single env act at random; `info_keys` are what its infos will have, as zeros."""
    random, names = np.random.default_rng(seed), envs.spaces.names
    begun = dict(zip(names, map(only, envs.reset(seed)), strict=True))
    steps: list[TeamStep] = []
    while len(steps) < RECORDED and not (steps and steps[-1].ended[0]):
        step = agents_act_at_random(envs, random)
        if step.failed[0]:
            break
        steps.append(step)
    if not steps:
        raise SpecError(f"the env raised in its first step: {envs.last_failure}")
    acting = [_acting(names, step) for step in steps]
    turns = [
        _turn(names, step, now, then, info_keys)
        for step, now, then in zip(steps, acting, [*acting[1:], []], strict=True)
    ]
    spaces = dict(zip(names, envs.spaces.each, strict=True))
    return TeamRecording(
        {name: space_of(each.observations.shapes) for name, each in spaces.items()},
        {name: each.action for name, each in spaces.items()},
        {name: begun[name] for name in acting[0]},
        turns,
    )


def _acting(names: Sequence[str], step: TeamStep) -> list[str]:
    """Who acted in it."""
    return [name for name, of_agent in zip(names, step.by_agent, strict=True) if of_agent.valid[0]]


def _turn(names: Sequence[str], step: TeamStep, now: list[str], then: list[str], info_keys: tuple[str, ...]) -> Turn:
    """Whoever acts in none of the next steps is cut off, unless it was terminated."""
    of_agent = dict(zip(names, step.by_agent, strict=True))
    terminated = {name: bool(of_agent[name].terminated[0]) for name in now}
    return Turn(
        {name: only(of_agent[name].final_obs if name in now else of_agent[name].obs) for name in {*now, *then}},
        {name: float(of_agent[name].reward[0]) for name in now},
        terminated,
        {name: name not in then and not terminated[name] for name in now},
        {name: dict.fromkeys(info_keys, 0.0) for name in now},
        then,
    )


class RecordedTeam:
    """Plays a recording, again and again."""

    metadata: Mapping[str, Raw] = {}

    def __init__(self, recording: TeamRecording, **options: Raw) -> None:
        """The options of the other env mean nothing here."""
        del options
        self._recording, self._turn = recording, 0
        self.possible_agents, self.agents = list(recording.observation), list[str]()

    def observation_space(self, agent: str) -> Space:
        """Of what it sees."""
        return self._recording.observation[agent]

    def action_space(self, agent: str) -> Space:
        """Of what it does."""
        return self._recording.action[agent]

    def reset(self, seed: int | None = None, options: dict[str, Raw] | None = None) -> tuple[Raw, Infos]:
        """At its beginning."""
        del seed, options
        self._turn, self.agents = 0, list(self._recording.first)
        return self._recording.first, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Raw]) -> tuple[Raw, ...]:
        """The next turn; the last one ends the episode for all."""
        del actions
        *returned, self.agents = self._recording.turns[self._turn]
        self._turn += 1
        return tuple(returned)

    def render(self) -> None:
        """There is nothing to see."""

    def close(self) -> None:
        """There is nothing to let go."""


def maker_of(recording: TeamRecording) -> Make:
    """What makes such envs: ParallelEnvs, which are none of Gymnasium's."""
    return cast(Make, partial(RecordedTeam, recording))


def seconds_around_team(recording: TeamRecording, num_envs: int) -> float:
    """What a turn of so many such envs takes: nothing of it is the env's own."""
    envs = open_team(OwnEnvId("recorded", maker_of(recording)), num_envs, {})
    try:
        envs.reset(0)
        actions = [np.zeros(num_envs, np.int32) for _ in envs.spaces.names]
        return seconds_of_steps(partial(envs.step, actions))
    finally:
        envs.close()
