"""Hindsight: an episode that missed its goal is stored again as if what it reached had been the goal.

Episodes wait until they end and are then inserted whole: as they were, and relabelled. The env itself says what a
step would have earned with another goal (`compute_reward`), and whether it would have ended there
(`compute_terminated`, if it has that). Which actions are legal is taken not to depend on the goal.
"""

from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from hotloop.errors import EnvFailed, NotFinite, SpecError
from hotloop.experience import Item, Items, VectorStep, items_of
from hotloop.spec import Hindsight
from hotloop.trees import Arrays, ArraySpec, tree_map, zeros_of

REACHED, WANTED = "achieved_goal", "desired_goal"


class GoalRelabeler:
    """The running episodes of N envs."""

    def __init__(self, spec: Hindsight, discount: float, row: Item[ArraySpec], num_envs: int, judge: object) -> None:
        """`row` has the shapes of one transition; `judge` is an env with `compute_reward(reached, wanted, info)`."""
        obs = row.s_t
        if not isinstance(obs, dict) or not {REACHED, WANTED} <= set(obs):
            raise SpecError(
                f"replay.hindsight needs observations with '{REACHED}' and '{WANTED}'; this env's have "
                f"{sorted(obs) if isinstance(obs, dict) else 'no parts'}"
            )
        if not callable(getattr(judge, "compute_reward", None)):
            raise SpecError("replay.hindsight needs an env with compute_reward(achieved_goal, desired_goal, info)")
        self.spec, self.discount, self.judge = spec, discount, judge
        self.each = np.arange(num_envs)
        self.length_N = np.zeros(num_envs, np.int64)
        self._row = row
        self._reserve(64)

    def _reserve(self, steps: int) -> None:
        """Room for episodes of so many steps; running ones stay."""
        before = getattr(self, "rows", None)
        shape = (len(self.each), steps)
        self.rows = items_of(self._row, shape, zeros_of)
        if before is not None:
            tree_map(lambda new, old: new.__setitem__((slice(None), slice(old.shape[1])), old), self.rows, before)

    def forget(self) -> None:
        """Drop the running episodes: they will not go on."""
        self.length_N[:] = 0

    def push(self, before: Arrays, step: VectorStep, random: np.random.Generator) -> Items | None:
        """Hold one step of every env; returns the episodes that ended in it, as they were and relabelled."""
        if self.length_N.max() == self.rows.r_t.shape[1]:
            self._reserve(2 * self.rows.r_t.shape[1])
        discount_N = (self.discount * ~step.terminated).astype(np.float32)
        row: Items = Item(before, step.action, step.reward, discount_N, step.final_obs, step.final_legal)
        place = (self.each[step.valid], self.length_N[step.valid])
        tree_map(lambda stored, new: stored.__setitem__(place, new[step.valid]), self.rows, row)
        self.length_N[step.valid] += 1
        self.length_N[step.began & ~(step.terminated | step.truncated)] = 0  # an env that failed, or was only reset
        whole = [self._finish(int(i), random) for i in np.flatnonzero(step.terminated | step.truncated)]
        if not whole:
            return None
        return tree_map(lambda *parts: np.concatenate(parts), *whole)

    def _finish(self, env: int, random: np.random.Generator) -> Items:
        length = int(self.length_N[env])
        self.length_N[env] = 0
        episode = tree_map(lambda stored: stored[env, :length], self.rows)
        copies = [self._relabelled(episode, length, random) for _ in range(self.spec.relabelled)]
        return tree_map(lambda *parts: np.concatenate(parts), episode, *copies)

    def _relabelled(self, episode: Items, length: int, random: np.random.Generator) -> Items:
        """The episode with other goals: for each step, what was reached after the step `chosen`."""
        if self.spec.goals == "final":
            chosen = np.full(length, length - 1)
        elif self.spec.goals == "episode":
            chosen = random.integers(length, size=length)
        else:
            chosen = random.integers(np.arange(length), length)
        before, after = _parts(episode.s_tm1), _parts(episode.s_t)
        reached = after[REACHED]
        wanted = reached[chosen]
        reward = self._judged("compute_reward", reached, wanted, np.float32)
        if not np.isfinite(reward).all():
            raise NotFinite("compute_reward gave a reward that is not finite")
        discount = episode.discount_t
        if callable(getattr(self.judge, "compute_terminated", None)):
            terminated = self._judged("compute_terminated", reached, wanted, bool)
            discount = (self.discount * ~terminated).astype(np.float32)
        return episode._replace(
            s_tm1={**before, WANTED: wanted},
            r_t=reward,
            discount_t=discount,
            s_t={**after, WANTED: wanted},
        )

    def _judged(self, method: str, reached: np.ndarray, wanted: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        """What the env says of each step."""
        try:
            return np.asarray(getattr(self.judge, method)(reached, wanted, {}), dtype).reshape(len(reached))
        except Exception as error:  # whatever the user's own code raises
            raise EnvFailed(f"the env's {method} raised {type(error).__name__}: {error}") from error


def _parts(obs: Arrays) -> dict[str, np.ndarray]:
    """An observation with goals: its shapes were looked at when the run began."""
    return cast(dict[str, np.ndarray], obs)
