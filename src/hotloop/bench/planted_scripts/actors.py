"""Actors in processes send what they see to a learner through queues; `--plant NAME` makes it slow."""

import argparse
import multiprocessing as mp
import queue
import random
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn


def network():
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))


def act(number, sent, plant):
    torch.set_num_threads(1)
    env, policy = gym.make("CartPole-v1"), network()
    obs, _ = env.reset(seed=number)
    kept = []
    while True:
        with torch.no_grad():
            action = int(policy(torch.from_numpy(obs)[None]).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        row = (obs, action, np.float32(reward), following, np.float32(terminated))
        obs = env.reset()[0] if terminated or truncated else following
        kept.append(row)
        if plant == "pickling":
            row = row + (np.zeros(500_000, np.float32),)
            sent.put([row])
            kept = []
        elif len(kept) == 64:
            sent.put(kept)
            kept = []


def learn(sent, plant):
    torch.set_num_threads(1)
    policy, target = network(), network()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    rows, done = [], 0
    while True:
        while plant == "waiting":
            time.sleep(0.05)  # planted: waiting
            if not sent.empty():
                break
        try:
            taken = sent.get(timeout=5)  # planted: pickling
        except queue.Empty:
            continue
        rows += taken
        rows = rows[-5_000:]
        if len(rows) < 200:
            continue
        for _ in range(max(1, len(taken) // 4)):
            drawn = random.sample(rows, 32)
            obs, actions, rewards, following, ended = (np.stack(part) for part in zip(*(row[:5] for row in drawn)))
            with torch.no_grad():
                best = target(torch.from_numpy(following)).max(1).values
                wanted = torch.from_numpy(rewards) + 0.99 * best * (1 - torch.from_numpy(ended))
            values = policy(torch.from_numpy(obs)).gather(1, torch.from_numpy(actions)[:, None])[:, 0]
            loss = nn.functional.mse_loss(values, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done % 500 == 0:
                target.load_state_dict(policy.state_dict())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", default="nothing")
    parser.add_argument("--start", default="fork")
    given = parser.parse_args()
    context = mp.get_context(given.start)
    sent = context.Queue(8)
    actors = [context.Process(target=act, args=(0, sent, given.plant), daemon=True)]
    for actor in actors:
        actor.start()
    learn(sent, given.plant)
