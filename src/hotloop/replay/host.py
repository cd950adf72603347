"""The replay of the host pipelines, assembled from parts.

    step ──> how its observations are stored (frames.py) ──> delay line (delay.py) ──> ring (host_ring.py)
                                            or hindsight (hindsight.py) ──┘       priorities (sum_tree.py) ┘

One call inserts a vector step of all envs, one call draws the K batches of a portion of a block. Where envs are
stepped by others, who make the transitions themselves (packer.py), one call takes in a parcel of them (parcels.py).
"""

import math
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict, cast

import numpy as np

from hotloop.experience import Items, VectorStep, row_example
from hotloop.replay.delay import DelayArrays, DelayLine
from hotloop.replay.frames import SHARED_FROM as SHARED_FROM
from hotloop.replay.frames import FrameArrays, Frames, Whole, are_shared
from hotloop.replay.host_ring import HostRing, RingArrays
from hotloop.replay.parcels import Packed, used
from hotloop.spec import Prioritized, Replay
from hotloop.trees import Arrays, ArraySpec, Number, Specs, num_bytes, zeros_of

if TYPE_CHECKING:
    from hotloop.replay.hindsight import GoalRelabeler


class Batches(NamedTuple):
    """K batches: `items` and `weight` (importance weights, or None) lead with axes (K, B)."""

    items: Items
    numbers: np.ndarray
    weight: np.ndarray | None


class ReplayArrays(TypedDict):
    """What a checkpoint keeps of a replay."""

    ring: RingArrays
    store: FrameArrays
    written_at: np.ndarray
    delay: DelayArrays
    stored_obs: Arrays
    unseen: NotRequired[Number]
    priorities: NotRequired[np.ndarray]
    largest: NotRequired[Number]


class HostReplay:
    """Transitions of N envs, and which of them to learn from."""

    def __init__(
        self,
        spec: Replay,
        discount: float,
        obs: Specs,
        num_envs: int,
        goals: object = None,
        num_actions: int | None = None,
        frames_per_transition: float = 1.0,
        discount_per: str | None = None,
    ) -> None:
        """`obs` has the shapes of one observation; `goals` is the env's own judge of goals, for hindsight.

        With `num_actions`, transitions hold which of the actions are legal. With parcels alone `num_envs` is 0, and
        `frames_per_transition` what they bring. `discount_per` is as in `delay.py`.
        """
        self.spec, self.num_envs, self.capacity = spec, num_envs, spec.capacity
        self.store: Frames | Whole = Whole(obs)
        if are_shared(spec, obs):
            room = math.ceil(spec.capacity * frames_per_transition)
            self.store = Frames.for_transitions(obs, spec.stacked_frames, num_envs, room, spec.n_step)
        self.whole_row = row_example(obs, num_actions)
        self.row_bytes = num_bytes(self.whole_row)
        self.row = row_example(self.store.row, num_actions)
        self.delay = DelayLine(spec.n_step, discount, num_envs, self.store.row, discount_per)
        self.stored_obs: Arrays = zeros_of(self.store.row, (num_envs,))
        self.hindsight: GoalRelabeler | None = None
        if spec.hindsight:
            from hotloop.replay import hindsight

            self.hindsight = hindsight.GoalRelabeler(spec.hindsight, discount, self.row, num_envs, goals)
        self.sampling = spec.sampling if isinstance(spec.sampling, Prioritized) else None

    def allocate(self) -> None:
        """Empty, with all its memory reserved (and untouched)."""
        self.ring = HostRing(self.spec.capacity, self.row)
        self.written_at = np.zeros(self.spec.capacity, np.int64)  # frames written when each row was inserted, or as if
        self.unseen = 0  # rows that came since the last draw
        if self.sampling:
            from hotloop.replay.sum_tree import SumTree

            self.tree = SumTree(self.spec.capacity)
            self.largest = 1.0

    @property
    def size(self) -> int:
        """Transitions that can be drawn."""
        return self.ring.size

    def begin(self, obs_N: Arrays) -> None:
        """All envs begin an episode; what was pending of running ones is dropped."""
        self.delay.forget()
        if self.hindsight:
            self.hindsight.forget()
        self.seen: Arrays = obs_N
        self.stored_obs = self.store.begin(obs_N)
        self._drop_what_lost_a_frame()

    def insert(self, step: VectorStep, random: np.random.Generator) -> None:
        """Take one vector step in. Copies what it keeps."""
        after, now = self.store.move_on(self.stored_obs, self.seen, step.final_obs, step.obs, step.valid, step.began)
        if self.hindsight:
            items = self.hindsight.push(self.stored_obs, step, random)
        else:
            items = self.delay.push(self.stored_obs, step, after)
        self.seen, self.stored_obs = step.obs, now
        if items is not None and len(items.r_t):
            places = self._store(items)
            if isinstance(self.store, Frames):
                self.written_at[places] = self.store.written
            if self.sampling:
                self.tree.set(places, np.full(len(places), self._first_priority(self.sampling)))
        self._drop_what_lost_a_frame()  # frames may have come without an item: an env was only reset, or failed

    def take_in(self, parcel: Packed) -> None:
        """Store the transitions of a parcel. Copies what it keeps: its memory may be written again."""
        parcel = used(parcel)
        if not len(parcel.error):
            return
        if isinstance(self.store, Frames):
            before, after = _append(parcel, self.store)
            places = self._store(parcel.rows._replace(s_tm1=before, s_t=after))
            # As if inserted when the first of its frames was `slack` back: so old the store takes it to be. But not
            # later than rows behind it, and than now: rows must lose their frames in the order of the ring.
            oldest_M = np.minimum.accumulate(before[::-1, 0])[::-1][-len(places) :]
            self.written_at[places] = np.minimum(oldest_M + self.store.slack, self.store.written)
        else:
            places = self._store(parcel.rows)
        if self.sampling:
            self.tree.set(places, self._priorities_by(parcel.error[-len(places) :], self.sampling))
        self._drop_what_lost_a_frame()

    def _store(self, items: Items) -> np.ndarray:
        """Copy transitions into the ring; returns the places of those that stay."""
        self.unseen += len(items.r_t)
        return self.ring.insert(items)

    def _first_priority(self, sampling: Prioritized) -> float:
        """Of a transition whose TD error is not known."""
        error = sampling.first_error
        return self.largest if error is None else float((error + sampling.epsilon) ** sampling.alpha)

    def _priorities_by(self, error_M: np.ndarray, sampling: Prioritized) -> np.ndarray:
        """First priorities of transitions, by their TD errors where these are finite."""
        size = np.abs(error_M, dtype=np.float64)
        priority: np.ndarray = (size + sampling.epsilon) ** sampling.alpha
        known = np.isfinite(priority)
        self.largest = max(self.largest, float(priority.max(where=known, initial=0.0)))
        return np.where(known, priority, self._first_priority(sampling))

    def _drop_what_lost_a_frame(self) -> None:
        if not isinstance(self.store, Frames):
            return
        oldest, most = self.store.oldest, 2 * self.num_envs + 8
        while self.ring.size:  # once around for one vector step, as a rule
            first, count = self.ring.inserted - self.ring.size, min(self.ring.size, most)
            places = np.arange(first, first + count) % self.ring.capacity
            lost = int(np.count_nonzero(self.written_at[places] < oldest))
            if lost and (dropped := self.ring.drop_oldest(lost)).size and self.sampling:
                self.tree.set(dropped, np.zeros(lost))
            if lost < count:
                return
            most *= 2

    def sample(
        self, random: np.random.Generator, shape: tuple[int, int], beta: float = 1.0, drawn_before: int = 0
    ) -> Batches:
        """Draw K batches of B transitions; `beta` is the exponent of the importance weights.

        `drawn_before` counts the batches that the block has had already.
        """
        numbers = self._draw_by_priority(random, shape) if self.sampling else self.ring.draw(random, shape)
        if self.spec.newest_in_batch == "all":
            self._end_with_unseen(numbers)
        elif self.spec.newest_in_batch:
            numbers[:, 0] = self.ring.inserted - 1 - (drawn_before + np.arange(shape[0])) % self.ring.size
        rows = self.ring.take(numbers)
        items = rows._replace(s_tm1=self.store.take(rows.s_tm1), s_t=self.store.take(rows.s_t))
        return Batches(items, numbers, self._weights(numbers, beta) if self.sampling else None)

    def _end_with_unseen(self, numbers: np.ndarray) -> None:
        """Put what came since the last draw at the end of these batches, oldest first."""
        self.unseen = min(self.unseen, self.ring.size)
        for batch in numbers:
            count = min(self.unseen, len(batch))
            first = self.ring.inserted - self.unseen
            batch[len(batch) - count :] = np.arange(first, first + count)
            self.unseen -= count

    def _draw_by_priority(self, random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        """Each batch has one draw from each of B equal parts of the sum of priorities."""
        updates, batch = shape
        mass = (np.arange(batch) + random.random((updates, batch))) * (self.tree.total / batch)
        places = self.tree.find(mass)
        newest = self.ring.inserted - 1
        return newest - (newest - places) % self.ring.capacity

    def _weights(self, numbers: np.ndarray, beta: float) -> np.ndarray:
        """(size x probability)^-beta relative to the largest of each batch: size and total cancel out."""
        priority = self.tree.priorities(numbers % self.ring.capacity)
        weights: np.ndarray = ((priority.min(axis=-1, keepdims=True) / priority) ** beta).astype(np.float32)
        return weights

    def learned(self, batches: Batches, td_KB: np.ndarray) -> None:
        """New priorities of what was drawn: not of rows overwritten since, nor where a TD error is not finite."""
        if not self.sampling:
            return
        numbers, size = batches.numbers, np.abs(np.asarray(td_KB, np.float64))
        still = (numbers >= self.ring.inserted - self.ring.size) & np.isfinite(size)
        priority = (size[still] + self.sampling.epsilon) ** self.sampling.alpha
        if len(priority):
            self.tree.set(numbers[still] % self.ring.capacity, priority)
            self.largest = max(self.largest, float(priority.max()))

    # -- memory and checkpoints ------------------------------------------------------------------------

    def num_bytes(self) -> int:
        """Memory of all of it, before it is allocated."""
        total = self.spec.capacity * num_bytes(self.row) + self.store.num_bytes() + 8 * self.spec.capacity
        if self.sampling:
            from hotloop.replay.sum_tree import SumTree

            total += SumTree.num_bytes(self.spec.capacity)
        return total

    def arrays(self) -> ReplayArrays:
        """Everything, for a checkpoint."""
        saved = self.ring.arrays()
        used = len(saved["rows"].r_t)
        arrays: ReplayArrays = {
            "ring": saved,
            "store": self.store.arrays(),
            "written_at": self.written_at[:used],
            "delay": self.delay.arrays(),
            "stored_obs": self.stored_obs,
        }
        if self.spec.newest_in_batch == "all":
            arrays["unseen"] = np.int64(self.unseen)
        if self.sampling:
            arrays["priorities"] = self.tree.leaves[:used]
            arrays["largest"] = np.float64(self.largest)
        return arrays

    def template(self, inserted: int, written: int) -> dict[str, object]:
        """Shapes of what `arrays` gives after so many rows and frames."""
        used = min(max(inserted, 0), self.spec.capacity)
        template: dict[str, object] = {
            "ring": self.ring.template(inserted),
            "store": self.store.template(written),
            "written_at": ArraySpec((used,), np.int64),
            "delay": self.delay.arrays(),
            "stored_obs": self.stored_obs,
        }
        if self.spec.newest_in_batch == "all":
            template["unseen"] = np.int64(0)
        if self.sampling:
            template["priorities"] = ArraySpec((used,), np.float64)
            template["largest"] = np.float64(0)
        return template

    def restore(self, arrays: ReplayArrays) -> None:
        """Take back what `arrays` gave, or raise ValueError."""
        self.ring.restore(arrays["ring"])
        self.store.restore(arrays["store"])
        self.written_at[: len(arrays["written_at"])] = arrays["written_at"]
        self.delay.restore(arrays["delay"])
        self.stored_obs = arrays["stored_obs"]
        self._check_frames()
        self.unseen = max(0, int(arrays.get("unseen", 0)))
        if self.sampling:
            priorities = np.zeros(self.spec.capacity)
            priorities[: len(arrays["priorities"])] = arrays["priorities"]
            self.tree.restore(priorities)
            self.largest = float(arrays["largest"])

    def _check_frames(self) -> None:
        """Numbers from a file must not point outside the frames."""
        if not isinstance(self.store, Frames):
            return
        valid = np.arange(self.ring.inserted - self.ring.size, self.ring.inserted) % self.ring.capacity
        before, after, now, delayed = (
            cast(np.ndarray, each)
            for each in (self.ring.rows.s_tm1, self.ring.rows.s_t, self.stored_obs, self.delay.stored)
        )
        numbers = [before[valid], after[valid], now, delayed[self.delay.is_pending]]
        low, high = self.store.written - self.store.capacity, self.store.written
        if any(part.size and (part.min() < max(low, 0) or part.max() >= high) for part in numbers):
            raise ValueError(f"the checkpoint's transitions point outside its {high} frames")


def _append(parcel: Packed, store: Frames) -> tuple[np.ndarray, np.ndarray]:
    """Store the frames of a parcel; returns the numbers that those before and after its transitions have there."""
    before, after = cast(tuple[np.ndarray, np.ndarray], (parcel.rows.s_tm1, parcel.rows.s_t))
    low, high = min(before.min(), after.min()), max(before.max(), after.max())
    if low < 0 or high >= parcel.num_frames:
        raise ValueError(f"a parcel's transitions have frames {low} to {high}, but it has {parcel.num_frames}")
    if parcel.num_frames > store.capacity:
        raise ValueError(
            f"a parcel of {parcel.num_frames} frames does not fit into a replay with room for {store.capacity}; "
            "use parcels of fewer vector steps, or a larger replay.capacity"
        )
    first = np.int64(store.append(parcel.frames))
    return before + first, after + first
