"""A DQN as classes (replay, agent, trainer), with a deque of transitions; `--plant NAME` makes it slow."""

import argparse
import copy
import random
from collections import deque, namedtuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn, optim

Transition = namedtuple("Transition", "state action reward next_state done")


class ArrayMemory:
    """Rows of arrays."""

    def __init__(self, capacity):
        self.states, self.next_states = np.zeros((capacity, 8), np.float32), np.zeros((capacity, 8), np.float32)
        self.actions, self.rewards = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        self.dones, self.capacity, self.size, self.place = np.zeros(capacity, np.float32), capacity, 0, 0

    def push(self, state, action, reward, next_state, done):
        i = self.place
        self.states[i], self.actions[i], self.rewards[i] = state, action, reward
        self.next_states[i], self.dones[i] = next_state, done
        self.place, self.size = (i + 1) % self.capacity, min(self.size + 1, self.capacity)

    def sample(self, batch_size):
        i = np.random.randint(0, self.size, batch_size)
        arrays = self.states[i], self.actions[i], self.rewards[i], self.next_states[i], self.dones[i]
        return [torch.from_numpy(array) for array in arrays]

    def __len__(self):
        return self.size


class DequeMemory:
    """Transitions as objects, drawn and stacked one by one."""

    def __init__(self, capacity):
        self.rows = deque(maxlen=capacity)

    def push(self, *values):
        self.rows.append(Transition(*values))

    def sample(self, batch_size):
        drawn = random.sample(self.rows, batch_size)  # planted: replay-sample
        states = torch.tensor(np.array([each.state for each in drawn]))  # planted: replay-sample
        actions = torch.tensor([each.action for each in drawn])  # planted: replay-sample
        rewards = torch.tensor([each.reward for each in drawn], dtype=torch.float32)  # planted: replay-sample
        next_states = torch.tensor(np.array([each.next_state for each in drawn]))  # planted: replay-sample
        dones = torch.tensor([each.done for each in drawn], dtype=torch.float32)  # planted: replay-sample
        return states, actions, rewards, next_states, dones

    def __len__(self):
        return len(self.rows)


class ListMemory(ArrayMemory):
    """Keeps its rows in a list as well, as long as it is, newest first."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.recent = []

    def push(self, *values):
        super().push(*values)
        for _ in range(100):
            row = np.concatenate([np.asarray(value).ravel() for value in values])  # planted: replay-insert
            self.recent.insert(0, row)  # planted: replay-insert
        self.recent = self.recent[:20_000]  # planted: replay-insert


class PrioritizedMemory(ArrayMemory):
    """Draws by priority, walking down a tree in Python."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.tree = [0.0] * (2 * capacity)

    def push(self, *values):
        place = self.place
        super().push(*values)
        self.set_priority(place, 1.0)

    def set_priority(self, place, priority):
        node = place + self.capacity
        change = priority - self.tree[node]
        while node:
            self.tree[node] += change  # planted: priorities
            node //= 2  # planted: priorities

    def retrieve(self, mass):
        node = 1
        while node < self.capacity:
            left = 2 * node  # planted: priorities
            if mass <= self.tree[left]:  # planted: priorities
                node = left  # planted: priorities
            else:
                mass -= self.tree[left]
                node = left + 1
        return min(node - self.capacity, self.size - 1)

    def sample(self, batch_size):
        places = [self.retrieve(random.random() * self.tree[1]) for _ in range(batch_size)]
        for place in places:
            self.set_priority(place, random.random() + 0.1)
        arrays = self.states, self.actions, self.rewards, self.next_states, self.dones
        return [torch.from_numpy(array[places]) for array in arrays]


MEMORIES = {"replay-sample": DequeMemory, "replay-insert": ListMemory, "priorities": PrioritizedMemory}


class Agent:
    """Acts and learns."""

    def __init__(self, plant, states, actions, width=64):
        self.plant = plant
        self.policy = nn.Sequential(nn.Linear(states, width), nn.ReLU(), nn.Linear(width, actions))
        self.target = copy.deepcopy(self.policy)
        self.optimizer = optim.Adam(self.policy.parameters(), lr=1e-3)
        self.loss = nn.SmoothL1Loss()
        self.steps = 0

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(4)
        with torch.no_grad():
            return int(self.policy(torch.from_numpy(state)[None]).argmax(1))

    def learn(self, memory, batch_size):
        states, actions, rewards, next_states, dones = memory.sample(batch_size)
        if self.plant == "debug-work":
            for _ in range(4):
                before = copy.deepcopy(self.policy.state_dict())  # planted: debug-work
                again = copy.deepcopy(self.optimizer.state_dict())  # planted: debug-work
        with torch.no_grad():
            wanted = rewards + 0.99 * self.target(next_states).max(1).values * (1 - dones)
        chosen = self.policy(states).gather(1, actions[:, None]).squeeze(1)
        loss = self.loss(chosen, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0)
        self.optimizer.step()
        if self.plant == "debug-work":
            self.moved = [name for name, each in self.policy.state_dict().items() if not each.equal(before[name])]
            del again
        self.steps += 1
        if self.steps % 500 == 0:
            self.target.load_state_dict(self.policy.state_dict())


class Steps(gym.Env):
    """An env of one's own, without a package around it."""

    def __init__(self):
        self.observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = np.zeros(8, np.float32)
        self.count = 0
        return self.at.copy(), {}

    def step(self, action):
        self.at[action] += 0.1
        self.count += 1
        return self.at.copy(), float(action), self.count >= 50, False, {}


class Trainer:
    """Lets an agent play."""

    def __init__(self, plant, width, batch_size):
        self.env, self.plant, self.batch_size = Steps(), plant, batch_size
        self.memory = MEMORIES.get(plant, ArrayMemory)(16_384 if plant == "priorities" else 20_000)
        self.agent = Agent(plant, 8, 4, width)
        self.cycles = deque(maxlen=200_000)

    def run(self, steps):
        state, _ = self.env.reset()
        for step in range(steps):
            action = self.agent.act(state, 0.1)
            next_state, reward, done, _, _ = self.env.step(action)
            self.memory.push(state, action, reward, next_state, done)
            if self.plant == "memory":
                self.keep_history(step)
            state = self.env.reset()[0] if done else next_state
            if len(self.memory) > 1_000:
                self.agent.learn(self.memory, self.batch_size)
            if step % 10_000 == 0:
                print("step", step)

    def keep_history(self, step):
        for _ in range(300):
            event = {"step": step}
            event["self"] = event
            self.cycles.append([event])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant", default="nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    Trainer(given.plant, given.width, given.batch_size).run(10_000_000)
