"""What to train: typed, validated, versioned. The documentation of every field is its docstring here.

All times are environment steps (transitions). Nothing is counted in episodes or vector steps, except the
stop rule `stop.episodes`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from hotloop import registry
from hotloop.blocks import Block, plan_block

SPEC_VERSION = 1


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)]
PositiveInt = Annotated[int, Field(ge=1)]


def _or(default_kind: str) -> BeforeValidator:
    """A section with several kinds may leave `kind` out and gets the default one."""
    return BeforeValidator(lambda value: {"kind": default_kind, **value} if isinstance(value, dict) else value)


# -- schedules: a number that changes with the env step -----------------------------------------------


class Constant(_Section):
    """The same value always. A bare number in the spec means this."""

    kind: Literal["constant"] = "constant"
    value: float
    """The value."""


class Linear(_Section):
    """A straight line from `start` to `end`, then `end`."""

    kind: Literal["linear"]
    start: float
    """Value at the first env step."""
    end: float
    """Value from `steps` on."""
    steps: PositiveInt
    """Env steps the line takes."""


class Exponential(_Section):
    """`start` x `rate`^(env step / `every`), never below `end`."""

    kind: Literal["exponential"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Lowest value."""
    rate: float = Field(gt=0, le=1)
    """Factor per `every` env steps."""
    every: PositiveInt = 1
    """Env steps over which one factor `rate` is applied, smoothly."""


class Step(_Section):
    """`start` x `rate`^floor(env step / `every`), never below `end`."""

    kind: Literal["step"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Lowest value."""
    rate: float = Field(gt=0, le=1)
    """Factor at each jump."""
    every: PositiveInt
    """Env steps between jumps."""


class Cosine(_Section):
    """Half a cosine from `start` down to `end`, then `end`."""

    kind: Literal["cosine"]
    start: float
    """Value at the first env step."""
    end: float = 0.0
    """Value from `steps` on."""
    steps: PositiveInt
    """Env steps the half wave takes."""


class Periodic(_Section):
    """A cosine wave between `end` and a ceiling that falls in a straight line from `start` to `end`."""

    kind: Literal["periodic"]
    start: float
    """Ceiling at the first env step."""
    end: float
    """Floor of the wave, and the value from `steps` on."""
    steps: PositiveInt
    """Env steps until the wave has died away."""
    period: PositiveInt
    """Env steps of one wave."""


def _number_is_constant(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number:
        return {"kind": "constant", "value": value}
    if not isinstance(value, dict | _Section):
        raise ValueError(f"expected a number or a schedule such as {{kind: linear, …}}, got {str(value)[:40]!r}")
    return {"kind": "constant", **value} if isinstance(value, dict) else value


Schedule = Annotated[
    Annotated[Constant | Linear | Exponential | Step | Cosine | Periodic, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]


# -- sections -----------------------------------------------------------------------------------------


class Env(_Section):
    """Where experience comes from."""

    id: str = "cartpole"
    """Name of a device env (`hotloop list`), `gymnax:NAME`, or any Gymnasium id (`module:Id` imports the module)."""
    num_envs: PositiveInt = 16
    """Environments stepped together. Changes speed, not how much is learned per transition."""
    options: dict[str, Any] = {}
    """Passed to the env's constructor."""
    vectorization: Literal["auto", "native", "sync", "threads", "async"] = "auto"
    """How a Gymnasium env is multiplied. native: by its own vector entry point. sync: one after the other. threads: on
    all cores, for emulators that work outside of Python's lock. async: each in a process of its own, for envs that are
    slow in Python. auto: native if it has one, else sync."""
    info: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys of a Gymnasium env's `info` whose value at the end of each episode becomes a metric."""


class Mlp(_Section):
    """Dense layers over the flattened observation."""

    kind: Literal["mlp"] = "mlp"
    hidden: Sizes = (64, 64)
    """Width of each layer."""
    activation: Literal["relu", "selu", "tanh", "gelu", "silu"] = "relu"
    """Nonlinearity after each layer."""


class Cnn(_Section):
    """Convolutions (valid padding), flatten, dense layers. uint8 images are divided by 255."""

    kind: Literal["cnn"]
    channels: Sizes = (32, 64, 64)
    """Output channels of each convolution."""
    kernels: Sizes = (8, 4, 3)
    """Square kernel size of each convolution."""
    strides: Sizes = (4, 2, 1)
    """Stride of each convolution."""
    padding: Literal["valid", "same"] = "valid"
    """Padding of every convolution."""
    hidden: Sizes = (512,)
    """Width of each dense layer after the convolutions."""
    layout: Literal["HWC", "CHW"] = "HWC"
    """Axes of an observation: channels last, or first (stacked frames)."""
    activation: Literal["relu", "selu", "tanh", "gelu", "silu"] = "relu"
    """Nonlinearity after each layer."""

    @model_validator(mode="after")
    def _same_depth(self) -> Self:
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError(
                f"channels, kernels and strides describe {len(self.channels)}, {len(self.kernels)} and "
                f"{len(self.strides)} convolutions; give one of each per convolution"
            )
        return self


class ScalarHead(_Section):
    """One Q-value per action."""

    kind: Literal["scalar"] = "scalar"


class DuelingHead(_Section):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .)."""

    kind: Literal["dueling"]
    hidden: Sizes = ()
    """Width of the dense layers each of the two streams has of its own."""


class Network(_Section):
    """From an observation to Q-values: a torso, then a head."""

    kind: Literal["composed"] = "composed"
    torso: Annotated[Annotated[Mlp | Cnn, Field(discriminator="kind")], _or("mlp")] = Mlp()
    """From an observation to features."""
    head: Annotated[Annotated[ScalarHead | DuelingHead, Field(discriminator="kind")], _or("scalar")] = ScalarHead()
    """From features to Q-values."""


class CustomNetwork(_Section):
    """A module of the user's own, given from Python: `hotloop.train(spec, network=module)`."""

    kind: Literal["custom"]
    name: str
    """What the module was called, for the record; the module itself is never loaded from a file."""


class Target(_Section):
    """What a Q-value is pulled towards."""

    rule: Literal["vanilla", "target", "double"] = "target"
    """vanilla: max of the online net, no target net. target: max of the target net. double: the online net
    chooses the action, the target net values it."""
    every: PositiveInt = 500
    """Env steps between two updates of the target net. Applied between blocks; a block that spans several
    periods applies as many."""
    tau: float = Field(default=1.0, gt=0, le=1)
    """Share of the online net mixed into the target net each time: 1 copies, less is Polyak averaging."""


class Loss(_Section):
    """How far from the target is how bad."""

    kind: Literal["mse", "huber"] = "huber"
    """mse: the squared TD error. huber: half of it within `delta`, linear beyond. As in PyTorch."""
    delta: float = Field(default=1.0, gt=0)
    """Where huber turns linear."""


class Optimizer(_Section):
    """How a gradient becomes a step."""

    kind: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Update rule, with PyTorch's conventions."""
    learning_rate: Schedule = Constant(value=1e-3)
    """Step size, a number or a schedule in env steps."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """adam, adamw: decay of the mean gradient."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """adam, adamw: decay of the mean squared gradient."""
    eps: float = Field(default=1e-8, gt=0)
    """adam, adamw, rmsprop: added to the root of the mean square."""
    decay: float = Field(default=0.99, ge=0, lt=1)
    """rmsprop: decay of the mean squared gradient."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """rmsprop, sgd: share of the previous step kept."""
    weight_decay: float = Field(default=0.0, ge=0)
    """adamw: share of each weight removed per step, times the learning rate."""
    clip: float | None = Field(default=10.0, gt=0)
    """Largest norm of the whole gradient; null leaves it as it is."""


class EpsilonGreedy(_Section):
    """A uniform action with probability ε, else the best; one draw per env and step."""

    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    epsilon: Schedule = Linear(kind="linear", start=1.0, end=0.05, steps=10_000)
    """ε, a number or a schedule in env steps."""


class Boltzmann(_Section):
    """Actions drawn from softmax(Q / temperature)."""

    kind: Literal["boltzmann"]
    temperature: Schedule = Linear(kind="linear", start=1.0, end=0.1, steps=10_000)
    """Temperature, a number or a schedule in env steps."""


class Uniform(_Section):
    """Every transition is as likely as any other; drawn with replacement."""

    kind: Literal["uniform"] = "uniform"


class Prioritized(_Section):
    """Transitions are drawn in proportion to (|TD error| + `epsilon`)^`alpha`, and weighted by how rare that makes it.

    A new transition gets the largest priority seen so far."""

    kind: Literal["prioritized"]
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much the TD error counts: 0 is uniform."""
    beta: Schedule = Linear(kind="linear", start=0.4, end=1.0, steps=100_000)
    """How much of the bias the importance weights take back, a number or a schedule in env steps: 1 is all of it."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Keeps every transition possible."""


class Hindsight(_Section):
    """For envs with goals: each episode is stored again as if what it reached had been the goal.

    Needs observations with `observation`, `achieved_goal` and `desired_goal`, and an env with `compute_reward`."""

    goals: Literal["final", "future", "episode"] = "future"
    """final: what the episode's last step reached. future: what this or a random later step reached, drawn for
    each transition. episode: the same with any step of the episode."""
    relabelled: PositiveInt = 4
    """Copies stored of each episode, besides the episode itself."""


class Replay(_Section):
    """Where experience is kept."""

    capacity: PositiveInt = 100_000
    """Transitions kept; rounded down to a multiple of a block's transitions in the fused pipeline."""
    start: PositiveInt = 1_000
    """Env steps collected before the first gradient step."""
    batch_size: PositiveInt = 64
    """Transitions per gradient step."""
    sampling: Annotated[Annotated[Uniform | Prioritized, Field(discriminator="kind")], _or("uniform")] = Uniform()
    """Which transitions are drawn."""
    n_step: int = Field(default=1, ge=1, le=64)
    """Rewards summed before the bootstrap; fewer where an episode ends."""
    newest_in_batch: bool = False
    """Put one of the newest transitions into every batch (combined experience replay): the j-th batch of a block has
    the j-th newest."""
    stacked_frames: int = Field(default=1, ge=1, le=64)
    """Frames an observation stacks along its first axis, newest last. Above 1, each frame is stored once and stacks are
    rebuilt when they are drawn."""
    storage: Literal["auto", "whole", "shared"] = "auto"
    """whole: both observations in every row. shared: each observation once, for the transition that leads to it and the
    one that begins there. auto: shared from 1 KiB an observation on. The fused pipeline stores them whole."""
    hindsight: Hindsight | None = None
    """Also learn from what was reached instead of what was wanted."""


class Evaluation(_Section):
    """Greedy episodes on environments of their own; never changes the training."""

    every: int = Field(default=10_000, ge=0)
    """Env steps between evaluations, and one at the end; 0 switches evaluation off."""
    episodes: PositiveInt = 100
    """Episodes per evaluation, one per environment, all at once; on the host up to 16 environments share them."""
    max_steps: PositiveInt = 100_000
    """Steps after which an endless episode counts as it stands."""
    options: dict[str, Any] = {}
    """Changes to `env.options` for evaluations, such as rewards that are not clipped."""


class Stop(_Section):
    """When a run is over: whichever comes first."""

    steps: int = Field(default=100_000, ge=1, lt=2**31)
    """Env steps in all (rounded up to a whole block)."""
    return_at_least: float | None = None
    """Mean return of an evaluation that counts as solved; of several seeds, the interquartile mean."""
    episodes: PositiveInt | None = None
    """Training episodes finished."""


class Log(_Section):
    """What is written down while training."""

    every: PositiveInt = 2_000
    """Env steps between two lines of metrics."""
    checkpoint_every: PositiveInt = 50_000
    """Env steps between checkpoints; there is always one at the end."""
    checkpoints: int = Field(default=2, ge=1)
    """Checkpoints kept, besides the best."""
    save_replay: bool = True
    """Whether a checkpoint holds the replay too (host pipelines). Without it a resumed run collects `replay.start` env
    steps again before it learns."""


class Guard(_Section):
    """What happens when a loss or gradient is not finite: that update is skipped and counted."""

    skips_in_a_row: PositiveInt = 10
    """So many skipped updates in a row end the run, with a dump of its state."""


class Spec(_Section):
    """Everything that decides the outcome of a run."""

    version: Literal[1] = 1
    """Version of this format."""
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Used for the run's folder."""
    description: str = ""
    """One line for people."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Same spec, seed and machine: same result, bit for bit."""
    seeds: int = Field(default=1, ge=1, le=256)
    """Runs trained side by side in one program, with seeds `seed`, `seed` + 1, …; each as it would be alone. The
    env steps of `stop` and all periods are those of one seed; `stop.return_at_least` is reached by the
    interquartile mean of the seeds, `stop.episodes` by each seed."""
    engine: str = "jax"
    """Who does the array maths."""
    pipeline: str = "auto"
    """How experience flows to the learner; auto chooses by the env and says so."""
    updates_per_step: float = Field(default=0.25, gt=0, le=1000)
    """Replay ratio: gradient steps per transition, below or above 1."""
    discount: float = Field(default=0.99, ge=0, le=1)
    """γ. Only a terminated episode cuts the bootstrap, never a truncated one."""
    env: Env = Env()
    """Where experience comes from."""
    network: Annotated[Annotated[Network | CustomNetwork, Field(discriminator="kind")], _or("composed")] = Network()
    """From an observation to Q-values."""
    target: Target = Target()
    """What a Q-value is pulled towards."""
    loss: Loss = Loss()
    """How far from the target is how bad."""
    optimizer: Optimizer = Optimizer()
    """How a gradient becomes a step."""
    exploration: Annotated[Annotated[EpsilonGreedy | Boltzmann, Field(discriminator="kind")], _or("epsilon_greedy")] = (
        EpsilonGreedy()
    )
    """How training actions differ from the best known."""
    replay: Replay = Replay()
    """Where experience is kept."""
    evaluation: Evaluation = Evaluation()
    """Greedy episodes on environments of their own."""
    stop: Stop = Stop()
    """When a run is over."""
    log: Log = Log()
    """What is written down while training."""
    guard: Guard = Guard()
    """What happens when a number is not finite."""

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        block = self.block  # raises when the ratio fits no block
        if self.replay.batch_size > self.replay.capacity:
            raise ValueError(
                f"replay.batch_size is {self.replay.batch_size} but replay.capacity is {self.replay.capacity}; "
                "a batch cannot be larger than the replay"
            )
        if self.replay.capacity < block.env_steps:
            raise ValueError(
                f"replay.capacity is {self.replay.capacity} but a block of {self.env.num_envs} env(s) inserts "
                f"{block.env_steps} transitions; use at least {block.env_steps} (spec: replay.capacity)"
            )
        if self.stop.return_at_least is not None and self.evaluation.every == 0:
            raise ValueError("stop.return_at_least needs evaluations, but evaluation.every is 0; use e.g. 10000")
        for path, schedule in (
            ("optimizer.learning_rate", self.optimizer.learning_rate),
            ("exploration", self.exploration_schedule),
            *([("replay.sampling.beta", self.beta_schedule)] if self.beta_schedule else []),
        ):
            for name, number in _ends(schedule).items():
                if number < 0:
                    raise ValueError(f"{path}.{name} is {number:g}; it cannot be negative")
        if self.beta_schedule and max(_ends(self.beta_schedule).values()) > 1:
            raise ValueError("replay.sampling.beta goes above 1; 1 takes back all of the bias")
        explored = _ends(self.exploration_schedule).values()
        if isinstance(self.exploration, EpsilonGreedy):
            if max(explored) > 1:
                raise ValueError(f"exploration.epsilon reaches {max(explored):g}; a probability is at most 1")
        elif min(explored) <= 0:
            raise ValueError("exploration.temperature reaches 0; it must stay above (try end: 0.01)")
        if self.stop.steps + block.env_steps >= 2**31:  # steps are counted in int32, up to a whole block
            raise ValueError(f"stop.steps is {self.stop.steps}; use at most {2**31 - 1 - block.env_steps}")
        replay = self.replay
        if replay.hindsight and (replay.n_step > 1 or replay.stacked_frames > 1 or replay.storage == "shared"):
            raise ValueError("replay.hindsight stores whole one-step transitions; use n_step: 1, stacked_frames: 1")
        if replay.stacked_frames > 1 and replay.storage == "whole":
            raise ValueError("replay.stacked_frames stores each frame once, but replay.storage is whole; use auto")
        for names, name, what in (
            (registry.ENGINES, self.engine, "engine"),
            ({"auto": None, **registry.PIPELINES}, self.pipeline, "pipeline"),
        ):
            if name not in names:
                raise ValueError(f"unknown {what} '{name}'; {registry.nearest(name, list(names))}")
        return self

    @property
    def block(self) -> Block:
        """The unit of work this spec asks for."""
        return plan_block(self.updates_per_step, self.env.num_envs)

    @property
    def exploration_schedule(self) -> Constant | Linear | Exponential | Step | Cosine | Periodic:
        """ε or the temperature, whichever this spec explores by."""
        if isinstance(self.exploration, EpsilonGreedy):
            return self.exploration.epsilon
        return self.exploration.temperature

    @property
    def beta_schedule(self) -> Constant | Linear | Exponential | Step | Cosine | Periodic | None:
        """Exponent of the importance weights, when the replay is prioritised."""
        return self.replay.sampling.beta if isinstance(self.replay.sampling, Prioritized) else None


def _ends(schedule: Any) -> dict[str, float]:
    """The numbers a schedule moves between."""
    return {name: getattr(schedule, name) for name in ("value", "start", "end") if hasattr(schedule, name)}
