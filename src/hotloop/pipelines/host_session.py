"""A run whose envs, acting and replay are on the host: its state, and the stages that pipelines put in order.

`collect` is a block's vector steps, `sample` its batches, `learn` its gradient steps, `publish` makes them count. Which
of them follow each other and which run side by side is the pipeline's: `sync.py`, `concurrent.py`.
"""

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple

import jax
import numpy as np

from hotloop.engines.host_acting import choose_acting, one_blas_thread
from hotloop.engines.jax.engine import METRICS, JaxEngine, LearnerState
from hotloop.envs.host import HostEnvs, HostStep, generator_from_array, generator_to_array
from hotloop.evaluate import Episodes, Tell, play_on_host
from hotloop.learning import schedules, targets
from hotloop.pipelines.session import Reading
from hotloop.replay.host import Batches, HostReplay, Step
from hotloop.replay.limiter import Limiter
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import EpsilonGreedy, Spec

STAGES = ("select", "step", "insert", "sample", "redraw", "transfer", "update", "evaluate", "log")
TRANSFER_APART = 1 << 20
"""Bytes of a block's batches from which their way to the device is a stage of its own."""
COUNTERS = ("env_steps", "episodes", "learned_from", "blocks", "start_at", "updated_at", "failed_before")


class HostTotals(NamedTuple):
    """Sums since the last line of metrics."""

    update: Any  # METRICS
    episodes: Any
    episode_return: Any
    episode_length: Any
    info: dict[str, Any]


class Learned(NamedTuple):
    """What a block's gradient steps left behind."""

    learner: LearnerState
    sums: Any
    td_KB: Any  # TD errors of the samples, when priorities want them
    batches: Batches  # the samples


class HostPipeline:
    """Shapes and sizes of a run on the host; `block` is the pipeline: one unit of work on a session."""

    def __init__(
        self,
        spec: Spec,
        envs: HostEnvs,
        engine: JaxEngine,
        block: "Callable[[HostSession], None]",
        learner: Executor | None = None,
    ) -> None:
        """`learner` is the thread on which `block` learns, if it is another one."""
        self.spec, self.envs, self.engine, self.block = spec, envs, engine, block
        self.capacity, self._learner = spec.replay.capacity, learner
        self.judge = envs.goals(spec.env.id, spec.env.options) if spec.replay.hindsight else None
        num_actions = None
        try:
            if spec.env.action_mask:
                num_actions = envs.actions.size
                envs.mask_actions(spec.env.id)
                envs.reset(spec.seed)  # an env that names no legal actions is refused before anything is written
            self.replay = HostReplay(
                spec.replay, spec.discount, envs.observations.shapes, envs.num_envs, self.judge, num_actions
            )
        except BaseException:
            self.close()
            raise

    @property
    def row_bytes(self) -> int:
        """Memory of one transition in a batch."""
        return self.replay.row_bytes

    def num_bytes(self) -> int:
        """Host memory of the replay, before it is allocated."""
        return self.replay.num_bytes()

    def close(self) -> None:
        """Let go of the envs, the judge of hindsight and the learner's thread."""
        self.envs.close()
        if self.judge is not None:
            with contextlib.suppress(Exception):  # whatever the user's own code raises
                self.judge.close()
            self.judge = None
        if self._learner is not None:
            self._learner.shutdown()

    def session(self, seeds: list[int]) -> "HostSession":
        """Its state, for the host loop to drive."""
        return HostSession(self, seeds[0])


class HostSession:
    """Envs, replay and learner of a run, and how far it is."""

    totals: HostTotals
    env_steps: int
    episodes: int
    learned_from: int
    blocks: int
    start_at: int  # env steps from which on it learns
    updated_at: int  # env steps up to which the schedules of the learner have been followed
    failed_before: int  # envs that raised and were built anew, before the last resume

    def __init__(self, pipeline: HostPipeline, seed: int) -> None:
        self.pipeline, self.spec, self.seed = pipeline, pipeline.spec, seed
        self.envs, self.engine, self.replay = pipeline.envs, pipeline.engine, pipeline.replay
        self.block = self.spec.block  # worked out once: it is asked for in every block
        self.updates_per_draw = self.spec.updates_per_draw  # likewise
        self.portions = self.block.updates // self.updates_per_draw
        self.limiter = Limiter(self.block.env_steps)
        self.spans = Spans(*STAGES)
        self._exploration = self.spec.exploration_schedule.model_dump()
        self._explores_greedily = isinstance(self.spec.exploration, EpsilonGreedy)
        self._beta = self.spec.beta_schedule.model_dump() if self.spec.beta_schedule else None
        size = self.updates_per_draw * self.spec.replay.batch_size * self.replay.row_bytes
        # Small batches travel with the call: a transfer of their own takes longer than they do.
        self.transfers_apart = size >= TRANSFER_APART
        self._freeze, self.acts_with = choose_acting(self.spec, self.engine, self.envs.num_envs)

    def compile(self) -> None:
        """Compile acting and the update for the shapes they will see."""
        shape = (self.updates_per_draw, self.spec.replay.batch_size)
        shapes = self.envs.observations.shapes
        row = self.replay.row._replace(s_tm1=shapes, s_t=shapes)
        items = jax.tree.map(lambda leaf: np.zeros((*shape, *leaf.shape), leaf.dtype), row)
        weight = np.ones(shape, np.float32) if self._beta else None
        # Called once, so that all is compiled before the clock runs.
        self._learn = jax.jit(self._update, donate_argnums=0)
        learner = self._fresh_learner()
        q = self._freeze(learner.params)
        obs = jax.tree.map(lambda leaf: np.zeros((self.envs.num_envs, *leaf.shape), leaf.dtype), shapes)
        q(obs)
        key = np.zeros(2, np.uint32) if self.engine.is_random else None
        if key is not None:
            q(obs, key)
        jax.block_until_ready(self._learn(learner, items, weight, np.int32(0), np.int32(0), key))

    def _update(
        self, learner: LearnerState, items: Any, weight: Any, before: jax.Array, after: jax.Array, key: Any
    ) -> Any:
        """What is compiled: gradient steps on what was drawn, then target copies if more periods are over."""
        key = None if key is None else jax.random.wrap_key_data(key)
        learner, td_KB, sums = self.engine.update(learner, items, self.engine.learning_rate(before), weight, key)
        every = self.spec.target.every
        return self.engine.move_target(learner, after // every - before // every), sums, td_KB if self._beta else None

    def begin(self) -> None:
        """Fresh weights, an empty replay, an episode begun in every env."""
        self.learner = self._fresh_learner()
        self.replay.allocate()
        self.random = np.random.Generator(np.random.PCG64(self.seed))
        for name in COUNTERS:
            setattr(self, name, 0)
        self.start_at, self._told = self.spec.replay.start, 0
        self._held: list[Step] = []
        self._begin_episodes()

    def _fresh_learner(self) -> LearnerState:
        learner: LearnerState = jax.jit(self.engine.init)(jax.random.key(self.seed))
        return learner

    def _begin_episodes(self) -> None:
        self.obs = self.envs.reset(int(np.random.SeedSequence([self.seed, self.blocks]).generate_state(1)[0]))
        self.replay.begin(self.obs)
        self.episode_return = np.zeros(self.envs.num_envs, np.float64)
        self.episode_length = np.zeros(self.envs.num_envs, np.int64)
        self._is_torn = False
        self._act_with(self.learner)
        self.skipped_in_a_row = int(self.learner.skipped_in_a_row)
        self.forget_totals()

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""
        stop, guard = self.spec.stop, self.spec.guard
        with one_blas_thread():
            for _ in range(blocks):
                if stop.episodes is not None and self.episodes >= stop.episodes:
                    return
                self.pipeline.block(self)
                self.blocks += 1
                if self.skipped_in_a_row >= guard.skips_in_a_row:
                    return

    # -- stages ----------------------------------------------------------------------------------------

    def collect(self, *, hold: bool = False) -> None:
        """A block's vector steps with the acting weights; earns the gradient steps that follow.

        `hold` keeps them out of the replay until `store_held`.
        """
        before = self.env_steps
        for _ in range(self.block.vector_steps):
            self._vector_step(hold)
        if self.env_steps >= self.start_at and self.replay.size:
            self.limiter.earn(self.env_steps - before)
        else:
            self.updated_at = self.env_steps

    def _vector_step(self, hold: bool) -> None:
        spans = self.spans
        with spans["select"]:
            action_N = self._act(self.obs)
        self._is_torn = True  # until what the envs did is stored
        with spans["step"]:
            step = self.envs.step(action_N)
        with spans["insert"]:
            kept = Step(
                obs=step.obs,
                final_obs=step.final_obs,
                action=action_N,
                reward=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
                valid=step.valid,
                began=step.began,
                final_legal=step.final_legal,
            )
            if hold:
                self._held.append(kept)
            else:
                self.replay.insert(kept, self.random)
            self.obs, self._is_torn = step.obs, False
            self.env_steps += int(np.count_nonzero(step.valid))
            self._count_episodes(step)

    def store_held(self) -> None:
        """Put into the replay what `collect` held back."""
        with self.spans["insert"]:
            for step in self._held:
                self.replay.insert(step, self.random)
        self._held = []

    def sample(self) -> Batches | None:
        """The batches of a block's first portion of gradient steps, if they are due."""
        if not self.limiter.take():
            return None
        self.learns_at = (self.updated_at, self.env_steps)
        self._drawing = self.random
        if self.portions > 1:  # later draws may be made while the envs step: they have random numbers of their own
            self._drawing = np.random.Generator(np.random.PCG64(self.random.integers(1 << 63)))
        with self.spans["sample"]:
            return self._draw(0)

    def _draw(self, portion: int) -> Batches:
        beta, updates = 1.0, self.updates_per_draw
        self._learning_key = _key(self._drawing) if self.engine.is_random else None
        if self._beta:
            beta = schedules.value_at(self.learns_at[1], xp=schedules.Scalars, **self._beta)
        shape = (updates, self.spec.replay.batch_size)
        return self.replay.sample(self._drawing, shape, beta, drawn_before=portion * updates)

    def learn(self, batches: Batches) -> Learned:
        """A block's gradient steps, done when it returns: on these batches, then on those that priorities choose next.

        Touches nothing but the learner's weights and, with several portions, priorities.
        """
        learner, sums, td_KB = self._learn_portion(self.learner, batches, is_last=self.portions == 1)
        for number in range(1, self.portions):
            with self.spans["redraw"]:
                self.replay.learned(batches, np.asarray(td_KB))
                batches = self._draw(number)
            learner, more, td_KB = self._learn_portion(learner, batches, is_last=number == self.portions - 1)
            sums = sums + more
        return Learned(learner, sums, td_KB, batches)

    def _learn_portion(self, learner: LearnerState, batches: Batches, *, is_last: bool) -> Any:
        items, weight = batches.items, batches.weight
        if self.transfers_apart:
            with self.spans["transfer"]:
                items, weight = jax.block_until_ready(jax.device_put((items, weight)))  # sync
        before, after = (np.int32(steps) for steps in self.learns_at)
        with self.spans["update"]:
            learned = self._learn(learner, items, weight, before, after if is_last else before, self._learning_key)
            learner, sums, td_KB = jax.block_until_ready(learned)  # sync
        return learner, np.asarray(sums), td_KB

    def publish(self, learned: Learned) -> None:
        """From now on act with the new weights and draw by the new priorities."""
        self.learner, self.updated_at = learned.learner, self.learns_at[1]
        self.learned_from = self.learned_from or self.updated_at
        self._act_with(self.learner)
        self.totals = self.totals._replace(update=self.totals.update + learned.sums)
        all_applied = learned.sums[METRICS.index("applied")] == self.block.updates
        self.skipped_in_a_row = 0 if all_applied else int(self.learner.skipped_in_a_row)
        if learned.td_KB is not None:
            with self.spans["sample"]:
                self.replay.learned(learned.batches, np.asarray(learned.td_KB))

    def _act_with(self, learner: LearnerState) -> None:
        self.q = self._freeze(learner.params)

    def _act(self, obs_N: Any) -> np.ndarray:
        """Exploring actions; ε or the temperature is that of the vector step's first env step."""
        random, legal_NA = self.random, self.envs.legal
        q_NA = self.q(obs_N, _key(random)) if self.engine.is_random else self.q(obs_N)
        q_NA = targets.legal_only(q_NA, legal_NA, xp=np)
        explore = schedules.value_at(self.env_steps, xp=schedules.Scalars, **self._exploration)
        best_N = q_NA.argmax(axis=-1)
        if not self._explores_greedily:
            return (q_NA / explore + random.gumbel(size=q_NA.shape)).argmax(axis=-1).astype(np.int32)
        coin_N, draw_N = random.random((2, len(q_NA)))
        # A draw is below 1, so the whole part of its share of all actions is one of them.
        random_N = draw_N * q_NA.shape[1] if legal_NA is None else _legal_at(draw_N, q_NA)
        return np.where(coin_N < explore, random_N, best_N).astype(np.int32)

    def _count_episodes(self, step: HostStep) -> None:
        self.episode_return += np.where(step.valid, step.reward, 0.0)
        self.episode_length += step.valid
        ended = step.terminated | step.truncated
        if ended.any():
            totals = self.totals
            self.episodes += int(ended.sum())
            self.totals = totals._replace(
                episodes=totals.episodes + int(ended.sum()),
                episode_return=totals.episode_return + float(self.episode_return[ended].sum()),
                episode_length=totals.episode_length + float(self.episode_length[ended].sum()),
                info={key: total + float(step.info[key][ended].sum()) for key, total in totals.info.items()},
            )
        over = ended | step.failed  # an episode that failed is not counted
        if over.any():
            self.episode_return[over] = 0.0
            self.episode_length[over] = 0

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.failed_before + self.envs.failures

    # -- what the host loop asks for -------------------------------------------------------------------

    def read(self) -> Reading:
        """The numbers of the present state."""
        learner = self.learner
        counts = jax.device_get((learner.updates, learner.skipped, learner.skipped_in_a_row))  # sync
        numbers = (self.env_steps, self.episodes, self.learned_from, *counts)
        each: Any = [np.atleast_1d(np.asarray(number)) for number in numbers]
        each.append(jax.tree.map(lambda total: np.asarray(total)[None], self.totals))
        return Reading(*each)

    def own_figures(self) -> dict[str, float]:
        """What a line of metrics says beside the usual: the env's own figures, failures, how full the replay is."""
        count = self.totals.episodes
        info = {f"{key}_mean": total / count for key, total in self.totals.info.items()} if count else {}
        return {**info, "env_failures": self.failures, "replay_size": self.replay.size}

    def notices(self) -> list[str]:
        """Envs that raised since the last time this was asked."""
        fresh, self._told = self.failures - self._told, self.failures
        times = "once" if fresh == 1 else f"{fresh} times"
        return (
            [f"an env raised and was built anew, {times}; the last time with {self.envs.last_failure}"] if fresh else []
        )

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        info = dict.fromkeys(self.spec.env.info, 0.0)
        self.totals = HostTotals(np.zeros(len(METRICS), np.float32), 0, 0.0, 0.0, info)

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters, and of the envs what they let be saved."""
        parts: dict[str, Any] = {
            "learner": self.learner,
            "random": generator_to_array(self.random),
            "counters": {name: np.int64(getattr(self, name)) for name in COUNTERS},
            "owed": np.int64(self.limiter.owed),
            "totals": self._saved_totals(),
            "envs": self._of_envs(),
        }
        parts["counters"]["failed_before"] = np.int64(self.failures)
        if self.spec.log.save_replay:
            parts["replay"] = self.replay.arrays()
        return to_arrays(parts)

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.begin()
        has_replay = any(name.startswith("replay/") for name in arrays)
        template = {
            "learner": jax.eval_shape(self.engine.init, jax.random.key(0)),
            "random": np.zeros(6, np.uint64),
            "counters": {name: np.int64(0) for name in COUNTERS},
            "owed": np.int64(0),
            "totals": self._saved_totals(),  # of nothing, now
        }
        if has_replay:
            inserted, written = (
                int(arrays.get(f"replay/{name}", np.int64(0))) for name in ("ring/inserted", "store/written")
            )
            template["replay"] = self.replay.template(inserted, written)
        of_envs = {name: array for name, array in arrays.items() if name.startswith("envs/")}
        others = {name: array for name, array in arrays.items() if name not in of_envs}
        kept = from_arrays(template, others, put=lambda array: array)  # 64-bit numbers would not survive the device
        try:
            envs = from_arrays({"envs": self._of_envs()}, of_envs, put=lambda array: array)["envs"]
        except ValueError:  # saved in the middle of a step, or by an env that has changed
            envs = {}
        for name in COUNTERS:
            setattr(self, name, int(kept["counters"][name]))
        self._told = self.failures
        sums = kept["totals"]
        totals = HostTotals(
            update=sums["update"],
            episodes=int(sums["episodes"]),
            episode_return=float(sums["episode_return"]),
            episode_length=float(sums["episode_length"]),
            info={key: float(sums["info"][key]) for key in self.spec.env.info},
        )
        self.learner = jax.device_put(kept["learner"])
        self.random = generator_from_array(kept["random"])
        self.limiter.earn(max(0, int(kept["owed"])))
        if has_replay:
            self.replay.restore(kept["replay"])
        goes_on = self.envs.restore(envs)
        if goes_on and has_replay and self.replay.hindsight is None:  # which does not save running episodes
            self.obs = self.replay.seen = jax.tree.map(np.array, envs["obs"])
            self.episode_return = np.array(envs["episode_return"])
            self.episode_length = np.array(envs["episode_length"])
            self._act_with(self.learner)
            self.skipped_in_a_row, self.totals = int(self.learner.skipped_in_a_row), totals
            return []
        self._begin_episodes()
        self.totals = totals
        self.envs.restore({} if goes_on else envs)
        lost = ["running episodes cannot be restored: the envs begin new ones, so bits will differ"]
        if not has_replay:
            self.start_at, self.limiter.owed = self.env_steps + self.spec.replay.start, 0
            lost.append(
                f"the checkpoint has no replay: learning goes on after {self.spec.replay.start:,} env steps more"
            )
        return lost

    def _saved_totals(self) -> dict[str, Any]:
        """The sums as arrays: what of a line of metrics has been collected when a run is interrupted."""
        return jax.tree.map(np.asarray, self.totals._asdict())

    def _of_envs(self) -> dict[str, Any]:
        if self._is_torn:
            return {}
        running = {"obs": self.obs, "episode_return": self.episode_return, "episode_length": self.episode_length}
        return {**self.envs.arrays(), **running}

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes on envs of their own."""

        def greedy(obs_N: Any, legal_NA: np.ndarray | None = None) -> np.ndarray:
            return np.argmax(targets.legal_only(self.q(obs_N), legal_NA, xp=np), axis=-1)

        episodes, seed = self.spec.evaluation.episodes, self._eval_seed(attempt)
        with one_blas_thread():
            return [play_on_host(self.spec, greedy, episodes, seed, self._most_eval_steps(), tell)]

    def _most_eval_steps(self) -> int:
        """Env steps an evaluation may take now: by the spec and the env step alone, so a resume changes nothing."""
        evaluation = self.spec.evaluation
        period = min(max(evaluation.every, self.block.env_steps), self.env_steps)
        return math.ceil(evaluation.max_share * period)

    def _eval_seed(self, attempt: int) -> int:
        return int(np.random.SeedSequence([self.seed, self.env_steps, 1 + attempt]).generate_state(1)[0])

    def close(self) -> None:
        """Close the envs and what goes with them."""
        self.pipeline.close()

    def weights(self, index: int) -> Any:
        """Flat weight vector."""
        return self.learner.params


def _legal_at(draw_N: np.ndarray, q_NA: np.ndarray) -> np.ndarray:
    """The legal action at each share 0 <= draw < 1 of their list; illegal ones have a Q-value of -inf."""
    rank_NA = np.cumsum(q_NA != -np.inf, axis=-1)
    return np.argmax(rank_NA > (draw_N * rank_NA[:, -1]).astype(np.int64)[:, None], axis=-1)


def _key(random: np.random.Generator) -> np.ndarray:
    """The two numbers of a random key for XLA."""
    return random.integers(0, 1 << 32, 2, np.uint32)
