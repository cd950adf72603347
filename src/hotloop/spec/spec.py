"""What to train: typed, validated, versioned."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hotloop.blocks import BlockPlan, plan_block
from hotloop.members import Members, agents, seeds
from hotloop.spec.network import CustomNetwork, Network
from hotloop.spec.rules import refusal
from hotloop.spec.schedules import AnySchedule, Constant
from hotloop.spec.section import PositiveInt, Section, or_kind
from hotloop.spec.sections import (
    Actors,
    Agents,
    Boltzmann,
    Env,
    EpsilonGreedy,
    Evaluation,
    Guard,
    Log,
    Loss,
    OnPolicy,
    Optimizer,
    Prioritized,
    Replay,
    Stop,
    Target,
    Torch,
    Turns,
)

SPEC_VERSION = 1
MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


LearnsFrom = Literal["transitions", "sequences", "rollouts", "joint"]
"""Single transitions of a replay, stretches of episodes of a replay, what was collected just now, or transitions of
several agents that acted together."""


class Spec(Section):
    """Everything that decides the outcome of a run."""

    version: Literal[1] = 1
    """Version of this format."""
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Used for the run's folder."""
    description: str = ""
    """One line for people."""
    plugins: Annotated[tuple[Annotated[str, Field(pattern=f"^{MODULE_NAME.pattern}$")], ...], Field(strict=False)] = ()
    """Modules of your own that register heads, torsos, networks or device envs: imported before the rest is read, from
    the current folder too. Those of installed packages need not be named."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Same spec, seed and machine: same result, bit for bit (with engine torch, if `torch.mode` is named; with slow
    Gymnasium envs, if `pipeline` is, or `actors.measure` is false)."""
    seeds: int = Field(default=1, ge=1, le=256)
    """Runs with seeds `seed`, `seed` + 1, …; each as it would be alone. Those of a device env are trained side by side
    in one program; those of a Gymnasium env, stepped on the host, one after the other, each in a folder of its own. The
    env steps of `stop` and all periods are those of one seed. On the device all seeds end when their interquartile mean
    reaches `stop.return_at_least`; on the host each ends when it reaches that itself. `stop.episodes` ends each by
    itself in any case."""
    engine: str = "jax"
    """Who does the array maths."""
    torch: Torch = Torch()
    """How engine torch works."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers in which networks compute. Weights, targets and priorities are float32 in any case; float16 scales its
    loss so that small gradients do not vanish."""
    devices: PositiveInt = 1
    """Devices over which each batch is split."""
    threads: PositiveInt | None = None
    """Threads with which the engine computes on a CPU. null: one for small networks, all cores for wide layers and
    images. Variables of the environment that say so (XLA_FLAGS, PJRT_NPROC; OMP_NUM_THREADS for engine torch) go
    first."""
    pipeline: str = "auto"
    """How experience flows to the learner; auto chooses by the env, for slow Gymnasium envs by a trial
    (`actors.measure`), and says so."""
    updates_per_step: float = Field(default=0.25, gt=0, le=1000)
    """Replay ratio: gradient steps per transition, below or above 1."""
    learn_every: PositiveInt | None = None
    """Env steps between two turns of learning, each of as many gradient steps as `updates_per_step` makes of them: a
    multiple of the fewest that the ratio allows; null is these."""
    turns: Turns | None = None
    """Learn in turns at certain places of the replay's ring, instead of at the even ratio `updates_per_step`."""
    discount: float = Field(default=0.99, ge=0, le=1)
    """γ. Only a terminated episode cuts the bootstrap, never a truncated one."""
    discount_per: str | None = None
    """What γ counts: an entry of the env's `info` that says how long each step took (`elapsed_ms` of `sfc`), so that
    steps which take no time are not discounted. null: steps."""
    env: Env = Env()
    """Where experience comes from."""
    agents: Agents | None = None
    """Who acts in an env with several agents."""
    actors: Actors = Actors()
    """Who steps the envs in pipeline processes."""
    network: Annotated[Annotated[Network | CustomNetwork, Field(discriminator="kind")], or_kind("composed")] = Network()
    """From an observation to Q-values."""
    target: Target = Target()
    """What a Q-value is pulled towards."""
    loss: Loss = Loss()
    """How far from the target is how bad."""
    optimizer: Optimizer = Optimizer()
    """How a gradient becomes a step."""
    exploration: Annotated[
        Annotated[EpsilonGreedy | Boltzmann, Field(discriminator="kind")], or_kind("epsilon_greedy")
    ] = EpsilonGreedy()
    """How training actions differ from the best known."""
    replay: Replay = Replay()
    """Where experience is kept."""
    on_policy: OnPolicy | None = None
    """Learn without a replay (PQN)."""
    evaluation: Evaluation = Evaluation()
    """Greedy episodes on environments of their own."""
    stop: Stop = Stop()
    """When a run is over."""
    log: Log = Log()
    """What is written down while training."""
    guard: Guard = Guard()
    """What happens when a number is not finite."""

    @model_validator(mode="after")
    def _noise_explores(self) -> Self:
        """A network that is noisy by itself needs no ε, unless one is given."""
        is_noisy = isinstance(self.network, Network) and self.network.head.noise is not None
        if is_noisy and "exploration" not in self.model_fields_set:
            # Set beside pydantic, which would count it as given.
            self.__dict__["exploration"] = EpsilonGreedy(epsilon=Constant(value=0.0))
        return self

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        if reason := refusal(self):
            raise ValueError(reason)
        return self

    def with_field(self, path: str, value: object) -> Self:
        """The same spec with one field given."""
        name, _, rest = path.partition(".")
        if rest:
            section: Section = getattr(self, name)
            value = section.model_copy(update={rest: value})
        return self.model_copy(update={name: value})

    @property
    def members(self) -> Members:
        """Who is trained side by side: seeds, or of one seed the agents of an env."""
        if self.seeds == 1 and self.agents is not None and self.agents.names and not self.has_shared_weights:
            return agents(len(self.agents.names))
        return seeds((self.seed + i) % 2**32 for i in range(self.seeds))

    @property
    def has_shared_weights(self) -> bool:
        """Whether several agents learn one network."""
        return self.agents is not None and self.agents.weights == "shared"

    @property
    def block_plan(self) -> BlockPlan:
        """The unit of work this spec asks for."""
        if self.on_policy is not None:
            learned = self.on_policy.epochs * self.on_policy.minibatches
            return BlockPlan(self.env.num_envs, self.on_policy.steps, learned)
        if self.turns is not None:
            return BlockPlan(self.env.num_envs, 1, self.turns.updates)
        return plan_block(self.updates_per_step, self.env.num_envs, self.learn_every)

    @property
    def info_of_steps(self) -> tuple[str, ...]:
        """Entries of `info` that are asked of envs that are trained on."""
        told, clock = self.env.info, self.discount_per
        return told if clock is None or clock in told else (*told, clock)

    @property
    def describes_actors(self) -> bool:
        """Whether something is said of processes that step envs, beside whether they are measured."""
        return self.actors != Actors(measure=self.actors.measure)

    @property
    def replay_ratio(self) -> float:
        """Gradient steps per transition, once it learns."""
        if self.on_policy is not None:
            return self.block_plan.updates / self.block_plan.env_steps
        if self.turns is None:
            return self.updates_per_step
        return self.turns.updates / max(self.turns.every, self.env.num_envs)

    @property
    def learns_from(self) -> LearnsFrom:
        """What a gradient step is made on."""
        if self.on_policy is not None:
            return "rollouts"
        if self.agents is not None:
            return "joint"
        return "transitions" if self.replay.sequence is None else "sequences"

    @property
    def sees_images(self) -> bool:
        """Whether learning is mostly convolutions."""
        return self.network.is_image

    @property
    def updates_per_draw(self) -> int:
        """Gradient steps whose batches are drawn at once: a block's, or with priorities a divisor of their number."""
        updates, sampling, each = self.block_plan.updates, self.replay.sampling, self.replay.updates_per_batch
        most = max(sampling.updates_per_draw, each) if isinstance(sampling, Prioritized) else updates
        return max(size for size in range(each, min(most, updates) + 1, each) if updates % size == 0)

    @property
    def batches_per_draw(self) -> int:
        """Batches drawn at once."""
        return self.updates_per_draw // self.replay.updates_per_batch

    @property
    def exploration_schedule(self) -> AnySchedule:
        """ε or the temperature, whichever this spec explores by."""
        if isinstance(self.exploration, EpsilonGreedy):
            return self.exploration.epsilon
        return self.exploration.temperature

    @property
    def beta_schedule(self) -> AnySchedule | None:
        """Exponent of the importance weights, when the replay is prioritised."""
        return self.replay.sampling.beta if isinstance(self.replay.sampling, Prioritized) else None
