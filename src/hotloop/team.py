"""Trained agents that act together in one env: predict, evaluate, record."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike

from hotloop.agent import EPISODES, Agent, Seat, Seen, write_recording
from hotloop.assembly import Player
from hotloop.engines.protocol import Weights
from hotloop.envs.team import TeamSpaces
from hotloop.errors import SpecError
from hotloop.evaluate import Episodes, Tell
from hotloop.members import agents as members_of
from hotloop.members import is_member_name
from hotloop.pipelines.host_team_play import Greedy, play_team_on_host, record_team_on_host
from hotloop.plain import Figures
from hotloop.runs import statistics
from hotloop.runs.pictures import write_gif

if TYPE_CHECKING:
    import jax

Named = dict[str, np.ndarray]


def agent_of(player: Player, named: Named, which: str = "") -> "Agent | Team":
    """What was trained, by its weights: an agent, or the agents of one env; `which` (agent-3) is the one looked at."""
    if player.spec.agents is None:
        if which:
            raise SpecError(f"there is no '{which[:40]}': in {player.spec.env.id} one agent acts; leave --which out")
        assert not isinstance(player.env, TeamSpaces)
        return Agent(Seat(player.spec, player.env, player.engine), player.engine.from_named(named))
    return Team(player, named, which)


class Team:
    """The agents of a run, each with its weights, or all with the same."""

    def __init__(self, player: Player, named: Named, which: str = "") -> None:
        assert player.spec.agents is not None
        self.spec, self.env, self.engine, self.names = player.spec, player.env, player.engine, player.spec.agents.names
        self.members = members_of(len(self.names))
        parts = _apart(named, self.members.names)
        self.weights: list[Weights] = [player.engine_of(i).from_named(part) for i, part in enumerate(parts)]
        """Of each agent; one for all where they share them."""
        self.agents: dict[str, Agent] = {}
        """By the names that the env has for them."""
        for i, name in enumerate(self.names):
            spaces = self.env.each[i] if isinstance(self.env, TeamSpaces) else self.env
            own = self.weights[i] if len(self.weights) > 1 else self.weights[0]
            self.agents[name] = Agent(Seat(self.spec, spaces, player.engine_of(i)), own)
        self.looked_at = self._index(which) if which else None

    def predict(
        self, obs: Mapping[str, Seen], deterministic: bool = True, action_mask: Mapping[str, ArrayLike] | None = None
    ) -> dict[str, int | np.ndarray]:
        """The action of each agent for its observation, by its name; those that are not there are not asked."""
        if not isinstance(obs, Mapping):
            raise ValueError(
                f"predict takes a dict of observations by agent ({', '.join(self.names)}), got {type(obs)}"
            )
        if unknown := sorted(set(obs) - set(self.names)):
            raise ValueError(f"there is no agent {unknown[0]!r}; the agents are {', '.join(self.names)}")
        masks = action_mask or {}
        found: dict[str, int | np.ndarray] = {}
        for name, seen in obs.items():
            try:
                found[name] = self.agents[name].predict(seen, deterministic, masks.get(name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return found

    def evaluate(self, episodes: int | None = None, seed: int = 0, tell: Tell | None = None) -> Figures:
        """Play greedy episodes together; returns means over the agents and `by_agent`, or the figures of one.

        How many, and what `tell` hears, is as for one agent (`Agent.evaluate`).
        """
        by_agent = [each.summary() for each in self._played(episodes, seed, tell)]
        if self.looked_at is not None:
            return {**by_agent[self.looked_at]}
        return statistics.together(by_agent, self.members) if len(by_agent) > 1 else {**by_agent[0]}

    def _played(self, wanted: int | None, seed: int, tell: Tell | None) -> list[Episodes]:
        episodes = wanted or EPISODES
        if isinstance(self.env, TeamSpaces):
            most = None if wanted is not None else math.ceil(self.spec.evaluation.max_share * self.spec.stop.steps)
            return play_team_on_host(self.spec, self._greedy, episodes, seed, most, tell).by_agent
        from hotloop.envs.multi_agent import MultiAgentEnv
        from hotloop.pipelines.device_play import functions_of
        from hotloop.pipelines.team_play import play_team

        assert isinstance(self.env, MultiAgentEnv)
        functions, limit = functions_of(self.engine), self.spec.evaluation.max_steps
        return play_team(self.env, functions, self._stacked(), episodes, limit, seed).by_agent

    @property
    def can_record(self) -> bool:
        """Whether the env knows how to draw itself."""
        if isinstance(self.env, TeamSpaces):
            return self.env.draws
        return callable(getattr(self.env, "render", None))

    def record(self, path: str | Path, seed: int = 0) -> Path:
        """Write a GIF of one greedy episode, or of its first seconds."""
        if not self.can_record:
            raise SpecError(f"env {self.spec.env.id} cannot draw itself; there is nothing to record")
        if isinstance(self.env, TeamSpaces):
            frames, fps = record_team_on_host(self.spec, self._greedy, seed)
            return write_gif(frames, Path(path), fps)
        from hotloop.envs.device import Drawable
        from hotloop.pipelines.device_play import functions_of
        from hotloop.pipelines.team_play import record_team

        if not isinstance(self.env, Drawable):
            raise SpecError(f"env {self.spec.env.id} cannot draw itself; there is nothing to record")
        env, params, functions = self.env, self._stacked(), functions_of(self.engine)
        return write_recording(
            path, env, self.spec, lambda steps, every: record_team(env, functions, params, seed, steps, every)
        )

    @property
    def _greedy(self) -> list[Greedy]:
        return [agent.best for agent in self.agents.values()]

    def _stacked(self) -> "jax.Array":
        import jax.numpy as jnp

        return jnp.stack([cast("jax.Array", each) for each in self.weights])

    def _index(self, which: str) -> int:
        if which not in self.members.names:
            raise SpecError(f"there is no '{which[:40]}'; this run has {', '.join(self.members.names)}")
        return self.members.names.index(which)


def is_one_of_team(which: str | None) -> bool:
    """Whether weights are asked for by the name of an agent."""
    return which is not None and is_member_name(which) and which.startswith(f"{members_of(1).kind}-")


def _apart(named: Named, members: list[str]) -> list[Named]:
    """The weights of each agent, from those of all under their names; those of all at once as they are."""
    if not all(name.partition("/")[0] in members for name in named):
        return [named]
    found: list[Named] = []
    for member in members:
        start = f"{member}/"
        found.append({name.removeprefix(start): array for name, array in named.items() if name.startswith(start)})
        if not found[-1]:
            raise SpecError(f"the run has no weights of {member}")
    return found
