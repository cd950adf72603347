"""A run on the host: an actor beside its learner, in this process. Pipelines put their turns in order.

`collect` is a block's vector steps, `learner.draw` its batches, `learner.learn` its gradient steps, `publish` makes
them count. Which of them follow each other and which run side by side is the pipeline's: `sync.py`, `concurrent.py`.
"""

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from hotloop.engines.protocol import Choice, Engine, Weights
from hotloop.envs.gym_types import Env
from hotloop.envs.host import HostEnvs
from hotloop.experience import VectorStep
from hotloop.members import Members
from hotloop.pipelines.actor import Actor, Envs
from hotloop.pipelines.learning_run import EPISODES_LOST, STAGES, LearningRun
from hotloop.random_streams import generator_from_array, generator_to_array
from hotloop.replay.host import HostReplay
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import tree_map


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
                spec.replay,
                spec.discount,
                envs.observations.shapes,
                envs.num_envs,
                self.judge,
                num_actions,
                discount_per=spec.discount_per,
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


class HostRun(LearningRun):
    """A learner with its actor."""

    def __init__(self, pipeline: HostPipeline, members: Members, spans: Spans | None = None) -> None:
        """`spans` are those of a session that this is a part of."""
        self.pipeline, spans = pipeline, spans or Spans(*STAGES)
        super().__init__(pipeline.spec, pipeline.engine, pipeline.replay, pipeline.update, members, spans)
        self.actor = Actor(pipeline.envs, self.acting(pipeline.envs.num_envs), spans)

    def compile(self) -> Choice | None:
        """Act and learn once, so that all is compiled before the clock runs."""
        envs = self.actor.envs
        return self.compile_for(self.actor.explorer, envs.observations.shapes, envs.num_envs)

    def begin(self) -> None:
        """Fresh weights, an empty replay, an episode begun in every env."""
        self.actor.random = np.random.Generator(np.random.PCG64(self.begin_learning()))
        self._deferred: list[VectorStep] = []
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Begin an episode in every env; those that ran are dropped."""
        seed = int(np.random.SeedSequence([self.seed, self.blocks]).generate_state(1)[0])
        self.learner.replay.begin(self.actor.begin(seed))
        self.act_with_learner()
        self.forget_totals()

    def act_with(self, weights: Weights) -> None:
        """Act with these from now on; what that takes is a part of the update that gave them."""
        with self.spans["update"]:
            super().act_with(weights)
            self.actor.policy = self.policy

    def run_block(self) -> bool:
        """One unit of work, as the pipeline puts it in order."""
        self.pipeline.run_block(self)
        return True

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
            self.add_finished(finished)

    def store_deferred(self) -> None:
        """Put into the replay what `collect` deferred."""
        with self.spans["insert"]:
            for step in self._deferred:
                self.learner.insert(step)
        self._deferred = []

    # -- what the host loop asks for --------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return self.failed_before + self.actor.envs.failures

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return self.actor.envs.last_failure

    def close(self) -> None:
        """Close the envs and what goes with them."""
        self.pipeline.close()

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Learner, replay and counters, and of the envs what they let be saved."""
        return to_arrays({**self.learner_parts(self._of_actor()), "envs": self.actor.arrays()})

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.begin()
        of_envs = {name: array for name, array in arrays.items() if name.startswith("envs/")}
        of_learner = {name: array for name, array in arrays.items() if name not in of_envs}
        restored, replay = self.restore_learner(of_learner, self._of_actor()), self.learner.replay
        try:
            envs = from_arrays({"envs": self.actor.arrays()}, of_envs)["envs"]
        except ValueError:  # saved in the middle of a step, or by an env that has changed
            envs = {}
        self.actor.random = generator_from_array(restored.of_actor)
        goes_on = self.actor.envs.restore(envs)
        if goes_on and restored.has_replay and replay.hindsight is None:  # which does not save running episodes
            replay.seen = tree_map(np.array, envs["obs"])
            self.actor.go_on(envs, replay.seen)
            self.act_with_learner()
            self.totals = restored.totals
            return []
        self.begin_episodes()
        self.totals = restored.totals
        self.actor.envs.restore({} if goes_on else envs)
        return [EPISODES_LOST] if restored.has_replay else [EPISODES_LOST, self.begin_without_replay()]

    def _of_actor(self) -> np.ndarray:
        """The state of the actor's random stream."""
        return generator_to_array(self.actor.random)
