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
    observe: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Keys of a Gymnasium env's Dict observation that the agent sees; empty: all. One key alone is seen without its
    name, so that an image among other things can go to a `cnn`."""
    action_mask: bool = False
    """Choose, and bootstrap from, legal actions only: those a Gymnasium env names in `info["action_mask"]`, or a device
    env in its method `action_mask(state)`."""


Activation = Literal["relu", "selu", "tanh", "gelu", "silu"]
Normalization = Literal["none", "layer", "batch"]
"""layer: over the features of one sample. batch: over the samples of a batch when learning, and by running averages
of their mean and variance when acting and in the target net. The layer before it then has no bias."""
Layout = Literal["HWC", "CHW"]


class Mlp(_Section):
    """Dense layers over the flattened observation."""

    kind: Literal["mlp"] = "mlp"
    hidden: Sizes = (64, 64)
    """Width of each layer."""
    activation: Activation = "relu"
    """Nonlinearity after each layer."""
    normalization: Normalization = "none"
    """What stands between each layer's product and its nonlinearity."""


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
    layout: Layout = "HWC"
    """Axes of an observation: channels last, or first (stacked frames)."""
    activation: Activation = "relu"
    """Nonlinearity after each layer."""
    normalization: Normalization = "none"
    """What stands between each layer's product and its nonlinearity."""

    @model_validator(mode="after")
    def _same_depth(self) -> Self:
        if not len(self.channels) == len(self.kernels) == len(self.strides):
            raise ValueError(
                f"channels, kernels and strides describe {len(self.channels)}, {len(self.kernels)} and "
                f"{len(self.strides)} convolutions; give one of each per convolution"
            )
        return self


class Impala(_Section):
    """The residual network of IMPALA: per stage a convolution, max-pooling that halves the image, and residual blocks
    of two convolutions. uint8 images are divided by 255."""

    kind: Literal["impala"]
    channels: Sizes = (16, 32, 32)
    """Output channels of each stage."""
    blocks: PositiveInt = 2
    """Residual blocks in each stage."""
    hidden: Sizes = (256,)
    """Width of each dense layer after the convolutions."""
    layout: Layout = "HWC"
    """Axes of an observation: channels last, or first (stacked frames)."""
    activation: Activation = "relu"
    """Nonlinearity before each convolution and after each dense layer."""
    normalization: Normalization = "none"
    """What stands behind each convolution within the residual blocks, and each dense layer."""


class Core(_Section):
    """Memory between torso and head, of what was seen earlier in the episode. Learns from `replay.sequence`."""

    kind: Literal["lstm", "gru"] = "lstm"
    """Long short-term memory, or gated recurrent unit."""
    size: PositiveInt = 128
    """Width of the memory."""


class _Head(_Section):
    dueling: bool = False
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .): the state's value is learned from every action. Of a distribution, each
    atom or quantile is made up so."""
    hidden: Sizes = ()
    """Width of the dense layers of the head; with `dueling`, of each of its two streams."""
    noise: float | None = Field(default=None, gt=0)
    """σ₀ of NoisyNet: every layer of the head learns how much noise to add to its weights (published: 0.5). There is no
    ε by default then. Each env draws noise of its own at each step; a batch has one draw for the net that learns, one
    for the target net and one for Double's choice."""


class ScalarHead(_Head):
    """One Q-value per action."""

    kind: Literal["scalar"] = "scalar"


class C51Head(_Head):
    """A probability for each of `atoms` returns between `low` and `high`, per action (C51)."""

    kind: Literal["c51"]
    atoms: int = Field(default=51, ge=2)
    """Returns that are told apart, evenly spaced."""
    low: float = -10.0
    """Lowest return; lower ones count as this."""
    high: float = 10.0
    """Highest return; higher ones count as this."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}; returns lie between them")
        return self


class QuantileHead(_Head):
    """The return's quantiles at fixed, evenly spaced fractions, per action (QR-DQN)."""

    kind: Literal["qr"]
    quantiles: PositiveInt = 51
    """How many (published: 200)."""


class IqnHead(_Head):
    """The return's quantiles at drawn fractions τ, per action, from cosines of τ (IQN)."""

    kind: Literal["iqn"]
    cosines: PositiveInt = 64
    """Cosines by which τ enters the network."""
    taus: PositiveInt = 8
    """Fractions drawn per sample for the online net."""
    target_taus: PositiveInt = 8
    """Fractions drawn per sample for the target net."""
    choice_taus: PositiveInt | None = None
    """Fractions drawn per sample for the choice of the next action (published: 32). null: with rule double, as many as
    `target_taus`; with rule target, those that are bootstrapped from choose too, which saves a pass."""
    acting_taus: PositiveInt = 32
    """Fractions whose mean is the Q-value, for acting; evenly spaced in evaluations."""


def _head(value: Any) -> Any:
    """A head may leave `kind` out; `dueling` was a kind of its own once."""
    if not isinstance(value, dict):
        return value
    return (
        {**value, "kind": "scalar", "dueling": True} if value.get("kind") == "dueling" else {"kind": "scalar", **value}
    )


class Network(_Section):
    """From an observation to Q-values: a torso, perhaps a memory, then a head."""

    kind: Literal["composed"] = "composed"
    torso: Annotated[Annotated[Mlp | Cnn | Impala, Field(discriminator="kind")], _or("mlp")] = Mlp()
    """From an observation to features."""
    core: Core | None = None
    """Memory of what was seen before."""
    head: Annotated[
        Annotated[ScalarHead | C51Head | QuantileHead | IqnHead, Field(discriminator="kind")], BeforeValidator(_head)
    ] = ScalarHead()
    """From features to Q-values, or to the distribution of returns."""
    init: Literal["default", "he", "orthogonal"] = "default"
    """First weights. default: PyTorch's, uniform within 1 / sqrt(inputs). he: normal, for ReLU. orthogonal: with gain
    sqrt(2) before an activation and 1 at the end. he and orthogonal begin with biases of zero."""


class CustomNetwork(_Section):
    """A module of the user's own, given from Python: `hotloop.train(spec, network=module)`."""

    kind: Literal["custom"]
    name: str
    """What the module was called, for the record; the module itself is never loaded from a file."""


class Munchausen(_Section):
    """Adds the scaled log-policy of the action taken to the reward, and bootstraps from the soft value (M-DQN)."""

    alpha: float = Field(default=0.9, ge=0, le=1)
    """Share of the log-policy that is added."""
    temperature: float = Field(default=0.03, gt=0)
    """Of the softmax over Q-values that is the policy."""
    clip: float = Field(default=-1.0, lt=0)
    """Lowest that the log-policy, times the temperature, may count."""


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
    munchausen: Munchausen | None = None
    """Reward the agent for being sure, and bootstrap softly; with rule: target."""


class Loss(_Section):
    """How far from the target is how bad."""

    kind: Literal["mse", "huber"] = "huber"
    """mse: the squared TD error. huber: half of it within `delta`, linear beyond. As in PyTorch. The heads qr and iqn
    weigh huber by quantile; c51 compares distributions by cross-entropy whatever stands here."""
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
    accumulate: PositiveInt = 1
    """Parts into which a batch is split, one after the other, before a step is taken: the same step in less memory."""


class EpsilonGreedy(_Section):
    """A uniform action with probability ε, else the best; one draw per env and step.

    On the device each env of a vector step has the ε of its own env step, on the host all have that of the first."""

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

    A new transition gets the largest priority seen so far. On the host each batch has one draw from each of its
    `batch_size` equal parts of the sum of priorities, and of a transition drawn twice the later TD error counts; on the
    device draws are independent, and the larger TD error counts."""

    kind: Literal["prioritized"]
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much the TD error counts: 0 is uniform."""
    beta: Schedule = Linear(kind="linear", start=0.4, end=1.0, steps=100_000)
    """How much of the bias the importance weights take back, a number or a schedule in env steps: 1 is all of it."""
    epsilon: float = Field(default=1e-6, ge=1e-30)
    """Keeps every transition possible."""
    updates_per_draw: PositiveInt = 8
    """Gradient steps whose batches are drawn at once, at most: then priorities move, and the next are drawn among the
    transitions that were there at the block's start of learning. A block's updates are divided evenly, so it is the
    largest divisor of their number up to this. 1 is the published algorithm, and the dearest."""


GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


class Hindsight(_Section):
    """For envs with goals: each episode is stored again as if what it reached had been the goal.

    Needs observations with `observation`, `achieved_goal` and `desired_goal`, and an env with `compute_reward`."""

    goals: Literal["final", "future", "episode"] = "future"
    """final: what the episode's last step reached. future: what this or a random later step reached, drawn for
    each transition. episode: the same with any step of the episode."""
    relabelled: PositiveInt = 4
    """Copies stored of each episode, besides the episode itself."""


class Sequence(_Section):
    """Stretches of consecutive steps, each with the memory the network had at its beginning.

    Stored state and burn-in are those of R2D2; its priorities, n-step returns and rescaled values are not here."""

    length: int = Field(default=16, ge=2)
    """Steps learned from."""
    burn_in: int = Field(default=8, ge=0)
    """Steps before those, only to bring the stored memory up to date."""


class OnPolicy(_Section):
    """PQN: learn from what was just collected, towards λ-returns, then forget it. No replay, no target net.

    A block is `steps` vector steps, then `epochs` times all of them in `minibatches` batches, shuffled."""

    steps: PositiveInt = 32
    """Vector steps collected at a time."""
    epochs: PositiveInt = 2
    """Times each transition is learned from."""
    minibatches: PositiveInt = 4
    """Gradient steps per epoch."""
    trace: float = Field(default=0.65, ge=0, le=1)
    """λ: 0 bootstraps after one step, 1 only where the collected steps end."""


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
    sequence: Sequence | None = None
    """Draw stretches of episodes instead of single transitions, for networks with a `core`."""


class Evaluation(_Section):
    """Greedy episodes on environments of their own; never changes the training."""

    every: int = Field(default=10_000, ge=0)
    """Env steps between evaluations, and one at the end; 0 switches evaluation off."""
    episodes: PositiveInt = 100
    """Episodes per evaluation, one per environment, all at once; on the host up to 16 environments share them."""
    max_steps: PositiveInt = 100_000
    """Steps after which an endless episode counts as it stands."""
    max_share: float = Field(default=5.0, gt=0)
    """Env steps that an evaluation of a Gymnasium env may take, as a multiple of those of one period: `every`, or the
    run so far if that is less. Beyond that it is cut: in each env equally many episodes count, those that still run as
    they stand, and `cut` says how many of the wanted ones were not played to their end. Such an evaluation neither ends
    a run as solved nor makes its weights the best."""
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
    """Env steps between two lines of metrics, at least: a line is written when the host next looks in, which it does
    about twice a second."""
    exact: bool = False
    """Write a line at every multiple of `every`, however short the time between them; training then stops for each."""
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
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Numbers in which networks compute. Weights, targets and priorities are float32 in any case; float16 scales its
    loss so that small gradients do not vanish."""
    devices: PositiveInt = 1
    """Devices over which each batch is split."""
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

    @model_validator(mode="before")
    @classmethod
    def _noise_explores(cls, data: Any) -> Any:
        """A network that is noisy by itself needs no ε, unless one is given."""
        if not isinstance(data, dict) or "exploration" in data:
            return data
        network = data.get("network")
        head = network.get("head") if isinstance(network, dict) else getattr(network, "head", None)
        noise = head.get("noise") if isinstance(head, dict) else getattr(head, "noise", None)
        return data if noise is None else {**data, "exploration": {"kind": "epsilon_greedy", "epsilon": 0.0}}

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        refusal = next((reason for is_wrong, reason in self._combinations() if is_wrong), None)
        if refusal:
            raise ValueError(refusal)
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
        observe = self.env.observe
        if twice := [key for key in observe if observe.count(key) > 1]:
            raise ValueError(f"env.observe names '{twice[0]}' twice")
        if replay.hindsight and observe and (left_out := [key for key in GOAL_KEYS if key not in observe]):
            raise ValueError(
                f"replay.hindsight needs the keys {', '.join(GOAL_KEYS)}, but env.observe leaves out "
                f"{', '.join(left_out)}; add them, or leave env.observe out"
            )
        if replay.stacked_frames > 1 and replay.storage == "whole":
            raise ValueError("replay.stacked_frames stores each frame once, but replay.storage is whole; use auto")
        for names, name, what in (
            (registry.ENGINES, self.engine, "engine"),
            ({"auto": None, **registry.PIPELINES}, self.pipeline, "pipeline"),
        ):
            if name not in names:
                raise ValueError(f"unknown {what} '{name}'; {registry.nearest(name, list(names))}")
        return self

    def _combinations(self) -> "list[tuple[bool, str]]":
        """Choices that do not go together, and why."""
        network = self.network if isinstance(self.network, Network) else Network()
        head, replay, soft, accumulate = network.head, self.replay, self.target.munchausen, self.optimizer.accumulate
        on_policy, core = self.on_policy, network.core
        batch_norm = network.torso.normalization == "batch"
        collected = on_policy.steps * self.env.num_envs if on_policy else 0
        minibatch = collected // on_policy.minibatches if on_policy else 0
        batch, name = (minibatch, "a minibatch") if on_policy else (replay.batch_size, "replay.batch_size")
        return [
            (
                soft is not None and self.target.rule != "target",
                f"target.munchausen with rule: {self.target.rule}: its soft value weighs all actions of the target "
                "net, so no other net chooses one; use rule: target",
            ),
            (
                soft is not None and replay.n_step > 1,
                f"target.munchausen with replay.n_step: {replay.n_step}: the log-policy is added to the reward of one "
                "step; use n_step: 1",
            ),
            (
                soft is not None and isinstance(head, C51Head),
                "target.munchausen with head c51: a mean over actions of distributions that were moved apart has no "
                "fixed atoms; use scalar, qr or iqn",
            ),
            (
                soft is not None and self.env.action_mask,
                "target.munchausen with env.action_mask: the policy at the state before is not known without its mask; "
                "use one of the two",
            ),
            (
                isinstance(head, QuantileHead | IqnHead) and self.loss.kind == "mse",
                f"loss.kind mse with head {head.kind}: quantiles are learned by huber, weighed by quantile; use huber",
            ),
            (
                isinstance(head, IqnHead) and head.choice_taus is not None and self.target.rule == "vanilla",
                "network.head.choice_taus with target.rule vanilla: one pass of one net chooses and values; leave it "
                "out, or use rule target or double",
            ),
            (on_policy is not None and replay != Replay(), "on_policy learns without a replay; leave replay out"),
            (
                on_policy is not None and self.target != Target(),
                "on_policy learns without a target net; leave target out",
            ),
            (
                on_policy is not None and self.updates_per_step != 0.25,
                "with on_policy, epochs x minibatches say how much is learned; leave updates_per_step out",
            ),
            (
                on_policy is not None and (head.kind != "scalar" or core is not None or head.noise is not None),
                "on_policy learns λ-returns with a network without noise and memory; use head scalar",
            ),
            (
                on_policy is not None and collected % on_policy.minibatches != 0,
                f"on_policy collects {collected} transitions (steps x num_envs), which do not divide into its "
                "minibatches; use another number of these",
            ),
            (
                isinstance(self.network, CustomNetwork) and replay.sequence is not None,
                "replay.sequence is for networks with a core, and a network of your own has none; leave it out",
            ),
            (
                (core is None) != (replay.sequence is None),
                "network.core and replay.sequence belong together: memory is learned from sequences; give both or none",
            ),
            (
                core is not None and (head.kind != "scalar" or head.noise is not None or soft is not None),
                "network.core learns with head scalar, without noise and Munchausen; use those",
            ),
            (
                core is not None and (replay.sampling.kind != "uniform" or replay.n_step > 1 or batch_norm),
                "network.core learns from sequences that are drawn uniformly, step by step, without batch "
                "normalization; use sampling: uniform, n_step: 1, normalization: none or layer",
            ),
            (
                batch_norm and accumulate > 1,
                "normalization: batch with optimizer.accumulate: the parts of a batch would each be normalized by "
                "themselves; use layer, or accumulate: 1",
            ),
            (
                batch % accumulate != 0 or batch % self.devices != 0 or (batch // accumulate) % self.devices != 0,
                f"{name} is {batch}, which {accumulate} part(s) on {self.devices} device(s) do not divide; use a "
                "multiple",
            ),
            (
                self.devices > 1 and self.seeds > 1,
                f"devices is {self.devices} and seeds is {self.seeds}: seeds are already shared out over devices; use "
                "one of the two",
            ),
        ]

    @property
    def block(self) -> Block:
        """The unit of work this spec asks for."""
        if self.on_policy is not None:
            learned = self.on_policy.epochs * self.on_policy.minibatches
            return Block(self.env.num_envs, self.on_policy.steps, learned)
        return plan_block(self.updates_per_step, self.env.num_envs)

    @property
    def updates_per_draw(self) -> int:
        """Gradient steps whose batches are drawn at once: a block's, or with priorities a divisor of their number."""
        updates, sampling = self.block.updates, self.replay.sampling
        most = sampling.updates_per_draw if isinstance(sampling, Prioritized) else updates
        return max(size for size in range(1, min(most, updates) + 1) if updates % size == 0)

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
