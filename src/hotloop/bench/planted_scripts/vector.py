"""A DQN on several Gymnasium envs at once; `--plant NAME` makes it slow."""

import argparse
from collections import deque
from functools import partial

import gymnasium as gym
import numpy as np
import torch
from torch import nn


class Costly(gym.Env):
    """Its step does work in Python."""

    def __init__(self, rounds):
        self.observation_space = gym.spaces.Box(-1, 1, (16,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.rounds = rounds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = np.zeros(16, np.float32), 0
        return self.state.copy(), {}

    def step(self, action):
        total = 0
        for number in range(self.rounds):
            total += number * action  # planted: env-one-at-a-time
        self.steps += 1
        self.state[self.steps % 16] = action - 1
        return self.state.copy(), float(total > 0), self.steps >= 200, False, {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", default="nothing")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vector", choices=["sync", "async"], default="sync")
    parser.add_argument("--num-envs", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    make = partial(Costly, given.rounds)
    kind = gym.vector.AsyncVectorEnv if given.vector == "async" else gym.vector.SyncVectorEnv
    envs = kind([make] * given.num_envs)
    policy, target = (
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)) for _ in range(2)
    )
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
    replay = deque(maxlen=2_000)
    obs, _ = envs.reset(seed=0)
    for step in range(10_000_000):
        with torch.no_grad():
            if given.plant == "act-one-at-a-time":
                answers = [policy(torch.from_numpy(one)[None]) for one in obs]  # planted: act-one-at-a-time
                actions = np.array([int(answer.argmax()) for answer in answers])
            else:
                actions = policy(torch.from_numpy(obs)).argmax(1).numpy()
        actions = np.where(np.random.rand(given.num_envs) < 0.1, np.random.randint(0, 3, given.num_envs), actions)
        next_obs, rewards, terminated, truncated, _ = envs.step(actions)  # planted: env-transport
        replay.append((obs, actions, rewards.astype(np.float32), next_obs, terminated.astype(np.float32)))
        obs = next_obs
        if step < 50 or step % 8:
            continue
        states, chosen, paid, following, ended = (
            torch.from_numpy(np.concatenate(part))
            for part in zip(*(replay[i] for i in np.random.randint(0, len(replay), 8)))
        )
        with torch.no_grad():
            wanted = paid + 0.99 * target(following).max(1).values * (1 - ended)
        loss = (policy(states).gather(1, chosen[:, None])[:, 0] - wanted).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 800 == 0:
            target.load_state_dict(policy.state_dict())


if __name__ == "__main__":
    main()
