"""A slow training (why were 256 vectorised Snakes slow?), with one switch per remedy that was proposed for it.

What is drawn at random is drawn in the same order whatever the switches say, so a remedy that only changes how
a thing is computed must end with the same weights and the same replay: `digest()` tells.
"""

import hashlib
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from hotloop.bench.slow_baseline_env import ACTIONS, FEATURES, Flood, Outcome, SlowSnakes
from hotloop.bench.slow_baseline_flood import Cached, by_bfs, by_growth, off
from hotloop.bench.slow_baseline_replay import ArrayReplay, Batch, ListReplay, Replay

HIDDEN, BATCH, CAPACITY, LEARNING_START = 128, 64, 100_000, 1_000
DISCOUNT, LEARNING_RATE, CLIP, TARGET_EVERY = 0.99, 1e-3, 1.0, 1_000
EPSILON_START, EPSILON_END, EPSILON_STEPS = 1.0, 0.01, 50_000
WINDOW = 100
"""Episodes between two lines of the log, and the episodes it averages over."""


@dataclass(frozen=True)
class Switches:
    """Its own settings, and for each remedy a way to switch it on."""

    num_envs: int = 256
    gradient_steps: int | None = None
    """Per vector step; none means num_envs // 4."""
    push: Literal["per env", "batched"] = "per env"
    transfer: Literal["per item", "batched"] = "per item"
    flood: Literal["bfs", "vectorised", "cached", "off"] = "bfs"
    logging: bool = True


class SlowTraining:
    """DQN on N Snakes in eager PyTorch; `seconds` says where the time went."""

    def __init__(self, switches: Switches | None = None, *, seed: int = 0, audit: bool = False) -> None:
        """`audit` counts the wrong answers of the flood-fill cache, and costs what it saves."""
        self.switches = switches or Switches()
        num_envs, flood = self.switches.num_envs, self.switches.flood
        self.cache = Cached(audit=audit)
        floods: dict[str, Flood] = {"bfs": by_bfs, "vectorised": by_growth, "cached": self.cache, "off": off}
        self.env = SlowSnakes(num_envs, floods[flood], seed=seed)
        self.explore_random = torch.Generator().manual_seed(seed + 1)
        self.sample_random = np.random.default_rng(seed + 2)
        with torch.random.fork_rng():
            torch.manual_seed(seed + 3)
            self.online, self.target = _network(), _network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE)
        self.replay: Replay = (
            ArrayReplay(CAPACITY, FEATURES)
            if self.switches.push == "batched"
            else ListReplay(CAPACITY, self.switches.transfer)
        )
        given = self.switches.gradient_steps
        self.gradient_steps = max(1, num_envs // 4) if given is None else given
        self.log = Log(num_envs) if self.switches.logging else None
        self.env_steps = self.updates = 0
        self.seconds: dict[str, float] = defaultdict(float)
        self.obs = self.env.reset()
        self.env.flood_seconds = 0.0

    def advance(self, env_steps: int) -> None:
        """Take whole vector steps, until `env_steps` more have been made."""
        end = self.env_steps + env_steps
        while self.env_steps < end:
            self.vector_step()

    def vector_step(self) -> None:
        """Act, step all envs, remember, learn, log."""
        marks = [time.perf_counter()]
        actions = self._act()
        marks.append(time.perf_counter())
        outcome = self.env.step(actions)
        marks.append(time.perf_counter())
        self.replay.push(Batch(self.obs, actions, outcome.reward, outcome.last_obs, outcome.terminated))
        marks.append(time.perf_counter())
        before, self.env_steps = self.env_steps, self.env_steps + self.switches.num_envs
        if len(self.replay) >= LEARNING_START:
            for _ in range(self.gradient_steps):
                self._gradient_step()
        if self.env_steps // TARGET_EVERY > before // TARGET_EVERY:
            self.target.load_state_dict(self.online.state_dict())
        marks.append(time.perf_counter())
        if self.log is not None:
            self.log.step(outcome)
        marks.append(time.perf_counter())
        self.obs = outcome.obs
        for i, stage in enumerate(("act", "env", "push", "gradient steps", "episode log")):
            self.seconds[stage] += marks[i + 1] - marks[i]

    def shares(self) -> dict[str, float]:
        """Share of the time per stage; flood fill on its own, apart from the rest of the env."""
        seconds = {**self.seconds, "flood fill": self.env.flood_seconds}
        seconds["env"] -= self.env.flood_seconds
        whole = sum(seconds.values())
        return {stage: spent / whole for stage, spent in sorted(seconds.items(), key=lambda item: -item[1])}

    def forget_times(self) -> None:
        """Start `shares` afresh."""
        self.seconds.clear()
        self.env.flood_seconds = 0.0

    def digest(self) -> str:
        """A hash of both networks, the optimiser's averages and all of the replay."""
        averages = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.online.parameters(), *self.target.parameters(), *averages]
        arrays = [tensor.detach().numpy() for tensor in tensors] + self.replay.contents()
        hashed = hashlib.sha256()
        for array in arrays:
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()

    def _act(self) -> torch.Tensor:
        with torch.no_grad():
            greedy = self.online(self.obs).argmax(1)
        line = EPSILON_START + (EPSILON_END - EPSILON_START) * self.env_steps / EPSILON_STEPS
        explores = torch.rand(len(greedy), generator=self.explore_random) < max(line, EPSILON_END)
        anything = torch.randint(0, ACTIONS, (len(greedy),), generator=self.explore_random)
        return torch.where(explores, anything, greedy)

    def _gradient_step(self) -> None:
        batch = self.replay.sample(self.sample_random.integers(len(self.replay), size=BATCH))
        q = self.online(batch.s_tm1).gather(1, batch.a_tm1[:, None])[:, 0]
        with torch.no_grad():
            ahead = self.target(batch.s_t).max(1).values
            goal = batch.r_t + DISCOUNT * ahead * ~batch.terminated_t
        loss = nn.functional.smooth_l1_loss(q, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), CLIP)
        self.optimizer.step()
        self.updates += 1
        if self.log is not None:
            self.log.losses.append(loss.item())


class Log:
    """What its code keeps of episodes and losses: numbers fetched one by one, a line per 100 episodes."""

    def __init__(self, num_envs: int) -> None:
        self.returns, self.lengths = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.long)
        self.losses: deque[float] = deque(maxlen=WINDOW)
        self.episodes: list[tuple[float, int, int, str]] = []
        self.lines: list[str] = []

    def step(self, outcome: Outcome) -> None:
        """Note the episodes that ended in this step."""
        self.returns += outcome.reward
        self.lengths += 1
        ended = outcome.terminated | outcome.truncated
        for i in torch.where(ended)[0]:
            why = "died" if outcome.terminated[i].item() else "time-out"
            figures = (self.returns[i].item(), self.lengths[i].item(), outcome.score[i].item(), why)
            self.episodes.append(figures)
            self.returns[i] = 0.0
            self.lengths[i] = 0
            if len(self.episodes) % WINDOW == 0:
                self.lines.append(self._line())

    def _line(self) -> str:
        returns, lengths, scores, _ = zip(*self.episodes[-WINDOW:], strict=True)
        loss = np.mean(self.losses) if self.losses else float("nan")
        return (
            f"episode {len(self.episodes)}: return {np.mean(returns):.2f}, length {np.mean(lengths):.1f}, "
            f"score {np.mean(scores):.2f}, best {max(scores)}, loss {loss:.4f}"
        )


def _network() -> nn.Sequential:
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, ACTIONS)]
    return nn.Sequential(*layers)
