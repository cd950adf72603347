"""What a run will need and do, before it starts: its memory, and the few lines a person sees."""

from hotloop import registry
from hotloop.assembly import Assembly
from hotloop.plain import Figures, number, numbers
from hotloop.replay.plan import MemoryPlan, available_host_memory, readable
from hotloop.spec import Spec
from hotloop.trees import ArraySpec


def memory_plan(assembly: Assembly) -> MemoryPlan:
    """What the run will need, before any of it is allocated."""
    spec, apart = assembly.spec, assembly.engine.memory_available()
    block, (rows, num_devices) = spec.block_plan, _shared_out(assembly)
    available = available_host_memory() if apart is None else apart
    times = f" x {rows} {spec.members.kind}s" if spec.members.are_many else ""
    if rows > len(spec.members) > 1:
        times += f" ({rows - len(spec.members)} idle, to fill the devices)"
    weights = rows * 4 * max(engine.num_weights for engine in assembly.engines)
    replay, learning_bytes = assembly.pipeline.replay, assembly.pipeline.num_bytes()
    if on_policy := spec.on_policy:
        parts = {
            f"weights, moments, gradient{times}": 4 * weights,
            f"{block.env_steps:,} steps at a time": num_devices * learning_bytes,
            f"{block.updates} minibatches": num_devices * 2 * on_policy.epochs * learning_bytes,
        }
        return MemoryPlan(parts, available, _memory_remedies(assembly), "on_policy.steps")
    assert replay is not None  # whatever is not on-policy has one
    drawn, batch = spec.updates_per_draw, spec.replay.batch_size
    stored = {f"replay of {replay.capacity:,} transitions{times}": rows * learning_bytes}
    if (in_processes := actors_plan(assembly)) is not None:
        stored["shared with the actors"] = int(number(in_processes, "shared_bytes"))
    used = {
        f"weights, target, moments, gradient{times}": 5 * weights,
        f"{drawn} batches": num_devices * 2 * drawn * batch * replay.row_bytes,
    }
    if rows > num_devices and not spec.members.are_a_team:
        used[f"the {spec.members.kind} at work on each device"] = num_devices * learning_bytes
    if assembly.on_device or apart is None:
        return MemoryPlan({**stored, **used}, available, _memory_remedies(assembly))
    beside = MemoryPlan(used, available, (), "replay.batch_size", f"{assembly.machine['device']} memory")
    return MemoryPlan(stored, available_host_memory(), _memory_remedies(assembly), where="host memory", beside=beside)


def actors_plan(assembly: Assembly) -> Figures | None:
    """What processes that step the envs will be and take; None where this one steps them."""
    if not registry.opens_envs_elsewhere(assembly.pipeline_choice.name):
        return None
    from hotloop.pipelines.process_team import ProcessTeamPipeline
    from hotloop.pipelines.processes import ProcessesPipeline

    assert isinstance(assembly.pipeline, ProcessesPipeline | ProcessTeamPipeline)
    return assembly.pipeline.plan()


def say_actors(plan: Figures) -> str:
    """The same in a line."""
    envs = " or ".join(f"{count:g}" for count in numbers(plan, "envs_of_each"))
    return (
        f"actors: {plan['actors']} process(es) of {plan['threads_of_each']} thread, {envs} env(s) each, parcels of "
        f"{plan['steps_per_parcel']} steps; {readable(int(number(plan, 'shared_bytes')))} of shared memory, "
        f"{plan['descriptors']} file descriptors"
    )


def _memory_remedies(assembly: Assembly) -> tuple[str, ...]:
    """What else than a smaller replay would make a run fit."""
    if assembly.envs is None:
        return (f"the number of {assembly.spec.members.kind}s",) if assembly.spec.members.are_many else ()
    shapes, replay = assembly.envs.observations.shapes, assembly.spec.replay
    if not isinstance(shapes, ArraySpec) or shapes.dtype != "uint8" or len(shapes.shape) != 3:
        return ()
    frames, _, width = shapes.shape
    if replay.stacked_frames == 1 and frames <= width:
        return (f"if its first axis is stacked frames, store each once with replay.stacked_frames={frames}",)
    return ()


def describe(assembly: Assembly) -> list[str]:
    """What is about to be trained, and how, in a few lines."""
    spec, block, machine = assembly.spec, assembly.spec.block_plan, assembly.machine
    lines = [
        f"{spec.name}: {spec.env.id} x{spec.env.num_envs}, {_learning(spec)}, "
        f"{_weights(assembly)} weights, {_members(assembly)}",
        f"pipeline: {assembly.pipeline_choice}; device: {machine['device']}; threads: {machine['threads']}",
        str(memory_plan(assembly)),
    ]
    if (in_processes := actors_plan(assembly)) is not None:
        lines.append(say_actors(in_processes))
    replay = assembly.pipeline.replay
    if replay is not None and replay.capacity != spec.replay.capacity:
        lines.append(
            f"replay.capacity {spec.replay.capacity:,} rounded down to {replay.capacity:,}, "
            f"a whole number of blocks of {block.env_steps:,} transitions"
        )
    return lines


def _learning(spec: Spec) -> str:
    """What is learned from, how often, in which portions."""
    block = spec.block_plan
    if spec.on_policy is not None:
        return (
            f"no replay: {block.updates} updates on {spec.on_policy.epochs} x the last {block.env_steps:,} "
            f"transitions, batch {block.env_steps // spec.on_policy.minibatches}"
        )
    on_each = spec.replay.updates_per_batch
    how = f"{block.updates} updates per {block.vector_steps} vector steps"
    if spec.turns is not None:
        when = f"every {spec.turns.every} transitions"
        when = "after each vector step" if spec.turns.every <= spec.env.num_envs else when
        how = f"a turn of {block.updates} updates {when}"
    return (
        f"replay ratio {spec.replay_ratio:g} ({how}"
        f"{f', {on_each} on each batch' if on_each > 1 else ''}), batch {spec.replay.batch_size}"
    )


def _weights(assembly: Assembly) -> str:
    """How many a member has, or from the fewest to the most."""
    counts = sorted({engine.num_weights for engine in assembly.engines})
    return " to ".join(f"{count:,}" for count in (counts if len(counts) == 1 else (counts[0], counts[-1])))


def _members(assembly: Assembly) -> str:
    members = assembly.spec.members
    if not members.are_many:
        return str(members)
    if not assembly.on_device:
        return f"each of {members}"
    rows, num_devices = _shared_out(assembly)
    if members.are_a_team:
        return f"each of {members}, on {num_devices} device(s), at most {rows // num_devices} on each"
    return f"{members}, on {num_devices} device(s), {rows // num_devices} on each"


def _shared_out(assembly: Assembly) -> tuple[int, int]:
    """Members, with those that fill up the last row, and the devices that they lie on."""
    members = assembly.spec.members
    if not members.are_many or not assembly.on_device:
        return len(members), 1
    from hotloop.pipelines.member_axis import MemberAxis  # which starts JAX

    axis = MemberAxis(len(members))
    return axis.rows, axis.num_devices
