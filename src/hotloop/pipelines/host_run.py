"""A run on the host: an actor, a learner, and how far they are. Pipelines put their turns in order.

`collect` is a block's vector steps, `learner.draw` its batches, `learner.learn` its gradient steps, `publish` makes
them count. Which of them follow each other and which run side by side is the pipeline's: `sync.py`, `concurrent.py`.
"""

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np

from hotloop.engines.policies import choose_policy, one_blas_thread
from hotloop.engines.protocol import Choice, Engine, Weights
from hotloop.envs.gym_types import Env
from hotloop.envs.host import HostEnvs
from hotloop.evaluate import Episodes, Tell, play_on_host
from hotloop.experience import METRICS, Totals, VectorStep
from hotloop.learning import targets
from hotloop.members import Members
from hotloop.pipelines.actor import Actor, Envs
from hotloop.pipelines.explorer import Explorer
from hotloop.pipelines.learner import LearnedBlock, Learner
from hotloop.pipelines.session import Reading
from hotloop.random_streams import generator_from_array, generator_to_array
from hotloop.replay.host import HostReplay
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import Arrays, tree_map, zeros_of

STAGES = ("select", "step", "insert", "sample", "redraw", "transfer", "update", "evaluate", "log")
COUNTERS = ("env_steps", "episodes", "first_update_at", "blocks", "learning_starts", "failed_before")


class HostTotals(NamedTuple):
    """Sums since the last line of metrics."""

    update: np.ndarray  # METRICS
    episodes: int
    episode_return: float
    episode_length: float
    info: dict[str, float]


class HostPipeline:
    """Shapes and sizes of a run on the host; `run_block` is the pipeline: one unit of work."""

    def __init__(
        self,
        spec: Spec,
        envs: Envs,
        engine: Engine,
        run_block: "Callable[[HostRun], None]",
        thread: Executor | None = None,
    ) -> None:
        """`thread` is the one on which `run_block` learns, if it is another one."""
        self.spec, self.envs, self.engine, self.update = spec, envs, engine, engine.update
        self.run_block, self._thread = run_block, thread
        self.judge: Env | None = None
        num_actions = None
        if spec.replay.hindsight:
            assert isinstance(envs, HostEnvs)  # it is refused for several agents, and so are masks
            self.judge = envs.goals(spec.env.id, spec.env.options)
        try:
            if spec.env.action_mask:
                assert isinstance(envs, HostEnvs)
                num_actions = envs.actions.size
                envs.mask_actions(spec.env.id)
                envs.reset(spec.seed)  # an env that names no legal actions is refused before anything is written
            self.replay = HostReplay(
                spec.replay, spec.discount, envs.observations.shapes, envs.num_envs, self.judge, num_actions
            )
        except BaseException:
            self.close()
            raise

    def num_bytes(self) -> int:
        """Memory of the replay."""
        return self.replay.num_bytes()

    def close(self) -> None:
        """Let go of the envs, the judge of hindsight and the learner's thread."""
        self.envs.close()
        if self.judge is not None:
            with contextlib.suppress(Exception):  # whatever the user's own code raises
                self.judge.close()
            self.judge = None
        if self._thread is not None:
            self._thread.shutdown()

    def session(self, members: Members) -> "HostRun":
        """Its state, for the host loop to drive."""
        return HostRun(self, members)


class HostRun:
    """An actor and a learner, counters, checkpoints and evaluations."""

    totals: HostTotals
    env_steps: int
    episodes: int
    first_update_at: int  # env steps at the first gradient step, 0 before it
    blocks: int
    learning_starts: int  # env steps from which on it learns
    failed_before: int  # envs that raised and were built anew, before the last resume

    def __init__(self, pipeline: HostPipeline, members: Members, spans: Spans | None = None) -> None:
        """`spans` are those of a session that this is a part of."""
        self.pipeline, self.spec, self.members, self.seed = pipeline, pipeline.spec, members, members.numbers[0]
        self.engine, self.spans = pipeline.engine, spans or Spans(*STAGES)
        self.block_plan = self.spec.block_plan  # worked out once: it is asked for in every block
        num_envs = pipeline.envs.num_envs
        self.actor = Actor(pipeline.envs, Explorer(self.spec, self.engine.wanted_to_act(num_envs)), self.spans)
        self.learner = Learner(self.spec, self.engine, pipeline.replay, self.spans, pipeline.update)
        self._freeze, self.acts_with = choose_policy(self.spec, self.engine, num_envs)

    def compile(self) -> Choice | None:
        """Act and learn once, so that all is compiled before the clock runs."""
        policy, actor = self._freeze(self.engine.weights(self.engine.init(0))), self.actor
        obs_N = zeros_of(actor.envs.observations.shapes, (actor.envs.num_envs,))
        policy(obs_N)  # as it plays, and
        actor.explorer.q_values(policy, obs_N, np.random.default_rng(0))  # as it explores
        left = self.spec.stop.steps - getattr(self, "env_steps", 0)  # of a run that is resumed
        return self.learner.prepare(max(0, left) * self.spec.replay_ratio)

    def begin(self) -> None:
        """Fresh weights, an empty replay, an episode begun in every env."""
        self.learner.replay.allocate()
        self.learner.state = self.engine.init(self.seed)
        of_actor, of_learner = np.random.SeedSequence(self.seed).spawn(2)
        self.actor.random = np.random.Generator(np.random.PCG64(of_actor))
        self.learner.random = np.random.Generator(np.random.PCG64(of_learner))
        for name in COUNTERS:
            setattr(self, name, 0)
        self.learning_starts, self.learner.followed_until, self._told = self.spec.replay.start, 0, 0
        self.learner.turns = 0
        self._deferred: list[VectorStep] = []
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Begin an episode in every env; those that ran are dropped."""
        seed = int(np.random.SeedSequence([self.seed, self.blocks]).generate_state(1)[0])
        self.learner.replay.begin(self.actor.begin(seed))
        self._act_with_learner()
        self.forget_totals()

    def _act_with_learner(self) -> None:
        self.actor.policy = self._freeze(self.engine.weights(self.learner.state))
        self.skipped_in_a_row = self.engine.counts(self.learner.state).skipped_in_a_row

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""
        stop, guard = self.spec.stop, self.spec.guard
        with one_blas_thread():
            for _ in range(blocks):
                if stop.episodes is not None and self.episodes >= stop.episodes:
                    return
                self.pipeline.run_block(self)
                self.blocks += 1
                if self.skipped_in_a_row >= guard.skips_in_a_row:
                    return

    # -- what a pipeline puts in order ------------------------------------------------------------------

    def collect(self, *, defer: bool = False) -> None:
        """A block's vector steps with the acting weights; earns the gradient steps that follow.

        `defer` leaves them out of the replay until `store_deferred`.
        """
        before = self.env_steps
        for _ in range(self.block_plan.vector_steps):
            step = self.actor.step(self.env_steps)
            with self.spans["insert"]:
                if defer:
                    self._deferred.append(step)
                else:
                    self.learner.insert(step)
                self.count(step, int(np.count_nonzero(step.valid)))
        self.learner.earn(self.env_steps - before, self.env_steps, self.learning_starts)

    def count(self, step: VectorStep, env_steps: int) -> None:
        """A step is stored, or will be, and is so many env steps: go on from there."""
        self.env_steps += env_steps
        finished = self.actor.stored(step)
        if finished is not None:
            totals = self.totals
            self.episodes += finished.episodes
            self.totals = totals._replace(
                episodes=totals.episodes + finished.episodes,
                episode_return=totals.episode_return + finished.episode_return,
                episode_length=totals.episode_length + finished.episode_length,
                info={key: total + finished.info[key] for key, total in totals.info.items()},
            )

    def store_deferred(self) -> None:
        """Put into the replay what `collect` deferred."""
        with self.spans["insert"]:
            for step in self._deferred:
                self.learner.insert(step)
        self._deferred = []

    def take_over(self, learned: Callable[[], LearnedBlock]) -> None:
        """Publish what was learned; where learning failed, its gradient steps are still to come."""
        try:
            block = learned()
        except BaseException:
            self.learner.limiter.give_back()
            raise
        self.publish(block)

    def publish(self, learned: LearnedBlock) -> None:
        """From now on act with the new weights and draw by the new priorities."""
        self.learner.take(learned)
        self.first_update_at = self.first_update_at or learned.period.until
        self.actor.policy = self._freeze(self.engine.weights(learned.state))
        self.totals = self.totals._replace(update=self.totals.update + learned.sums)
        all_applied = learned.sums[METRICS.index("applied")] == self.block_plan.updates
        self.skipped_in_a_row = 0 if all_applied else self.engine.counts(learned.state).skipped_in_a_row

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.failed_before + self.actor.envs.failures

    # -- what the host loop asks for --------------------------------------------------------------------

    def read(self) -> Reading:
        """The numbers of the present state."""
        updates, skipped, skipped_in_a_row = self.engine.counts(self.learner.state)
        totals = self.totals
        return Reading(
            steps=np.array([self.env_steps]),
            episodes=np.array([self.episodes]),
            first_update_at=np.array([self.first_update_at]),
            updates=np.array([updates]),
            skipped=np.array([skipped]),
            skipped_in_a_row=np.array([skipped_in_a_row]),
            totals=Totals(
                update=totals.update[None],
                episodes=np.array([totals.episodes]),
                episode_return=np.array([totals.episode_return]),
                episode_length=np.array([totals.episode_length]),
            ),
        )

    def own_figures(self) -> dict[str, float]:
        """What a line of metrics says beside the usual: the env's own figures, failures, how full the replay is."""
        count = self.totals.episodes
        info = {f"{key}_mean": total / count for key, total in self.totals.info.items()} if count else {}
        return {**info, "env_failures": self.failures, "replay_size": self.learner.replay.size}

    def notices(self) -> list[str]:
        """Envs that raised since the last time this was asked."""
        fresh, self._told = self.failures - self._told, self.failures
        times = "once" if fresh == 1 else f"{fresh} times"
        last = self.actor.envs.last_failure
        return [f"an env raised and was built anew, {times}; the last time with {last}"] if fresh else []

    def forget_totals(self) -> None:
        """Start the sums of the next line of metrics."""
        info = dict.fromkeys(self.spec.env.info, 0.0)
        self.totals = HostTotals(np.zeros(len(METRICS), np.float32), 0, 0.0, 0.0, info)

    def forget_episodes(self) -> None:
        """Count episodes from 0 again."""
        self.episodes = 0

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes on envs of their own."""
        seed, most = self.evaluation_seed(attempt), self.most_eval_steps()
        with one_blas_thread():
            return [play_on_host(self.spec, self.greedy, self.spec.evaluation.episodes, seed, most, tell)]

    def greedy(self, obs_N: Arrays, legal_NA: np.ndarray | None = None) -> np.ndarray:
        """The best action for each observation, with the present weights."""
        best_N: np.ndarray = np.argmax(targets.legal_only(self.actor.policy(obs_N), legal_NA, xp=np), axis=-1)
        return best_N

    def evaluation_seed(self, attempt: int) -> int:
        """Of the envs of an evaluation now."""
        return int(np.random.SeedSequence([self.seed, self.env_steps, 1 + attempt]).generate_state(1)[0])

    def most_eval_steps(self) -> int:
        """Env steps an evaluation may take now: by the spec and the env step alone, so a resume changes nothing."""
        evaluation = self.spec.evaluation
        period = min(max(evaluation.every, self.block_plan.env_steps), self.env_steps)
        return math.ceil(evaluation.max_share * period)

    def close(self) -> None:
        """Close the envs and what goes with them."""
        self.pipeline.close()

    def weights(self, index: int) -> Weights:
        """What the run acts with."""
        return self.engine.weights(self.learner.state)

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters, and of the envs what they let be saved."""
        counters = {name: np.int64(getattr(self, name)) for name in COUNTERS}
        parts: dict[str, object] = {
            "learner": self.engine.give(self.learner.state),
            "random": self._random_arrays(),
            "counters": counters | {"failed_before": np.int64(self.failures)},
            "followed_until": np.int64(self.learner.followed_until),
            "owed": np.int64(self.learner.limiter.owed),
            "totals": self._saved_totals(),
            "envs": self.actor.arrays(),
        }
        if self.spec.log.save_replay:
            parts["replay"] = self.learner.replay.arrays()
        return to_arrays(parts)

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.begin()
        replay, has_replay = self.learner.replay, any(name.startswith("replay/") for name in arrays)
        template = {
            "learner": self.engine.template(),
            "random": self._random_arrays(),
            "counters": {name: np.int64(0) for name in COUNTERS},
            "followed_until": np.int64(0),
            "owed": np.int64(0),
            "totals": self._saved_totals(),  # of nothing, now
        }
        if has_replay:
            inserted, written = (
                int(arrays.get(f"replay/{name}", np.int64(0))) for name in ("ring/inserted", "store/written")
            )
            template["replay"] = replay.template(inserted, written)
        of_envs = {name: array for name, array in arrays.items() if name.startswith("envs/")}
        saved = from_arrays(template, {name: array for name, array in arrays.items() if name not in of_envs})
        try:
            envs = from_arrays({"envs": self.actor.arrays()}, of_envs)["envs"]
        except ValueError:  # saved in the middle of a step, or by an env that has changed
            envs = {}
        for name in COUNTERS:
            setattr(self, name, int(saved["counters"][name]))
        self._told = self.failures
        sums = saved["totals"]
        totals = HostTotals(
            update=sums["update"],
            episodes=int(sums["episodes"]),
            episode_return=float(sums["episode_return"]),
            episode_length=float(sums["episode_length"]),
            info={key: float(sums["info"][key]) for key in self.spec.env.info},
        )
        self.learner.state = self.engine.take(saved["learner"])
        self.learner.followed_until = int(saved["followed_until"])
        self.learner.limiter.restore(int(saved["owed"]))
        counts = self.engine.counts(self.learner.state)
        self.learner.turns = (counts.updates + counts.skipped) // self.block_plan.updates
        self.actor.random, self.learner.random = (generator_from_array(each) for each in saved["random"])
        if has_replay:
            replay.restore(saved["replay"])
        goes_on = self.actor.envs.restore(envs)
        if goes_on and has_replay and replay.hindsight is None:  # which does not save running episodes
            replay.seen = tree_map(np.array, envs["obs"])
            self.actor.go_on(envs, replay.seen)
            self._act_with_learner()
            self.totals = totals
            return []
        self.begin_episodes()
        self.totals = totals
        self.actor.envs.restore({} if goes_on else envs)
        lost = ["running episodes cannot be restored: the envs begin new ones, so bits will differ"]
        if not has_replay:
            self.learning_starts, self.learner.limiter.owed = self.env_steps + self.spec.replay.start, 0
            lost.append(
                f"the checkpoint has no replay: learning goes on after {self.spec.replay.start:,} env steps more"
            )
        return lost

    def _random_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the actor, and of the learner."""
        return generator_to_array(self.actor.random), generator_to_array(self.learner.random)

    def _saved_totals(self) -> dict[str, Arrays]:
        """The sums as arrays: what of a line of metrics has been collected when a run is interrupted."""
        saved: dict[str, Arrays] = tree_map(np.asarray, self.totals._asdict())
        return saved
