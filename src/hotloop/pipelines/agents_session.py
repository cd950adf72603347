"""A session of several agents that learn in one program."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hotloop.envs.multi_agent import MultiAgentEnv
from hotloop.evaluate import Episodes, Tell
from hotloop.members import Members
from hotloop.pipelines.agents import Agents
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.fused import FusedState
from hotloop.pipelines.session import Reading
from hotloop.pipelines.team_play import outcomes, team_program


class AgentsSession(DeviceSession[FusedState]):
    """The members are the agents, or with shared weights there is one for all."""

    pipeline: Agents

    def __init__(self, pipeline: Agents, members: Members) -> None:
        super().__init__(pipeline, members)
        self.axis: Any = pipeline.axis

    def begin(self) -> None:
        """Start from nothing."""
        self.state = self._init(jnp.uint32(self.spec.seed))

    def arrays(self) -> dict[str, np.ndarray]:
        """All of the state but for idle learners, by name."""
        return self._arrays_of(self.axis.without_idle(self.state))

    def read(self) -> Reading:
        """Bring over the few numbers the host needs: the only wait of a chunk."""
        state, learner, count = self.state, self.state.learner, self.axis.count
        numbers = (state.env_steps, state.episodes, state.first_update_at)
        learned = (learner.updates, learner.skipped, learner.skipped_in_a_row)
        of_all, *of_each = jax.device_get((numbers, *learned, state.totals))  # sync
        of_all = [np.repeat(number, count) for number in of_all]
        return Reading(*of_all, *jax.tree.map(lambda leaf: leaf[:count], of_each))._replace(are_in_same_envs=True)

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes that all agents play together, on a key of the seed and this env step."""
        key = jax.random.fold_in(jax.random.key(self.spec.seed), self.read().env_steps)
        played = outcomes(self._evaluate(self.axis.together(self.state.learner.params), key))  # sync
        return played.by_agent if self.members.are_many else [played.of_all]

    def first_state(self) -> FusedState:
        """The whole state, of all learners, on the first device."""
        state: FusedState = jax.device_put(self.axis.without_idle(self.state), jax.devices()[0])
        return state

    def _evaluation_program(self) -> tuple[Any, tuple[Any, ...]]:
        """All agents in one program, and what it is called with."""
        evaluation, pipeline = self.spec.evaluation, self.pipeline
        env = cast(MultiAgentEnv, pipeline.env)
        program = team_program(env, pipeline.engine, evaluation.episodes, evaluation.max_steps)
        size, numbers = pipeline.engine.layout.size, pipeline.engine.layout.dtype
        params = jax.ShapeDtypeStruct((pipeline.num_learners, size), numbers)
        return jax.jit(program), (params, jax.random.key(0))
