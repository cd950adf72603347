"""Small ParallelEnvs for tests."""

from itertools import count

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

AGENTS = ("ann", "bob", "cid")


def life(number, episode, agent):
    """Turns of an agent in an episode: when it comes, when it is gone, and whether it is then terminated."""
    comes = 2 if agent == 2 and (episode + number) % 3 == 1 else 0  # cid may come late
    goes = comes + (1, 4, 2, 7, 3)[(episode + number + 2 * agent) % 5]
    return comes, goes, (episode + agent) % 2 == 0


class Counting(ParallelEnv):
    """Each sees env, episode, turn, agent, and its last action; its reward is 100 x episode + turn + action / 8.

    `log` is told of every step of every agent.
    """

    metadata = {"name": "counting"}  # noqa: RUF012

    def __init__(self, number=0, log=None, raises=None, spoils=None):
        self.number, self.log, self.raises, self.spoils = number, [] if log is None else log, raises, spoils
        self.possible_agents, self.agents, self.episode = list(AGENTS), [], -1
        self.seen = {name: np.zeros(5) for name in AGENTS}  # one array for every observation, as some envs have

    def observation_space(self, agent):
        return spaces.Box(-np.inf, np.inf, (5,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def _observe(self, name, action):
        self.seen[name][:] = (self.number, self.episode, self.t, AGENTS.index(name), action)
        return self.seen[name]

    def reset(self, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        self.agents = [name for i, name in enumerate(AGENTS) if life(self.number, self.episode, i)[0] == 0]
        return {name: self._observe(name, -1) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), "those that are there act, and no others"
        self.t += 1
        if self.raises == (self.number, self.episode, self.t):
            raise RuntimeError("out of luck")
        obs, rewards, terminated, truncated = {}, {}, {}, {}
        for name in self.agents:
            before, action = self.seen[name].copy(), int(actions[name])
            _, goes, by_end = life(self.number, self.episode, AGENTS.index(name))
            obs[name] = self._observe(name, action)
            rewards[name] = 100.0 * self.episode + self.t + action / 8
            if self.spoils == (self.number, self.episode, self.t, name):
                rewards[name] = float("nan")
            terminated[name], truncated[name] = self.t >= goes and by_end, self.t >= goes and not by_end
            self.log.append((before, action, rewards[name], obs[name].copy(), terminated[name], truncated[name]))
        self.agents = [name for name in self.agents if not (terminated[name] or truncated[name])]
        for i, name in enumerate(AGENTS):
            if self.t == life(self.number, self.episode, i)[0]:
                self.agents.append(name)
                obs[name] = self._observe(name, -1)
        return obs, rewards, terminated, truncated, {name: {} for name in rewards}


def counting_envs(**more):
    """A factory of counting envs with numbers of their own, and what they log; the first one made is only looked at."""
    numbers, log = count(-1), []
    return lambda: Counting(next(numbers), log, **more), log


class Matching(ParallelEnv):
    """Each agent sees a number and earns 1 by naming it; the small one has two numbers and leaves after `leaves` turns.

    The best return of each is the number of its turns. What it draws follows from a whole number, so it can be saved.
    """

    metadata = {"name": "matching", "render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    SIZES = {"small": 2, "large": 4}  # noqa: RUF012

    def __init__(self, leaves=3, turns=5, alike=False, render_mode=None):
        self.leaves, self.turns, self.alike, self.render_mode = leaves, turns, alike, render_mode
        self.possible_agents, self.agents, self.drawn, self.t = list(self.SIZES), [], 1, 0
        self.targets = dict.fromkeys(self.SIZES, 0)

    def size(self, agent):
        return 4 if self.alike else self.SIZES[agent]

    def observation_space(self, agent):
        if agent == "small" and not self.alike:
            return spaces.Box(0.0, 1.0, (2,), np.float32)
        return spaces.Discrete(4)

    def action_space(self, agent):
        return spaces.Discrete(self.size(agent))

    def _observe(self, names):
        for name in names:
            self.drawn = self.drawn * 1103515245 + 12345 & 0x7FFFFFFF
            self.targets[name] = (self.drawn >> 8) % self.size(name)
        seen = {name: self.targets[name] for name in names}
        if "small" in seen and not self.alike:
            seen["small"] = np.eye(2, dtype=np.float32)[seen["small"]]
        return seen

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.drawn = seed + 1
        self.agents, self.t = list(self.SIZES), 0
        return self._observe(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        names, self.t = list(self.agents), self.t + 1
        rewards = {name: float(int(actions[name]) == self.targets[name]) for name in names}
        over = {"small": self.t >= self.leaves, "large": self.t >= self.turns}
        self.agents = [name for name in names if not over[name]]
        gone = {name: over[name] for name in names}
        infos = {name: {"turns": self.t} for name in names}
        return self._observe(names), rewards, gone, dict.fromkeys(names, False), infos

    def render(self):
        return np.full((8, 8, 3), self.t * 20, np.uint8)

    def get_state(self):
        here = [name in self.agents for name in self.SIZES]
        return {"numbers": np.array([self.drawn, self.t, *self.targets.values()]), "here": np.array(here)}

    def set_state(self, state):
        self.drawn, self.t, *targets = (int(number) for number in state["numbers"])
        self.targets = dict(zip(self.SIZES, targets, strict=True))
        self.agents = [name for name, is_here in zip(self.SIZES, state["here"], strict=True) if is_here]


def parallel_env(**options):
    return Matching(**options)
