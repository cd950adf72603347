"""The learner's half of a run on the host: what is learned and counted so far, its evaluations and checkpoints.

Who makes the experience is another matter: envs in this process (`host_run.py`), or actors in processes of their own
(`process_run.py`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from hotloop.engines.policies import choose_policy, one_blas_thread
from hotloop.engines.protocol import Choice, Engine, Policy, Weights
from hotloop.episodes import Finished
from hotloop.evaluate import Episodes, Tell, play_on_host
from hotloop.experience import METRICS, Totals
from hotloop.learning import targets
from hotloop.members import Members
from hotloop.pipelines.explorer import Explorer
from hotloop.pipelines.learner import LearnedBlock, Learner, Update
from hotloop.pipelines.session import Reading
from hotloop.plain import Figures
from hotloop.random_streams import generator_from_array, generator_to_array
from hotloop.replay.host import HostReplay
from hotloop.runs.state import from_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import Arrays, Specs, tree_map, zeros_of

STAGES = ("select", "step", "insert", "sample", "redraw", "transfer", "update", "evaluate", "log")
COUNTERS = ("env_steps", "episodes", "first_update_at", "blocks", "learning_starts", "failed_before")


class HostTotals(NamedTuple):
    """Sums since the last line of metrics."""

    update: np.ndarray  # METRICS
    episodes: int
    episode_return: float
    episode_length: float
    info: dict[str, float]


class RunsBlocks(Protocol):
    """One learner, or those of a team."""

    spec: Spec
    episodes: int
    blocks: int

    @property
    def skipped_in_a_row(self) -> int:
        """Gradient steps that were skipped in a row up to now, of whoever skipped most."""

    def run_block(self) -> bool:
        """One unit of work; False if someone does not want to wait for it."""


def run_blocks(run: RunsBlocks, blocks: int) -> None:
    """Run so many blocks, or fewer when a stop rule fires within."""
    stop, guard = run.spec.stop, run.spec.guard
    with one_blas_thread():
        for _ in range(blocks):
            if stop.episodes is not None and run.episodes >= stop.episodes:
                return
            if not run.run_block():
                return
            run.blocks += 1
            if run.skipped_in_a_row >= guard.skips_in_a_row:
                return


class LearningRun(ABC):
    """A learner, what it acts with in evaluations, and counters."""

    totals: HostTotals
    policy: Policy
    """Acts with the present weights."""
    env_steps: int
    episodes: int
    first_update_at: int  # env steps at the first gradient step, 0 before it
    blocks: int
    learning_starts: int  # env steps from which on it learns
    failed_before: int  # envs that raised and were built anew, before the last resume

    def __init__(
        self, spec: Spec, engine: Engine, replay: HostReplay, update: Update, members: Members, spans: Spans
    ) -> None:
        self.spec, self.engine, self.members, self.seed, self.spans = spec, engine, members, members.numbers[0], spans
        self.block_plan = spec.block_plan  # worked out once: it is asked for in every block
        self.learner = Learner(spec, engine, replay, spans, update)

    def acting(self, num_envs: int) -> Explorer:
        """Choose how so many envs are acted in; returns how they explore."""
        self._freeze, self.acts_with = choose_policy(self.spec, self.engine, num_envs)
        return Explorer(self.spec, self.engine.wanted_to_act(num_envs))

    def compile_for(self, explorer: Explorer, obs: Specs, num_envs: int) -> Choice | None:
        """Act in so many envs and learn once, so that all is compiled before the clock runs."""
        policy, obs_N = self._freeze(self.engine.weights(self.engine.init(0))), zeros_of(obs, (num_envs,))
        policy(obs_N)  # as it plays, and
        explorer.q_values(policy, obs_N, np.random.default_rng(0))  # as it explores
        left = self.spec.stop.steps - getattr(self, "env_steps", 0)  # of a run that is resumed
        return self.learner.prepare(max(0, left) * self.spec.replay_ratio)

    def begin_learning(self) -> np.random.SeedSequence:
        """Fresh weights, an empty replay, counters at 0; returns what the actor's random stream comes from."""
        self.learner.replay.allocate()
        self.learner.state = self.engine.init(self.seed)
        of_actor, of_learner = np.random.SeedSequence(self.seed).spawn(2)
        self.learner.random = np.random.Generator(np.random.PCG64(of_learner))
        for name in COUNTERS:
            setattr(self, name, 0)
        self.learning_starts, self.learner.followed_until, self._told = self.spec.replay.start, 0, 0
        self.learner.turns = 0
        return of_actor

    def act_with(self, weights: Weights) -> None:
        """Act with these from now on."""
        self.policy = self._freeze(weights)

    def act_with_learner(self) -> None:
        """Act with the present weights."""
        self.act_with(self.engine.weights(self.learner.state))
        self.count_skipped()

    def count_skipped(self) -> None:
        """See how many gradient steps were skipped in a row up to now."""
        self.skipped_in_a_row = self.engine.counts(self.learner.state).skipped_in_a_row

    @abstractmethod
    def compile(self) -> Choice | None:
        """Make everything ready that takes a while; returns what the engine chose by measuring, if anything."""

    @abstractmethod
    def run_block(self) -> bool:
        """One unit of work; False if someone does not want to wait for it."""

    def advance(self, blocks: int) -> None:
        """Run so many blocks, or fewer when a stop rule fires within."""
        run_blocks(self, blocks)

    def add_finished(self, finished: Finished) -> None:
        """Count episodes that have ended."""
        totals = self.totals
        self.episodes += finished.episodes
        self.totals = totals._replace(
            episodes=totals.episodes + finished.episodes,
            episode_return=totals.episode_return + finished.episode_return,
            episode_length=totals.episode_length + finished.episode_length,
            info={key: total + finished.info[key] for key, total in totals.info.items()},
        )

    def learn(self) -> None:
        """The p gradient steps of a block, which count as taken."""
        self.take_over(lambda: self.learner.learn(self.learner.draw(self.env_steps)))

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
        self.act_with(self.engine.weights(learned.state))
        self.totals = self.totals._replace(update=self.totals.update + learned.sums)
        all_applied = learned.sums[METRICS.index("applied")] == self.block_plan.updates
        self.skipped_in_a_row = 0 if all_applied else self.engine.counts(learned.state).skipped_in_a_row

    # -- what the host loop asks for --------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.failed_before

    @property
    @abstractmethod
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""

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

    def own_figures(self) -> Figures:
        """What a line of metrics says beside the usual: the env's own figures, failures, how full the replay is."""
        count = self.totals.episodes
        info = {f"{key}_mean": total / count for key, total in self.totals.info.items()} if count else {}
        return {**info, "env_failures": self.failures, "replay_size": self.learner.replay.size}

    def notices(self) -> list[str]:
        """Envs that raised since the last time this was asked."""
        fresh, self._told = self.failures - self._told, self.failures
        times = "once" if fresh == 1 else f"{fresh} times"
        last = self.last_failure if fresh else ""
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
        best_N: np.ndarray = np.argmax(targets.legal_only(self.policy(obs_N), legal_NA, xp=np), axis=-1)
        return best_N

    def evaluation_seed(self, attempt: int) -> int:
        """Of the envs of an evaluation now."""
        return int(np.random.SeedSequence([self.seed, self.env_steps, 1 + attempt]).generate_state(1)[0])

    def most_eval_steps(self) -> int:
        """Env steps an evaluation may take now: by the spec and the env step alone, so a resume changes nothing."""
        evaluation = self.spec.evaluation
        period = min(max(evaluation.every, self.block_plan.env_steps), self.env_steps)
        return math.ceil(evaluation.max_share * period)

    def weights(self, index: int) -> Weights:
        """What the run acts with."""
        return self.engine.weights(self.learner.state)

    # -- checkpoints ------------------------------------------------------------------------------------

    def learner_parts(self, of_actor: np.ndarray) -> dict[str, object]:
        """What a checkpoint holds of a run but for its envs; `of_actor` is the state of the actor's random stream."""
        counters = {name: np.int64(getattr(self, name)) for name in COUNTERS}
        parts: dict[str, object] = {
            "learner": self.engine.give(self.learner.state),
            "random": (of_actor, generator_to_array(self.learner.random)),
            "counters": counters | {"failed_before": np.int64(self.failures)},
            "followed_until": np.int64(self.learner.followed_until),
            "owed": np.int64(self.learner.limiter.owed),
            "totals": self._saved_totals(),
        }
        if self.spec.log.save_replay:
            parts["replay"] = self.learner.replay.arrays()
        return parts

    def restore_learner(self, arrays: dict[str, np.ndarray], of_actor: np.ndarray) -> "RestoredLearner":
        """Take back what `learner_parts` gave, after a beginning; `of_actor` has the form of the actor's stream."""
        replay, has_replay = self.learner.replay, any(name.startswith("replay/") for name in arrays)
        template = {
            "learner": self.engine.template(),
            "random": (of_actor, generator_to_array(self.learner.random)),
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
        saved = from_arrays(template, arrays)
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
        actors, learners = saved["random"]
        self.learner.random = generator_from_array(learners)
        if has_replay:
            replay.restore(saved["replay"])
        return RestoredLearner(totals, actors, has_replay)

    def begin_without_replay(self) -> str:
        """A checkpoint had no replay: learn when there is one again, and catch up with nothing; says so in words."""
        self.learning_starts, self.learner.limiter.owed = self.env_steps + self.spec.replay.start, 0
        return f"the checkpoint has no replay: learning goes on after {self.spec.replay.start:,} env steps more"

    def _saved_totals(self) -> dict[str, Arrays]:
        """The sums as arrays: what of a line of metrics has been collected when a run is interrupted."""
        saved: dict[str, Arrays] = tree_map(np.asarray, self.totals._asdict())
        return saved


class RestoredLearner(NamedTuple):
    """What of a checkpoint is still to be put in place once there are envs again."""

    totals: HostTotals
    of_actor: np.ndarray
    has_replay: bool


EPISODES_LOST = "running episodes cannot be restored: the envs begin new ones, so bits will differ"
