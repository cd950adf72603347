"""A parcel: what an actor hands over at once. Frames, each once, and complete transitions that number them from 0; or
transitions with their observations, if the replay keeps them whole.

It refers to nothing outside itself: the frames of running episodes that its first transitions begin with come first in
it. So parcels of many actors go into one replay in any order, and a lost one takes nothing along but its own
transitions; with n-step returns some of these are of up to n - 1 steps of each env before it, which were pending then.
Its arrays have fixed lengths, of which the first `num_frames` and `num_rows` entries are used: a parcel fits into
memory that was laid out before. `replay/packer.py` packs it, `HostReplay.take_in` stores it.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np

from hotloop.episodes import Finished
from hotloop.errors import SpecError
from hotloop.experience import Item, row_example
from hotloop.replay.frames import Frames, are_shared
from hotloop.spec import Replay
from hotloop.trees import ArraySpec, Specs, Tree, leaves, specs_of, tree_map

A = TypeVar("A")


class Account(NamedTuple, Generic[A]):
    """How a parcel was made: counts int64 (), sums over the episodes that ended float64 ()."""

    env_steps_before: A  # of its packer, before this parcel
    env_steps: A
    dropped: A  # transitions that its actor has made and given up, all before it
    episodes: A
    weights_version: A  # of the policy that acted
    episode_return: A
    episode_length: A
    info: Mapping[str, A]


class Parcel(NamedTuple, Generic[A]):
    """R rows and F frames, of which so many are used."""

    num_frames: A
    num_rows: A
    frames: Tree[A]  # (F, …); None where rows hold observations
    rows: Item[A]  # (R, …), as the replay has them, but that numbers of frames are int32 (R, k), and begin at 0
    error: A  # |TD error| by which a row has its first priority, float32 (R,); NaN: as the replay sees fit
    account: Account[A]


Packed = Parcel[np.ndarray]


class TeamParcel(NamedTuple, Generic[A]):
    """What an actor in envs with several agents hands over at once: a parcel for each learner.

    The account is of turns, which are the env steps of a team: an agent that is gone makes no transition in them.
    """

    account: Account[A]
    each: tuple[Parcel[A], ...]


def form_of(
    replay: Replay,
    obs: Specs,
    num_envs: int,
    vector_steps: int,
    num_actions: int | None = None,
    info: tuple[str, ...] = (),
    steps_that_begin: int = 1,
) -> Parcel[ArraySpec]:
    """Shapes of a parcel of at most so many vector steps of N envs; it holds fewer where many episodes begin: all envs
    may do so in `steps_that_begin` of them.

    `obs` has the shapes of one observation; with `num_actions`, rows hold which actions are legal; `info` are the keys
    that are summed.
    """
    if replay.hindsight is not None:
        raise SpecError(
            "replay.hindsight stores episodes whole, however long they are, and a parcel has a fixed size; "
            "use a pipeline that steps its envs itself: sync, concurrent"
        )
    # Each row is of a step that was pending at the start, n - 1 of each env at most, or of one that came since.
    rows = num_envs * (vector_steps + replay.n_step - 1)
    frames, kept = None, obs
    if are_shared(replay, obs):
        # Leading ones, one for each step, and the first ones of new episodes.
        count = num_envs * (leading_frames(replay) + vector_steps + steps_that_begin * replay.stacked_frames)
        frames = specs_of(Frames(obs, replay.stacked_frames, count).frame, (count,))
        kept = ArraySpec((replay.stacked_frames,), np.int32)
    whole = ArraySpec((), np.int64)
    return Parcel(
        num_frames=whole,
        num_rows=whole,
        frames=frames,
        rows=cast(Item[ArraySpec], specs_of(row_example(kept, num_actions), (rows,))),
        error=ArraySpec((rows,), np.float32),
        account=account_form(info),
    )


def account_form(info: tuple[str, ...] = ()) -> Account[ArraySpec]:
    """Shapes of an account that sums these keys."""
    whole, real = ArraySpec((), np.int64), ArraySpec((), np.float64)
    return Account(whole, whole, whole, whole, whole, real, real, dict.fromkeys(info, real))


def leading_frames(replay: Replay) -> int:
    """Frames of each env that a parcel may begin with: those of its present observation and of pending n-step items."""
    return replay.stacked_frames + replay.n_step - 1


def frames_per_transition(replay: Replay, vector_steps: int) -> float:
    """Frames that parcels of so many vector steps bring with each transition, new episodes aside."""
    return 1 + leading_frames(replay) / vector_steps


def used(parcel: Packed) -> Packed:
    """The same parcel without what it does not use: views, not copies."""
    frames, rows = int(parcel.num_frames), int(parcel.num_rows)
    return parcel._replace(
        frames=tree_map(lambda leaf: leaf[:frames], parcel.frames),
        rows=tree_map(lambda leaf: leaf[:rows], parcel.rows),
        error=parcel.error[:rows],
    )


def rows_used(parcel: Packed) -> list[int]:
    """For each of its arrays, in the order of `trees.leaves`, how many of its leading rows are used; 1 of a number."""
    frames, rows = int(parcel.num_frames), int(parcel.num_rows)
    of_frames, of_rows = [frames] * len(leaves(parcel.frames)), [rows] * len(leaves(parcel.rows))
    return [1, 1, *of_frames, *of_rows, rows, *([1] * len(leaves(parcel.account)))]


def finished_in(account: Account[np.ndarray]) -> Finished | None:
    """The episodes that ended in a parcel, if any did."""
    if not int(account.episodes):
        return None
    info = {key: float(total) for key, total in account.info.items()}
    return Finished(int(account.episodes), float(account.episode_return), float(account.episode_length), info)
