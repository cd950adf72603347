"""One ParallelEnv of PettingZoo's in mid-episode: who acts in it, and what it returned, held to its contract."""

from collections.abc import Mapping
from typing import NamedTuple

from hotloop.envs.gym_types import Raw
from hotloop.errors import EnvFailed


class Turn(NamedTuple):
    """What an env returned, by the agents that had acted."""

    acted: list[str]
    obs: Mapping[str, Raw]
    reward: Mapping[str, Raw]
    terminated: Mapping[str, Raw]
    truncated: Mapping[str, Raw]
    infos: Mapping[str, Raw]


class Game:
    """One ParallelEnv: who acts in its running episode, who is gone, and what was last seen."""

    def __init__(self, env: Raw) -> None:
        self.env, self.acting, self.left = env, list[str](), set[str]()
        self.joined: list[str] = []  # those of `acting` that have not acted yet in this episode
        self.seen: Mapping[str, Raw] = {}

    def begun(self, given: Raw, whose: str, known: tuple[str, ...]) -> None:
        """Take in what a reset returned."""
        if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Mapping)):
            raise EnvFailed(f"{whose}: reset() must return (observations, infos), dicts by agent")
        self.seen, self.acting, self.joined, self.left = given[0], [], [], set()
        self._join(whose, known)
        if not self.acting:
            raise EnvFailed(f"{whose} began an episode without agents: its agents are empty after reset()")

    def moved(self, given: Raw, whose: str, known: tuple[str, ...]) -> Turn:
        """Take in what a step returned."""
        if not (isinstance(given, tuple) and len(given) == 5 and all(isinstance(part, Mapping) for part in given)):
            raise EnvFailed(
                f"{whose}: step() must return (observations, rewards, terminations, truncations, infos), dicts by agent"
            )
        turn = Turn(self.acting, *given)
        for what, by_agent in zip(("observation", "reward", "termination", "truncation"), given, strict=False):
            if missing := [name for name in self.acting if name not in by_agent]:
                raise EnvFailed(f"{whose} gave no {what} of {missing[0]}, which had acted")
        gone = [name for name in self.acting if turn.terminated[name] or turn.truncated[name]]
        self.seen, self.left = turn.obs, self.left.union(gone)
        self.acting, here = [name for name in self.acting if name not in gone], set(self.env.agents)
        if vanished := [name for name in self.acting if name not in here]:
            raise EnvFailed(
                f"{whose} has {vanished[0]} no more among its agents, which it neither terminated nor truncated"
            )
        self._join(whose, known)
        return turn

    def _join(self, whose: str, known: tuple[str, ...]) -> None:
        """Take in agents that are there now and were not; one that is gone does not come back in its episode."""
        self.joined = [name for name in self.env.agents if name not in self.acting and name not in self.left]
        for name in self.joined:
            if name not in known:
                raise EnvFailed(f"{whose} has an agent {name!r}, which its possible_agents do not name")
            if name not in self.seen:
                raise EnvFailed(f"{whose} gave {name} nothing to see when it began")
        self.acting = self.acting + self.joined
