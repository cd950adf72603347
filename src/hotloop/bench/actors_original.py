"""An actor and a learner that share a buffer and a model, in the manner that a document gave advice for; our own words.

Each field of `Switches` is one piece of that advice; the defaults are the manner before it. Networks, loss and game are
those of `treasure_original`, for one of its agents; the other four move at random. Chance is drawn from streams of each
side's own, so that two loops which differ in nothing that matters end with the same bits.
"""

import queue
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Literal, cast

import numpy as np
import torch
from torch import nn

from hotloop.bench.actors_buffer import Batch, Manner, SharedBuffer
from hotloop.bench.treasure_original_game import (
    AGENTS,
    FRAME_SIZE,
    MOVES,
    TURNS,
    Game,
    NumpyGame,
    ObjectGame,
    RandomDraws,
)
from hotloop.bench.treasure_original_iqn import ACTING_TAUS, TRAINING_TAUS, IqnNetwork, Taus, loss_of
from hotloop.bench.treasure_original_iqn import Batch as TensorBatch

STACK, DISCOUNT, BATCH, CAPACITY = 5, 0.99, 64, 1024
LEARNING_RATE, SOFT, CLIP, SCALE = 2.5e-4, 0.001, 1.0, 10_000.0
SYNC_EVERY, PUBLISH_EVERY, LOG_EVERY = 50, 10, 50
"""Turns between two looks at the shared weights, gradient steps between two publications, turns between two reports."""
EPSILON, LOG_ROOM, TOGETHER = 0.1, 1_000, 4
SIGNIFICANT = 1e-4
"""A weight that has moved less than this has not "changed significantly"."""
Publish = Literal["state dict", "if changed", "incremental", "in place"]


@dataclass(frozen=True)
class Switches:
    """One piece of advice each."""

    no_comparison: bool = False
    no_lock_around_add: bool = False
    no_local_memory: bool = False
    flat_states: bool = False
    no_blocking_log: bool = False
    no_clone_on_sync: bool = False
    no_index_lock: bool = False
    locked_size: bool = False
    preallocated_sampling: bool = False
    event_instead_of_sleep: bool = False
    no_lock_around_sample: bool = False
    no_unused_clone: bool = False
    no_loss_scale: bool = False
    clips: bool = False
    publish: Publish = "state dict"
    batches_per_turn: int = 1
    accumulates: bool = False
    """The batches of a turn make one optimiser step."""
    sliced_frames: bool = False
    """Not in the document: what is seen is sliced out of an array instead of looked up cell by cell."""
    fused_steps: bool = False
    """Not in the document: the optimiser and the target net move all weights in one call each."""

    @property
    def manner(self) -> Manner:
        """Of the buffer."""
        return Manner(not self.no_index_lock, self.locked_size, self.preallocated_sampling)


class Shared:
    """What both sides have: a buffer, a model in shared memory, locks, a bell for data, a queue for reports."""

    def __init__(self, context: BaseContext, switches: Switches) -> None:
        self.buffer = SharedBuffer(context, CAPACITY, STACK * FRAME_SIZE, BATCH, switches.manner)
        self.buffer_lock, self.model_lock, self.has_data = context.Lock(), context.Lock(), context.Event()
        self.model = new_model()
        self.model.share_memory()
        self.log = context.Queue(LOG_ROOM)


class Actor:
    """Plays, and writes what it saw and did to the shared buffer."""

    def __init__(self, shared: Shared, switches: Switches, seed: int = 0) -> None:
        self.shared, self.switches, self.model = shared, switches, new_model()
        draws = RandomDraws(seed)
        self.game: Game = NumpyGame(draws) if switches.sliced_frames else ObjectGame(draws)
        self.random, self.tensor_random = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.turns, self.gained, self.dropped_reports, self.actions = 0, 0.0, 0, list[int]()
        self._frames: deque[np.ndarray] = deque(maxlen=STACK)
        self._memory, self._seen = np.zeros((CAPACITY, FRAME_SIZE), np.float32), -1
        self._begin()

    def turn(self) -> None:
        """Look, act, move, remember; now and then take new weights and report."""
        if self.turns % SYNC_EVERY == 0:
            self._sync()
        state = self._state()
        action = self._act(state)
        others = self.random.integers(len(MOVES), size=AGENTS - 1).tolist()
        reward = self.game.step([action, *others])[0]
        done = self.game.t == TURNS
        self._add(state, action, reward, done)
        self.turns, self.gained = self.turns + 1, self.gained + reward
        self.actions.append(action)
        if done:
            self.game.reset()
            self._begin()
        else:
            self._see(self.game.frame(0))
        if self.turns % LOG_EVERY == 0:
            self._report()

    def _begin(self) -> None:
        for _ in range(STACK - 1):
            self._see(np.zeros(FRAME_SIZE, np.float32))
        self._see(self.game.frame(0))

    def _see(self, frame: np.ndarray) -> None:
        if self.switches.no_local_memory:
            self._frames.append(frame)
        else:  # a ring of its own beside the shared one, from which stacks are read
            self._seen += 1
            self._memory[self._seen % CAPACITY] = frame

    def _state(self) -> np.ndarray:
        """Stacked frames, (5, 125), or (625,) with `flat_states`."""
        if self.switches.no_local_memory:
            frames = list(self._frames)
        else:
            frames = [self._memory[(self._seen - back) % CAPACITY] for back in range(STACK - 1, -1, -1)]
        return np.concatenate(frames) if self.switches.flat_states else np.stack(frames)

    def _act(self, state: np.ndarray) -> int:
        if self.random.random() < EPSILON:
            return int(self.random.integers(len(MOVES)))
        with torch.no_grad():
            self.model.draw_noise(self.tensor_random)
            tau = torch.rand(1, ACTING_TAUS, generator=self.tensor_random)
            obs = torch.from_numpy(state).reshape(1, -1)
            return int(self.model(obs, tau).mean(1).argmax(1).item())

    def _add(self, state: np.ndarray, action: int, reward: float, done: bool) -> None:
        flat = state if self.switches.flat_states else state.flatten() if state.ndim > 1 else state
        if self.switches.no_lock_around_add:
            self.shared.buffer.add(flat, action, reward, done)
        else:
            with self.shared.buffer_lock:
                self.shared.buffer.add(flat, action, reward, done)
        if self.switches.event_instead_of_sleep:
            self.shared.has_data.set()

    def _sync(self) -> None:
        """Take the shared weights, and look at how far they were apart."""
        local, shared = self.model, self.shared.model
        if not self.switches.no_comparison:
            self.apart_before = _apart(local, shared)
        with self.shared.model_lock:
            given = shared.state_dict()
            if self.switches.no_clone_on_sync:
                local.load_state_dict(given)
            else:
                local.load_state_dict({name: weight.clone() for name, weight in given.items()})
        if not self.switches.no_comparison:
            self.apart_after = _apart(local, shared)

    def _report(self) -> None:
        report = {"turns": self.turns, "gained": self.gained}
        if self.switches.no_blocking_log:
            try:
                self.shared.log.put_nowait(report)
            except queue.Full:
                self.dropped_reports += 1
        else:
            self.shared.log.put(report, block=True, timeout=1.0)


class Learner:
    """Draws from the shared buffer, learns, publishes."""

    def __init__(self, shared: Shared, switches: Switches, seed: int = 0) -> None:
        self.shared, self.switches = shared, switches
        self.online, self.target = new_model(), new_model()
        how = {"fused": True} if switches.fused_steps else {}
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE, **how)
        self.random, self.tensor_random = np.random.default_rng(seed + 1), torch.Generator().manual_seed(seed + 1)
        self.batches, self.clipped, self.waits = 0, 0, 0
        self._unpublished = 0

    def turn(self) -> bool:
        """Take the batches of a turn; False if there was none, and it has waited a moment."""
        together = self.switches.batches_per_turn
        for number in range(together):
            batch = self._sample()
            if batch is None:
                self._wait()
                return False
            is_first, is_last = number == 0, number == together - 1
            self._learn(batch, begins=is_first or not self.switches.accumulates)
            if is_last or not self.switches.accumulates:
                self._step()
            self.batches += 1
            self._unpublished += 1
        if self._unpublished >= PUBLISH_EVERY:
            self._unpublished = 0
            self._publish()
        return True

    def _sample(self) -> Batch | None:
        if self.switches.no_lock_around_sample:
            return self.shared.buffer.sample(self.random)
        with self.shared.buffer_lock:
            return self.shared.buffer.sample(self.random)

    def _wait(self) -> None:
        self.waits += 1
        if self.switches.event_instead_of_sleep:
            self.shared.has_data.clear()
            self.shared.has_data.wait(0.1)
        else:
            time.sleep(0.001)

    def _learn(self, batch: Batch, *, begins: bool) -> None:
        """Gradients of one batch, beside those that are there unless it begins anew."""
        if not self.switches.no_unused_clone:
            self.weight_before = self.online.advantage.weight.data.clone()
        tensors = TensorBatch(
            torch.from_numpy(batch.state),
            torch.from_numpy(batch.action),
            torch.from_numpy(batch.reward),
            torch.from_numpy(batch.next_state),
            torch.from_numpy(DISCOUNT * (1.0 - batch.done)),
        )
        taus = Taus(*torch.rand(3, BATCH, TRAINING_TAUS, generator=self.tensor_random))
        for network in (self.online, self.target):
            network.draw_noise(self.tensor_random)
        loss = loss_of(self.online, self.target, tensors, taus)
        if not self.switches.no_loss_scale:
            loss = loss * SCALE
        if self.switches.accumulates:
            loss = loss / self.switches.batches_per_turn
        if begins:
            self.optimizer.zero_grad()
        loss.backward()
        self.loss = float(loss.item())

    def _step(self) -> None:
        if self.switches.clips:
            norm = nn.utils.clip_grad_norm_(self.online.parameters(), CLIP)
            self.clipped += int(float(norm) > CLIP)
        self.optimizer.step()
        with torch.no_grad():
            slow, fast = list(self.target.parameters()), list(self.online.parameters())
            if self.switches.fused_steps:
                torch._foreach_lerp_(slow, fast, SOFT)
                return
            for behind, ahead in zip(slow, fast, strict=True):
                behind.copy_(SOFT * ahead + (1.0 - SOFT) * behind)

    def _publish(self) -> None:
        how, shared = self.switches.publish, self.shared.model
        with self.shared.model_lock, torch.no_grad():
            if how == "in place":
                torch._foreach_copy_(list(shared.parameters()), list(self.online.parameters()))
            elif how == "incremental":  # tensors that have changed, of which there are none that have not
                for there, here in zip(shared.parameters(), self.online.parameters(), strict=True):
                    if not torch.equal(there, here):
                        there.copy_(here)
            elif how == "state dict" or self._has_changed():
                shared.load_state_dict({name: weight.cpu() for name, weight in self.online.state_dict().items()})

    def _has_changed(self) -> bool:
        pairs = zip(self.shared.model.parameters(), self.online.parameters(), strict=True)
        return any(float((there - here).abs().max()) > SIGNIFICANT for there, here in pairs)


def new_model() -> IqnNetwork:
    """The same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return IqnNetwork(STACK * FRAME_SIZE, len(MOVES))


def weights_of(model: IqnNetwork) -> np.ndarray:
    """In one vector."""
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])


def _apart(local: IqnNetwork, shared: IqnNetwork) -> float:
    """The mean difference of one layer's weights, by copies of both, as it was written."""
    here, there = (cast(torch.Tensor, model.advantage.weight.data.clone().cpu()) for model in (local, shared))
    return float(torch.abs(here - there).mean().item())
