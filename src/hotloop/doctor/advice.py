"""Which settings suit this machine and this spec, each with its reason: from cores, memory, device and the env's step.

Nothing is trained: the env is stepped for a moment, and sizes are added up. What would change what is learned (batch,
replay, precision) is said to, and never taken over by itself.
"""

from typing import TYPE_CHECKING, NamedTuple

from hotloop import registry
from hotloop.assembly import Assembly
from hotloop.cores import usable_cores
from hotloop.doctor.limits import MOSTLY_WAITS
from hotloop.errors import SpecError
from hotloop.pipeline_trial import MOST_ACTORS, SHORTEST_STEP, Look, look_at_one
from hotloop.plain import Figures, Json
from hotloop.replay.plan import available_host_memory, readable
from hotloop.run_plan import memory_plan
from hotloop.spec import Spec
from hotloop.trees import ArraySpec

if TYPE_CHECKING:
    from rich.console import Console

SHARE_OF_MEMORY = 0.5
"""Of what is free, that a replay may take: envs, the engine and others need some, too."""
BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Of a CPU's flags: those with which it multiplies in bfloat16."""


class Setting(NamedTuple):
    """A field, the value that suits this machine, and why."""

    field: str
    value: Json
    now: Json
    why: str
    changes_learning: bool = False


class Advice(NamedTuple):
    """Settings for one spec on one machine."""

    spec: str
    machine: dict[str, str]
    settings: list[Setting]

    def figures(self) -> Figures:
        """As JSON has it."""
        return {
            "spec": self.spec,
            "machine": {**self.machine},
            "settings": [{**each._asdict()} for each in self.settings],
        }


def advise(spec: Spec) -> Advice:
    """Look at the machine, the env and what the spec's memory would be."""
    with Assembly(spec) as assembly:
        cores, look = usable_cores(), None
        if not assembly.on_device and assembly.spec.agents is None:
            look = look_at_one(assembly)
        machine = {
            "cores": str(cores),
            "memory free": readable(available_host_memory()),
            "device": assembly.machine["device"],
            "backend": assembly.machine["backend"],
        }
        settings = [*_flow(assembly, look, cores), *_memory(assembly), *_arithmetic(assembly)]
    return Advice(spec.name, machine, settings)


def _flow(assembly: Assembly, look: Look | None, cores: int) -> list[Setting]:
    """Pipeline, envs and threads: none of them changes what is learned."""
    spec = assembly.spec
    threads: int = registry.imported(registry.ENGINES[spec.engine].threads)(spec.with_field("threads", None))
    why = (
        "layers wide enough, or images: all cores" if threads > 1 else "handing small products on costs more than them"
    )
    found = [Setting("threads", threads, spec.threads, why)]
    if look is None:
        chosen = assembly.pipeline_choice
        return [Setting("pipeline", chosen.name, spec.pipeline, chosen.reason), *found]
    step = f"a step of the env takes {look.of_step * 1e3:.2g} ms, a core for {look.busy:.0%} of it"
    if (refused := _refused(assembly)) and cores > 1 and look.of_step >= SHORTEST_STEP:
        return [Setting("pipeline", "sync", spec.pipeline, f"{step}, but {refused}"), *found]
    if look.of_step < SHORTEST_STEP or cores == 1:
        near = "concurrent" if spec.sees_images and cores > 1 else "sync"
        why = (
            f"{step}: less than handing it to another process is worth"
            if cores > 1
            else f"{step}, and there is one core"
        )
        return [Setting("pipeline", near, spec.pipeline, why), *found]
    most = spec.env.num_envs if look.busy < MOSTLY_WAITS else max(1, cores - 1)
    actors = min(most, spec.env.num_envs, MOST_ACTORS)
    more = "; such envs wait, so more of them than cores" if look.busy < MOSTLY_WAITS else "; a core is the learner's"
    return [
        Setting("pipeline", "processes", spec.pipeline, f"{step}: worth a process of its own"),
        Setting("actors.count", actors, spec.actors.count, f"{cores} core(s), {spec.env.num_envs} env(s){more}"),
        *found,
    ]


def _refused(assembly: Assembly) -> str:
    """Why its envs cannot be in processes of their own; empty where they can."""
    if assembly.has_one_env_only:
        return "there is one instance of it"
    try:
        assembly.require_that_envs_can_be_elsewhere("processes")
    except SpecError as error:
        return str(error)
    return ""


def _memory(assembly: Assembly) -> list[Setting]:
    """How large a replay may be, and whether frames are stored more than once."""
    spec, replay, found = assembly.spec, assembly.pipeline.replay, list[Setting]()
    if replay is None:
        return []
    each, plan = replay.num_bytes() / replay.capacity, memory_plan(assembly)
    fits = int(SHARE_OF_MEMORY * plan.available / each / max(1, len(spec.members)))
    why = f"{readable(int(each))} a transition; half of the free {readable(plan.available)} holds {fits:,}"
    found.append(Setting("replay.capacity", min(fits, spec.replay.capacity), spec.replay.capacity, why, True))
    shapes = None if assembly.envs is None else assembly.envs.observations.shapes
    if isinstance(shapes, ArraySpec) and shapes.dtype == "uint8" and len(shapes.shape) == 3:
        frames, _, width = shapes.shape
        if spec.replay.stacked_frames == 1 and 1 < frames <= width:
            why = f"if the first axis of {shapes.shape} is stacked frames: each is stored once, in a {frames}th of it"
            found.append(Setting("replay.stacked_frames", frames, 1, why))
    return found


def _arithmetic(assembly: Assembly) -> list[Setting]:
    """Batch and precision, by the device; devices if there are several."""
    spec, on_cpu = assembly.spec, assembly.machine["backend"] in ("cpu", "torch cpu")
    batch, found = spec.replay.batch_size, list[Setting]()
    if spec.on_policy is None:
        why = "on a CPU a gradient step takes time in proportion to it: more brings nothing but another algorithm"
        if not on_cpu:
            why = (
                "an accelerator is hardly busy below a few hundred; with more, fewer gradient steps (updates_per_step)"
            )
        found.append(Setting("replay.batch_size", batch if on_cpu else max(batch, 256), batch, why, True))
    has_bfloat16 = not on_cpu or bool(set(BFLOAT16) & _cpu_flags())
    why = "this device multiplies in bfloat16" if has_bfloat16 else "this CPU has no bfloat16 of its own: it is slower"
    found.append(Setting("precision", "bfloat16" if has_bfloat16 else "float32", spec.precision, why, True))
    return found


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return set()


def print_advice(advice: Advice, console: "Console") -> None:
    """A table, to paste from."""
    from rich.table import Table

    console.print("; ".join(f"{name} {value}" for name, value in advice.machine.items()), style="dim")
    table = Table(show_edge=False)
    for title in ("setting", "now", "why"):
        table.add_column(title)
    for each in advice.settings:
        why = f"{each.why} (changes learning)" if each.changes_learning and each.value != each.now else each.why
        table.add_row(f"--set {each.field}={each.value}", "chosen" if each.now is None else str(each.now), why)
    console.print(table)
