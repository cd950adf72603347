"""A look at a run whose actors are in processes of their own: slices of both sides, and which of them the run feels."""

from collections.abc import Callable
from functools import partial

from hotloop.assembly import Assembly
from hotloop.cores import usable_cores
from hotloop.doctor.examination import MOST_BLOCKS_TO_DRAW, SECONDS_TO_FILL, Stage
from hotloop.doctor.free_in_processes import AnyRun, FreeInProcesses, WithActors
from hotloop.doctor.recorded_env import RecordedEnv, Recording, record, seconds_around
from hotloop.doctor.recorded_team import maker_of, record_team, seconds_around_team
from hotloop.doctor.sides import stages_of_sides
from hotloop.doctor.slices import Comparison, compare
from hotloop.envs.gym_types import Make
from hotloop.envs.parallel import ParallelTeam
from hotloop.errors import SpecError
from hotloop.pipelines.actor_parcels import room_of
from hotloop.pipelines.processes import ActorsPipeline
from hotloop.progress import Reporter

SECONDS_OF_SLICE = 0.5
"""Parcels come now and then: a slice has several of each actor."""


def look_at_processes(
    assembly: Assembly, run: AnyRun
) -> Callable[[float, Reporter], tuple[Comparison, dict[str, Stage]]]:
    """Start what will stand in, fill the replay; what is returned runs slices until a time."""
    pipeline, spec = assembly.pipeline, assembly.spec
    assert isinstance(pipeline, ActorsPipeline)
    make, around_one = _recorded(assembly)
    free = FreeInProcesses(run, pipeline, make)
    if not free.prepare(MOST_BLOCKS_TO_DRAW):
        raise SpecError(f"nothing was learned in {MOST_BLOCKS_TO_DRAW:,} blocks")
    free.fill(SECONDS_TO_FILL)
    actors, share = pipeline.form.actors, room_of(spec, pipeline.form.actors)
    around = around_one(share) / share / actors
    delay = free.delay / spec.block_plan.env_steps

    def look(until: float, reporter: Reporter) -> tuple[Comparison, dict[str, Stage]]:
        found = compare(WithActors(run), free.ways, until, reporter, SECONDS_OF_SLICE)
        return found, stages_of_sides(found, around, delay, usable_cores())

    return look


def _recorded(assembly: Assembly) -> tuple[Make | None, Callable[[int], float]]:
    """What makes envs that show some steps of one, and seconds of what goes on around a step of so many of them.

    Nothing of device envs with several agents: all of them step in one call, faster than one after the other would.
    """
    if assembly.spec.agents is None:
        recording = recording_of(assembly)
        return partial(RecordedEnv, recording), partial(seconds_around, recording)
    envs = assembly.open_team(1)
    try:
        if not isinstance(envs, ParallelTeam):
            return None, lambda envs: 0.0
        turns = record_team(envs, assembly.spec.seed, assembly.spec.env.info)
    finally:
        envs.close()
    return maker_of(turns), partial(seconds_around_team, turns)


def recording_of(assembly: Assembly) -> Recording:
    """Some steps of one env, opened for it."""
    spec, envs = assembly.spec, assembly.open_one_env()
    try:
        if spec.env.action_mask:
            envs.mask_actions(spec.env.id)
        return record(envs, spec.seed, spec.info_of_steps)
    finally:
        envs.close()
