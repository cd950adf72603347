"""A DQN as one script from top to bottom, in CleanRL's manner, with a NumPy ring; `--plant NAME` makes it slow."""

import argparse
import os
import random
import tempfile
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--plant", default="nothing")
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--total-timesteps", type=int, default=10_000_000)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--learning-starts", type=int, default=500)
parser.add_argument("--train-frequency", type=int, default=4)
args = parser.parse_args()
plant = args.plant

torch.set_num_threads(1)
random.seed(1)
np.random.seed(1)
torch.manual_seed(1)


class Searching(gym.Wrapper):
    """Adds how much room there is to what is observed, for nobody."""

    def step(self, action):
        self.room = self.search(40)
        return self.env.step(action)

    def search(self, size):
        seen, queue = {(0, 0)}, deque([(0, 0)])
        while queue:
            x, y = queue.popleft()
            for cell in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):  # planted: env-step
                if cell not in seen and 0 <= cell[0] < size and 0 <= cell[1] < size:  # planted: env-step
                    seen.add(cell)
                    queue.append(cell)
        return len(seen)


env = gym.make(args.env_id, render_mode="rgb_array" if plant == "rendering" else None)
if plant == "env-step":
    env = Searching(env)
width = 512 if plant.startswith("update-arithmetic") else 64
if plant.startswith("update-arithmetic"):
    args.batch_size = 256 if plant.endswith("half") else 512
updates = {"update-count": 8, "update-count-half": 4}.get(plant, 1)
if updates > 1:
    args.train_frequency = 1


def network():
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


q_network, target_network = network(), network()
target_network.load_state_dict(q_network.state_dict())
optimizer = torch.optim.Adam(q_network.parameters(), lr=2.5e-4)
capacity = 50_000
ring_obs, ring_next = np.zeros((capacity, 4), np.float32), np.zeros((capacity, 4), np.float32)
ring_actions, ring_rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
ring_dones = np.zeros(capacity, np.float32)
folder = tempfile.TemporaryDirectory(prefix="planted-")
weights_file, log_file = os.path.join(folder.name, "weights.pt"), open(os.path.join(folder.name, "log.csv"), "w")


def evaluate(episodes):
    judged = gym.make(args.env_id)
    returns = []
    for _ in range(episodes):
        seen, _ = judged.reset()
        over, total = False, 0.0
        while not over:
            with torch.no_grad():
                chosen = int(q_network(torch.from_numpy(seen)[None]).argmax())
            seen, paid, terminated, truncated, _ = judged.step(chosen)
            over, total = terminated or truncated, total + paid
        returns.append(total)
    return np.mean(returns)


obs, _ = env.reset(seed=1)
start = time.time()
for step in range(args.total_timesteps):
    if random.random() < 0.1:
        action = int(env.action_space.sample())
    else:
        with torch.no_grad():
            action = int(q_network(torch.from_numpy(obs)[None]).argmax())
    next_obs, reward, terminated, truncated, info = env.step(action)
    if plant == "rendering":
        picture = env.render()  # planted: rendering
    place = step % capacity
    ring_obs[place], ring_next[place], ring_actions[place] = obs, next_obs, action
    ring_rewards[place], ring_dones[place] = reward, terminated
    obs = next_obs if not (terminated or truncated) else env.reset()[0]
    if step < args.learning_starts or step % args.train_frequency:
        continue
    for _ in range(updates):
        chosen = np.random.randint(0, min(step, capacity), args.batch_size)
        if plant == "conversion":
            batch_obs = torch.tensor(ring_obs[chosen].tolist(), dtype=torch.float64).float()  # planted: conversion
            batch_next = torch.tensor(ring_next[chosen].tolist(), dtype=torch.float64).float()  # planted: conversion
            for _ in range(24):
                torch.tensor([list(row) for row in ring_obs[chosen]])  # planted: conversion
        else:
            batch_obs, batch_next = torch.from_numpy(ring_obs[chosen]), torch.from_numpy(ring_next[chosen])
        batch_actions, batch_rewards = torch.from_numpy(ring_actions[chosen]), torch.from_numpy(ring_rewards[chosen])
        batch_dones = torch.from_numpy(ring_dones[chosen])
        with torch.no_grad():
            target_max = target_network(batch_next).max(dim=1).values
            td_target = batch_rewards + 0.99 * target_max * (1 - batch_dones)
        old = q_network(batch_obs).gather(1, batch_actions[:, None]).squeeze(1)
        loss = F.mse_loss(td_target, old)
        if plant == "host-sync":
            for _ in range(4):
                errors = [
                    abs(td_target[i].item() - old[i].item()) for i in range(args.batch_size)
                ]  # planted: host-sync
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if plant == "target-copy":
        for _ in range(32):
            target_network.load_state_dict(q_network.state_dict())  # planted: target-copy
    elif step % 1_000 == 0:
        target_network.load_state_dict(q_network.state_dict())
    if plant == "logging":
        for name, value in q_network.named_parameters():
            print(step, name, value.detach().numpy()[:3], file=log_file, flush=True)  # planted: logging
    if plant == "evaluation" and step % 200 == 0:
        print("greedy", evaluate(60))  # planted: evaluation
    if plant == "checkpointing":
        torch.save([q_network.state_dict(), ring_obs, ring_next], weights_file)  # planted: checkpointing
    if step % 5_000 == 0:
        print("steps per second", int(step / (time.time() - start)))
