"""Gymnasium envs stepped in this process; one that raises is built anew and the others go on.

One after the other, or by threads: an emulator that works outside of Python's lock then uses several cores.
"""

import contextlib
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from hotloop.envs.gym_types import Env, Infos, Raw, Space
from hotloop.envs.misfits import refuse_misfit
from hotloop.errors import EnvFailed

FAILURES_IN_A_ROW = 10
"""So many steps in a row of one env that raise end the run: it will not work the next time either."""
MASK = "action_mask"
"""The key of `info` under which an env names its legal actions."""


class SerialEnvs:
    """A vector env without autoreset. Gymnasium's own loses the whole vector step when one env raises."""

    metadata: dict[str, object] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(
        self, make: Callable[[], Env], num_envs: int, info_keys: tuple[str, ...] = (), threads: int = 1
    ) -> None:
        self._make, self.num_envs, self._info_keys = make, num_envs, info_keys
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="envs") if threads > 1 else None
        self.envs: list[Env] = []
        try:
            for _ in range(num_envs):
                self.envs.append(make())
        except BaseException:
            self.close()  # those that could be made
            raise
        self.single_observation_space: Space = self.envs[0].observation_space
        self.single_action_space: Space = self.envs[0].action_space
        self._seed, self.failures, self._in_a_row = 0, 0, np.zeros(num_envs, np.int64)
        self.last_failure = ""
        self.last_info_keys: list[str] = []  # of the env that last ended an episode
        self._is_array = isinstance(self.single_observation_space, gym.spaces.Box)
        self._shape = self.single_observation_space.shape
        self._out: Raw = create_empty_array(self.single_observation_space, num_envs)
        self._seen: list[Raw] = [None] * num_envs
        self._masks: list[Raw] = [None] * num_envs  # what each env last gave as its `action_mask`

    def reset(self, *, seed: int | None = None, options: dict[str, np.ndarray] | None = None) -> tuple[Raw, Infos]:
        """Begin an episode in every env, or in those of `options["reset_mask"]`."""
        if seed is not None:
            self._seed = seed
        mask = (options or {}).get("reset_mask")
        for i in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            try:
                self._seen[i], info = self.envs[i].reset(seed=None if seed is None else (seed + int(i)) % 2**32)
                self._masks[i] = _mask(info)
            except Exception as error:  # whatever the user's own code raises
                self._rebuild(int(i), error)
        return self._observations(), {MASK: self._masks}

    def step(self, actions: np.ndarray) -> tuple[Raw, np.ndarray, np.ndarray, np.ndarray, Infos]:
        """Step every env; `infos["failed"]` marks those that raised: they have begun a new episode instead."""
        count = self.num_envs
        reward, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        infos: Infos = {MASK: self._masks, **{key: np.full(count, np.nan) for key in self._info_keys}}
        for i, stepped in enumerate((self._pool.map if self._pool else map)(_step, self.envs, actions)):
            if isinstance(stepped, Exception):
                self._rebuild(i, stepped)
                infos.setdefault("failed", np.zeros(count, bool))[i] = True
                continue
            self._seen[i], reward[i], terminated[i], truncated[i], info = stepped
            self._in_a_row[i], self._masks[i] = 0, _mask(info)
            if terminated[i] or truncated[i]:
                self.last_info_keys = sorted(map(str, info))
            for key in self._info_keys:
                if key in info:
                    infos[key][i] = info[key]
        return self._observations(), reward, terminated, truncated, infos

    def close(self) -> None:
        """Let the envs go."""
        if self._pool:
            self._pool.shutdown()
        for env in self.envs:
            with contextlib.suppress(Exception):  # one that cannot be closed must not keep the others open
                env.close()

    def _observations(self) -> Raw:
        space = self.single_observation_space
        if self._is_array:
            for i, seen in enumerate(self._seen):
                if getattr(seen, "shape", None) != self._shape:  # NumPy would spread one number over all
                    refuse_misfit(space, seen, f"env {i}")
                self._out[i] = seen
            return self._out
        try:
            return concatenate(space, self._seen, self._out)
        except Exception:  # whatever can be wrong with what they gave
            for i, seen in enumerate(self._seen):
                refuse_misfit(space, seen, f"env {i}")
            raise

    def _rebuild(self, i: int, error: Exception) -> None:
        self.failures += 1
        self._in_a_row[i] += 1
        self.last_failure = raised_by(error)
        if self._in_a_row[i] >= FAILURES_IN_A_ROW:
            raise keeps_failing(i, error) from error
        with contextlib.suppress(Exception):  # it is broken already
            self.envs[i].close()
        seed = seed_of_rebuilt(self._seed, i, self.failures)
        try:
            self.envs[i] = self._make()
            self._seen[i], info = self.envs[i].reset(seed=seed)
            self._masks[i] = _mask(info)
        except Exception as again:
            self._rebuild(i, again)


def raised_by(error: Exception) -> str:
    """What an env raised, and where in its code."""
    said, frames = f"{type(error).__name__}: {error}", traceback.extract_tb(error.__traceback__)
    return f"{said} ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else said


def keeps_failing(i: int, error: Exception) -> EnvFailed:
    """What ends a run whose env has raised FAILURES_IN_A_ROW times."""
    return EnvFailed(
        f"env {i} failed {FAILURES_IN_A_ROW} times in a row, each time built anew; the last time with "
        f"{type(error).__name__}: {error}"
    )


def seed_of_rebuilt(seed: int, i: int, failures: int) -> int:
    """The seed of an env that was built anew: another one each time."""
    return int(np.random.SeedSequence([seed, i, failures]).generate_state(1)[0]) % 2**31


def _step(env: Env, action: Raw) -> tuple[Raw, Raw, Raw, Raw, Raw] | Exception:
    """What the env returned, or the error it raised."""
    try:
        return env.step(action)
    except Exception as error:  # whatever the user's own code raises
        return error


def _mask(info: object) -> Raw:
    """What an env says of its legal actions, if anything."""
    return info.get(MASK) if isinstance(info, dict) else None
