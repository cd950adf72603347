"""What to do about a cause, in words and settings to paste, and whether that changes what is learned."""

from hotloop.blocks import LONGEST_BLOCK
from hotloop.doctor.alternatives import Way
from hotloop.doctor.examination import Examined
from hotloop.profiling.show import place_of
from hotloop.spec import Network, Prioritized, Spec

FEW_OBSERVATIONS = 4
"""Envs up to which more of them are proposed, so that the network is asked for more at a time."""
OTHER_THREADS = 0.75
"""Times as long that a gradient step takes with other threads at most for threads to be the cause."""
LARGER = 4
"""Times as many gradient steps in one call that are proposed."""


def what_to_do(seen: Examined, cause: str) -> tuple[str, bool]:
    """What to do, and whether that changes what is learned."""
    spec = seen.spec
    if cause == "rendering":
        if spec.env.options.get("render_mode") is not None:
            return "--set env.options.render_mode=null", False
        lines = seen.env_code["lines"] if seen.env_code is not None else []
        at = f" ({place_of(lines[0])})" if lines else ""
        return f"draw only when asked to, not in every step{at}", False
    if cause == "env-step":
        if seen.env_code is not None and seen.env_code["lines"]:
            return f"make {place_of(seen.env_code['lines'][0])} cheaper; its lines are below", False
        if seen.env_busy is None:
            return "`hotloop profile SPEC` looks into the env's step", False
        return f"`hotloop profile --env {spec.env.id}` names the functions that take the time", False
    if cause == "env-one-at-a-time":
        side_by_side = "--set pipeline=processes or --set env.vectorization=async: envs side by side"
        lines = seen.env_code["lines"] if seen.env_code is not None else []
        return f"{side_by_side}{f'; make {place_of(lines[0])} cheaper' if lines else ''}", False
    if cause == "env-transport":
        return "--set env.vectorization=sync: envs in this process", False
    if cause == "act-one-at-a-time" and spec.env.num_envs <= FEW_OBSERVATIONS:
        return f"--set env.num_envs={4 * spec.env.num_envs}: more at a time, at the same ratio", True
    if spec.on_policy is not None and cause in ("replay-sample", "update-arithmetic", "update-count"):
        return f"--set on_policy.epochs={max(1, spec.on_policy.epochs // 2)}, or a smaller network", True
    if cause == "replay-sample":
        return f"--set replay.batch_size={max(1, spec.replay.batch_size // 2)}", True
    if cause == "priorities":
        return "--set replay.sampling.kind=uniform", True
    if cause == "threads" and (better := better_threads(seen)) is not None:
        return f"--set threads={better.threads}", False
    if cause == "update-dispatch":
        return _less_overhead(spec)
    if cause == "update-arithmetic":
        smaller = f"--set replay.batch_size={max(1, spec.replay.batch_size // 2)}"
        return f"{smaller}, a smaller network, or a lower precision where the device is faster at it", True
    if cause == "update-count":
        fewer = f"turns.updates={max(1, spec.turns.updates // 2)}" if spec.turns else ""
        fewer = fewer or f"updates_per_step={spec.updates_per_step / 2:g}"
        return f"--set {fewer}, a smaller network or replay.batch_size", True
    return "", False


def _less_overhead(spec: Spec) -> tuple[str, bool]:
    """As `what_to_do`, where a gradient step is mostly overhead."""
    if spec.engine == "torch":
        ways = ["--set torch.mode=compiled"] if spec.torch.mode != "compiled" and spec.devices == 1 else []
        ways += ["--engine jax"] if isinstance(spec.network, Network) else []
        if ways:
            return f"{' or '.join(ways)}: the same, with less between its operations", False
    more, sampling = "more gradient steps in one call", spec.replay.sampling
    if isinstance(sampling, Prioritized) and spec.updates_per_draw < spec.block_plan.updates:
        return f"--set replay.sampling.updates_per_draw={LARGER * sampling.updates_per_draw}: {more}", True
    if spec.turns is not None:
        every, updates = LARGER * spec.turns.every, LARGER * spec.turns.updates
        return f"--set turns.every={every} --set turns.updates={updates}: {more}", True
    if spec.on_policy is None and LARGER * spec.block_plan.vector_steps <= LONGEST_BLOCK:
        return f"--set learn_every={LARGER * spec.block_plan.env_steps}: {more}", True
    return "", False


def better_threads(seen: Examined) -> Way | None:
    """Other threads with which gradient steps are much faster, if there are."""
    ways = [way for way in seen.alternatives.updates if set(way.changes) == {"threads"}]
    best = min(ways, key=lambda way: way.factor, default=None)
    return best if best is not None and best.factor <= OTHER_THREADS else None
