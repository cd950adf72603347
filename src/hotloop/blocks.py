"""The unit of work: q vector steps, then p gradient steps, repeated; `concurrent` takes them beside the next steps.

Every pipeline runs blocks, so the number of environments never silently changes how much is learned from each
transition: p / q = updates_per_step x num_envs, in lowest terms unless a spec asks for longer blocks.
"""

from fractions import Fraction
from typing import NamedTuple

LONGEST_BLOCK = 64
"""Vector steps a block may hold; beyond it the acting weights would grow stale."""


class BlockPlan(NamedTuple):
    """`vector_steps` steps of all `num_envs` envs, then `updates` gradient steps."""

    num_envs: int
    vector_steps: int
    updates: int

    @property
    def env_steps(self) -> int:
        """Transitions one block collects."""
        return self.num_envs * self.vector_steps


def plan_block(updates_per_step: float, num_envs: int, learn_every: int | None = None) -> BlockPlan:
    """Turn a replay ratio into a block, or raise ValueError naming the nearest that fits.

    It has as few env steps as the ratio allows, or `learn_every` of them.
    """
    shortest = _shortest_block(updates_per_step, num_envs)
    if learn_every is None:
        return shortest
    times, rest = divmod(learn_every, shortest.env_steps)
    if times and not rest and times * shortest.vector_steps <= LONGEST_BLOCK:
        return BlockPlan(num_envs, times * shortest.vector_steps, times * shortest.updates)
    most = LONGEST_BLOCK // shortest.vector_steps * shortest.env_steps
    raise ValueError(
        f"learn_every is {learn_every}, but updates_per_step {updates_per_step:g} with {num_envs} env(s) needs a "
        f"multiple of {shortest.env_steps} env steps, at most {most}"
    )


def _shortest_block(updates_per_step: float, num_envs: int) -> BlockPlan:
    exact = Fraction(updates_per_step) * num_envs
    # A ratio typed as 0.3333333 means 1/3; anything further off is a different algorithm.
    updates_per_vector_step = exact.limit_denominator(LONGEST_BLOCK)
    if updates_per_vector_step > 0 and abs(updates_per_vector_step - exact) <= exact / 1_000_000:
        return BlockPlan(num_envs, updates_per_vector_step.denominator, updates_per_vector_step.numerator)
    nearest = sorted(
        {exact.limit_denominator(n) for n in range(2, LONGEST_BLOCK + 1)} | {Fraction(1, LONGEST_BLOCK)},
        key=lambda f: abs(f - exact),
    )
    offers = " or ".join(f"{float(f / num_envs):.7g}" for f in nearest[:3] if f > 0)
    raise ValueError(
        f"updates_per_step {updates_per_step:g} with {num_envs} env(s) is {float(exact):g} updates per vector "
        f"step, which no block of at most {LONGEST_BLOCK} vector steps gives; use {offers}, or another env.num_envs"
    )
