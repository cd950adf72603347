"""The naive twin of the host replay, in plain Python lists, and envs made of lists that play any script."""

from typing import Any, NamedTuple

import jax
import numpy as np

from hotloop.experience import VectorStep

H, W = 2, 2


class NaiveItem(NamedTuple):
    """One transition: the state left, the action there, the rewards summed, the discount, the state reached."""

    s_tm1: Any
    a_tm1: int
    r_t: float
    discount_t: float
    s_t: Any


class NaiveReplay:
    """Every transition there ever was, in the order they came: of one vector step those that waited longest first."""

    def __init__(self, n_step: int, discount: float) -> None:
        self.n, self.discount = n_step, discount
        self.items: list[NaiveItem] = []

    def begin(self, obs_N: Any) -> None:
        self.now = each_of(obs_N)
        self.episodes: list[list[tuple]] = [[] for _ in self.now]

    def insert(self, step: VectorStep) -> None:
        complete = []
        reached_N, next_N = each_of(step.final_obs), each_of(step.obs)
        for i, episode in enumerate(self.episodes):
            if not step.valid[i]:
                episode.clear()
            else:
                episode.append((self.now[i], int(step.action[i]), float(step.reward[i])))
                is_over = step.terminated[i] or step.truncated[i]
                for first in range(len(episode)):
                    taken = len(episode) - first
                    if taken == self.n or (is_over and taken < self.n):
                        complete.append((-taken, i, self._item(episode[first:], step.terminated[i], reached_N[i])))
                if is_over:
                    episode.clear()
            self.now[i] = next_N[i]
        self.items += [item for _, _, item in sorted(complete, key=lambda found: found[:2])]

    def _item(self, steps: list[tuple], is_terminated: bool, reached: Any) -> NaiveItem:
        state, action, _ = steps[0]
        summed = sum(self.discount**k * reward for k, (_, _, reward) in enumerate(steps))
        return NaiveItem(state, action, summed, 0.0 if is_terminated else self.discount ** len(steps), reached)


def each_of(obs_N: Any) -> list[Any]:
    """A batch of observations as a list of copies."""
    count = len(jax.tree.leaves(obs_N)[0])
    return [jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), obs_N) for i in range(count)]


class Script(NamedTuple):
    """What the envs do: each plays the episodes in turn, env i beginning with the i-th, over and over."""

    episodes: tuple[tuple[int, str], ...]  # length, and how it ends: terminated, truncated, both, failed
    starts: tuple[str, ...] = ("any",)  # stack at the start of an episode: zeros, repeats, any
    next_step: bool = False  # autoreset in a step of its own (NEXT_STEP), or within the last one
    still: int = 0  # every so many frames shows the same as the one before it; 0: none
    tree: bool = False  # observations are dicts


class ListEnvs:
    """N envs that play a script. Every frame is another; an observation is a stack of the last ones, newest last."""

    def __init__(self, script: Script, num_envs: int, stack: int, seed: int = 0) -> None:
        self.script, self.stack, self.random = script, stack, np.random.default_rng(seed)
        self.shown = 0
        self.number = list(range(num_envs))
        self.frames = [self._first(i) for i in range(num_envs)]
        self.t = [0] * num_envs
        self.is_over = [False] * num_envs

    def _frame(self) -> np.ndarray:
        self.shown += 1
        return np.frombuffer(np.uint32(self.shown).tobytes(), np.uint8).reshape(H, W).copy()

    def _first(self, i: int) -> list[np.ndarray]:
        style = self.script.starts[self.number[i] % len(self.script.starts)]
        newest = self._frame()
        if style == "zeros":
            return [np.zeros((H, W), np.uint8)] * (self.stack - 1) + [newest]
        if style == "repeats":
            return [newest] * self.stack
        return [self._frame() for _ in range(self.stack)]

    def _see(self, frames_N: list[list[np.ndarray]]) -> Any:
        images = np.array([frames[-self.stack :] for frames in frames_N])
        if not self.script.tree:
            return images
        return {"image": images, "sum": images.sum(axis=(1, 2, 3)).astype(np.float32)}

    @property
    def obs(self) -> Any:
        return self._see(self.frames)

    def shape(self) -> Any:
        """Of one observation."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.obs)

    def step(self) -> VectorStep:
        count = len(self.t)
        action = self.random.integers(5, size=count).astype(np.int32)
        reward = self.random.normal(size=count).astype(np.float32)
        terminated, truncated, valid, began = np.zeros((4, count), bool)
        reached_N = []
        for i in range(count):
            length, ending = self.script.episodes[self.number[i] % len(self.script.episodes)]
            self.t[i] += 1
            fails = ending == "failed" and self.t[i] >= length
            if self.is_over[i] or fails:
                began[i], reward[i], self.is_over[i] = True, np.nan, False
                self._begin(i)
                reached_N.append(self.frames[i])
                continue
            valid[i] = True
            is_still = self.script.still and self.shown % self.script.still == 0
            frame = self.frames[i][-1] if is_still else self._frame()
            self.shown += is_still
            self.frames[i] = [*self.frames[i][-self.stack :], frame]
            reached_N.append(self.frames[i])
            if self.t[i] >= length:
                terminated[i], truncated[i] = ending in ("terminated", "both"), ending in ("truncated", "both")
                self.is_over[i], began[i] = self.script.next_step, not self.script.next_step
                if began[i]:
                    self._begin(i)
        final_obs = self._see(reached_N)
        return VectorStep(self.obs, final_obs, action, reward, terminated, truncated, valid, began)

    def _begin(self, i: int) -> None:
        self.number[i] += 1
        self.t[i] = 0
        self.frames[i] = self._first(i)
