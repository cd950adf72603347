"""The Snakes of a document that asks why 256 of them train slowly, as a Gymnasium vector env: the doctor is asked, too.

`hotloop.bench.planted_snakes:planted/DocumentSnakes-v0` has the document's flood fill by default, a search in Python
for every move of every snake; with `flood: none` it has the features of its plain DQN.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hotloop.bench.slow_baseline_env import ACTIONS, FEATURES, Flood, SlowSnakes
from hotloop.bench.slow_baseline_flood import by_bfs, off

FLOODS: dict[str, Flood] = {"bfs": by_bfs, "none": off}


class DocumentSnakes(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """N games that begin anew in the step in which they end."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1, flood: str = "bfs") -> None:
        self.num_envs, self._flood = num_envs, FLOODS[flood]
        self.single_observation_space = gym.spaces.Box(0.0, np.inf, (FEATURES,), np.float32)
        self.single_action_space = gym.spaces.Discrete(ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._snakes = SlowSnakes(num_envs, self._flood, seed=0)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Begin all games, by one seed."""
        del options
        if isinstance(seed, int):
            self._snakes = SlowSnakes(self.num_envs, self._flood, seed=seed)
        return self._snakes.reset().numpy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, object]]:
        """Move every snake one cell."""
        made = self._snakes.step(torch.from_numpy(np.asarray(actions, np.int64)))
        terminated, truncated = made.terminated.numpy(), made.truncated.numpy()
        ended = terminated | truncated
        infos: dict[str, object] = {"final_obs": made.last_obs.numpy(), "_final_obs": ended} if ended.any() else {}
        return made.obs.numpy(), made.reward.numpy(), terminated, truncated, infos


gym.register("planted/DocumentSnakes-v0", vector_entry_point=f"{__name__}:DocumentSnakes")
