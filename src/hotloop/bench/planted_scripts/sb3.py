"""Stable-Baselines3's DQN with callbacks; `--plant NAME` makes it slow."""

import argparse
import tempfile

import gymnasium as gym
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback


class Slow(gym.Wrapper):
    """Looks at every number of a table before each step."""

    def step(self, action):
        self.found = self.look_up(action)
        return self.env.step(action)

    def look_up(self, action):
        table = [(number * 7919) % 1_009 for number in range(6_000)]  # planted: env-step
        return sorted(table)[int(action)]  # planted: env-step


class Writes(BaseCallback):
    """Writes down all weights in words, in every step."""

    def _on_step(self):
        for name, value in self.model.policy.named_parameters():
            print(name, value.detach().flatten()[:512].tolist(), file=self.file)  # planted: logging
        return True

    def _on_training_start(self):
        self.file = tempfile.TemporaryFile("w")


parser = argparse.ArgumentParser()
parser.add_argument("--plant", default="nothing")
parser.add_argument("--gradient-steps", type=int, default=1)
parser.add_argument("--train-freq", type=int, default=4)
given = parser.parse_args()
torch.set_num_threads(1)
env = gym.make("CartPole-v1")
if given.plant == "env-step":
    env = Slow(env)
callbacks = []
if given.plant == "evaluation":
    callbacks.append(EvalCallback(gym.make("CartPole-v1"), eval_freq=200, n_eval_episodes=60, verbose=0))
if given.plant == "checkpointing":
    folder = tempfile.TemporaryDirectory(prefix="planted-")
    callbacks.append(CheckpointCallback(10, folder.name, save_replay_buffer=True))
if given.plant == "logging":
    callbacks.append(Writes())
model = DQN(
    "MlpPolicy",
    env,
    learning_starts=300,
    buffer_size=20_000,
    train_freq=given.train_freq,
    gradient_steps=given.gradient_steps,
    batch_size=64,
    seed=0,
    verbose=0,
)
model.learn(10_000_000, callback=callbacks or None)  # planted: update-dispatch update-count evaluation checkpointing
