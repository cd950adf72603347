"""A Gymnasium env that can be saved, for runs on the host that are to be resumed to the bit."""

import gymnasium as gym
import numpy as np

from hotloop.random_streams import generator_from_array, generator_to_array


class Walk(gym.Env):
    """Pays 1 a step; ends after `length` steps, or never; `info` says how far it came. Can be saved."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    taken = 0

    def __init__(self, length=None):
        self.length, self.t = length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.place = 0, self.np_random.random(2).astype(np.float32)
        return self.place, {}

    def step(self, action):
        Walk.taken += 1
        self.t += 1
        self.place = np.roll(self.place, 1) * np.float32(0.9)
        return self.place, 1.0, self.t == self.length, False, {"depth": float(self.place[0])}

    def get_state(self):
        return {"t": np.int64(self.t), "place": self.place, "random": generator_to_array(self.np_random)}

    def set_state(self, saved):
        self.t, self.place = int(saved["t"]), np.array(saved["place"])
        self.np_random = generator_from_array(saved["random"])


gym.register("Walk-v0", entry_point=Walk, disable_env_checker=True, order_enforce=False)
