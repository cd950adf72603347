"""The training loop of SLM-Lab's benchmark specs in PyTorch, in its manner, and improved by hand.

In its manner: a replay in Python lists, priorities in a Python tree, an optimiser that goes weight by weight, tensors
formatted for a log that nobody reads, the target net asked again in every gradient step on the same batch. By hand,
none of that, and the same weights but for rounding. An episode's next one begins in the step that ends it, as in
hotloop, so that all take the same gradient steps after the same frames.
"""

import logging
from functools import partial
from itertools import pairwise

import gymnasium
import numpy as np
import torch
from torch import nn

from hotloop.bench.qloss_replay import Batch, Memory, Transition
from hotloop.bench.slm_lab_settings import START, Settings

LOG = logging.getLogger(__name__)
ACTIVATIONS = {"relu": nn.ReLU, "selu": nn.SELU}
OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class SlmLabLoop:
    """Envs, nets and replay; `advance` does all that falls due in so many frames."""

    def __init__(self, settings: Settings, *, is_tuned: bool, seed: int = 0) -> None:
        self.settings, self.is_tuned = settings, is_tuned
        self.frame = self.gradient_steps = self.copies = 0
        make = partial(gymnasium.make, settings.env_id, disable_env_checker=is_tuned or None)
        self.envs = [make() for _ in range(settings.num_envs)]
        self.obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])
        self.num_actions = int(self.envs[0].action_space.n)  # type: ignore[attr-defined]
        self.random = np.random.default_rng(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.online, self.target = self._network(), self._network()
        self.target.load_state_dict(self.online.state_dict())
        how = {"fused": True} if is_tuned else {"foreach": False, "fused": False}
        self.optimizer = OPTIMIZERS[settings.optimizer](self.online.parameters(), lr=settings.learning_rate, **how)
        self.memory = Memory(
            "prioritized" if settings.has_priorities else "replay",
            settings.capacity,
            self.obs.shape[1],
            in_arrays=is_tuned,
            tree="numpy" if is_tuned else "python",
            has_newest=settings.has_newest,
            seed=seed,
        )

    def advance(self, frames: int) -> None:
        """So many frames: act, store, learn, copy."""
        for _ in range(frames // self.settings.num_envs):
            self._vector_step()
            if self.memory.inserted > START:
                self._train_call()
            if self.frame % self.settings.target_every < self.settings.num_envs:
                self.target.load_state_dict(self.online.state_dict())
                self.copies += 1

    def close(self) -> None:
        """Close the envs."""
        for env in self.envs:
            env.close()

    def weights(self) -> np.ndarray:
        """All of the online net's, in one vector."""
        return np.concatenate([each.detach().numpy().ravel() for each in self.online.parameters()])

    def _vector_step(self) -> None:
        actions = self._actions()
        for place, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, _ = env.step(action)
            self.memory.insert(Transition(self.obs[place].copy(), action, float(reward), obs, bool(terminated)))
            self.obs[place] = env.reset()[0] if terminated or truncated else obs
        self.frame += len(self.envs)

    def _actions(self) -> list[int]:
        """By Boltzmann's temperature, or by ε: one draw decides for all envs."""
        explore = max(self.settings.explore_end, 1 - self.frame / self.settings.explore_frames * self._fall)
        if not self.settings.is_boltzmann and self.random.random() < explore:
            return [int(action) for action in self.random.integers(self.num_actions, size=len(self.envs))]
        with torch.no_grad():
            q_NA = self.online(torch.from_numpy(self.obs).float())
        if not self.settings.is_boltzmann:
            return [int(action) for action in q_NA.argmax(1)]
        of_N = torch.softmax(q_NA.double() / explore, dim=1).numpy().cumsum(1)
        below = self.random.random(len(self.envs))[:, None] >= of_N
        return [int(action) for action in np.minimum(below.sum(1), self.num_actions - 1)]

    @property
    def _fall(self) -> float:
        return 1 - self.settings.explore_end

    def _train_call(self) -> None:
        for _ in range(self.settings.batches):
            batch = self.memory.gather(self.memory.draw(self.settings.batch_size))
            for _ in range(self.settings.steps_on_each):
                loss = self._gradient_step(batch)
        if not self.is_tuned:
            LOG.debug(f"train call: loss {loss}")

    def _gradient_step(self, batch: Batch) -> torch.Tensor:
        self.optimizer.zero_grad()
        q_B = self.online(batch.s_tm1).gather(1, batch.a_tm1[:, None])[:, 0]
        goal_B = self._goal(batch)
        if not self.is_tuned:
            LOG.debug(f"q: {q_B}\ngoal: {goal_B}")
        if self.memory.priorities is not None:
            self.memory.learned(batch.places, (goal_B - q_B.detach()).numpy())
        loss = nn.functional.smooth_l1_loss(q_B, goal_B)
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), self.settings.clip)
        self.optimizer.step()
        self.gradient_steps += 1
        return loss.detach()

    def _goal(self, batch: Batch) -> torch.Tensor:
        """The online net chooses, the target net values; by hand the latter is asked once per batch."""
        with torch.no_grad():
            choice_B1 = self.online(batch.s_t).argmax(1, keepdim=True)
            values_BA = batch.goal if batch.goal is not None else self.target(batch.s_t)
            if self.is_tuned:
                batch.goal = values_BA
            return batch.r_t + self.settings.discount * (1 - batch.terminated_t) * values_BA.gather(1, choice_B1)[:, 0]

    def _network(self) -> nn.Sequential:
        sizes, layers = (self.obs.shape[1], *self.settings.hidden), []
        for size, after in pairwise(sizes):
            layers += [nn.Linear(size, after), ACTIVATIONS[self.settings.activation]()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], self.num_actions))
