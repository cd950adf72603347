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
import math
import os
from typing import cast

import numpy as np

from hotloop.engines.protocol import Engine
from hotloop.envs.gym_types import Make
from hotloop.envs.host_spaces import HostSpaces
from hotloop.errors import SpecError
from hotloop.members import Members
from hotloop.pipelines.actor_loop import ENV_STEPS, shares_of, steps_per_parcel, steps_that_begin
from hotloop.pipelines.crew import descriptors_of
from hotloop.pipelines.process_run import Brought, ProcessRun, transitions_ahead
from hotloop.plain import Figures
from hotloop.replay.frames import Frames
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Parcel, form_of, frames_per_transition
from hotloop.spec import Spec
from hotloop.transport.form import Form
from hotloop.transport.limits import refuse_more_descriptors_than_there_are
from hotloop.transport.memory import refuse_other_platforms
from hotloop.trees import ArraySpec, Specs, leaves

FEWEST_PARCELS = 8
"""In a ring whose size the spec does not say."""


def pipeline(
    spec: Spec, spaces: HostSpaces, engine: Engine, make: Make | None = None, network: object = None
) -> "ProcessesPipeline":
    """The processes pipeline of one spec."""
    return ProcessesPipeline(spec, spaces, engine, make, network)


def actors_of(spec: Spec) -> int:
    """How many actors step the envs of a spec."""
    wanted = spec.actors.count or max(1, (os.cpu_count() or 1) - 1)
    if spec.actors.count is not None and wanted > spec.env.num_envs:
        raise SpecError(
            f"actors.count is {wanted}, but there are {spec.env.num_envs} env(s) to share out; use at most as many, or "
            "raise env.num_envs"
        )
    return min(wanted, spec.env.num_envs)


def parcels_of(spec: Spec, actors: int) -> int:
    """How many parcels the ring of each of so many actors holds: if it is not said, as many as may be on their way."""
    if spec.actors.parcels is not None:
        return spec.actors.parcels
    shares, steps = shares_of(spec.env.num_envs, actors), steps_per_parcel(spec)
    pairs = zip(transitions_ahead(spec, actors), shares, strict=True)
    most = max(math.ceil(ahead / (envs * steps)) for ahead, envs in pairs)  # the last is begun within the allowance
    return max(FEWEST_PARCELS, most)


class ProcessesPipeline:
    """Shapes and sizes; processes are started by a session."""

    def __init__(self, spec: Spec, spaces: HostSpaces, engine: Engine, make: Make | None, network: object) -> None:
        """`make` and `network` are what the user brought along, if anything."""
        refuse_other_platforms()
        refuse_more_descriptors_than_there_are(descriptors_of(actors_of(spec)))
        self.spec, self.engine, self.update, self.spaces = spec, engine, engine.update, spaces
        self.actors, steps = actors_of(spec), steps_per_parcel(spec)
        self.largest_share = max(shares_of(spec.env.num_envs, self.actors))
        num_actions = spaces.actions.size if spec.env.action_mask else None
        obs = spaces.observations.shapes
        self.replay = HostReplay(
            spec.replay, spec.discount, obs, 0, None, num_actions, frames_per_transition(spec.replay, steps)
        )
        begin = steps_that_begin(spec)
        parcel = form_of(spec.replay, obs, self.largest_share, steps, num_actions, spec.env.info, begin)
        self._refuse_parcels_that_do_not_fit(parcel)
        weights = {
            name: ArraySpec(array.shape, array.dtype)
            for name, array in engine.to_named(engine.weights(engine.init(0))).items()
        }
        self.form = Form(
            self.actors,
            parcels_of(spec, self.actors),
            cast(Specs, parcel),
            {**weights, ENV_STEPS: ArraySpec((), np.int64)},
        )
        self._brought = Brought(make, network)
        self._sessions: list[ProcessRun] = []

    def _refuse_parcels_that_do_not_fit(self, parcel: Parcel[ArraySpec]) -> None:
        store, steps = self.replay.store, steps_per_parcel(self.spec)
        if isinstance(store, Frames) and (most := leaves(parcel.frames)[0].shape[0]) > store.capacity:
            raise SpecError(
                f"replay.capacity is {self.spec.replay.capacity}, with room for {store.capacity} frames, but a parcel "
                f"of {self.largest_share} env(s) x {steps} steps may bring {most}; raise replay.capacity, use more "
                "actors, or lower actors.steps_per_parcel"
            )

    def num_bytes(self) -> int:
        """Memory of the replay; beside it `form.num_bytes` are shared with the actors."""
        return self.replay.num_bytes()

    def plan(self) -> Figures:
        """What the actors will be and take: numbers by name."""
        shares = shares_of(self.spec.env.num_envs, self.actors)
        return {
            "actors": self.actors,
            "envs_of_each": [shares[0]] if shares[0] == shares[-1] else [shares[0], shares[-1]],
            "threads_of_each": 1,
            "steps_per_parcel": steps_per_parcel(self.spec),
            "parcels": self.form.slots,
            "shared_bytes": self.form.num_bytes,
            "descriptors": descriptors_of(self.actors),
        }

    def session(self, members: Members) -> "ProcessRun":
        """Its state, for the host loop to drive."""
        spec, obs = self.spec, self.spaces.observations.shapes
        made = ProcessRun(spec, self.engine, self.replay, self.update, members, self.form, obs, self._brought)
        self._sessions.append(made)
        return made

    def close(self) -> None:
        """Stop the actors of every session, whatever has become of it."""
        with contextlib.ExitStack() as all_of_them:
            for session in self._sessions:
                all_of_them.callback(session.close)
