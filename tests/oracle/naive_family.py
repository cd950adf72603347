"""The DQN family in plain float64 NumPy, sample by sample, as the papers write it down."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from hotloop.spec import C51Head, IqnHead, QuantileHead, Spec

Array = np.ndarray


# -- one sample ---------------------------------------------------------------------------------------


def softmax(x_N: Array) -> Array:
    powers = np.exp(x_N - np.max(x_N))
    return powers / powers.sum()


def atoms(low: float, high: float, count: int) -> Array:
    return np.array([low + i * (high - low) / (count - 1) for i in range(count)])


def projected(r: float, discount: float, p_N: Array, low: float, high: float) -> Array:
    """Algorithm 1 of C51: each moved atom is shared between the atoms below and above it."""
    count = len(p_N)
    spacing, m_N = (high - low) / (count - 1), np.zeros(count)
    for j, z in enumerate(atoms(low, high, count)):
        b = (min(max(r + discount * z, low), high) - low) / spacing
        b = round(b, 9)  # what is meant to be on an atom is on it
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m_N[lower] += p_N[j]
        else:
            m_N[lower] += p_N[j] * (upper - b)
            m_N[upper] += p_N[j] * (b - lower)
    return m_N


def cross_entropy(m_N: Array, logits_N: Array) -> float:
    p_N = softmax(logits_N)
    return float(-sum(m * math.log(p) for m, p in zip(m_N, p_N, strict=True)))


def divergence(m_N: Array, logits_N: Array) -> float:
    """KL(m || p): what is left of the cross-entropy when m's own entropy is taken off."""
    p_N = softmax(logits_N)
    return float(sum(m * math.log(m / p) for m, p in zip(m_N, p_N, strict=True) if m > 0))


def huber(u: float, delta: float) -> float:
    return 0.5 * u * u if abs(u) <= delta else delta * (abs(u) - 0.5 * delta)


def quantile_huber(theta_N: Array, tau_N: Array, target_M: Array, kappa: float) -> float:
    """The loss of QR-DQN, a sum over own quantiles and a mean over the target's, divided by κ as IQN does."""
    total = 0.0
    for theta, tau in zip(theta_N, tau_N, strict=True):
        for target in target_M:
            u = target - theta
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber(u, kappa) / kappa / len(target_M)
    return total


def log_softmax(q_A: Array, temperature: float) -> Array:
    return np.log(softmax(np.asarray(q_A) / temperature))


def munchausen_bonus(q_A: Array, a: int, alpha: float, temperature: float, clip: float) -> float:
    """α [τ ln π(a|s)] clipped to [l₀, 0]."""
    return alpha * min(max(temperature * float(log_softmax(q_A, temperature)[a]), clip), 0.0)


def soft_value(values_AN: Array, q_A: Array, candidates: list[int], temperature: float) -> Array:
    """Σ π(a) (values(a) - τ ln π(a)) over the actions that may be taken."""
    log_pi = log_softmax(np.array([q_A[a] for a in candidates]), temperature)
    total: Any = 0.0
    for log_p, a in zip(log_pi, candidates, strict=True):
        total = total + math.exp(log_p) * (values_AN[a] - temperature * log_p)
    return np.asarray(total)


def may_be_taken(legal_A: Array | None, actions: int) -> list[int]:
    """Legal actions, or all where none is."""
    legal = [a for a in range(actions) if legal_A is None or legal_A[a]]
    return legal or list(range(actions))


# -- what was drawn -----------------------------------------------------------------------------------


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Every Gaussian and uniform array drawn meanwhile, in order: inside of a compiled function, to be returned."""
    draws: list[Any] = []

    def recording(draw: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            out = draw(*args, **kwargs)
            draws.append(out)
            return out

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("normal", "uniform"):
            patch.setattr(jax.random, name, recording(getattr(jax.random, name)))
        yield draws


def factorised(drawn: Array) -> Array:
    """f(x) = sign(x) sqrt|x| of NoisyNet."""
    return np.array([math.copysign(math.sqrt(abs(x)), x) for x in drawn])


# -- one network: dense layers with tanh, then a head -------------------------------------------------


class Net(NamedTuple):
    """A torso of tanh layers and any head, by named weights; `apply` eats draws from the front of a list."""

    spec: Spec
    weights: Mapping[str, Array]
    actions: int

    def apply(self, x_BI: Array, role: str, draws: list[Array] | None = None) -> tuple[Array, Array]:
        """Values (B, A, N) and fractions τ (B, N)."""
        network: Any = self.spec.network
        head, batch = network.head, len(x_BI)
        features_BF = np.asarray(x_BI, np.float64)
        for i in range(len(network.torso.hidden)):
            features_BF = np.tanh(
                features_BF @ self._of("torso/layers", i, "kernel") + self._of("torso/layers", i, "bias")
            )
        if isinstance(head, IqnHead):
            choice = head.choice_taus or head.target_taus
            count = {"learn": head.taus, "act": head.acting_taus, "choose": choice}.get(role, head.target_taus)
            tau_BN = draws.pop(0) if draws is not None else np.tile((np.arange(count) + 0.5) / count, (batch, 1))
            assert tau_BN.shape == (batch, count)
            noise = self._noise(draws, "head/streams")
            return np.stack(
                [
                    np.stack(
                        [self._streams("head/streams", self._embedded(f_F, tau), 1, noise, b)[:, 0] for tau in tau_N],
                        -1,
                    )
                    for b, (f_F, tau_N) in enumerate(zip(features_BF, tau_BN, strict=True))
                ]
            ), tau_BN
        count = head.atoms if isinstance(head, C51Head) else head.quantiles if isinstance(head, QuantileHead) else 1
        noise = self._noise(draws, "head")
        values = [self._streams("head", f_F, count, noise, b) for b, f_F in enumerate(features_BF)]
        return np.stack(values), np.tile((np.arange(count) + 0.5) / count, (batch, 1))

    def _embedded(self, features_F: Array, tau: float) -> Array:
        """Equation 4 of IQN: features times relu of a dense layer of cos(π i τ)."""
        head: Any = self.spec.network.head  # type: ignore[union-attr]
        cosines = np.array([math.cos(math.pi * i * tau) for i in range(head.cosines)])
        embedded = cosines @ self._of("head/embedding", 0, "kernel") + self._of("head/embedding", 0, "bias")
        return features_F * np.maximum(embedded, 0.0)

    def _streams(self, path: str, x_F: Array, count: int, noise: dict[str, Array], row: int) -> Array:
        """(A, N): one stack of layers, or V + A - mean over actions of A, for each atom by itself."""
        head: Any = self.spec.network.head  # type: ignore[union-attr]
        if not head.dueling:
            return self._layers(path, x_F, noise, row).reshape(self.actions, count)
        advantage_AN = self._layers(f"{path}/advantage", x_F, noise, row).reshape(self.actions, count)
        value_N = self._layers(f"{path}/value", x_F, noise, row)
        out_AN = np.zeros_like(advantage_AN)
        for n in range(count):
            for a in range(self.actions):
                out_AN[a, n] = value_N[n] + advantage_AN[a, n] - sum(advantage_AN[:, n]) / self.actions
        return out_AN

    def _layers(self, path: str, x: Array, noise: dict[str, Array], row: int) -> Array:
        depth = len(self.spec.network.head.hidden) + 1  # type: ignore[union-attr]
        for i in range(depth):
            kernel, bias = self._of(path, i, "kernel"), self._of(path, i, "bias")
            if noise:
                drawn = noise[f"{path}/dense_{i}"]
                f = factorised(drawn[row if len(drawn) > 1 else 0])
                into, out = f[: len(x)], f[len(x) :]
                kernel = kernel + self._of(path, i, "kernel_noise") * np.outer(into, out)
                bias = bias + self._of(path, i, "bias_noise") * out
            x = x @ kernel + bias
            x = np.maximum(x, 0.0) if i < depth - 1 else x
        return x

    def _noise(self, draws: list[Array] | None, path: str) -> dict[str, Array]:
        """The Gaussians of each noisy layer; of a dueling head, the advantages are drawn first."""
        head: Any = self.spec.network.head  # type: ignore[union-attr]
        if head.noise is None or draws is None:
            return {}
        paths = [f"{path}/advantage", f"{path}/value"] if head.dueling else [path]
        return {f"{p}/dense_{i}": draws.pop(0) for p in paths for i in range(len(head.hidden) + 1)}

    def _of(self, path: str, i: int, part: str) -> Array:
        return np.asarray(self.weights[f"{path}/dense_{i}/{part}"], np.float64)


# -- a batch ------------------------------------------------------------------------------------------


def q_of(spec: Spec, values_AN: Array) -> Array:
    """Q-values (A,) or (), of values (A, N) or (N,): an expectation over atoms, else a mean."""
    head: Any = spec.network.head  # type: ignore[union-attr]
    if not isinstance(head, C51Head):
        return np.asarray(values_AN).mean(-1)
    z_N = atoms(head.low, head.high, head.atoms)
    rows = np.asarray(values_AN).reshape(-1, head.atoms)
    return np.array([softmax(row) @ z_N for row in rows]).reshape(np.shape(values_AN)[:-1])


def batch_target(
    spec: Spec, online: Net, target: Net, batch: Any, draws: list[Array] | None, target_draws: list[Array] | None
) -> list[Array]:
    """What each sample is pulled towards: a number, probabilities of atoms, or quantiles."""
    head: Any = spec.network.head  # type: ignore[union-attr]
    rule, soft = spec.target.rule, spec.target.munchausen
    if rule != "target":
        values_BAN, _ = chooser_BAN, _ = online.apply(batch.s_t, "choose", draws)
    if rule != "vanilla":
        values_BAN, _ = target.apply(batch.s_t, "target", target_draws)
    if rule == "target":
        chooser_BAN = values_BAN
        if isinstance(head, IqnHead) and head.choice_taus:
            chooser_BAN, _ = target.apply(batch.s_t, "choose", target_draws)
    r_B = [float(r) for r in batch.r_t]
    if soft is not None:
        before_BAN, _ = target.apply(batch.s_tm1, "target", target_draws)
        for b, a in enumerate(batch.a_tm1):
            r_B[b] += munchausen_bonus(q_of(spec, before_BAN[b]), a, soft.alpha, soft.temperature, soft.clip)
    targets = []
    for b, r in enumerate(r_B):
        q_A = q_of(spec, chooser_BAN[b])
        candidates = may_be_taken(None if batch.legal_t is None else batch.legal_t[b], online.actions)
        if soft is not None:
            z_N = soft_value(values_BAN[b], q_A, candidates, soft.temperature)
        else:
            z_N = values_BAN[b][max(candidates, key=lambda a: q_A[a])]
        discount = float(batch.discount_t[b])
        if isinstance(head, C51Head):
            targets.append(projected(r, discount, softmax(z_N), head.low, head.high))
        else:
            targets.append(r + discount * z_N)
    return targets


def batch_loss(
    spec: Spec, online: Net, batch: Any, targets: list[Array], weight_B: Array, draws: list[Array] | None
) -> tuple[float, Array, float]:
    """Mean weighted loss, TD error of each sample, mean Q-value of the actions taken."""
    values_BAN, tau_BN = online.apply(batch.s_tm1, "learn", None if draws is None else list(draws))
    losses, tds, qs = [], [], []
    for b, a in enumerate(batch.a_tm1):
        loss, td = sample_loss(spec, values_BAN[b, a], tau_BN[b], targets[b])
        losses.append(float(weight_B[b]) * loss)
        tds.append(td)
        qs.append(float(q_of(spec, values_BAN[b, a])))
    return sum(losses) / len(losses), np.array(tds), sum(qs) / len(qs)


def sample_loss(spec: Spec, z_N: Array, tau_N: Array, target_N: Array) -> tuple[float, float]:
    """Loss and TD error of one sample."""
    head: Any = spec.network.head  # type: ignore[union-attr]
    if isinstance(head, C51Head):
        return cross_entropy(target_N, z_N), divergence(target_N, z_N)
    td = float(np.mean(target_N) - np.mean(z_N))
    if isinstance(head, QuantileHead | IqnHead):
        return quantile_huber(z_N, tau_N, target_N, spec.loss.delta), td
    return (td * td if spec.loss.kind == "mse" else huber(td, spec.loss.delta)), td
