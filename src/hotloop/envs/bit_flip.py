"""BitFlip: turn n bits into n wanted ones, one bit a step, with a reward only at the goal.

Beyond a dozen bits chance never finds the goal, so an agent learns nothing from rewards alone; with hindsight it does.
Importing this module registers it: `gymnasium.make("hotloop.envs.bit_flip:hotloop/BitFlip-v0", bits=12)`.
"""

import gymnasium as gym
import numpy as np


class BitFlip(gym.Env[dict[str, np.ndarray], np.int64]):
    """Action i flips bit i. Reward -1, and 0 at the goal, which ends the episode; after n steps it is cut off."""

    def __init__(self, bits: int = 12) -> None:
        if not 1 <= bits <= 1024:
            raise ValueError(f"bits is {bits}, expected 1 … 1024")
        self.bits = bits
        space = gym.spaces.MultiBinary(bits)
        self.observation_space = gym.spaces.Dict(observation=space, achieved_goal=space, desired_goal=space)
        self.action_space = gym.spaces.Discrete(bits)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, object]]:
        """Begin with random bits and a random goal other than they."""
        super().reset(seed=seed)
        self._now = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        self._goal = self.np_random.integers(2, size=self.bits, dtype=np.int8)
        if (self._now == self._goal).all():
            self._goal[0] ^= 1
        self._steps = 0
        return self._see(), {}

    def step(self, action: int | np.integer) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, object]]:
        """Flip one bit."""
        self._now[int(action)] ^= 1
        self._steps += 1
        seen = self._see()
        reward = float(self.compute_reward(self._now, self._goal, {}))
        terminated = bool(self.compute_terminated(self._now, self._goal, {}))
        return seen, reward, terminated, self._steps >= self.bits and not terminated, {"solved": float(terminated)}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object) -> np.ndarray:
        """0 where the goal is reached, else -1; one goal or a batch of them."""
        reward: np.ndarray = (achieved_goal == desired_goal).all(axis=-1) - 1.0
        return reward

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: object) -> np.ndarray:
        """Whether the goal is reached."""
        is_reached: np.ndarray = (achieved_goal == desired_goal).all(axis=-1)
        return is_reached

    def _see(self) -> dict[str, np.ndarray]:
        return {"observation": self._now.copy(), "achieved_goal": self._now.copy(), "desired_goal": self._goal.copy()}


gym.register("hotloop/BitFlip-v0", entry_point="hotloop.envs.bit_flip:BitFlip")
