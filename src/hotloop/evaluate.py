"""Greedy episodes of an agent on Gymnasium envs of their own. Those of device envs: `pipelines/device_play.py`."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from hotloop.envs.host import open_envs
from hotloop.episodes import RunningEpisodes
from hotloop.errors import EnvFailed
from hotloop.experience import VectorStep
from hotloop.spec import Spec
from hotloop.trees import Arrays

MOST_HOST_ENVS = 16
"""Envs on the host that play at once."""
Tell = Callable[[int, int], None]
"""Hears how many episodes are done, of how many."""


class Episodes(NamedTuple):
    """One entry per episode; `info` holds the env's own figures at each episode's last step, NaN where it gave none."""

    episode_return: np.ndarray
    length: np.ndarray
    info: dict[str, np.ndarray]
    cut: int = 0
    """Episodes that were wanted and not played to their end, because the evaluation was cut."""
    endless: np.ndarray | None = None
    """Whether each reached `evaluation.max_steps`, and counts as it stood there."""

    def of(self, seed: int) -> "Episodes":
        """The episodes of one of several seeds, whose axis leads."""
        info = {name: values[seed] for name, values in self.info.items()}
        endless = None if self.endless is None else self.endless[seed]
        return Episodes(self.episode_return[seed], self.length[seed], info, endless=endless)

    def summary(self) -> dict[str, float]:
        """Means and spread, under the command line's names; `cut` and `endless` only if there are such episodes."""
        known = {name: values[~np.isnan(values)] for name, values in self.info.items()}
        return {
            "episodes": len(self.length),
            "return_mean": float(np.mean(self.episode_return)),
            "return_std": float(np.std(self.episode_return)),
            "length_mean": float(np.mean(self.length)),
            **{f"{name}_mean": float(np.mean(values)) for name, values in known.items() if len(values)},
            **({"cut": self.cut} if self.cut else {}),
            **({"endless": int(self.endless.sum())} if self.endless is not None and self.endless.any() else {}),
        }


class TeamEpisodes(NamedTuple):
    """The same episodes, as each agent saw them and as they were for all: means over the agents."""

    by_agent: list[Episodes]
    of_all: Episodes


def envs_to_play(episodes: int, most: int = MOST_HOST_ENVS) -> int:
    """Envs for so many episodes: no more than finish them in as few rounds, so that few step on when all is played."""
    rounds = math.ceil(episodes / min(most, MOST_HOST_ENVS))
    return math.ceil(episodes / rounds)


def play_on_host(
    spec: Spec,
    greedy: Callable[..., np.ndarray],
    episodes: int,
    seed: int,
    most_steps: int | None = None,
    tell: Tell | None = None,
) -> Episodes:
    """Greedy episodes of a Gymnasium env, on envs of their own; the arguments are those of `play`."""
    env, options = spec.env, {**spec.env.options, **spec.evaluation.options}
    most = env.num_envs if env.vectorization == "async" else MOST_HOST_ENVS  # starting processes takes long
    envs = open_envs(env.id, envs_to_play(episodes, most), options, env.vectorization, env.info, env.observe)
    if env.action_mask:
        envs.mask_actions(env.id)
    try:
        return play(envs, greedy, episodes, spec.evaluation.max_steps, seed, most_steps, tell)
    finally:
        envs.close()


class _Played(NamedTuple):
    """An episode, the `number`-th of its env."""

    env: int
    number: int
    episode_return: float
    length: int
    info: dict[str, float]
    endless: bool


class Playable(Protocol):
    """What is asked of envs on which episodes are played."""

    num_envs: int
    info_keys: tuple[str, ...]

    @property
    def legal(self) -> np.ndarray | None:
        """Which actions the next step may take, bool (N, A); None with masks off."""

    def reset(self, seed: int) -> Arrays:
        """Begin an episode in every env."""

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Act in every env."""

    def restart(self, which_N: np.ndarray) -> Arrays:
        """Begin new episodes in some envs; None where that cannot be done."""


def play(
    envs: Playable,
    greedy: Callable[..., np.ndarray],
    wanted: int,
    limit: int,
    seed: int,
    most_steps: int | None = None,
    tell: Tell | None = None,
) -> Episodes:
    """Play `wanted` episodes, as equally many in each env as can be, by `greedy(obs)`, with masks `greedy(obs, legal)`.

    An episode that reaches `limit` counts as it stands. Where the env cannot be reset from outside, it is the last one
    of that env, and no other env counts more. After `most_steps` env steps of wanted episodes, or twice as many with
    those of envs that have played their share and step on beside the others, all is cut: the first k episodes of each
    env count, k being how many the slowest has begun, and those that still run count as they stand; short episodes are
    so never counted more often than long ones. `tell(done, wanted)` hears of every vector step, and may raise.
    """
    failures = steps = wanted_steps = 0
    share_N = np.full(envs.num_envs, wanted // envs.num_envs) + (np.arange(envs.num_envs) < wanted % envs.num_envs)
    played: list[_Played] = []
    count_N, running = np.zeros(envs.num_envs, np.int64), RunningEpisodes(envs.num_envs)

    def keep(step: VectorStep, i: int, endless: bool) -> None:
        info = {key: float(step.info[key][i]) for key in envs.info_keys}
        played.append(_Played(i, int(count_N[i]), float(running.returns[i]), int(running.lengths[i]), info, endless))

    obs = envs.reset(seed)
    while (unfinished_N := count_N < share_N).any():
        if most_steps is not None and (wanted_steps >= most_steps or steps >= 2 * most_steps):
            begun = int((count_N + (running.lengths > 0))[unfinished_N].min())
            if begun:  # an env that raised has begun nothing yet
                share_N = np.minimum(share_N, begun)
                break
        if tell is not None:
            tell(len(played), wanted)
        chosen_N = greedy(obs) if envs.legal is None else greedy(obs, envs.legal)
        step = envs.step(chosen_N.astype(np.int32))
        obs = step.obs
        running.add(step)
        steps += int(np.count_nonzero(step.valid))
        wanted_steps += int(np.count_nonzero(step.valid & unfinished_N))
        failures += int(step.failed.sum())
        if failures > 10 + wanted:
            raise EnvFailed(f"envs raised {failures} times in an evaluation of {wanted} episodes")
        ended = step.terminated | step.truncated | step.failed
        too_long = (running.lengths >= limit) & ~ended
        for i in np.flatnonzero((ended | too_long) & ~step.failed):
            if count_N[i] < share_N[i]:
                keep(step, int(i), endless=bool(too_long[i]))
            count_N[i] += 1
        running.begin_anew(ended | too_long)
        if too_long.any():
            fresh = envs.restart(too_long)
            if fresh is None:
                share_N = np.minimum(share_N, count_N[too_long].min())
            else:
                obs = fresh
    for i in np.flatnonzero(count_N < share_N):
        keep(step, int(i), endless=False)
    cut = wanted - int(np.minimum(count_N, share_N).sum())  # those that were not begun, or not played to their end
    counted = [episode for episode in played if episode.number < share_N[episode.env]]
    return Episodes(
        np.array([episode.episode_return for episode in counted], np.float32),
        np.array([episode.length for episode in counted], np.int32),
        {key: np.array([episode.info[key] for episode in counted]) for key in envs.info_keys},
        cut,
        np.array([episode.endless for episode in counted], bool),
    )
