"""The half of a run on the host that makes experience: envs, the policy they act by, and how their episodes go.

It knows nothing of replay or learning, and has a random stream of its own.
"""

from typing import Protocol

import numpy as np

from hotloop.engines.protocol import Policy
from hotloop.envs.host import EnvArrays
from hotloop.envs.host_spaces import Actions, Observations
from hotloop.episodes import Finished, RunningEpisodes
from hotloop.experience import VectorStep
from hotloop.pipelines.explorer import Explorer
from hotloop.spans import Spans
from hotloop.trees import Arrays


class Envs(Protocol):
    """What is asked of N envs: those of Gymnasium (`envs/host.py`), or one learner's share of a team's."""

    num_envs: int
    observations: Observations
    actions: Actions

    @property
    def legal(self) -> np.ndarray | None:
        """Which actions the next step may take, bool (N, A); None with masks off."""

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""

    def reset(self, seed: int) -> Arrays:
        """Begin an episode in every env."""

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Act in every env."""

    def arrays(self) -> EnvArrays:
        """What a checkpoint can hold of the envs."""

    def restore(self, arrays: EnvArrays) -> bool:
        """Take back what `arrays` gave, after a reset; returns whether the episodes go on where they were."""

    def close(self) -> None:
        """Let the envs go."""


class ActorArrays(EnvArrays, total=False):
    """What a checkpoint holds of an actor; nothing amid a step."""

    obs: Arrays
    episode_return: np.ndarray
    episode_length: np.ndarray


class Actor:
    """N envs in mid-episode."""

    policy: Policy
    random: np.random.Generator
    obs: Arrays
    is_torn = False  # the envs have stepped, and nobody has taken the step over yet

    def __init__(self, envs: Envs, explorer: Explorer, spans: Spans) -> None:
        self.envs, self.explorer, self._spans = envs, explorer, spans

    def begin(self, seed: int) -> Arrays:
        """Begin an episode in every env; returns what they see."""
        self.obs, self.is_torn = self.envs.reset(seed), False
        self.running = RunningEpisodes(self.envs.num_envs)
        return self.obs

    def step(self, env_steps: int) -> VectorStep:
        """Act and step once in every env; ε or the temperature is that of the vector step's first env step."""
        action_N = self.choose(env_steps)
        with self._spans["step"]:
            return self.envs.step(action_N)

    def choose(self, env_steps: int) -> np.ndarray:
        """An action for every env, which is about to take it."""
        with self._spans["select"]:
            action_N = self.explorer.actions(self.policy, self.obs, self.envs.legal, env_steps, self.random)
        self.is_torn = True
        return action_N

    def stored(self, step: VectorStep) -> Finished | None:
        """A step is stored, or will be: go on from there; returns the episodes that ended, if any did."""
        self.obs, self.is_torn = step.obs, False
        self.running.add(step)
        ended = step.terminated | step.truncated
        finished = None
        if ended.any():
            finished = Finished(
                int(ended.sum()),
                float(self.running.returns[ended].sum()),
                float(self.running.lengths[ended].sum()),
                {key: float(np.nansum(values[ended])) for key, values in step.info.items()},
            )
        self.running.begin_anew(ended | step.failed)  # an episode that failed is not counted
        return finished

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> ActorArrays:
        """What the envs let be saved, and the running episodes; nothing amid a step."""
        if self.is_torn:
            return {}
        return {
            **self.envs.arrays(),
            "obs": self.obs,
            "episode_return": self.running.returns,
            "episode_length": self.running.lengths,
        }

    def go_on(self, arrays: ActorArrays, obs: Arrays) -> None:
        """Take back the running episodes, whose envs are where they were."""
        self.obs = obs
        self.running.returns = np.array(arrays["episode_return"])
        self.running.lengths = np.array(arrays["episode_length"])
