"""A look at a run whose actors are in processes of their own: slices of both sides, and which of them the run feels."""

from collections.abc import Callable

from hotloop.assembly import Assembly
from hotloop.cores import usable_cores
from hotloop.doctor.examination import MOST_BLOCKS_TO_DRAW, SECONDS_TO_FILL, Stage
from hotloop.doctor.free_in_processes import FreeInProcesses, WithActors
from hotloop.doctor.recorded_env import Recording, record, seconds_around
from hotloop.doctor.sides import stages_of_sides
from hotloop.doctor.slices import Comparison, compare
from hotloop.errors import SpecError
from hotloop.pipelines.actor_parcels import room_of
from hotloop.pipelines.process_run import ProcessRun
from hotloop.pipelines.processes import ProcessesPipeline
from hotloop.progress import Reporter

SECONDS_OF_SLICE = 0.5
"""Parcels come now and then: a slice has several of each actor."""


def look_at_processes(
    assembly: Assembly, run: ProcessRun
) -> Callable[[float, Reporter], tuple[Comparison, dict[str, Stage]]]:
    """Start what will stand in, fill the replay; what is returned runs slices until a time."""
    pipeline, spec = assembly.pipeline, assembly.spec
    assert isinstance(pipeline, ProcessesPipeline)
    recording = _recording(assembly)
    free = FreeInProcesses(run, pipeline, recording)
    if not free.prepare(MOST_BLOCKS_TO_DRAW):
        raise SpecError(f"nothing was learned in {MOST_BLOCKS_TO_DRAW:,} blocks")
    free.fill(SECONDS_TO_FILL)
    actors, share = pipeline.form.actors, room_of(spec, pipeline.form.actors)
    around = seconds_around(recording, share) / share / actors
    delay = free.delay / spec.block_plan.env_steps

    def look(until: float, reporter: Reporter) -> tuple[Comparison, dict[str, Stage]]:
        found = compare(WithActors(run), free.ways, until, reporter, SECONDS_OF_SLICE)
        return found, stages_of_sides(found, around, delay, usable_cores())

    return look


def _recording(assembly: Assembly) -> Recording:
    """Some steps of one env, opened for it."""
    spec, envs = assembly.spec, assembly.open_one_env()
    try:
        if spec.env.action_mask:
            envs.mask_actions(spec.env.id)
        return record(envs, spec.seed, spec.info_of_steps)
    finally:
        envs.close()
