"""One process, envs on the host: act, step, insert; then sample, learn. Deterministic: the reference for host envs.

Read `advance` first: it is the block of the fused pipeline with the host in between.
"""

from typing import Any

import jax
import numpy as np

from hotloop.engines.host_acting import q_function
from hotloop.engines.jax.engine import METRICS, JaxEngine, LearnerState
from hotloop.envs.host import HostEnvs, HostStep
from hotloop.evaluate import Episodes, play_on_host
from hotloop.learning import schedules
from hotloop.pipelines.fused import Totals
from hotloop.pipelines.session import Reading
from hotloop.replay import ring
from hotloop.replay.host_ring import HostRing
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spec import EpsilonGreedy, Spec


class Sync:
    """The sync pipeline of one spec: shapes and sizes; its state is a `HostSession`."""

    def __init__(self, spec: Spec, envs: HostEnvs, engine: JaxEngine) -> None:
        self.spec, self.envs, self.engine = spec, envs, engine
        self.block_plan = spec.block
        self.capacity = spec.replay.capacity
        self.row = ring.row_example(envs.observations.shapes)

    def num_bytes(self) -> int:
        """Host memory of the replay, before it is allocated."""
        return ring.num_bytes(self.capacity, self.row)

    def session(self, seeds: list[int]) -> "HostSession":
        """Its state, for the host loop to drive."""
        return HostSession(self, seeds[0])


class HostSession:
    """Envs, replay and learner of a run, and how far it is."""

    totals: Totals

    def __init__(self, pipeline: Sync, seed: int) -> None:
        self.pipeline, self.spec, self.seed = pipeline, pipeline.spec, seed
        self.envs, self.engine = pipeline.envs, pipeline.engine
        self._exploration = self.spec.exploration_schedule.model_dump()
        self.q, self.acts_with = q_function(self.spec, self.engine, self.envs.num_envs)

    def compile(self) -> None:
        """Compile the update for the shapes it will see."""
        block, batch = self.spec.block, self.spec.replay.batch_size
        batches = jax.tree.map(
            lambda leaf: np.zeros((block.updates, batch, *leaf.shape), leaf.dtype), self.pipeline.row
        )
        # Called once, so that it is compiled before the clock runs.
        self._learn = jax.jit(self._update, donate_argnums=0)
        jax.block_until_ready(self._learn(self._fresh_learner(), batches, np.int32(0), np.int32(0)))

    def _update(self, learner: LearnerState, batches: Any, before: jax.Array, after: jax.Array) -> Any:
        """What is compiled: the block's gradient steps, then the target copies it has earned."""
        learner, _, sums = self.engine.update(learner, batches, self.engine.learning_rate(before))
        every = self.spec.target.every
        return self.engine.move_target(learner, after // every - before // every), sums

    def begin(self) -> None:
        """Fresh weights, an empty replay, an episode begun in every env."""
        self.learner = self._fresh_learner()
        self.replay = HostRing(self.pipeline.capacity, self.pipeline.row)
        self.random = np.random.Generator(np.random.PCG64(self.seed))
        self.env_steps = self.episodes = self.learned_from = self.blocks = 0
        self._begin_episodes()

    def _fresh_learner(self) -> LearnerState:
        learner: LearnerState = jax.jit(self.engine.init)(jax.random.key(self.seed))
        return learner

    def _begin_episodes(self) -> None:
        self.obs = self.envs.reset(int(np.random.SeedSequence([self.seed, self.blocks]).generate_state(1)[0]))
        self.episode_return = np.zeros(self.envs.num_envs, np.float64)
        self.episode_length = np.zeros(self.envs.num_envs, np.int64)
        self._fetch_params()
        self.forget_totals()

    def advance(self, blocks: int) -> None:
        """q vector steps with the weights of the block's start, then p gradient steps; and again."""
        block, stop, guard = self.spec.block, self.spec.stop, self.spec.guard
        for _ in range(blocks):
            if stop.episodes is not None and self.episodes >= stop.episodes:
                return
            before = self.env_steps
            for _ in range(block.vector_steps):
                self._vector_step()
            if self.env_steps >= self.spec.replay.start and self.replay.size:
                self.learned_from = self.learned_from or self.env_steps
                batches = self.replay.sample(self.random, (block.updates, self.spec.replay.batch_size))
                self.learner, sums = self._learn(self.learner, batches, np.int32(before), np.int32(self.env_steps))
                self._fetch_params()  # sync
                self.totals = self.totals._replace(update=self.totals.update + np.asarray(sums))
                if int(self.learner.skipped_in_a_row) >= guard.skips_in_a_row:
                    self.blocks += 1
                    return
            self.blocks += 1

    def _vector_step(self) -> None:
        num_envs = self.envs.num_envs
        action_N = self._act(self.obs, self.env_steps + np.arange(num_envs))
        step = self.envs.step(action_N)
        discount_N = (self.spec.discount * (1.0 - step.terminated)).astype(np.float32)
        self.replay.insert(ring.Item(self.obs, action_N, step.reward, discount_N, step.final_obs), step.valid)
        self.obs = step.obs
        self.env_steps += num_envs
        self._count_episodes(step)

    def _act(self, obs_N: Any, steps_N: np.ndarray) -> np.ndarray:
        q_NA, random = self.q(self.params, obs_N), self.random
        explore_N = schedules.value_at(steps_N.astype(np.float32), xp=np, **self._exploration)
        if not isinstance(self.spec.exploration, EpsilonGreedy):
            noise = random.gumbel(size=q_NA.shape)
            return np.argmax(q_NA / np.reshape(explore_N, (-1, 1)) + noise, axis=-1).astype(np.int32)
        coin_N, any_N = random.random(len(q_NA)), random.integers(q_NA.shape[1], size=len(q_NA))
        return np.where(coin_N < explore_N, any_N, np.argmax(q_NA, axis=-1)).astype(np.int32)

    def _count_episodes(self, step: HostStep) -> None:
        self.episode_return += np.where(step.valid, step.reward, 0.0)
        self.episode_length += step.valid
        ended = step.terminated | step.truncated
        if ended.any():
            self.episodes += int(ended.sum())
            self.totals = self.totals._replace(
                episodes=self.totals.episodes + int(ended.sum()),
                episode_return=self.totals.episode_return + float(self.episode_return[ended].sum()),
                episode_length=self.totals.episode_length + float(self.episode_length[ended].sum()),
            )
            self.episode_return[ended] = 0.0
            self.episode_length[ended] = 0

    def _fetch_params(self) -> None:
        self.params = np.asarray(self.learner.params) if self.acts_with == "NumPy" else self.learner.params

    # -- what the host loop asks for -------------------------------------------------------------------

    def read(self) -> Reading:
        """The numbers of the present state."""
        learner = jax.device_get(self.learner)
        counts = (learner.updates, learner.skipped, learner.skipped_in_a_row)
        numbers = (self.env_steps, self.episodes, self.learned_from, *counts)
        each: Any = [np.atleast_1d(np.asarray(number)) for number in numbers]
        each.append(jax.tree.map(lambda total: np.asarray(total)[None], self.totals))
        return Reading(*each)

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        numbers: Any = (np.zeros(len(METRICS), np.float32), 0, 0.0, 0.0)
        self.totals = Totals(*numbers)

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters; the envs themselves cannot be saved and begin new episodes."""
        counters = {name: np.int64(getattr(self, name)) for name in ("env_steps", "episodes", "learned_from", "blocks")}
        random = _generator_to_array(self.random)
        return to_arrays({"learner": self.learner, "replay": self.replay.arrays(), "random": random, **counters})

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Take back what `arrays` gave; the envs begin new episodes."""
        size = int(arrays.get("replay/size", np.int64(0)))
        template = {
            "learner": jax.eval_shape(self.engine.init, jax.random.key(0)),
            "replay": {
                "rows": jax.tree.map(
                    lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), self.pipeline.row
                ),
                "position": np.int64(0),
                "size": np.int64(0),
            },
            "random": np.zeros(6, np.uint64),
            **{name: np.int64(0) for name in ("env_steps", "episodes", "learned_from", "blocks")},
        }
        kept = from_arrays(template, arrays, put=lambda array: array)  # 64-bit numbers would not survive the device
        self.learner = jax.device_put(kept["learner"])
        self.replay = HostRing(self.pipeline.capacity, self.pipeline.row)
        self.replay.restore(kept["replay"])
        self.random = _generator_from_array(kept["random"])
        for name in ("env_steps", "episodes", "learned_from", "blocks"):
            setattr(self, name, int(kept[name]))
        self._begin_episodes()

    def evaluate(self) -> list[Episodes]:
        """Greedy episodes on envs of their own."""

        def greedy(obs_N: Any) -> np.ndarray:
            return np.argmax(self.q(self.params, obs_N), axis=-1)

        return [play_on_host(self.spec, greedy, self.spec.evaluation.episodes, self._eval_seed())]

    def _eval_seed(self) -> int:
        return int(np.random.SeedSequence([self.seed, self.env_steps, 1]).generate_state(1)[0])

    def weights(self, index: int) -> Any:
        """Flat weight vector."""
        return self.learner.params


def _generator_to_array(random: np.random.Generator) -> np.ndarray:
    """All of a PCG64 generator's state: two numbers of 128 bits, and half a draw that may be left over."""
    state: Any = random.bit_generator.state
    halves = [half for name in ("state", "inc") for half in divmod(state["state"][name], 2**64)]
    return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)


def _generator_from_array(array: np.ndarray) -> np.random.Generator:
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(number) for number in array)
    random = np.random.Generator(np.random.PCG64())
    random.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * 2**64 + low, "inc": inc_high * 2**64 + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return random
