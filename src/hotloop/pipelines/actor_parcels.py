"""How much an actor makes: its share of the envs, and what it hands over at once."""

import math

from hotloop.replay.parcels import leading_frames
from hotloop.spec import Spec

SHORTEST_PARCEL, FRAMES_REPEATED = 16, 4
"""Vector steps of a parcel: so many, and so many for each frame that it repeats of the one before."""
PARCELS_AHEAD = 2
"""Parcels that an actor may be ahead of what the learner has counted, beside its share of a block."""
FEWEST_PARCELS = 8
"""In a ring whose size the spec does not say."""


def shares_of(num_envs: int, actors: int) -> list[int]:
    """Envs of each actor, as even as can be, the larger shares first."""
    return [num_envs // actors + (index < num_envs % actors) for index in range(actors)]


def room_of(spec: Spec, actors: int) -> int:
    """Envs for which there is room in a parcel of any of so many actors."""
    return max(shares_of(spec.env.num_envs, actors))


def steps_per_parcel(spec: Spec) -> int:
    """Vector steps that an actor hands over at once."""
    if spec.actors.in_step:
        return spec.block_plan.vector_steps
    return spec.actors.steps_per_parcel or max(SHORTEST_PARCEL, FRAMES_REPEATED * leading_frames(spec.replay))


def steps_that_begin(spec: Spec) -> int:
    """Steps of a parcel in which all envs may begin an episode: in_step it may not end before a block does."""
    return steps_per_parcel(spec) if spec.actors.in_step else 1


def transitions_ahead(spec: Spec, actors: int) -> list[int]:
    """How far each of so many actors may be ahead of what the learner has counted, in env steps."""
    shares, steps = shares_of(spec.env.num_envs, actors), steps_per_parcel(spec)
    share_of_block = math.ceil(spec.block_plan.env_steps / actors)
    return [PARCELS_AHEAD * envs * steps + share_of_block for envs in shares]


def parcels_of(spec: Spec, actors: int) -> int:
    """How many parcels the ring of each of so many actors holds: if it is not said, as many as may be on their way."""
    if spec.actors.parcels is not None:
        return spec.actors.parcels
    shares, steps = shares_of(spec.env.num_envs, actors), steps_per_parcel(spec)
    pairs = zip(transitions_ahead(spec, actors), shares, strict=True)
    most = max(math.ceil(ahead / (envs * steps)) for ahead, envs in pairs)  # the last is begun within the allowance
    return max(FEWEST_PARCELS, most)
