"""From an observation to Q-values: what a network is made of."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hotloop import registry
from hotloop.spec.kinds import ByKind
from hotloop.spec.section import PositiveInt, Section, Sizes

Activation = Literal["relu", "selu", "tanh", "gelu", "silu"]
Normalization = Literal["none", "layer", "batch"]
"""layer: over the features of one sample. batch: over the samples of a batch when learning, and by running averages
of their mean and variance when acting and in the target net. The layer before it then has no bias."""
Axes = Literal["HWC", "CHW"]


class Torso(Section):
    """What every torso has, those of other packages too: traits that follow from its values."""

    kind: str

    @property
    def record(self) -> registry.TorsoRecord:
        """What the registry knows of it."""
        return registry.TORSOS[self.kind]

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers when it is given a key."""
        return False

    @property
    def normalizes_batches(self) -> bool:
        """Whether it looks at a batch as a whole."""
        return getattr(self, "normalization", "none") == "batch"

    @property
    def dense_widths(self) -> tuple[int, ...] | None:
        """Widths of the dense layers that it consists of, by which threads are chosen; None: it is something else."""
        return None

    @property
    def dense_stacks(self) -> tuple[tuple[int, ...], ...]:
        """Such widths of each of several stacks that stand side by side; the last one ends in the features."""
        return () if self.dense_widths is None else (self.dense_widths,)


class Mlp(Torso):
    """Dense layers over the flattened observation."""

    kind: Literal["mlp"] = "mlp"
    hidden: Sizes = (64, 64)
    """Width of each layer."""
    activation: Activation = "relu"
    """Nonlinearity after each layer."""
    normalization: Normalization = "none"
    """What stands between each layer's product and its nonlinearity."""

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """All of it."""
        return self.hidden


class Cnn(Torso):
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
    layout: Axes = "HWC"
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


class Impala(Torso):
    """The residual network of IMPALA: per stage a convolution, max-pooling that halves the image, and residual blocks
    of two convolutions. uint8 images are divided by 255."""

    kind: Literal["impala"]
    channels: Sizes = (16, 32, 32)
    """Output channels of each stage."""
    blocks: PositiveInt = 2
    """Residual blocks in each stage."""
    hidden: Sizes = (256,)
    """Width of each dense layer after the convolutions."""
    layout: Axes = "HWC"
    """Axes of an observation: channels last, or first (stacked frames)."""
    activation: Activation = "relu"
    """Nonlinearity before each convolution and after each dense layer."""
    normalization: Normalization = "none"
    """What stands behind each convolution within the residual blocks, and each dense layer."""


class Branch(Section):
    """What is seen under one key of a Dict observation: dense layers over all of its numbers."""

    rows: Sizes = ()
    """Width of each dense layer over every row of a part with two axes (rows, numbers), the same layers for all rows;
    what they give is flattened for `hidden`. Empty: there are none."""
    hidden: Sizes = (64,)
    """Width of each dense layer over the flattened part."""


class Branches(Torso):
    """Dense layers for each key of a Dict observation, joined in the order of the sorted keys, then dense layers over
    all of it. With `attention`, the sum of the branches, weighted by how much each matters, is joined to them."""

    kind: Literal["branches"]
    branches: dict[str, Branch] = Field(min_length=1)
    """A branch for each key that is seen (of a Gymnasium env, `env.observe` leaves keys out)."""
    attention: PositiveInt | None = None
    """Width of additive attention over the branches, which must be equally wide: each is weighted by the softmax of
    v · tanh(W x + b) + c over the branches. null: there is none."""
    hidden: Sizes = (64, 64)
    """Width of each dense layer over what is joined."""
    activation: Activation = "relu"
    """Nonlinearity after each layer, those over rows too; not of attention."""
    normalization: Normalization = "none"
    """What stands between each layer's product and its nonlinearity; nothing does in attention."""

    @property
    def dense_widths(self) -> tuple[int, ...]:
        """The layers over what is joined, and how wide that is where the branches say so."""
        lasts = [branch.hidden[-1] for branch in self.branches.values() if branch.hidden]
        is_known = len(lasts) == len(self.branches)
        joined = (sum(lasts) + (lasts[0] if self.attention else 0),) if is_known else ()
        return (*joined, *self.hidden)

    @property
    def dense_stacks(self) -> tuple[tuple[int, ...], ...]:
        """Those of each branch, over its rows and over all of it, then those over what is joined."""
        within = [widths for branch in self.branches.values() for widths in (branch.rows, branch.hidden) if widths]
        return (*within, self.dense_widths)


class Core(Section):
    """Memory between torso and head, of what was seen earlier in the episode. Learns from `replay.sequence`."""

    kind: Literal["lstm", "gru"] = "lstm"
    """Long short-term memory, or gated recurrent unit."""
    size: PositiveInt = 128
    """Width of the memory."""


NOISE = "noise"


class Head(Section):
    """What every head has, those of other packages too: its streams, and traits that follow from its values."""

    kind: str
    dueling: bool = False
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .): the state's value is learned from every action. Of a distribution, each
    atom or quantile is made up so."""
    hidden: Sizes = ()
    """Width of the dense layers of the head; with `dueling`, of each of its two streams."""
    trunk: Sizes = ()
    """Width of the dense layers before those, with `dueling` in front of both streams; ReLU after each."""
    noise: float | None = Field(default=None, gt=0)
    """σ₀ of NoisyNet: every layer of the head learns how much noise to add to its weights (published: 0.5). There is no
    ε by default then. Each env draws noise of its own at each step; a batch has one draw for the net that learns, one
    for the target net and one for Double's choice."""

    @property
    def record(self) -> registry.HeadRecord:
        """What the registry knows of it."""
        return registry.HEADS[self.kind]

    @property
    def is_random(self) -> bool:
        """Whether it draws random numbers when it is given a key."""
        return self.noise is not None

    @property
    def errors_are_of_returns(self) -> bool:
        """Whether what it says of a sample's error, for priorities, is the TD error of Q-values."""
        return True

    @property
    def chooses_apart(self) -> bool:
        """Whether the target net is asked once more, in mode `choose`, for the choice of the next action."""
        return False

    @property
    def rows_per_sample(self) -> int:
        """Rows that each sample of a batch becomes in its layers, at most."""
        return 1

    @property
    def beyond_q_values(self) -> list[str]:
        """What it does beyond one Q-value per action, in words."""
        given = {self.record.gives: bool(self.record.gives), "dueling": self.dueling, NOISE: self.noise is not None}
        return [name for name, is_given in given.items() if is_given]


class ScalarHead(Head):
    """One Q-value per action."""

    kind: Literal["scalar"] = "scalar"


class C51Head(Head):
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

    @property
    def errors_are_of_returns(self) -> bool:
        """They are divergences of distributions."""
        return False


class QuantileHead(Head):
    """The return's quantiles at fixed, evenly spaced fractions, per action (QR-DQN)."""

    kind: Literal["qr"]
    quantiles: PositiveInt = 51
    """How many (published: 200)."""


class IqnHead(Head):
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

    @property
    def is_random(self) -> bool:
        """Always: its fractions are drawn."""
        return True

    @property
    def chooses_apart(self) -> bool:
        """Whether the choice has fractions of its own."""
        return self.choice_taus is not None

    @property
    def rows_per_sample(self) -> int:
        """One for each fraction, of the pass with the most of them."""
        return max(self.taus, self.target_taus, self.choice_taus or 0)


class Network(Section):
    """From an observation to Q-values: a torso, perhaps a memory, then a head."""

    kind: Literal["composed"] = "composed"
    torso: Annotated[Torso, ByKind("torso", "mlp")] = Mlp()
    """From an observation to features."""
    core: Core | None = None
    """Memory of what was seen before."""
    head: Annotated[Head, ByKind("head", "scalar")] = ScalarHead()
    """From features to Q-values, or to the distribution of returns."""
    init: Literal["default", "he", "orthogonal"] = "default"
    """First weights. default: PyTorch's, uniform within 1 / sqrt(inputs). he: normal, for ReLU. orthogonal: with gain
    sqrt(2) before an activation and 1 at the end. he and orthogonal begin with biases of zero."""

    @property
    def is_random(self) -> bool:
        """Whether a forward pass draws random numbers when it is given a key."""
        return self.torso.is_random or self.head.is_random

    @property
    def is_image(self) -> bool:
        """Whether learning is mostly convolutions."""
        return self.torso.record.is_image


class CustomNetwork(Section):
    """A network of your own: one that a plug-in registers (`plugins: [my_module]`, `hotloop.register_network`), or one
    given from Python (`hotloop.train(spec, network=module)`), which is given again to whatever loads the run."""

    kind: Literal["custom"]
    name: str
    """Under which it is registered. Of one given from Python: what it was called; it is never loaded from a file."""
    options: dict[str, object] = Field(default={})
    """Passed to the class or function that is registered."""

    @property
    def record(self) -> registry.NetworkRecord | None:
        """What the registry knows of it; None if it was given from Python."""
        return registry.NETWORKS[self.name] if registry.is_known(registry.NETWORKS, self.name) else None

    @property
    def is_image(self) -> bool:
        """Whether learning is mostly convolutions; of one given from Python nothing is known."""
        return self.record is not None and self.record.is_image
