"""Three ways to say what an action will return: its mean, probabilities of fixed returns, quantiles.

Each knows the Q-value it means, what it is pulled towards, and how far it is from there. `z_B…` is the estimate of the
action taken: (B,) for means, (B, N) for distributions. `means`, `atoms` and `quantiles` make them for a head's section
and the loss of a spec; a record of the registry names such a function.
"""

from typing import Protocol

from hotloop.learning import losses
from hotloop.learning.arrays import Array, Constant, Namespace
from hotloop.learning.targets import bootstrapped


class Estimate(Protocol):
    """What a head says of a return."""

    def q(self, values_BA: Array, /) -> Array:
        """Q-values (B, A) of estimates (B, A, …)."""

    def target(self, r_t_B: Array, discount_t_B: Array, z_t_B: Array, /) -> Array:
        """What estimates (B, …) are pulled towards, given those of the next state."""

    def loss(self, z_B: Array, tau: Array, target_B: Array, /) -> tuple[Array, Array]:
        """How far estimates are off, and their TD errors, (B,) both; `tau` are the fractions of quantiles."""


class LossSection(Protocol):
    """The section `loss` of a spec."""

    @property
    def kind(self) -> str:
        """`mse` or `huber`."""

    @property
    def delta(self) -> float:
        """Where Huber's loss becomes a straight line."""


class AtomsSection(Protocol):
    """The section of a head with atoms."""

    @property
    def low(self) -> float:
        """The lowest return."""

    @property
    def high(self) -> float:
        """The highest."""

    @property
    def atoms(self) -> int:
        """How many there are."""


def means(head: object, loss: LossSection, *, xp: Namespace, constant: Constant) -> "Means":
    """For heads that give one Q-value per action."""
    del head, constant
    return Means(loss.kind, loss.delta, xp=xp)


def atoms(head: AtomsSection, loss: LossSection, *, xp: Namespace, constant: Constant) -> "Atoms":
    """For heads with `atoms` returns from `low` to `high`."""
    del loss, constant
    return Atoms(head.low, head.high, head.atoms, xp=xp)


def quantiles(head: object, loss: LossSection, *, xp: Namespace, constant: Constant) -> "Quantiles":
    """For heads that give quantiles, at whatever fractions."""
    del head
    return Quantiles(loss.delta, xp=xp, constant=constant)


class Means:
    """One number: the expected return."""

    def __init__(self, kind: str, delta: float, *, xp: Namespace) -> None:
        self.kind, self.delta, self.xp = kind, delta, xp

    def q(self, values_BA: Array) -> Array:
        """Q-values (B, A)."""
        return values_BA

    def target(self, r_t_B: Array, discount_t_B: Array, z_t_B: Array) -> Array:
        """r + discount x value of the next state."""
        return bootstrapped(r_t_B, discount_t_B, z_t_B)

    def loss(self, z_B: Array, tau: Array, target_B: Array) -> tuple[Array, Array]:
        """Loss and TD error of each sample."""
        del tau
        td_B = target_B - z_B
        return (losses.mse(td_B) if self.kind == "mse" else losses.huber(td_B, self.delta, xp=self.xp)), td_B


class Atoms:
    """Logits of N fixed returns, evenly spaced from `low` to `high` (C51)."""

    def __init__(self, low: float, high: float, count: int, *, xp: Namespace) -> None:
        self.low, self.high, self.xp = low, high, xp
        self.spacing = (high - low) / (count - 1)
        self.returns_N = low + self.spacing * xp.arange(count)

    def q(self, logits_BAN: Array) -> Array:
        """Expected returns (B, A)."""
        return self.xp.sum(probabilities(logits_BAN, xp=self.xp) * self.returns_N, axis=-1)

    def target(self, r_t_B: Array, discount_t_B: Array, logits_t_BN: Array) -> Array:
        """Probabilities (B, N) of r + discount x return, each shared between the two atoms it falls between."""
        xp = self.xp
        moved_BN = xp.clip(r_t_B[:, None] + discount_t_B[:, None] * self.returns_N, self.low, self.high)
        # An atom's share of a return falls from 1 to 0 over one spacing: no search for neighbours, no scatter.
        distance_BNM = xp.abs(moved_BN[:, :, None] - self.returns_N[None, None, :]) / self.spacing
        share_BNM = xp.clip(1.0 - distance_BNM, 0.0, 1.0)
        return xp.sum(probabilities(logits_t_BN, xp=xp)[:, :, None] * share_BNM, axis=1)

    def loss(self, logits_BN: Array, tau: Array, target_BN: Array) -> tuple[Array, Array]:
        """Cross-entropy, and as an error for priorities how much of it could be saved (the KL divergence)."""
        del tau
        xp = self.xp
        loss_B = -xp.sum(target_BN * log_probabilities(logits_BN, xp=xp), axis=-1)
        positive_BN = target_BN > 0
        surprise_BN = xp.where(positive_BN, target_BN * xp.log(xp.where(positive_BN, target_BN, 1.0)), 0.0)
        return loss_B, loss_B + xp.sum(surprise_BN, axis=-1)


class Quantiles:
    """Quantiles of the return at fractions τ (QR-DQN, IQN)."""

    def __init__(self, delta: float, *, xp: Namespace, constant: Constant) -> None:
        """`constant` hides a number from differentiation, as `jax.lax.stop_gradient` does."""
        self.delta, self.xp, self.constant = delta, xp, constant

    def q(self, quantiles_BAN: Array) -> Array:
        """Mean of the quantiles (B, A)."""
        return self.xp.mean(quantiles_BAN, axis=-1)

    def target(self, r_t_B: Array, discount_t_B: Array, z_t_BM: Array) -> Array:
        """Each quantile moved: r + discount x quantile."""
        return bootstrapped(r_t_B[:, None], discount_t_B[:, None], z_t_BM)

    def loss(self, z_BN: Array, tau: Array, target_BM: Array) -> tuple[Array, Array]:
        """Quantile Huber loss: summed over own quantiles, mean over those of the target; TD error of the means.

        Loss and slope come from one pass over all pairs, summed by matrix products; differentiating would take more.
        """
        xp, delta, (batch, count), pairs = self.xp, self.delta, z_BN.shape, target_BM.shape[1]
        fixed_BN, tau_BN = self.constant(z_BN), tau if tau.ndim == 2 else tau[None, :]
        td_BNM = target_BM[:, None, :] - fixed_BN[:, :, None]
        clipped_BNM = xp.clip(td_BNM, -delta, delta)
        slope_BNM = clipped_BNM * xp.where(td_BNM < 0, 1.0 - tau_BN[:, :, None], tau_BN[:, :, None])
        penalty_BNM = slope_BNM * (td_BNM - 0.5 * clipped_BNM)

        def mean_over_pairs(x_BNM: Array) -> Array:  # and in units of delta
            each_M = xp.full(pairs, 1.0 / (pairs * delta), dtype=x_BNM.dtype)
            return self.constant((x_BNM.reshape(-1, pairs) @ each_M).reshape(batch, count))

        moved_BN = z_BN - fixed_BN  # zero, but the gradient flows through it
        loss_B = xp.sum(mean_over_pairs(penalty_BNM) - mean_over_pairs(slope_BNM) * moved_BN, axis=-1)
        return loss_B, xp.mean(target_BM, axis=-1) - xp.mean(z_BN, axis=-1)


def log_probabilities(logits: Array, *, xp: Namespace, axis: int = -1) -> Array:
    """log softmax; an entry of -inf is impossible."""
    largest = xp.max(logits, axis=axis, keepdims=True)
    shifted = logits - largest
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def probabilities(logits: Array, *, xp: Namespace) -> Array:
    """Softmax over the last axis."""
    return xp.exp(log_probabilities(logits, xp=xp))
