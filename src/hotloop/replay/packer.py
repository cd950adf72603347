"""The actor's half of a replay: vector steps become complete transitions, and these become parcels.

    step ──> how its observations are stored (frames.py) ──> delay line (delay.py) ──> parcel (parcels.py)

Running episodes go on from parcel to parcel: the frames that they still need are copied to the front of the next one.
"""

from typing import cast

import numpy as np

from hotloop.episodes import Finished
from hotloop.experience import VectorStep
from hotloop.replay.delay import DelayLine
from hotloop.replay.frames import Frames, Whole
from hotloop.replay.parcels import Packed, form_of
from hotloop.spec import Replay
from hotloop.trees import Arrays, Specs, leaves, tree_map, zeros_of


class Packer:
    """Packs what N envs do."""

    def __init__(
        self,
        replay: Replay,
        discount: float,
        obs: Specs,
        num_envs: int,
        vector_steps: int,
        num_actions: int | None = None,
        info: tuple[str, ...] = (),
        room_for: int | None = None,
        env_steps_before: int = 0,
        steps_that_begin: int = 1,
        discount_per: str | None = None,
    ) -> None:
        """As `form_of`, which says how large a parcel is; `room_for` is for more envs, if others' parcels have that.

        `env_steps_before` were made by whoever packed in its place before.
        """
        self.form = form_of(replay, obs, room_for or num_envs, vector_steps, num_actions, info, steps_that_begin)
        self.vector_steps = vector_steps
        self.store: Frames | Whole = Whole(obs)
        if self.form.frames is not None:
            self.store = Frames(obs, replay.stacked_frames, leaves(self.form.frames)[0].shape[0])
        self.frames_of_a_step = num_envs * (replay.stacked_frames + 1)  # at most: every env also begins an episode
        self.delay = DelayLine(replay.n_step, discount, num_envs, self.store.row, discount_per)
        self._parcel, self._next = self.new_parcel(), self.new_parcel()
        self._parcel.account.env_steps_before[...] = env_steps_before
        self._rows = self._steps = self._env_steps = 0

    def new_parcel(self) -> Packed:
        """An empty one, in memory of its own."""
        return cast(Packed, zeros_of(cast(Specs, self.form), ()))

    def begin(self, obs_N: Arrays) -> None:
        """All envs begin an episode; what was packed and not taken is dropped."""
        self.delay.forget()
        self._start(int(self._parcel.account.env_steps_before))
        if isinstance(self.store, Frames):
            self.store.move_to(self._parcel.frames, np.zeros(0, np.int64))
        self.seen: Arrays = obs_N
        self.stored_obs: Arrays = self.store.begin(obs_N)

    def push(self, step: VectorStep, finished: Finished | None = None) -> None:
        """Pack one vector step, and the episodes that ended in it. Copies what it keeps, but for `step.obs`: that must
        stay as it is until the next step."""
        if self.is_full:
            raise ValueError(f"the parcel is full after {self._steps} vector steps; take it before the next one")
        after, now = self.store.move_on(self.stored_obs, self.seen, step.final_obs, step.obs, step.valid, step.began)
        items = self.delay.push(self.stored_obs, step, after)
        self.seen, self.stored_obs = step.obs, now
        first, self._rows = self._rows, self._rows + len(items.r_t)
        for packed, new in zip(self._columns, leaves(items), strict=True):
            packed[first : self._rows] = new
        self._steps += 1
        self._env_steps += int(np.count_nonzero(step.valid))
        if finished is not None:
            account = self._parcel.account
            account.episodes[...] += finished.episodes
            account.episode_return[...] += finished.episode_return
            account.episode_length[...] += finished.episode_length
            for key, total in account.info.items():
                total[...] += finished.info[key]

    @property
    def is_full(self) -> bool:
        """Whether another vector step may find no room: all envs may end an episode in it and begin one."""
        if isinstance(self.store, Frames) and self.store.written + self.frames_of_a_step > self.store.capacity:
            return True
        return self._steps == self.vector_steps

    def take(self, weights_version: int = 0) -> Packed:
        """What was packed; its memory is used again after the next `take`.

        `weights_version` is that of the policy that acted.
        """
        parcel, account = self._parcel, self._parcel.account
        parcel.num_rows[...] = self._rows
        account.env_steps[...], account.weights_version[...] = self._env_steps, weights_version
        self._parcel, self._next = self._next, parcel
        self._start(int(account.env_steps_before + account.env_steps))
        if isinstance(self.store, Frames):
            parcel.num_frames[...] = self.store.written
            self._carry_over(self.store)
        return parcel

    def _carry_over(self, store: Frames) -> None:
        """Begin the parcel with the frames that running episodes still need."""
        now, held = cast(tuple[np.ndarray, np.ndarray], (self.stored_obs, self.delay.stored))
        pending = held[1:][self.delay.is_pending[1:]]  # the first of the line has come out already
        needed = np.unique(np.concatenate([now.reshape(-1), pending.reshape(-1)]))
        store.move_to(self._parcel.frames, needed)
        self.stored_obs = np.searchsorted(needed, now)
        self.delay.stored = np.searchsorted(needed, held)  # what is not pending becomes any number

    def _start(self, env_steps_before: int) -> None:
        """Begin a parcel."""
        parcel = self._parcel
        self._rows = self._steps = self._env_steps = 0
        self._columns = leaves(parcel.rows)
        parcel.error.fill(np.nan)
        tree_map(lambda figure: figure.fill(0), parcel.account)
        parcel.account.env_steps_before[...] = env_steps_before
