"""Actors in processes of their own, the learner in this one: parcels of experience come, weights go.

    actor 0: envs ──> act ──> parcel ──> ring ──┐                    ┌──> replay ──> update ──┐
    actor 1: envs ──> act ──> parcel ──> ring ──┴──> (this process) ─┘                        │
       ^                                                                        weights <─────┘
       └────────────────────────────────────────────────────────────────────────────┘

The learner is the process that was started, not one more: the agent, callbacks and evaluations of a run are where the
user is, and what it watches over are actors only (`crew.py`). A block's gradient steps are due once a block's worth of
transitions has come, from whichever actor; actors may be a few parcels ahead of that, then they wait. `in_step`
everything has its turn, and the bits do not depend on timing.

Here are shapes and sizes; what runs is in `process_run.py`.
"""

import contextlib
from collections.abc import Mapping
from typing import cast

import numpy as np

from hotloop.cores import usable_cores
from hotloop.engines.protocol import Engine
from hotloop.envs.gym_types import Make
from hotloop.envs.host_spaces import HostSpaces
from hotloop.errors import SpecError
from hotloop.members import Members
from hotloop.pipelines.actor_loop import ENV_STEPS
from hotloop.pipelines.actor_parcels import parcels_of, room_of, shares_of, steps_per_parcel, steps_that_begin
from hotloop.pipelines.crew import descriptors_of
from hotloop.pipelines.crews import Brought
from hotloop.pipelines.process_run import ProcessRun
from hotloop.pipelines.supply import Supply
from hotloop.plain import Figures
from hotloop.replay.frames import Frames
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Parcel, form_of, frames_per_transition
from hotloop.spec import Spec
from hotloop.transport.form import Form
from hotloop.transport.limits import refuse_more_descriptors_than_there_are
from hotloop.transport.memory import refuse_other_platforms
from hotloop.trees import ArraySpec, Specs, leaves


def actors_of(spec: Spec) -> int:
    """How many actors step the envs of a spec."""
    wanted = spec.actors.count or max(1, usable_cores() - 1)
    if spec.actors.count is not None and wanted > spec.env.num_envs:
        raise SpecError(
            f"actors.count is {wanted}, but there are {spec.env.num_envs} env(s) to share out; use at most as many, or "
            "raise env.num_envs"
        )
    return min(wanted, spec.env.num_envs)


def replay_of(spec: Spec, spaces: HostSpaces) -> HostReplay:
    """Where parcels of transitions with these spaces are stored."""
    num_actions = spaces.actions.size if spec.env.action_mask else None
    frames = frames_per_transition(spec.replay, steps_per_parcel(spec))
    return HostReplay(spec.replay, spec.discount, spaces.observations.shapes, 0, None, num_actions, frames)


def parcel_of(spec: Spec, spaces: HostSpaces, replay: HostReplay, num_envs: int) -> Parcel[ArraySpec]:
    """The form of a parcel with room for so many envs; refused if it does not fit into the replay."""
    num_actions, steps = spaces.actions.size if spec.env.action_mask else None, steps_per_parcel(spec)
    begin = steps_that_begin(spec)
    form = form_of(spec.replay, spaces.observations.shapes, num_envs, steps, num_actions, spec.env.info, begin)
    store, too_many = replay.store, None
    if isinstance(store, Frames) and (most := leaves(form.frames)[0].shape[0]) > store.capacity:
        too_many = f", with room for {store.capacity} frames, but a parcel of {num_envs} env(s) x {steps} steps may "
        too_many += f"bring {most}"
    elif (most := form.error.shape[0]) > spec.replay.capacity:
        too_many = f", but a parcel of {num_envs} env(s) x {steps} steps may bring {most} transitions"
    if too_many is not None:
        raise SpecError(
            f"replay.capacity is {spec.replay.capacity}{too_many}; raise replay.capacity, use more actors, or lower "
            "actors.steps_per_parcel"
        )
    return form


def weights_of(engine: Engine) -> dict[str, ArraySpec]:
    """The form of what a learner publishes."""
    named = engine.to_named(engine.weights(engine.init(0)))
    return {name: ArraySpec(array.shape, array.dtype) for name, array in named.items()}


def exchange_form(spec: Spec, parcel: Specs, weights: Mapping[str, ArraySpec]) -> Form:
    """What is exchanged with the actors of a spec."""
    count = actors_of(spec)
    return Form(count, parcels_of(spec, count), parcel, {**weights, ENV_STEPS: ArraySpec((), np.int64)})


def refuse_what_cannot_be(spec: Spec) -> None:
    """Refuse a machine that has no such actors, or not so many."""
    refuse_other_platforms()
    refuse_more_descriptors_than_there_are(descriptors_of(actors_of(spec)))


class ActorsPipeline:
    """What is exchanged with actors elsewhere, and the end of all of them."""

    def __init__(self, spec: Spec, form: Form, brought: Brought) -> None:
        self.spec, self.form, self.brought = spec, form, brought
        self.supplies: list[Supply] = []
        """Of each session."""

    def plan(self) -> Figures:
        """What the actors will be and take: numbers by name."""
        form, shares = self.form, shares_of(self.spec.env.num_envs, self.form.actors)
        return {
            "actors": form.actors,
            "envs_of_each": [shares[0]] if shares[0] == shares[-1] else [shares[0], shares[-1]],
            "threads_of_each": 1,
            "steps_per_parcel": steps_per_parcel(self.spec),
            "parcels": form.slots,
            "shared_bytes": form.num_bytes,
            "descriptors": descriptors_of(form.actors),
        }

    def close(self) -> None:
        """Stop the actors of every session, whatever has become of it."""
        with contextlib.ExitStack() as all_of_them:
            for supply in self.supplies:
                all_of_them.callback(supply.close)


class ProcessesPipeline(ActorsPipeline):
    """Shapes and sizes; processes are started by a session."""

    def __init__(self, spec: Spec, spaces: HostSpaces, engine: Engine, make: Make | None, network: object) -> None:
        """`make` and `network` are what the user brought along, if anything."""
        refuse_what_cannot_be(spec)
        self.engine, self.update, self.spaces = engine, engine.update, spaces
        self.replay = replay_of(spec, spaces)
        parcel = parcel_of(spec, spaces, self.replay, room_of(spec, actors_of(spec)))
        super().__init__(spec, exchange_form(spec, cast(Specs, parcel), weights_of(engine)), Brought(make, network))

    def num_bytes(self) -> int:
        """Memory of the replay; beside it `form.num_bytes` are shared with the actors."""
        return self.replay.num_bytes()

    def session(self, members: Members) -> ProcessRun:
        """Its state, for the host loop to drive."""
        spec, obs = self.spec, self.spaces.observations.shapes
        made = ProcessRun(spec, self.engine, self.replay, self.update, members, self.form, obs, self.brought)
        self.supplies.append(made.supply)
        return made
