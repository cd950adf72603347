"""A head, a torso and a device env that hotloop does not have: what a spec may say of them, and one record each.

`plugins: [own_kinds]` in a spec imports this module, so it names what is heavy instead of importing it. A package that
is installed needs no such line: its entry point of the group `hotloop.plugins` names the module.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

import hotloop
from hotloop.learning.estimates import log_probabilities, probabilities
from hotloop.spec import Head, Torso


class TwoHotHead(Head):
    """A probability for each of `bins` returns between `low` and `high`, whose mean is the Q-value."""

    kind: Literal["two_hot"]
    bins: int = Field(default=21, ge=2)
    """Returns that are told apart, evenly spaced."""
    low: float = -10.0
    """Lowest return."""
    high: float = 10.0
    """Highest return."""


class FourierTorso(Torso):
    """Sines and cosines of learned directions through the observation."""

    kind: Literal["fourier"]
    waves: int = Field(default=32, ge=1)
    """Directions; each gives a sine and a cosine."""


class TwoHot:
    """Classification instead of regression: the target is a number, shared between the two bins around it."""

    def __init__(self, head: TwoHotHead, loss: Any, *, xp: Any, constant: Callable[[Any], Any]) -> None:
        del loss, constant
        self.xp, self.low, self.high = xp, head.low, head.high
        self.spacing = (head.high - head.low) / (head.bins - 1)
        self.returns_N = head.low + self.spacing * xp.arange(head.bins)

    def q(self, logits: Any) -> Any:
        """Expected returns: (…, N) to (…)."""
        return self.xp.sum(probabilities(logits, xp=self.xp) * self.returns_N, axis=-1)

    def target(self, r_t_B: Any, discount_t_B: Any, logits_t_BN: Any) -> Any:
        """Probabilities (B, N) of the two bins around r + discount x value of the next state."""
        value_B = self.xp.clip(r_t_B + discount_t_B * self.q(logits_t_BN), self.low, self.high)
        return self.xp.clip(1.0 - self.xp.abs(value_B[:, None] - self.returns_N) / self.spacing, 0.0, 1.0)

    def loss(self, logits_BN: Any, tau: Any, target_BN: Any) -> tuple[Any, Any]:
        """Cross-entropy, and the TD error."""
        del tau
        loss_B = -self.xp.sum(target_BN * log_probabilities(logits_BN, xp=self.xp), axis=-1)
        return loss_B, self.xp.sum(target_BN * self.returns_N, axis=-1) - self.q(logits_BN)


hotloop.register_head(
    "two_hot",
    hotloop.HeadRecord(
        section="own_kinds:TwoHotHead",
        builders={"jax": "own_kinds_jax:two_hot"},
        estimates="own_kinds:TwoHot",
        about="probabilities of fixed returns, learned by classification",
        gives="two_hot's distribution",
        refuses={"target.munchausen": "a mean of logits is not a mean of returns; use scalar, qr or iqn"},
    ),
)
hotloop.register_torso(
    "fourier",
    hotloop.TorsoRecord(
        section="own_kinds:FourierTorso",
        builders={"jax": "own_kinds_jax:fourier"},
        about="sines and cosines of learned directions",
    ),
)
hotloop.register_env(
    "corridor", hotloop.Entry("own_env:Corridor", "walk to the end of a corridor (1 number, 2 actions)")
)
