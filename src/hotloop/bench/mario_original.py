"""A pixel pipeline, collectors and a learner, in the manner that a document gave advice for; our own words.

Each field of `Switches` is one piece of that advice; the defaults are its original configuration. What was plainly
wrong is right here: every collector has its weights, a compiled net gives its weights under their own names, running
statistics reach the target net, thread counts are set where they count, and what a full queue drops is counted.
Chance is drawn from streams of each side's own, so that two loops which differ in nothing that matters end with the
same bits. How collectors become processes is in `mario_original_pipeline.py`.
"""

import contextlib
import gc
import os
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from hotloop.bench.mario_original_network import (
    PictureNetwork,
    Weights,
    follow,
    gflop_of_sample,
    load_weights,
    weights_of,
)
from hotloop.bench.mario_original_replay import Drawn, Experience, StackedReplay
from hotloop.envs.mario import ACTIONS, Mario

DISCOUNT, TAU, LEARNING_RATE, EPSILON = 0.95, 0.01, 5e-4, 0.1
NUM_ACTIONS = len(ACTIONS["complex"])
PATIENCE = 60.0
"""Seconds until all experiences that were sent must have come."""
ARRIVAL_SECONDS = 5.0
"""Until the next one has."""


@dataclass(frozen=True)
class Sizes:
    """What is no advice: the pictures, when learning begins, and how much may wait in a queue."""

    picture: int = 128
    stack: int = 8
    skip: int = 6
    idle_steps: int = 40
    """Steps without progress that end an episode."""
    noop_max: int = 30
    start: int = 600
    """Experiences before the first batch."""
    room: int = 1_000
    """Experiences that a queue holds."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a stack."""
        return self.stack, self.picture, self.picture

    @property
    def experience_bytes(self) -> int:
        """Of both stacks."""
        return 2 * self.stack * self.picture**2

    @property
    def gflop(self) -> float:
        """Of a gradient step, for each sample."""
        return gflop_of_sample(self.stack, self.picture, NUM_ACTIONS)


@dataclass(frozen=True)
class Switches:
    """One piece of advice each."""

    own_queues: bool = False
    """A queue for each collector, and no lock around it."""
    together: int = 1
    """Experiences that are sent at once."""
    batch: int = 256
    accumulates: int = 1
    """Batches that make one optimiser step."""
    preallocated: bool = False
    """Batches are drawn into the same memory each time."""
    converts_after: bool = False
    """uint8 goes to the device, and becomes float32 there."""
    compiled: bool = False
    bfloat16: bool = False
    normalised: bool = False
    """BatchNorm, He initialisation and convolutions without a bias."""
    in_place: bool = False
    """ReLU overwrites what it is given."""
    sync_every: int = 3
    """Epochs between two hand-overs of weights."""
    threads: int = 0
    """Of each process, in its arithmetic; 0: one for each core, as PyTorch has it."""
    clears_every: int = 0
    """Batches between two collections of garbage and emptyings of the device's cache; 0: never."""
    collectors: int = 2
    buffer: int = 10_000
    episodes: int = 8
    """Of an epoch."""


OPTIMIZED = Switches(
    own_queues=True,
    together=16,
    batch=512,
    accumulates=4,
    preallocated=True,
    compiled=True,
    bfloat16=True,
    normalised=True,
    in_place=True,
    sync_every=5,
    threads=1,
    clears_every=100,
    collectors=4,
    buffer=50_000,
    episodes=16,
)
"""The document's own."""


class Handed(NamedTuple):
    """What a collector has sent, counted in experiences."""

    experiences: int
    dropped: int
    lock_seconds: float
    """Until it had the lock."""
    seconds: float
    """All of handing over, the lock included."""


class Sender:
    """A collector's end."""

    def __init__(self, channel: "Channel", number: int) -> None:
        self._queue, self._lock = channel.queues[number % len(channel.queues)], channel.lock
        self._together, self._waiting = channel.together, list[Experience]()
        self.handed = Handed(0, 0, 0.0, 0.0)

    def send(self, experience: Experience) -> None:
        """One; it may wait for others to be sent with it."""
        began = time.perf_counter()
        self._waiting.append(experience)
        if len(self._waiting) >= self._together:
            self.flush()
        self.handed = self.handed._replace(seconds=self.handed.seconds + time.perf_counter() - began)

    def flush(self) -> None:
        """Send those that wait; a full queue drops them, and they are counted."""
        parcel, self._waiting = self._waiting, []
        if not parcel:
            return
        locked, dropped = 0.0, 0
        if self._lock is not None:
            began = time.perf_counter()
            self._lock.acquire()
            locked = time.perf_counter() - began
        try:
            self._queue.put_nowait(parcel)
        except queue.Full:
            dropped = len(parcel)
        finally:
            if self._lock is not None:
                self._lock.release()
        before = self.handed
        self.handed = Handed(
            before.experiences + len(parcel) - dropped,
            before.dropped + dropped,
            before.lock_seconds + locked,
            before.seconds,
        )

    def leave(self) -> None:
        """Let the process end although the queue holds what nobody will take."""
        self._queue.cancel_join_thread()


class Channel:
    """The way of experiences: one queue for all with a lock around it, or a queue for each collector."""

    def __init__(self, context: BaseContext, sizes: Sizes, switches: Switches) -> None:
        count = switches.collectors if switches.own_queues else 1
        self.together = switches.together
        self.queues = [context.Queue(max(1, sizes.room // self.together)) for _ in range(count)]
        self.lock = None if switches.own_queues else context.Lock()

    def take(self) -> list[Experience]:
        """All that have come, in turn from each queue; the lock is held all the while."""
        if self.lock is None:
            return self._take()
        with self.lock:
            return self._take()

    def take_exactly(self, count: int) -> list[Experience]:
        """Wait until so many have come; without the lock, which those who send may need."""
        taken, until = list[Experience](), time.monotonic() + PATIENCE
        while len(taken) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{len(taken)} of {count} experiences came within {PATIENCE:.0f} s")
            new = self._take()
            taken += new
            if not new:
                time.sleep(1e-4)
        if len(taken) > count:
            raise ValueError(f"{len(taken)} experiences came, expected {count}")
        return taken

    def _take(self) -> list[Experience]:
        taken: list[Experience] = []
        for each in self.queues:
            with contextlib.suppress(queue.Empty):  # of a collector that has died
                # An experience is larger than a pipe: without waiting, what is on its way would be left behind.
                for _ in range(each.qsize()):
                    taken += each.get(timeout=ARRIVAL_SECONDS)
        return taken


class Collector:
    """Plays, and sends what it saw and did, one transition at a time."""

    def __init__(self, sizes: Sizes, switches: Switches, send: Callable[[Experience], None], number: int = 0) -> None:
        self.model, self._send = new_network(sizes, switches).eval(), send
        self.env = Mario(
            size=sizes.picture,
            skip=sizes.skip,
            stack=sizes.stack,
            patience=sizes.idle_steps,
            noop_max=sizes.noop_max,
        )
        self.random = np.random.default_rng(number)
        self.actions, self.turns = list[int](), 0
        self._state = self.env.reset(seed=number)[0].copy()

    def turn(self) -> bool:
        """Act, send; True if that was the end of an episode."""
        action = self._act()
        seen, reward, terminated, truncated, _ = self.env.step(action)
        ended, next_state = terminated or truncated, seen.copy()
        self._send(Experience(self._state, action, float(reward), next_state, terminated, ended))
        self.turns += 1
        self.actions.append(action)
        self._state = self.env.reset()[0].copy() if ended else next_state
        return ended

    def take(self, weights: Weights) -> None:
        """Act with these from now on."""
        load_weights(self.model, weights)

    def close(self) -> None:
        """Let the game go."""
        self.env.close()

    def _act(self) -> int:
        if self.random.random() < EPSILON:
            return int(self.random.integers(NUM_ACTIONS))
        with torch.no_grad():
            pictures = torch.from_numpy(self._state.astype(np.float32) / np.float32(255.0))[None]
            return int(self.model(pictures).argmax(1).item())


class Learner:
    """Stores what comes, learns from it by priority, and has weights for collectors now and then."""

    def __init__(self, sizes: Sizes, switches: Switches, seed: int = 0) -> None:
        self.sizes, self.switches = sizes, switches
        self.online, self.target = new_network(sizes, switches), new_network(sizes, switches).eval()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=LEARNING_RATE)
        self.replay, self.random = StackedReplay(switches.buffer, sizes.shape), np.random.default_rng(seed + 1)
        # The compiled ones are for calling: names of weights are asked of those inside.
        self._online = torch.compile(self.online) if switches.compiled else self.online
        self._target = torch.compile(self.target) if switches.compiled else self.target
        self.batches, self.episodes, self.loss = 0, 0, float("nan")
        self._synced_at = 0
        self.optimizer.zero_grad()

    @property
    def epochs(self) -> int:
        """That are over."""
        return self.episodes // self.switches.episodes

    @property
    def can_learn(self) -> bool:
        """Whether there is enough to begin."""
        return len(self.replay) >= max(self.sizes.start, 1)

    def store(self, experiences: list[Experience]) -> None:
        """Keep them, and count the episodes that they end."""
        for experience in experiences:
            self.replay.add(experience)
            self.episodes += experience.ended

    def draw(self) -> Drawn:
        """A batch."""
        return self.replay.sample(self.switches.batch, self.random, preallocated=self.switches.preallocated)

    def learn(self, drawn: Drawn) -> None:
        """The gradient of one batch, and a step when there are as many as make one."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.switches.bfloat16):
            loss, errors = self._loss(drawn)
        (loss / self.switches.accumulates if self.switches.accumulates > 1 else loss).backward()
        self.replay.priorities.update(drawn.places, errors)
        self.batches += 1
        self.loss = float(loss.item())
        if self.batches % self.switches.accumulates == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            follow(self.target, self.online, TAU)
        if self.switches.clears_every and self.batches % self.switches.clears_every == 0:
            gc.collect()
            torch.cuda.empty_cache()  # does nothing where there is no such device

    def weights_if_due(self) -> Weights | None:
        """Those for collectors, every so many epochs."""
        if self.epochs < self._synced_at + self.switches.sync_every:
            return None
        self._synced_at = self.epochs
        return weights_of(self.online)

    def _loss(self, drawn: Drawn) -> tuple[torch.Tensor, np.ndarray]:
        """The weighted Huber loss of the TD errors to a Double target; and these."""
        state, next_state = self._pictures(drawn.state), self._pictures(drawn.next_state)
        action, reward = torch.from_numpy(drawn.action)[:, None], torch.from_numpy(drawn.reward)
        goes_on, weight = 1.0 - torch.from_numpy(drawn.terminated), torch.from_numpy(drawn.weight)
        with torch.no_grad():
            self.online.eval()
            choice = self._online(next_state).argmax(1, keepdim=True)
            value = self._target(next_state).gather(1, choice)[:, 0].float()
            wanted = reward + DISCOUNT * goes_on * value
        self.online.train()
        estimate = self._online(state).gather(1, action)[:, 0].float()
        loss = (weight * nn.functional.smooth_l1_loss(estimate, wanted, reduction="none")).mean()
        return loss, (wanted - estimate.detach()).numpy()

    def _pictures(self, stacks: np.ndarray) -> torch.Tensor:
        """Of 0 … 1; on a CPU there is no way to go before or after the conversion."""
        if self.switches.converts_after:
            return torch.from_numpy(stacks).float().div_(255.0)
        return torch.from_numpy(stacks.astype(np.float32) / np.float32(255.0))


def new_network(sizes: Sizes, switches: Switches) -> PictureNetwork:
    """The same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        how = {"normalised": switches.normalised, "in_place": switches.in_place}
        return PictureNetwork(sizes.stack, sizes.picture, NUM_ACTIONS, **how)


def set_threads(switches: Switches) -> None:
    """Of this process: OMP_NUM_THREADS would have to be there before PyTorch is."""
    torch.set_num_threads(switches.threads or os.cpu_count() or 1)


@contextlib.contextmanager
def threads_of(switches: Switches) -> Iterator[None]:
    """So many for a while."""
    before = torch.get_num_threads()
    set_threads(switches)
    try:
        yield
    finally:
        torch.set_num_threads(before)
