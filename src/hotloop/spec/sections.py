"""The sections of a spec but for its network. The documentation of every field is its docstring here.

All times are environment steps (transitions). Nothing is counted in episodes or vector steps, except the
stop rule `stop.episodes`.
"""

from typing import Annotated, Literal

from pydantic import Field

from hotloop.spec.schedules import Constant, Linear, Schedule
from hotloop.spec.section import PositiveInt, Section, or_kind


class Torch(Section):
    """How engine torch works; the other engine does not look here."""

    mode: Literal["auto", "eager", "compiled"] = "auto"
    """eager: operation by operation. compiled: up to eight gradient steps in one program; compiling takes half a minute
    the first time, and needs a C++ compiler on a CPU. auto: the faster one for as many steps as the run has, as
    measured before it begins; its `spec.yaml` says which, so that it is resumed to the same bits. Two runs of one spec
    may measure differently and then differ in their last digits: name the mode where that matters."""


class Env(Section):
    """Where experience comes from."""

    id: str = "cartpole"
    """Name of a device env (`hotloop list`), `gymnax:NAME`, or any Gymnasium id (`module:Id` imports the module)."""
    num_envs: PositiveInt = 16
    """Environments stepped together. Changes speed, not how much is learned per transition."""
    options: dict[str, object] = Field(default={})
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


class Agents(Section):
    """Those of an env with several agents. Each learns with a network, a replay and an optimiser of its own, from its
    own transitions; an env step is one transition of each, and `updates_per_step` counts for each."""

    weights: Literal["own", "shared"] = "own"
    """shared: one network for all, with one replay into which the transitions of all go."""
    names: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """What the env calls them; found out before a run begins."""


class Actors(Section):
    """Processes that step the envs in pipeline processes; they hand transitions over in parcels."""

    count: PositiveInt | None = None
    """How many; the envs are shared out among them. null: one for each core but the learner's, and no more than there
    are envs."""
    steps_per_parcel: PositiveInt | None = None
    """Vector steps of an actor that are handed over at once; it takes new weights between two parcels. null: 16, or
    four for each frame that a parcel repeats of the one before, if that is more."""
    parcels: int | None = Field(default=None, ge=2)
    """Parcels of an actor that can wait for the learner. null: 8, or as many as it may be ahead of the learner if that
    is more; then none is ever dropped."""
    on_full: Literal["drop", "wait"] = "drop"
    """What an actor does when no more can wait, where `parcels` says how many can: drop its parcel, which is counted,
    and go on; or wait for the learner."""
    in_step: bool = False
    """Collect a block, learn, collect the next with the new weights: as slow as one after the other, and as exact. With
    one actor the bits are those of pipeline sync."""
    here: bool = False
    """Step the envs in this process after all, actor by actor, each when its turn comes: for a debugger. With in_step
    the bits are those of the processes."""
    first_errors: bool = True
    """Whether, with priorities, actors say the TD error by which a transition has its first one; not with c51 or
    Munchausen, whose errors are others."""
    ladder: float = Field(default=0.0, ge=0, le=100)
    """How much actors differ in ε: actor i of N explores by ε to the power of 1 + ladder x i / (N - 1)."""
    patience: float = Field(default=60.0, ge=1)
    """Seconds that an actor may say nothing, as when its env hangs, before it is replaced."""
    tries: PositiveInt = 4
    """Times in a row that an actor may end without having handed over anything; then the run ends, saved."""
    measure: bool = True
    """Whether pipeline auto may take processes. It does for one seed of a slow env on the host, where a trial of a few
    seconds before the run says that they are faster; its `spec.yaml` says which it was. Two runs of one spec may
    measure differently, and those in processes do not repeat to the bit. false: auto takes sync or concurrent, which
    do, and measures nothing."""


class Munchausen(Section):
    """Adds the scaled log-policy of the action taken to the reward, and bootstraps from the soft value (M-DQN)."""

    alpha: float = Field(default=0.9, ge=0, le=1)
    """Share of the log-policy that is added."""
    temperature: float = Field(default=0.03, gt=0)
    """Of the softmax over Q-values that is the policy."""
    clip: float = Field(default=-1.0, lt=0)
    """Lowest that the log-policy, times the temperature, may count."""


class Target(Section):
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


class Loss(Section):
    """How far from the target is how bad."""

    kind: Literal["mse", "huber"] = "huber"
    """mse: the squared TD error. huber: half of it within `delta`, linear beyond. As in PyTorch. The heads qr and iqn
    weigh huber by quantile; c51 compares distributions by cross-entropy whatever stands here."""
    delta: float = Field(default=1.0, gt=0)
    """Where huber turns linear."""


class Optimizer(Section):
    """How a gradient becomes a step."""

    kind: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Update rule, with PyTorch's conventions."""
    learning_rate: Schedule = Constant(value=1e-3)
    """Step size, a number or a schedule in env steps."""
    schedule_in: Literal["env_steps", "turns"] = "env_steps"
    """What the schedule of the learning rate counts; turns go with `turns`."""
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


class Turns(Section):
    """Learning in turns, as SLM-Lab has it: a turn of `updates` gradient steps after each vector step that stored a
    transition in a place of the replay's ring that is a multiple of `every`.

    Places are counted from 0; transitions up to `replay.start` do not count. There is at most one turn after a vector
    step, and the target net moves at most once. For Gymnasium envs, pipeline sync."""

    every: PositiveInt
    """Transitions from one place that asks for a turn to the next."""
    updates: PositiveInt
    """Gradient steps of a turn."""


class EpsilonGreedy(Section):
    """A uniform action with probability ε, else the best; one draw per env and step.

    On the device each env of a vector step has the ε of its own env step, on the host all have that of the first."""

    kind: Literal["epsilon_greedy"] = "epsilon_greedy"
    epsilon: Schedule = Linear(kind="linear", start=1.0, end=0.05, steps=10_000)
    """ε, a number or a schedule in env steps."""
    together: bool = False
    """Whether one draw decides for all envs of a vector step if they explore, each by an action of its own."""


class Boltzmann(Section):
    """Actions drawn from softmax(Q / temperature)."""

    kind: Literal["boltzmann"]
    temperature: Schedule = Linear(kind="linear", start=1.0, end=0.1, steps=10_000)
    """Temperature, a number or a schedule in env steps."""


class Uniform(Section):
    """Every transition is as likely as any other; drawn with replacement."""

    kind: Literal["uniform"] = "uniform"


class Prioritized(Section):
    """Transitions are drawn in proportion to (|TD error| + `epsilon`)^`alpha`, and weighted by how rare that makes it.

    A new transition gets the largest priority seen so far, unless `first_error` says otherwise or an actor has told its
    TD error (`actors.first_errors`). On the host each batch
    has one draw from each of its `batch_size` equal parts of the sum of priorities, and of a transition drawn twice the
    later TD error counts; on the device draws are independent, and the larger TD error counts."""

    kind: Literal["prioritized"]
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How much the TD error counts: 0 is uniform."""
    beta: Schedule = Linear(kind="linear", start=0.4, end=1.0, steps=100_000)
    """How much of the bias the importance weights take back, a number or a schedule in env steps: 1 is all of it."""
    epsilon: float = Field(default=1e-6, ge=1e-30)
    """Keeps every transition possible."""
    first_error: float | None = Field(default=None, ge=0)
    """TD error by which a new transition has its first priority; null is the largest priority so far."""
    updates_per_draw: PositiveInt = 8
    """Gradient steps whose batches are drawn at once, at most: then priorities move, and the next are drawn among the
    transitions that were there at the block's start of learning. A block's updates are divided evenly, so it is the
    largest divisor of their number up to this. 1 is the published algorithm, and costs most."""


GOAL_KEYS = ("achieved_goal", "desired_goal")


class Hindsight(Section):
    """For envs with goals: each episode is stored again as if what it reached had been the goal.

    Needs observations with `achieved_goal` and `desired_goal`, and an env with `compute_reward`."""

    goals: Literal["final", "future", "episode"] = "future"
    """final: what the episode's last step reached. future: what this or a random later step reached, drawn for
    each transition. episode: the same with any step of the episode."""
    relabelled: PositiveInt = 4
    """Copies stored of each episode, besides the episode itself."""


class Sequence(Section):
    """Stretches of consecutive steps, each with the memory the network had at its beginning.

    Stored state and burn-in are those of R2D2; its priorities, n-step returns and rescaled values are not here."""

    length: int = Field(default=16, ge=2)
    """Steps learned from."""
    burn_in: int = Field(default=8, ge=0)
    """Steps before those, only to bring the stored memory up to date."""


class OnPolicy(Section):
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


class Replay(Section):
    """Where experience is kept."""

    capacity: PositiveInt = 100_000
    """Transitions kept; rounded down to a multiple of a block's transitions in the fused pipeline."""
    start: PositiveInt = 1_000
    """Env steps collected before the first gradient step."""
    batch_size: PositiveInt = 64
    """Transitions per gradient step."""
    updates_per_batch: PositiveInt = 1
    """Gradient steps taken on each batch, one after the other, before the next one's turn."""
    sampling: Annotated[Annotated[Uniform | Prioritized, Field(discriminator="kind")], or_kind("uniform")] = Uniform()
    """Which transitions are drawn."""
    n_step: int = Field(default=1, ge=1, le=64)
    """Rewards summed before the bootstrap; fewer where an episode ends."""
    newest_in_batch: bool | Literal["all"] = False
    """Put one of the newest transitions into every batch (combined experience replay): the j-th batch of a block has
    the j-th newest. all: those that came since the last draw end the next batch, oldest first, as many as it holds."""
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


class Evaluation(Section):
    """Greedy episodes on environments of their own; never changes the training."""

    every: int = Field(default=10_000, ge=0)
    """Env steps between evaluations, and one at the end; 0 switches evaluation off."""
    episodes: PositiveInt = 100
    """Episodes per evaluation, one per environment, all at once; on the host up to 16 environments share them, and of
    those in processes (`vectorization: async`) no more than `env.num_envs`."""
    max_steps: PositiveInt = 100_000
    """Steps after which an endless episode counts as it stands."""
    max_share: float = Field(default=5.0, gt=0)
    """Env steps that the episodes of an evaluation of a Gymnasium env may take, as a multiple of those of one period:
    `every`, or the run so far if that is less (envs that have played theirs and step on beside the others may take as
    many again). Beyond that it is cut: in each env equally many episodes count, those that still run as they stand, and
    `cut` says how many of the wanted ones were not played to their end. Such an evaluation neither ends a run as solved
    nor makes its weights the best."""
    options: dict[str, object] = Field(default={})
    """Changes to `env.options` for evaluations, such as rewards that are not clipped."""


class Stop(Section):
    """When a run is over: whichever comes first."""

    steps: int = Field(default=100_000, ge=1, lt=2**31)
    """Env steps in all (rounded up to a whole block)."""
    return_at_least: float | None = None
    """Mean return of an evaluation that counts as solved; of several seeds on the device, the interquartile mean."""
    episodes: PositiveInt | None = None
    """Training episodes finished."""


class Log(Section):
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


class Guard(Section):
    """What happens when a loss or gradient is not finite: that update is skipped and counted."""

    skips_in_a_row: PositiveInt = 10
    """So many skipped updates in a row end the run, with a dump of its state."""
