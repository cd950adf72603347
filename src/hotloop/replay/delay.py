"""n-step returns: a delay line that holds each env's last n - 1 steps until their rewards are known.

One transition per env and step comes out, n - 1 steps late; where an episode ends, all that are pending come out, each
with the discount of the steps it took. Only `terminated` cuts the bootstrap.
"""

from typing import NotRequired, TypedDict

import numpy as np

from hotloop.errors import SpecError
from hotloop.experience import Item, Items, VectorStep
from hotloop.trees import Arrays, Specs, leaves, tree_map, zeros_of


class DelayArrays(TypedDict):
    """What a checkpoint keeps of the steps that are pending."""

    stored: Arrays
    action: np.ndarray
    summed: np.ndarray
    pending: np.ndarray
    discounts: NotRequired[np.ndarray]


class DelayLine:
    """Held steps of N envs, newest last; `pending_N` of them are of the running episode."""

    def __init__(
        self, n_step: int, discount: float, num_envs: int, stored: Specs, discount_per: str | None = None
    ) -> None:
        """`stored` has the shapes of what a transition keeps of one observation; `discount_per` is the entry of `info`
        that says how long a step took, if that is what γ counts."""
        self.n, self.num_envs, self._discount, self._per = n_step, num_envs, discount, discount_per
        self.powers = discount ** np.arange(n_step + 1)
        shape = (n_step, num_envs)
        self.stored = zeros_of(stored, shape)
        self.action, self.summed = np.zeros(shape, np.int32), np.zeros(shape, np.float64)
        self.pending_N = np.zeros(num_envs, np.int64)
        self.discounts = np.ones(shape)  # by time: of what has passed since each held step was taken

    def push(self, before: Arrays, step: VectorStep, after: Arrays) -> Items:
        """Take one step of every env in; returns the transitions that are complete, oldest first.

        `before` and `after` are what a transition keeps of the states that the step began in and led to.
        """
        if self.n == 1:
            return self._at_once(before, step, after)
        discount_N = self._discounts(step)
        valid_N, legal_NA = step.valid, step.final_legal
        for line, new in (
            *zip(leaves(self.stored), leaves(before), strict=True),
            (self.action, step.action),
            (self.summed, np.zeros(self.num_envs)),
            (self.discounts, np.ones(self.num_envs)),
        ):
            line[:-1] = line[1:]
            line[-1] = new
        ages = np.arange(self.n)[::-1, None]  # steps since each pending one was taken
        before_it = self.powers[ages] if discount_N is None else self.discounts
        self.summed += before_it * np.where(valid_N, step.reward, 0.0)
        self.pending_N = np.where(valid_N, np.minimum(self.pending_N + 1, self.n), 0)
        ended_N = step.terminated | step.truncated
        is_pending = ages < self.pending_N
        complete = is_pending & ((ages == self.n - 1) | ended_N)
        line_, env = np.nonzero(complete)
        if discount_N is None:
            discount = self.powers[self.n - line_] * ~step.terminated[env]
        else:
            self.discounts *= discount_N
            discount = self.discounts[line_, env] * ~step.terminated[env]
        self.pending_N[ended_N] = 0
        return Item(
            tree_map(lambda stored: stored[line_, env], self.stored),
            self.action[line_, env],
            self.summed[line_, env].astype(np.float32),
            discount.astype(np.float32),
            tree_map(lambda leaf: leaf[env], after),
            None if legal_NA is None else legal_NA[env],
        )

    def _at_once(self, before: Arrays, step: VectorStep, after: Arrays) -> Items:
        by_time_N = self._discounts(step)
        factor = self.powers[1] if by_time_N is None else by_time_N
        valid_N, discount_N = step.valid, (factor * ~step.terminated).astype(np.float32)
        items: Items = Item(before, step.action, step.reward, discount_N, after, step.final_legal)
        if np.count_nonzero(valid_N) == len(valid_N):  # half the time of `all`
            return items
        return tree_map(lambda leaf: leaf[valid_N], items)

    def _discounts(self, step: VectorStep) -> np.ndarray | None:
        """γ to the power of the time that each step took; None where it counts steps."""
        if self._per is None:
            return None
        took_N = np.where(step.valid, step.info[self._per], 0.0)
        if not (took_N >= 0).all():
            bad = int(np.argmin(took_N >= 0))
            raise SpecError(
                f"discount_per: env {bad} gave {took_N[bad]} as '{self._per}' of its info, expected the time that the "
                "step took, 0 or more, in every step"
            )
        discount_N: np.ndarray = self._discount**took_N
        return discount_N

    @property
    def is_pending(self) -> np.ndarray:
        """Which of the held steps are of the running episodes, bool (n, N)."""
        return np.arange(self.n)[::-1, None] < self.pending_N

    def forget(self) -> None:
        """Drop what is pending: the episodes will not go on."""
        self.pending_N[:] = 0

    def arrays(self) -> DelayArrays:
        """What is pending, for a checkpoint."""
        kept: DelayArrays = {
            "stored": self.stored,
            "action": self.action,
            "summed": self.summed,
            "pending": self.pending_N,
        }
        return kept if self._per is None else {**kept, "discounts": self.discounts}

    def restore(self, arrays: DelayArrays) -> None:
        """Take back what `arrays` gave, or raise ValueError."""
        pending = np.array(arrays["pending"])
        if (pending < 0).any() or (pending > self.n).any():
            raise ValueError(f"the checkpoint holds {pending.tolist()} steps of each env, expected 0 … {self.n}")
        self.stored = tree_map(np.array, arrays["stored"])
        self.action, self.summed, self.pending_N = np.array(arrays["action"]), np.array(arrays["summed"]), pending
        if self._per is not None:
            self.discounts = np.array(arrays["discounts"])
