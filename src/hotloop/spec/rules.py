"""What does not go together, and why: every refusal of a spec that no single field can see."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel

from hotloop import registry
from hotloop.spec.network import CustomNetwork, Network
from hotloop.spec.schedules import ends
from hotloop.spec.sections import GOAL_KEYS, EpsilonGreedy

if TYPE_CHECKING:
    from hotloop.spec.spec import Spec

Rule = tuple[bool, str]
"""Whether it is broken, and the line for the user."""

ONLY_ON_THE_HOST = (
    *("replay.newest_in_batch", "replay.stacked_frames", "replay.hindsight", "replay.sampling.first_error"),
    *("optimizer.schedule_in", "exploration.together"),
    *("env.vectorization", "env.info", "env.observe", "log.save_replay"),
    *("evaluation.options", "evaluation.max_share"),
)
"""Fields that say something about Gymnasium envs only."""
NOT_ON_POLICY = {
    "replay": "on_policy learns without a replay; leave replay out",
    "target": "on_policy learns without a target net; leave target out",
    "updates_per_step": "with on_policy, epochs x minibatches say how much is learned; leave updates_per_step out",
    "learn_every": "with on_policy, its steps say how much is collected at a time; leave learn_every out",
}


NOT_IN_TURNS = {
    "updates_per_step": "turns say how much is learned; leave updates_per_step out",
    "learn_every": "turns say when it is learned; leave learn_every out",
}


def refusal(spec: "Spec") -> str | None:
    """The first reason why a spec cannot be run, if there is one."""
    first = (_names, _actors, _targets, _on_policy, _turns, _agents, _memory)
    for rules in (*first, _batches, _sizes, _schedules, _replay):
        for is_broken, reason in rules(spec):
            if is_broken:
                return reason
    return None


def is_set(spec: "Spec", path: str) -> bool:
    """Whether a field was given, rather than left at its default."""
    section: BaseModel = spec
    for name in path.split("."):
        if name not in section.model_fields_set:
            return False
        section = getattr(section, name)
    return True


def only_on_the_host(spec: "Spec") -> str | None:
    """The first field given that only Gymnasium envs know, if there is one."""
    given = next((path for path in ONLY_ON_THE_HOST if is_set(spec, path)), None)
    if given is None and spec.turns is not None:
        return "turns"
    return given or ("replay.storage: shared" if spec.replay.storage == "shared" else None)


def _names(spec: "Spec") -> Iterator[Rule]:
    for names, name, what in (
        (registry.ENGINES, spec.engine, "engine"),
        ({"auto": None, **registry.PIPELINES}, spec.pipeline, "pipeline"),
    ):
        yield name not in names, f"unknown {what} '{name}'; {registry.nearest(name, list(names))}"
    for choice, reason in registry.ENGINES[spec.engine].refuses.items():
        yield _is_chosen(spec, choice), f"{choice} with engine {spec.engine}: {reason}"

    yield (
        spec.engine != "torch" and spec.torch.mode != "auto",
        f"torch.mode is {spec.torch.mode}, but the engine is {spec.engine}; add engine: torch, or leave it out",
    )


def _actors(spec: "Spec") -> Iterator[Rule]:
    is_used = registry.opens_envs_elsewhere(spec.pipeline)
    yield (
        # A whole spec as JSON has the section, with its defaults. Whether auto has a use for it is not known yet.
        spec.actors != type(spec.actors)() and not is_used and spec.pipeline != "auto",
        f"actors are for pipeline processes, but the pipeline is {spec.pipeline}; add pipeline: processes, or leave "
        "actors out",
    )
    yield (
        is_used and spec.turns is not None,
        "turns with pipeline processes: whether to learn is decided after each vector step",
    )
    yield (
        spec.actors.ladder > 0 and not isinstance(spec.exploration, EpsilonGreedy),
        "actors.ladder is for epsilon_greedy: it raises ε to a power; leave it out",
    )


NOT_FOR_AGENTS = ("on_policy", "turns", "network.core", "replay.sequence", "replay.hindsight")


def _agents(spec: "Spec") -> Iterator[Rule]:
    if spec.agents is None:
        return
    for choice in NOT_FOR_AGENTS:
        yield _is_chosen(spec, choice), f"{choice} is not for envs with several agents; leave it out"
    yield spec.env.action_mask, "env.action_mask is not for envs with several agents; leave it out"
    yield spec.discount_per is not None, "discount_per is not for envs with several agents; leave it out"
    yield spec.devices > 1, f"devices is {spec.devices}: agents are shared out over all devices; leave it out"


def _composed(spec: "Spec") -> Network:
    """The network as far as the spec knows it."""
    return spec.network if isinstance(spec.network, Network) else Network()


def _targets(spec: "Spec") -> Iterator[Rule]:
    head, soft, rule = _composed(spec).head, spec.target.munchausen, spec.target.rule
    yield (
        soft is not None and rule != "target",
        f"target.munchausen with rule: {rule}: its soft value weighs all actions of the target net, so no other net "
        "chooses one; use rule: target",
    )
    yield (
        soft is not None and spec.replay.n_step > 1,
        f"target.munchausen with replay.n_step: {spec.replay.n_step}: the log-policy is added to the reward of one "
        "step; use n_step: 1",
    )
    yield (
        soft is not None and spec.env.action_mask,
        "target.munchausen with env.action_mask: the policy at the state before is not known without its mask; "
        "use one of the two",
    )
    for choice, reason in head.record.refuses.items():
        yield _is_chosen(spec, choice), f"{choice} with head {head.kind}: {reason}"
    yield (
        head.chooses_apart and rule == "vanilla",
        "network.head.choice_taus with target.rule vanilla: one pass of one net chooses and values; leave it "
        "out, or use rule target or double",
    )


def _is_chosen(spec: "Spec", choice: str) -> bool:
    """Whether a spec has `path value`, or anything but none or false at `path`."""
    path, _, value = choice.partition(" ")
    found: object = spec
    for name in path.split("."):
        found = getattr(found, name, None)
    return str(found) == value if value else found not in (None, False)


def _on_policy(spec: "Spec") -> Iterator[Rule]:
    on_policy, network = spec.on_policy, _composed(spec)
    if on_policy is None:
        return
    for path, reason in NOT_ON_POLICY.items():
        yield is_set(spec, path), reason
    yield (
        bool(network.head.record.gives) or network.core is not None or network.is_random,
        "on_policy learns λ-returns with a network without noise and memory; use head scalar",
    )
    collected = on_policy.steps * spec.env.num_envs
    yield (
        collected % on_policy.minibatches != 0,
        f"on_policy collects {collected} transitions (steps x num_envs), which do not divide into its "
        "minibatches; use another number of these",
    )


def _turns(spec: "Spec") -> Iterator[Rule]:
    yield (
        spec.optimizer.schedule_in == "turns" and spec.turns is None,
        "optimizer.schedule_in is turns, but there are none; add turns, or count in env_steps",
    )
    if spec.turns is None:
        return
    for path, reason in NOT_IN_TURNS.items():
        yield is_set(spec, path), reason
    yield (
        spec.replay.n_step > 1 or spec.replay.hindsight is not None,
        "turns are by the places of single steps in the replay; use n_step: 1, without hindsight",
    )
    yield spec.on_policy is not None, "on_policy learns from whole collections, not in turns; leave turns out"
    yield (
        spec.pipeline not in ("auto", "sync"),
        f"turns are decided after each vector step, so pipeline is sync, not {spec.pipeline}",
    )


def _memory(spec: "Spec") -> Iterator[Rule]:
    network, replay = _composed(spec), spec.replay
    has_core = network.core is not None
    yield (
        isinstance(spec.network, CustomNetwork) and replay.sequence is not None,
        "replay.sequence is for networks with a core, and a network of your own has none; leave it out",
    )
    yield (
        has_core != (replay.sequence is not None),
        "network.core and replay.sequence belong together: memory is learned from sequences; give both or none",
    )
    yield (
        has_core and (bool(network.head.record.gives) or network.is_random or spec.target.munchausen is not None),
        "network.core learns with head scalar, without noise and Munchausen; use those",
    )
    yield (
        has_core and replay.updates_per_batch > 1,
        "network.core takes one gradient step on each batch of sequences; leave replay.updates_per_batch out",
    )
    yield (
        has_core and (replay.sampling.kind != "uniform" or replay.n_step > 1 or network.torso.normalizes_batches),
        "network.core learns from sequences that are drawn uniformly, step by step, without batch "
        "normalization; use sampling: uniform, n_step: 1, normalization: none or layer",
    )


def _batches(spec: "Spec") -> Iterator[Rule]:
    accumulate, devices = spec.optimizer.accumulate, spec.devices
    yield (
        _composed(spec).torso.normalizes_batches and accumulate > 1,
        "normalization: batch with optimizer.accumulate: the parts of a batch would each be normalized by "
        "themselves; use layer, or accumulate: 1",
    )
    batch, name = spec.replay.batch_size, "replay.batch_size"
    if spec.on_policy is not None:
        batch, name = spec.on_policy.steps * spec.env.num_envs // spec.on_policy.minibatches, "a minibatch"
    yield (
        batch % accumulate != 0 or batch % devices != 0 or (batch // accumulate) % devices != 0,
        f"{name} is {batch}, which {accumulate} part(s) on {devices} device(s) do not divide; use a multiple",
    )
    yield (
        devices > 1 and spec.seeds > 1,
        f"devices is {devices} and seeds is {spec.seeds}: seeds are already shared out over devices; use one of the "
        "two",
    )


def _sizes(spec: "Spec") -> Iterator[Rule]:
    block = spec.block_plan  # raises when the ratio fits no block
    replay = spec.replay
    yield (
        block.updates % replay.updates_per_batch != 0,
        f"replay.updates_per_batch is {replay.updates_per_batch}, but a block has {block.updates} gradient step(s); "
        "use a divisor of that, or a longer block (learn_every)",
    )
    yield (
        replay.batch_size > replay.capacity,
        f"replay.batch_size is {replay.batch_size} but replay.capacity is {replay.capacity}; "
        "a batch cannot be larger than the replay",
    )
    yield (
        replay.capacity < block.env_steps,
        f"replay.capacity is {replay.capacity} but a block of {spec.env.num_envs} env(s) inserts "
        f"{block.env_steps} transitions; use at least {block.env_steps} (spec: replay.capacity)",
    )
    yield (
        spec.stop.return_at_least is not None and spec.evaluation.every == 0,
        "stop.return_at_least needs evaluations, but evaluation.every is 0; use e.g. 10000",
    )
    yield (
        spec.stop.steps + block.env_steps >= 2**31,  # steps are counted in int32, up to a whole block
        f"stop.steps is {spec.stop.steps}; use at most {2**31 - 1 - block.env_steps}",
    )


def _schedules(spec: "Spec") -> Iterator[Rule]:
    beta, explored = spec.beta_schedule, ends(spec.exploration_schedule)
    for path, numbers in (
        ("optimizer.learning_rate", ends(spec.optimizer.learning_rate)),
        ("exploration", explored),
        ("replay.sampling.beta", ends(beta) if beta else {}),
    ):
        for name, number in numbers.items():
            yield number < 0, f"{path}.{name} is {number:g}; it cannot be negative"
    yield (
        beta is not None and max(ends(beta).values()) > 1,
        "replay.sampling.beta goes above 1; 1 takes back all of the bias",
    )
    if isinstance(spec.exploration, EpsilonGreedy):
        largest = max(explored.values())
        yield largest > 1, f"exploration.epsilon reaches {largest:g}; a probability is at most 1"
    else:
        yield (
            min(explored.values()) <= 0,
            "exploration.temperature reaches 0; it must stay above (try end: 0.01)",
        )


def _replay(spec: "Spec") -> Iterator[Rule]:
    replay, observe = spec.replay, spec.env.observe
    yield (
        replay.hindsight is not None and (replay.n_step > 1 or replay.stacked_frames > 1 or replay.storage == "shared"),
        "replay.hindsight stores whole one-step transitions; use n_step: 1, stacked_frames: 1",
    )
    twice = [key for key in observe if observe.count(key) > 1]
    yield bool(twice), f"env.observe names '{twice[0] if twice else ''}' twice"
    left_out = [key for key in GOAL_KEYS if observe and key not in observe]
    yield (
        replay.hindsight is not None and spec.discount_per is not None,
        "discount_per is not for hindsight, which discounts by steps; leave one of them out",
    )
    yield (
        replay.hindsight is not None and bool(left_out),
        f"replay.hindsight needs the keys {', '.join(GOAL_KEYS)}, but env.observe leaves out {', '.join(left_out)}; "
        "add them, or leave env.observe out",
    )
    yield (
        replay.stacked_frames > 1 and replay.storage == "whole",
        "replay.stacked_frames stores each frame once, but replay.storage is whole; use auto",
    )
