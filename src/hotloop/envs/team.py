"""Envs on the host in which several agents act: what steps them, and what of them one learner sees.

`parallel.py` has those of PettingZoo, `device_team.py` our own, stepped from the host.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np

from hotloop.envs.gym_types import Options
from hotloop.envs.host import EnvArrays
from hotloop.envs.host_spaces import HostSpaces
from hotloop.envs.own import device_env_of
from hotloop.errors import SpecError
from hotloop.experience import VectorStep
from hotloop.spec import Spec
from hotloop.trees import Arrays, tree_map

Form = TypeVar("Form")
"""Observations, or a vector step."""


class TeamSpaces(NamedTuple):
    """Who acts in an env, and the spaces of each: all that a team needs of it to act."""

    names: tuple[str, ...]
    each: tuple[HostSpaces, ...]
    draws: bool = False  # whether the env says that it can return pictures

    def are_those_of(self, other: "TeamSpaces") -> bool:
        """Whether the same agents see and do the same."""
        pairs = zip(self.each, other.each, strict=False)
        return self.names == other.names and all(
            (one.observation, one.action) == (two.observation, two.action) for one, two in pairs
        )

    def unlike(self) -> tuple[str, str] | None:
        """The first agent, and one whose spaces are not like its own; None if all are alike."""
        first = self.each[0]
        for name, spaces in zip(self.names, self.each, strict=True):
            if (spaces.observation, spaces.action) != (first.observation, first.action):
                return self.names[0], name
        return None


def agents_of_learners(spaces: TeamSpaces, spec: Spec) -> list[tuple[int, ...]]:
    """Which agents each learner learns from: all of them with shared weights, else one each."""
    agents = range(len(spaces.names))
    return [tuple(agents)] if spec.has_shared_weights else [(agent,) for agent in agents]


class TeamStep(NamedTuple):
    """A turn in each of N envs: a vector step of each agent, and where the episode ended for all, or the env raised."""

    by_agent: list[VectorStep]
    ended: np.ndarray
    failed: np.ndarray


class TeamArrays(TypedDict, total=False):
    """What a checkpoint keeps of envs: all of their state, or nothing."""

    state: dict[str, Arrays]
    acting: np.ndarray
    left: np.ndarray


class TeamEnvs(Protocol):
    """N envs in which the same agents act.

    An agent that is gone while others go on has steps that are not `valid`; its observation is zeros.
    """

    num_envs: int
    spaces: TeamSpaces
    info_keys: tuple[str, ...]
    obs: list[Arrays]
    """What each agent saw when episodes were last begun in all envs."""
    goes_on: bool
    """Whether `restore` has since taken the envs back to where they were."""
    fps: object
    """How many steps the env says are a second."""
    failures: int
    last_failure: str

    def reset(self, seed: int) -> list[Arrays]:
        """Begin an episode in every env; what each agent sees."""

    def restart(self, which_N: np.ndarray) -> list[Arrays]:
        """Begin new episodes in some envs; what each agent sees in all of them."""

    def step(self, chosen: Sequence[np.ndarray]) -> TeamStep:
        """Act in every env: actions (N,) of each agent."""

    def picture(self) -> np.ndarray | None:
        """What the first env looks like, (H, W, 3), if it was opened to be drawn."""

    def arrays(self) -> TeamArrays:
        """What a checkpoint can hold of the envs."""

    def restore(self, arrays: TeamArrays) -> bool:
        """Take back what `arrays` gave, after a reset; returns whether the episodes go on where they were."""

    def close(self) -> None:
        """Let the envs go."""


class Rows:
    """Envs as one learner has them: a row for each env of each of its agents."""

    legal = None

    def __init__(self, team: TeamEnvs, agents: Sequence[int]) -> None:
        self.team, self.agents = team, tuple(agents)
        self.num_envs, self.info_keys = len(self.agents) * team.num_envs, team.info_keys
        self.spaces = team.spaces.each[self.agents[0]]
        self.observations, self.actions = self.spaces.observations, self.spaces.actions

    def reset(self, seed: int) -> Arrays:
        """What its agents saw when the envs were reset, which is done once for all learners."""
        del seed
        return joined([self.team.obs[agent] for agent in self.agents])

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Not for one learner to do: `TeamEnvs.step` takes the actions of all."""
        raise NotImplementedError("agents step together")

    def share(self, step: TeamStep) -> VectorStep:
        """What of a turn is this learner's."""
        return joined([step.by_agent[agent] for agent in self.agents])

    def apart(self, chosen_N: np.ndarray) -> list[np.ndarray]:
        """The actions of its rows, by agent."""
        return np.split(chosen_N, len(self.agents))

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.team.failures

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return self.team.last_failure

    def arrays(self) -> EnvArrays:
        """Nothing: the envs are saved once for all learners."""
        return {}

    def restore(self, arrays: EnvArrays) -> bool:
        """Whether the envs, which were restored before, go on where they were."""
        return self.team.goes_on and "obs" in arrays

    def close(self) -> None:
        """Nothing: the envs are closed once for all learners."""


def joined(parts: Sequence[Form]) -> Form:
    """What belongs to several agents as so many more rows."""
    return parts[0] if len(parts) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *parts)


def open_team(
    env_id: str,
    num_envs: int,
    options: Options,
    vectorization: str = "auto",
    info_keys: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
    *,
    draws: bool = False,
) -> TeamEnvs:
    """Build N envs in which several agents act, by the id of a device env, a PettingZoo one, or the user's own.

    `draws`: they are to be drawn.
    """
    if vectorization not in ("auto", "sync"):
        raise SpecError(
            f"env.vectorization is {vectorization}, but envs with several agents are stepped one after the other; "
            "use auto"
        )
    if (device := device_env_of(env_id, options)) is not None:
        from hotloop.envs.device_team import DeviceTeam

        if observe:
            raise SpecError("env.observe is not for device envs; leave it out")
        return DeviceTeam(device, num_envs, info_keys)
    from hotloop.envs.parallel import ParallelTeam
    from hotloop.envs.parallel_making import maker_of

    return ParallelTeam(maker_of(env_id, options, draws=draws), num_envs, info_keys, observe)
