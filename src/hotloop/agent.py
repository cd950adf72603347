"""A trained agent: predict, evaluate, record."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from hotloop.engines.protocol import Engine, Weights
from hotloop.envs import host_recording
from hotloop.envs.host_spaces import HostSpaces
from hotloop.errors import SpecError
from hotloop.evaluate import Tell, play_on_host
from hotloop.film import film_of
from hotloop.learning import targets
from hotloop.pipelines.explorer import Explorer
from hotloop.runs.pictures import write_gif
from hotloop.spec import Spec
from hotloop.trees import Arrays, Shapes, Tree, leaves

if TYPE_CHECKING:
    import jax
    from PIL.Image import Image

    from hotloop.envs.device import DeviceEnv, Drawable, ObsSpec

Seen = Tree[ArrayLike]
"""One observation, or a batch of them, as the env gives it."""
EPISODES = 100
"""Played by an evaluation that is not told how many."""


class Seat(NamedTuple):
    """What an agent is put before: as a `Player` has them, or as one of several agents does."""

    spec: Spec
    env: "DeviceEnv | HostSpaces"
    engine: Engine


class Agent:
    """Weights of a run and the network they belong to."""

    def __init__(self, player: Seat, weights: Weights) -> None:
        self.spec, self.env, self.engine = player.spec, player.env, player.engine
        self.weights, self._policy = weights, self.engine.freeze(weights)
        self._random = np.random.default_rng(self.spec.seed)

    def predict(self, obs: Seen, deterministic: bool = True, action_mask: ArrayLike | None = None) -> int | np.ndarray:
        """Action for one observation (an int) or a batch of them (an array); not deterministic: explores.

        `action_mask` says which actions are legal, (A,) or (B, A) as the observations; without it all are.
        """
        self._refuse_memory("predict")
        obs_B, is_single = self._batch(obs)
        count = leaves(obs_B)[0].shape[0]
        legal_BA = self._legal(action_mask, count, is_single)
        if deterministic:
            action_B = self.best(obs_B, legal_BA)
        else:
            explorer = Explorer(self.spec, self.engine.wanted_to_act(count))
            action_B = explorer.actions(self._policy, obs_B, legal_BA, self.spec.stop.steps, self._random)
        return int(action_B[0]) if is_single else action_B

    def remember(self, obs: Seen, memory: Shapes = None) -> tuple[int | np.ndarray, Shapes]:
        """Greedy action and what is remembered after it, for agents with a core; None begins an episode."""
        obs_B, is_single = self._batch(obs)
        action_B, memory = self.engine.remember(self.weights, memory, obs_B)
        return (int(action_B[0]) if is_single else action_B), memory

    @property
    def params(self) -> object:
        """The trained weights as your own network takes them, to be used without hotloop.

        With engine torch a `state_dict` (`module.load_state_dict(agent.params)`), with engine jax the tree of a flax
        module (`module.apply(agent.params, obs_B)`). Of a network of ours, the same by its own names.
        """
        return self.engine.as_given(self.weights)

    def _refuse_memory(self, what: str) -> None:
        if self.spec.replay.sequence is not None:
            raise SpecError(
                f"{what} sees one observation, but this agent remembers (network.core); use "
                "action, memory = agent.remember(obs, memory), with None at the start of an episode"
            )

    def q_values(self, obs: Seen) -> np.ndarray:
        """Q-values of one observation, shape (A,), or of a batch, (B, A)."""
        self._refuse_memory("q_values")
        obs_B, is_single = self._batch(obs)
        q_BA = self._policy(obs_B)
        return q_BA[0] if is_single else q_BA

    def evaluate(self, episodes: int | None = None, seed: int = 0, tell: Tell | None = None) -> dict[str, float]:
        """Play greedy episodes to their ends; returns their figures. On the host `tell(done, wanted)` hears of them.

        Without a number it is EPISODES, and on the host no more env steps than `evaluation.max_share` x `stop.steps`:
        where the agent wanders about for ever, the rest is cut, and the figures say so.
        """
        most_steps = None if episodes is not None else math.ceil(self.spec.evaluation.max_share * self.spec.stop.steps)
        episodes = episodes or EPISODES
        if isinstance(self.env, HostSpaces):
            return play_on_host(self.spec, self.best, episodes, seed, most_steps, tell).summary()
        from hotloop.pipelines.device_play import functions_of, play_on_device

        masked, limit = self.spec.env.action_mask, self.spec.evaluation.max_steps
        params = cast("jax.Array", self.weights)  # of the one engine that plays on the device
        functions = functions_of(self.engine)
        return play_on_device(self.env, functions, params, episodes, limit, masked, seed).summary()

    @property
    def can_record(self) -> bool:
        """Whether the env knows how to draw itself."""
        if isinstance(self.env, HostSpaces):
            return host_recording.can_record(self.spec, self.env)
        return callable(getattr(self.env, "render", None))

    def record(self, path: str | Path, seed: int = 0) -> Path:
        """Write a GIF of one greedy episode, or of its first seconds."""
        env = self.env
        if not self.can_record:
            raise SpecError(f"env {self.spec.env.id} cannot draw itself; there is nothing to record")
        if isinstance(env, HostSpaces):
            frames, fps = host_recording.record(self.spec, env, self.best, seed)
            return write_gif(frames, Path(path), fps)
        from hotloop.envs.device import Drawable
        from hotloop.pipelines.device_play import functions_of, record

        if not isinstance(env, Drawable):
            raise SpecError(f"env {self.spec.env.id} does not say how fast it is to be shown; give it render_fps")
        params, functions, masked = (
            cast("jax.Array", self.weights),
            functions_of(self.engine),
            self.spec.env.action_mask,
        )
        return write_recording(
            path, env, self.spec, lambda steps, every: record(env, functions, params, seed, steps, every, masked)
        )

    def best(self, obs_N: Arrays, legal_NA: np.ndarray | None = None) -> np.ndarray:
        """The best action for each of N observations, as a network sees them."""
        best_N: np.ndarray = np.argmax(targets.legal_only(self._policy(obs_N), legal_NA, xp=np), axis=-1)
        return best_N.astype(np.int32)

    def _legal(self, mask: ArrayLike | None, count: int, is_single: bool) -> np.ndarray | None:
        if mask is None:
            return None
        legal = np.asarray(mask).astype(bool)
        size = self.engine.num_actions
        expected = (size,) if is_single else (count, size)
        if legal.shape != expected:
            raise ValueError(f"action_mask has shape {legal.shape}, expected {expected}: one entry per action")
        return legal[None] if is_single else legal

    def _batch(self, obs: Seen) -> tuple[Arrays, bool]:
        if isinstance(self.env, HostSpaces):
            return self.env.observations.batch(obs)
        from hotloop.envs.device import map_obs

        found: list[bool] = []

        def batch(spec: "ObsSpec", part: ArrayLike) -> np.ndarray:
            array = np.asarray(part, spec.dtype)
            found.append(array.shape == spec.shape)
            if not found[-1] and array.shape[1:] != spec.shape:
                raise ValueError(f"observation has shape {array.shape}, expected {spec.shape} or a batch of it")
            return array[None] if found[-1] else array

        try:
            batches = map_obs(batch, self.env.obs_spec, obs)
        except (KeyError, IndexError) as error:
            raise ValueError(f"the observation lacks its part {error}") from None
        if len(set(found)) > 1:
            raise ValueError("some parts of the observation are a batch, and others are not")
        return batches, found[0]


def write_recording(path: str | Path, env: "Drawable", spec: Spec, play: "Callable[[int, int], list[Image]]") -> Path:
    """Write the GIF of an episode on the device, of which `play(steps, every)` draws every so many of its steps."""
    film = film_of(env.render_fps)
    steps = min(spec.evaluation.max_steps, film.every * (film.frames - 1))  # the first picture is before a step
    return write_gif(play(steps, film.every), Path(path), film.fps)
