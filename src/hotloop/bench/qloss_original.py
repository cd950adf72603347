"""The Q-loss that was too slow, in our own words, with one switch per piece of advice; all off is the original.

At SLM-Lab's settings of `dqn_cartpole` (of its version 5: the learning rate falls by train calls): three forward passes
per gradient step, of which DQN needs two, because the target net is asked the same twice; lines for a log that nobody
reads, formatted all the same; a replay in Python lists; an optimiser that goes weight by weight. States are
kept in float32 (there: float16), so that every row has the same numbers. What is drawn at random does not depend on the
switches: one that changes only how a thing is computed must end with the same weights.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from hotloop.bench.qloss_replay import Batch, Memory, MemoryKind, Transition, joined

Algorithm = Literal["vanilla", "dqn", "double"]
HIDDEN, CAPACITY, DISCOUNT = 64, 10_000, 0.99
BATCHES, STEPS_ON_EACH = 4, 8
"""Of one train call: batches drawn, and gradient steps on each of them."""
STEPS_PER_CALL = BATCHES * STEPS_ON_EACH
LEARNING_RATE, RATE_EVERY, RATE_FACTOR = 0.02, 1_000, 0.9
"""The learning rate falls by the factor after so many train calls."""
CLIP, POLYAK = 0.5, 0.1
LOG = logging.getLogger(__name__)

WEIGHTS = {
    "torso/layers/dense_0/kernel": "0.weight",
    "torso/layers/dense_0/bias": "0.bias",
    "head/dense_0/kernel": "2.weight",
    "head/dense_0/bias": "2.bias",
}
"""hotloop's names of the weights, and torch's."""


@dataclass(frozen=True)
class Setting:
    """What is learned: an env, the sizes of its observations and actions, and of a batch."""

    env_id: str = "CartPole-v1"
    obs_size: int = 4
    num_actions: int = 2
    batch_size: int = 32


@dataclass(frozen=True)
class Switches:
    """Advice that can be followed, piece by piece."""

    combined_forward: bool = False
    """Both states of a transition in one pass through the online net."""
    buffers: bool = False
    """Targets are computed into tensors made once."""
    prefetch: bool = False
    """All batches of a train call are gathered at once."""
    mega_batch: int = 1
    """Batches joined into one, for one optimiser step instead of so many: another algorithm."""
    accumulate: int = 1
    """Batches whose gradients are averaged for one optimiser step: another algorithm."""
    lazy_log: bool = False
    """A line of the log is formatted if somebody reads it."""
    no_duplicate_forward: bool = False
    """The net that both chooses and values the next action is asked once, not twice."""
    targets_once: bool = False
    """The targets of a batch are computed once, not for each gradient step on it."""
    array_replay: bool = False
    """The replay is arrays."""
    fused_optimizer: bool = False
    """One kernel steps all weights."""

    def __post_init__(self) -> None:
        if self.together not in (1, 2, 4, 8):
            raise ValueError(f"mega_batch x accumulate is {self.together}, expected 1, 2, 4 or 8")

    @property
    def together(self) -> int:
        """Batches per optimiser step."""
        return self.mega_batch * self.accumulate

    @property
    def is_exact(self) -> bool:
        """Whether the result should be that of the original: declared here, checked elsewhere."""
        return self.together == 1


def offered(switches: Switches, algorithm: Algorithm, memory: MemoryKind) -> tuple[Switches, dict[str, str]]:
    """The switches without those that this algorithm or memory cannot have, and for each of these the reason."""
    refused = {}
    if switches.targets_once and algorithm != "dqn":
        refused["targets_once"] = f"targets of {algorithm} follow the online net, which each gradient step changes"
    if switches.no_duplicate_forward and algorithm == "double":
        refused["no_duplicate_forward"] = "in double one net chooses the next action and another values it"
    if switches.prefetch and memory == "prioritized":
        refused["prefetch"] = "the next batch is drawn by priorities that learning from this one moves"
    if switches.combined_forward and switches.no_duplicate_forward and "no_duplicate_forward" not in refused:
        refused["combined_forward"] = "a combined pass asks no net twice already"
    return replace(switches, **dict.fromkeys(refused, False)), refused


class QLearner:
    """Network, target net, optimiser and replay; `train_call` is what is timed.

    `q_loss_seconds` is the time in `q_loss` alone: forward passes, targets and loss, not the way back.
    """

    def __init__(
        self,
        setting: Setting,
        switches: Switches | None = None,
        algorithm: Algorithm = "dqn",
        memory: MemoryKind = "replay",
        *,
        capacity: int = CAPACITY,
        seed: int = 0,
    ) -> None:
        self.setting, self.algorithm = setting, algorithm
        self.switches, self.refused = offered(switches or Switches(), algorithm, memory)
        self.memory = Memory(memory, capacity, setting.obs_size, in_arrays=self.switches.array_replay, seed=seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.online, self.target = _network(setting), _network(setting)
        self.target.load_state_dict(self.online.state_dict())
        how = {"fused": True} if self.switches.fused_optimizer else {"foreach": False, "fused": False}
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE, **how)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, RATE_EVERY, RATE_FACTOR)
        self._buffers: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.train_calls = self.gradient_steps = self.q_loss_calls = 0
        self.q_loss_seconds = 0.0

    def insert(self, transition: Transition) -> None:
        """Keep a transition."""
        self.memory.insert(transition)

    def act(self, obs: np.ndarray) -> int:
        """The best known action."""
        with torch.no_grad():
            return int(self.online(torch.from_numpy(obs)[None]).argmax(1).item())

    def train_call(self) -> None:
        """4 batches, 8 gradient steps on each, one step of the schedule; equally many passes where batches are joined.

        Steps on the batches of one optimiser step come one after the other, before the next are drawn.
        """
        drawn = max(BATCHES, self.switches.together)
        losses = []
        for group in self._groups(drawn):
            for _ in range(STEPS_PER_CALL // drawn):
                losses.append(self._gradient_step(group))
        self.schedule.step()
        self.train_calls += 1
        loss = torch.stack(losses).mean()
        if self.switches.lazy_log:
            LOG.debug("train call %s: loss %s", self.train_calls, loss)
        else:
            LOG.debug(f"train call {self.train_calls}: loss {loss}")

    def q_loss(self, batch: Batch) -> torch.Tensor:
        """The mean squared TD error of a batch; a prioritised memory is told the errors."""
        q_BA, ahead_BA = self._online(batch)
        q_B = q_BA.gather(1, batch.a_tm1[:, None])[:, 0]
        goal_B = self._goal(batch, ahead_BA)
        if self.switches.lazy_log:
            LOG.debug("q: %s\ngoal: %s", q_B, goal_B)
        else:
            LOG.debug(f"q: {q_B}\ngoal: {goal_B}")
        if self.memory.priorities is not None:
            self.memory.learned(batch.places, (goal_B - q_B.detach()).numpy())
        return nn.functional.mse_loss(q_B, goal_B)

    def move_target(self) -> None:
        """Mix a share of the online net into the target net."""
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.copy_(POLYAK * fast + (1 - POLYAK) * slow)

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the online net's weights, by hotloop's names and in its shapes."""
        state = self.online.state_dict()
        return {ours: state[theirs].numpy().T.copy() for ours, theirs in WEIGHTS.items()}

    def start_from(self, weights: Mapping[str, np.ndarray]) -> None:
        """Begin with these weights, in both nets."""
        state = {theirs: torch.from_numpy(weights[ours].T.copy()) for ours, theirs in WEIGHTS.items()}
        self.online.load_state_dict(state)
        self.target.load_state_dict(state)

    # -- batches ----------------------------------------------------------------------------------------

    def _groups(self, drawn: int) -> Iterator[list[Batch]]:
        """The batches of a train call, as many at a time as an optimiser step takes."""
        memory, size, on = self.memory, self.setting.batch_size, self.switches
        if on.prefetch:
            places = [place for _ in range(drawn) for place in memory.draw(size)]
            waiting = memory.gather(places).split(size)
        for first in range(0, drawn, on.together):
            if on.prefetch:
                batches = waiting[first : first + on.together]
            else:
                batches = [memory.gather(memory.draw(size)) for _ in range(on.together)]
            yield [joined(batches[i : i + on.mega_batch]) for i in range(0, on.together, on.mega_batch)]

    # -- one gradient step ------------------------------------------------------------------------------

    def _gradient_step(self, group: list[Batch]) -> torch.Tensor:
        """One step of the optimiser on one batch, or on the mean gradient of several; returns the loss of the last."""
        self.optimizer.zero_grad()
        for batch in group:
            started = time.perf_counter()
            loss = self.q_loss(batch)
            self.q_loss_seconds += time.perf_counter() - started
            self.q_loss_calls += 1
            (loss if len(group) == 1 else loss / len(group)).backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), CLIP)
        self.optimizer.step()
        self.gradient_steps += 1
        return loss.detach()

    def _online(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the online net says of a batch's states, and in a combined pass of its next states, too."""
        if self.switches.combined_forward:
            both = self.online(torch.cat([batch.s_tm1, batch.s_t]))
            return both[: len(batch)], both[len(batch) :].detach()
        return self.online(batch.s_tm1), None

    def _goal(self, batch: Batch, ahead_BA: torch.Tensor | None) -> torch.Tensor:
        """What Q-values are pulled towards; only a terminated episode cuts the bootstrap."""
        if batch.goal is not None:
            return batch.goal
        with torch.no_grad():
            choosing_BA, values_BA = self._ahead(batch, ahead_BA)
            goal_B = (self._into_buffers if self.switches.buffers else _anew)(batch, values_BA, choosing_BA)
        if self.switches.targets_once:
            batch.goal = goal_B.clone() if self.switches.buffers else goal_B
        return goal_B

    def _ahead(self, batch: Batch, ahead_BA: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Of next states: what the net says that chooses the action, and what the one says that values it.

        The original asks both, also where they are the same net, as in all but Double. What a combined pass has
        already said of the online net (`ahead_BA`) is not asked again.
        """
        chooser = self.online if self.algorithm != "dqn" else self.target
        valuer = self.online if self.algorithm == "vanilla" else self.target
        if ahead_BA is not None:
            values_BA = ahead_BA if valuer is self.online else valuer(batch.s_t)
            return (ahead_BA if chooser is self.online else values_BA), values_BA
        choosing_BA = chooser(batch.s_t)
        is_asked_again = chooser is not valuer or not self.switches.no_duplicate_forward
        return choosing_BA, valuer(batch.s_t) if is_asked_again else choosing_BA

    def _into_buffers(self, batch: Batch, values_BA: torch.Tensor, choosing_BA: torch.Tensor) -> torch.Tensor:
        """As `_anew`, in the same order of operations; what has a gradient cannot be written into a buffer."""
        size = len(batch)
        if size not in self._buffers:
            self._buffers[size] = torch.zeros(size), torch.zeros(size, dtype=torch.long), torch.zeros(size)
        best_B, choice_B, goal_B = self._buffers[size]
        torch.max(choosing_BA, 1, out=(best_B, choice_B))
        if values_BA is not choosing_BA:
            torch.gather(values_BA, 1, choice_B[:, None], out=best_B[:, None])
        torch.sub(1.0, batch.terminated_t, out=goal_B)
        return goal_B.mul_(DISCOUNT).mul_(best_B).add_(batch.r_t)


def _anew(batch: Batch, values_BA: torch.Tensor, choosing_BA: torch.Tensor) -> torch.Tensor:
    best_B = values_BA.gather(1, choosing_BA.argmax(1, keepdim=True))[:, 0]
    return batch.r_t + DISCOUNT * (1.0 - batch.terminated_t) * best_B


def _network(setting: Setting) -> nn.Sequential:
    return nn.Sequential(nn.Linear(setting.obs_size, HIDDEN), nn.SELU(), nn.Linear(HIDDEN, setting.num_actions))
