"""Greedy episodes that all agents of an env on the host play together: an evaluation, or one as pictures.

Those of device envs in a program: `team_play.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.team import TeamEnvs, TeamStep, open_team
from hotloop.episodes import RunningEpisodes
from hotloop.errors import SpecError
from hotloop.evaluate import Episodes, TeamEpisodes, Tell, envs_to_play, play
from hotloop.experience import VectorStep
from hotloop.film import film_of
from hotloop.spec import Spec
from hotloop.trees import Arrays

if TYPE_CHECKING:
    from PIL.Image import Image

Greedy = Callable[[Arrays], np.ndarray]
"""The best actions (N,) of one agent, for what it sees in N envs."""


def play_team_on_host(
    spec: Spec,
    greedy: Sequence[Greedy],
    episodes: int,
    seed: int,
    most_steps: int | None = None,
    tell: Tell | None = None,
) -> TeamEpisodes:
    """Greedy episodes on envs of their own; the arguments are those of `evaluate.play`, an env step being a turn."""
    with closing(_open(spec, envs_to_play(episodes))) as team:
        playing = _Playing(team)
        together = _all_of(greedy)
        played = play(playing, together, episodes, spec.evaluation.max_steps, seed, most_steps, tell)
    keys, count = team.info_keys, len(team.spaces.names)
    by_agent = []
    for agent in range(count):
        info = {key: played.info[_named(key, agent)] for key in keys}
        returns, lengths = (played.info[_named(name, agent)] for name in (RETURN, LENGTH))
        by_agent.append(
            Episodes(returns.astype(np.float32), lengths.astype(np.int32), info, played.cut, played.endless)
        )
    means = {key: np.mean([each.info[key] for each in by_agent], axis=0) for key in keys}
    mean = np.mean([each.episode_return for each in by_agent], axis=0)
    return TeamEpisodes(by_agent, played._replace(episode_return=mean, info=means))


def record_team_on_host(spec: Spec, greedy: Sequence[Greedy], seed: int) -> "tuple[list[Image], float]":
    """Play one episode, or its first seconds; returns frames and how many make a second."""
    from PIL import Image

    together = _all_of(greedy)
    with closing(_open(spec, 1, draws=True)) as team:
        film, obs, frames = film_of(team.fps), team.reset(seed), [_picture(team, spec)]
        for t in range(min(spec.evaluation.max_steps, film.every * (film.frames - 1))):
            chosen_1M = together(tuple(obs))
            before = _picture(team, spec)
            step = team.step(list(chosen_1M.T.astype(np.int32)))
            obs = [each.obs for each in step.by_agent]
            if step.ended[0] or step.failed[0]:  # another episode has begun: what was last seen is the end of this one
                frames.append(before)
                break
            if (t + 1) % film.every == 0:
                frames.append(_picture(team, spec))
    return [Image.fromarray(frame) for frame in frames], film.fps


RETURN, LENGTH = "return", "length"


def _named(key: str, agent: int) -> str:
    return f"{agent}/{key}"


class _Playing:
    """A team's envs as `evaluate.play` has them: how it went for each agent goes by as figures of the env."""

    legal = None

    def __init__(self, team: TeamEnvs) -> None:
        self.team, self.num_envs = team, team.num_envs
        agents = range(len(team.spaces.names))
        keys = (RETURN, LENGTH, *team.info_keys)
        self.info_keys = tuple(_named(key, agent) for agent in agents for key in keys)
        self._running = [RunningEpisodes(self.num_envs) for _ in agents]
        self._info = [{key: np.full(self.num_envs, np.nan) for key in team.info_keys} for _ in agents]

    def reset(self, seed: int) -> Arrays:
        """Begin an episode in every env."""
        return tuple(self.team.reset(seed))

    def restart(self, which_N: np.ndarray) -> Arrays:
        """Begin new episodes in some envs."""
        self._forget(which_N)
        return tuple(self.team.restart(which_N))

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Take a turn in every env: actions (N, M)."""
        step = self.team.step(list(chosen_N.T))
        figures = self._figures(step)
        self._forget(step.ended | step.failed)
        obs, none = tuple(each.obs for each in step.by_agent), np.zeros(self.num_envs, bool)
        return VectorStep(
            obs,
            obs,
            chosen_N,
            np.zeros(self.num_envs, np.float32),
            step.ended,
            none,
            ~step.failed,
            step.ended | step.failed,
            failed=step.failed,
            info=figures,
        )

    def _figures(self, step: TeamStep) -> dict[str, np.ndarray]:
        """Returns and lengths so far, and of the env's own figures the last."""
        found: dict[str, np.ndarray] = {}
        for agent, own in enumerate(step.by_agent):
            running, info = self._running[agent], self._info[agent]
            running.add(own)
            for key in info:
                info[key] = np.where(own.valid, own.info[key], info[key])
                found[_named(key, agent)] = info[key]
            found[_named(RETURN, agent)] = running.returns.copy()
            found[_named(LENGTH, agent)] = running.lengths.astype(np.float64)
        return found

    def _forget(self, which_N: np.ndarray) -> None:
        for running, info in zip(self._running, self._info, strict=True):
            running.begin_anew(which_N)
            for key in info:
                info[key] = np.where(which_N, np.nan, info[key])


def _all_of(greedy: Sequence[Greedy]) -> Callable[[Arrays], np.ndarray]:
    """Actions (N, M) for what all agents see."""

    def together(obs: Arrays) -> np.ndarray:
        assert isinstance(obs, tuple)
        return np.stack([act(seen) for act, seen in zip(greedy, obs, strict=True)], axis=1)

    return together


def _open(spec: Spec, num_envs: int, *, draws: bool = False) -> TeamEnvs:
    env, options = spec.env, {**spec.env.options, **spec.evaluation.options}
    return open_team(env.id, num_envs, options, env.vectorization, env.info, env.observe, draws=draws)


def _picture(team: TeamEnvs, spec: Spec) -> np.ndarray:
    drawn = team.picture()
    if drawn is None:
        raise SpecError(f"env {spec.env.id} gave no picture (H, W, 3) of itself; there is nothing to record")
    return drawn
