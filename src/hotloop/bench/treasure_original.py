"""The multi-agent training that was too slow, in our own words and without its mistakes: one agent after the other.

Five agents, each with networks, a replay and an optimiser of its own; eager PyTorch, 256 quantiles at batch 1 to act,
observations put together cell by cell. `ImprovedTraining` is the same with frames sliced out of an array, an optimiser
that steps all weights in one kernel, and the target net moved by one call: what is drawn at random is the same, so both
end with the same weights but for rounding.
"""

from collections import deque
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from hotloop.bench.treasure_original_game import (
    AGENTS,
    FRAME_SIZE,
    MOVES,
    TURNS,
    Draws,
    Game,
    NumpyGame,
    ObjectGame,
    RandomDraws,
)
from hotloop.bench.treasure_original_iqn import ACTING_TAUS, TRAINING_TAUS, IqnNetwork, Taus, loss_of
from hotloop.bench.treasure_original_replay import FrameReplay

STACK, STEPS, DISCOUNT = 5, 3, 0.99
LEARNING_RATE, CLIP, SOFT = 2.5e-4, 1.0, 0.001
EPSILON_FACTOR = 0.999
"""ε begins at 1 and falls by this with every epoch."""
OBS_SIZE = STACK * FRAME_SIZE


class Turn(NamedTuple):
    """What a turn brought: rewards, what each agent saw at its end, and whether that was the end of the epoch."""

    rewards: list[float]
    frames: list[np.ndarray]
    is_over: bool


class OriginalTraining:
    """IQN for five agents; `gradient_steps` of each agent per turn, once its replay has `learning_start` rows."""

    game_class: ClassVar[type[ObjectGame] | type[NumpyGame]] = ObjectGame
    is_fused: ClassVar[bool] = False  # whether its learners step all weights in one kernel

    def __init__(
        self,
        *,
        gradient_steps: int = 1,
        batch_size: int = 64,
        capacity: int = 10_000,
        learning_start: int = 100,
        seed: int = 0,
        draws: Draws | None = None,
    ) -> None:
        self.gradient_steps, self.batch_size, self.learning_start = gradient_steps, batch_size, learning_start
        self.game: Game = self.game_class(draws or RandomDraws(seed))
        self.learners = [
            Learner(capacity, batch_size, seed=1_000 * seed + number, is_fused=self.is_fused)
            for number in range(AGENTS)
        ]
        self.epsilon, self.turns, self.epochs = 1.0, 0, 0
        self.gems_per_epoch: list[list[int]] = []
        self._random = np.random.default_rng(seed)
        self._gems: list[int] = []
        self._stacks: list[deque[np.ndarray]] = []
        self._begin()

    def turn(self) -> Turn:
        """A turn of all agents: act, move, look, remember, learn."""
        t, before = self.game.t, [stack[-1] for stack in self._stacks]
        observations = self.observations()
        actions = [learner.act(obs, self.epsilon) for learner, obs in zip(self.learners, observations, strict=True)]
        outcome = self.env_turn(actions)
        for number, learner in enumerate(self.learners):
            learner.replay.add(t, before[number], actions[number], outcome.rewards[number])
            if outcome.is_over:
                learner.replay.end(t + 1, outcome.frames[number])
        for learner in self.learners:
            if len(learner.replay) >= self.learning_start:
                for _ in range(self.gradient_steps):
                    learner.learn()
        return outcome

    def env_turn(self, actions: Sequence[int] | None = None) -> Turn:
        """The game and what is seen of it alone; without actions, random ones. An epoch that is over begins anew.

        For timing: a training whose turns were taken so has missed them, and says so when it next remembers one.
        """
        if actions is None:
            actions = [int(action) for action in self._random.integers(len(MOVES), size=AGENTS)]
        rewards = self.game.step(actions)
        frames = [self.game.frame(number) for number in range(AGENTS)]
        self.turns += 1
        self._gems = [gems + (reward > 0) for gems, reward in zip(self._gems, rewards, strict=True)]
        for stack, frame in zip(self._stacks, frames, strict=True):
            stack.append(frame)
        outcome = Turn(rewards, frames, self.game.t == TURNS)
        if outcome.is_over:
            self.epochs += 1
            self.epsilon *= EPSILON_FACTOR
            self.gems_per_epoch.append(self._gems)
            self.game.reset()
            self._begin()
        return outcome

    def observations(self) -> list[np.ndarray]:
        """What each agent sees now and saw before in this epoch, float32 (625,), oldest first."""
        return [np.concatenate(stack) for stack in self._stacks]

    def weights(self) -> np.ndarray:
        """Of all networks, in one vector."""
        nets = [net for learner in self.learners for net in (learner.online, learner.target)]
        return np.concatenate([each.detach().numpy().ravel() for net in nets for each in net.parameters()])

    def _begin(self) -> None:
        nothing = np.zeros(FRAME_SIZE, np.float32)
        self._gems = [0] * AGENTS
        self._stacks = [
            deque([nothing] * (STACK - 1) + [self.game.frame(number)], maxlen=STACK) for number in range(AGENTS)
        ]


class ImprovedTraining(OriginalTraining):
    """The same, its observations by slicing, its learners with fused steps."""

    game_class = NumpyGame
    is_fused = True


class Learner:
    """One agent: networks, replay, optimiser, and random streams of its own."""

    def __init__(self, capacity: int, batch_size: int, *, seed: int, is_fused: bool = False) -> None:
        self.is_fused = is_fused
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.online, self.target = (IqnNetwork(OBS_SIZE, len(MOVES)) for _ in range(2))
        self.target.load_state_dict(self.online.state_dict())
        how = {"fused": True} if is_fused else {}
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE, **how)
        self.replay = FrameReplay(capacity, FRAME_SIZE, stack=STACK, steps=STEPS, discount=DISCOUNT)
        self.batch_size, self.updates = batch_size, 0
        self.tensor_random = torch.Generator().manual_seed(seed)
        self.random = np.random.default_rng(seed)

    def act(self, obs: np.ndarray, epsilon: float) -> int:
        """A random move with probability ε, else the best by the mean of 256 quantiles."""
        if self.random.random() < epsilon:
            return int(self.random.integers(len(MOVES)))
        with torch.no_grad():
            self.online.draw_noise(self.tensor_random)
            tau = torch.rand(1, ACTING_TAUS, generator=self.tensor_random)
            return int(self.online(torch.from_numpy(obs)[None], tau).mean(1).argmax(1).item())

    def learn(self) -> float:
        """One gradient step, and the target net a thousandth of the way towards the online net; returns the loss."""
        batch = self.replay.sample(self.batch_size, self.random)
        taus = Taus(*torch.rand(3, self.batch_size, TRAINING_TAUS, generator=self.tensor_random))
        for network in (self.online, self.target):
            network.draw_noise(self.tensor_random)
        loss = loss_of(self.online, self.target, batch, taus)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), CLIP)
        self.optimizer.step()
        with torch.no_grad():
            if self.is_fused:
                torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), SOFT)
            else:
                for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                    slow.copy_(SOFT * fast + (1.0 - SOFT) * slow)
        self.updates += 1
        return float(loss.item())
