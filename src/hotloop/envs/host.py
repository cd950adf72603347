"""Any Gymnasium vector env as one kind of step: what was seen, what came of it, and where the next step begins.

All three of Gymnasium's autoreset modes come out the same: `final_obs` is the state a step led to, `obs` the one the
next step starts from, and a step in which an env was only reset is not `valid`: nothing was done in it.
"""

import os
from functools import partial
from typing import TypedDict, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from hotloop import plugins, registry
from hotloop.envs.gym_types import Env, Infos, Options, Raw, TimeLimit, VectorEnv, Wrap
from hotloop.envs.host_spaces import ShowsChosen, spaces_of
from hotloop.envs.misfits import REMEDY, GivesWhatItSays
from hotloop.envs.naming import import_registering, split_id
from hotloop.envs.own import OwnEnvId, device_env_of, in_processes, one_env
from hotloop.envs.serial import MASK, SerialEnvs
from hotloop.errors import EnvFailed, NotFinite, SpecError
from hotloop.experience import VectorStep
from hotloop.interrupts import interrupts_held_back
from hotloop.random_streams import generator_from_array, generator_to_array
from hotloop.trees import Arrays, leaves, tree_map


def make_vector_env(
    env_id: str,
    num_envs: int,
    options: Options,
    vectorization: str = "auto",
    info_keys: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
) -> VectorEnv:
    """Build N envs: by the env's own vector entry point if it has one, else one after the other, or in processes.

    `info_keys` and `observe` are what must be there of infos and Dict observations; the rest may be.
    """
    make = partial(env_id.make, **options) if isinstance(env_id, OwnEnvId) else None
    try:
        if (device := device_env_of(env_id, options)) is not None:
            from hotloop.envs.device_contract import require_contract

            require_contract(device)
        if vectorization in ("auto", "native") and device is not None:
            from hotloop.envs.gymnasium import GymnasiumVectorEnv

            return GymnasiumVectorEnv(device, num_envs)
        if vectorization == "async" and registry.is_device_env(env_id):
            raise SpecError(f"env.vectorization is async, but {env_id} is a device env, stepped in one call; use auto")
        is_native = make is None and not registry.is_device_env(env_id)
        is_native = is_native and gym.spec(import_registering(env_id)).vector_entry_point is not None
        if vectorization == "native" and not is_native:
            raise SpecError(f"env.vectorization is native, but {env_id} has no vector entry point; use sync or async")
        if vectorization == "native" or (vectorization == "auto" and is_native):
            return gym.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **options)
        if vectorization == "async":
            # Reset by us: with SAME_STEP Gymnasium keeps the last observation of an env that reuses its array, and
            # the reset then overwrites it.
            reset_by_us = {"autoreset_mode": AutoresetMode.DISABLED, "context": "spawn"}
            wrappers: list[Wrap] = [partial(ShowsChosen, observe=observe)] if observe else []
            wrappers.append(GivesWhatItSays)
            with interrupts_held_back():
                if make is not None:
                    return in_processes(make, num_envs, wrappers, **reset_by_us)
                return gym.make_vec(env_id, num_envs, "async", reset_by_us, wrappers, **options)
        threads = min(num_envs, os.cpu_count() or 1) if vectorization == "threads" else 1
        return SerialEnvs(make or (lambda: one_env(env_id, **options)), num_envs, info_keys, threads)
    except SpecError:
        raise
    except ModuleNotFoundError as error:
        if error.name in EXTRAS:
            extra = EXTRAS[error.name]
            raise SpecError(f"env.id {env_id} needs the package {error.name}; pip install 'hotloop[{extra}]'") from None
        raise SpecError(
            f"env.id {env_id}: {plugins.not_found(split_id(env_id)[0] or str(error.name), error)}"
        ) from None
    except gym.error.UnregisteredEnv:
        ours = f"known: {', '.join(registry.ENVS)}, and any Gymnasium id (module:Id imports the module first)"
        module = env_id.rpartition(":")[0]
        known = [f"{module}:{each}" for each in gym.registry] if module else [*registry.ENVS, *gym.registry]
        hint = registry.nearest(env_id, known, otherwise=ours)
        raise SpecError(f"env.id: unknown env '{env_id}'; {hint}") from None
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env.id {env_id}: {type(error).__name__}: {error}") from error


EXTRAS = {"ale_py": "atari", "Box2D": "box2d", "pygame": "box2d"}
"""Packages that envs of Gymnasium's own need, and the extra that brings them."""


def open_envs(
    env_id: str,
    num_envs: int,
    options: Options,
    vectorization: str = "auto",
    info_keys: tuple[str, ...] = (),
    observe: tuple[str, ...] = (),
) -> "HostEnvs":
    """Build N envs, watched over; when their spaces cannot be learned from, they are closed again."""
    made = make_vector_env(env_id, num_envs, options, vectorization, info_keys, observe)
    try:
        return HostEnvs(made, info_keys, observe)
    except BaseException:
        made.close()
        raise


class HowToReset(TypedDict, total=False):
    """One of the two: all envs by a seed, or some of them, as Gymnasium has it."""

    seed: int
    options: dict[str, np.ndarray]


class EnvArrays(TypedDict, total=False):
    """What a checkpoint keeps of envs: all of their state, or their random numbers, or nothing."""

    state: dict[str, Arrays]
    elapsed: np.ndarray
    ended: np.ndarray
    legal: np.ndarray
    random: np.ndarray


class HostEnvs:
    """A Gymnasium vector env, watched over; `legal` is what the next step may do, with masks on."""

    def __init__(self, env: VectorEnv, info_keys: tuple[str, ...] = (), observe: tuple[str, ...] = ()) -> None:
        """`observe`: keys of a Dict observation that are seen; all by default."""
        self.env, self.num_envs, self.info_keys, self._observe = env, int(env.num_envs), info_keys, observe
        self.spaces = spaces_of(
            env.single_observation_space, env.single_action_space, observe, draws=_says_it_can_draw(env)
        )
        self.observations, self.actions = self.spaces.observations, self.spaces.actions
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self.autoreset = AutoresetMode(mode) if not isinstance(mode, AutoresetMode) else mode
        self._ended, self._none = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        self._missing = np.full(self.num_envs, np.nan)
        self.legal: np.ndarray | None = None
        self._env_id, self._is_closed = "", False
        self._no_masks = np.zeros((self.num_envs, self.actions.size), bool)
        self._shapes = [(self.num_envs, *leaf.shape) for leaf in leaves(self.observations.shapes)]

    def mask_actions(self, env_id: str) -> None:
        """From the next reset on, read which actions are legal; the env is called `env_id` if it does not say so."""
        self.legal, self._env_id = self._no_masks, env_id

    def reset(self, seed: int) -> Arrays:
        """Begin an episode in every env."""
        self._ended = np.zeros(self.num_envs, bool)
        everyone = np.ones(self.num_envs, bool)
        return self._reset(everyone, seed=seed % (2**31 - self.num_envs))  # each seed must fit 32 bits with a sign

    def restart(self, which_N: np.ndarray) -> Arrays:
        """Begin new episodes in some envs, where the env leaves that to us; None where it does not."""
        if self.autoreset != AutoresetMode.DISABLED:
            return None
        return self._reset(which_N, options={"reset_mask": which_N})

    def _reset(self, which_N: np.ndarray, **how: Unpack[HowToReset]) -> Arrays:
        try:
            obs, infos = self.env.reset(**how)
        except EnvFailed:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise EnvFailed(f"the env raised {type(error).__name__} in its reset: {error}") from error
        if self.legal is not None:
            self.legal = np.where(which_N[:, None], self._masks(infos, which_N, "in a reset"), self.legal)
        try:
            seen = self._seen(obs)
        except EnvFailed:
            raise
        except Exception as error:  # whatever can be wrong with what it gave
            raise EnvFailed(f"what the env gave in its reset cannot be read: {_said(error)}") from error
        self._refuse_observations(seen, " in a reset")
        return seen

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Act in every env."""
        try:
            obs, reward, terminated, truncated, infos = self.env.step(self.actions.decode(chosen_N))
        except EnvFailed:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise EnvFailed(f"the vector env raised {_said(error)}") from error
        try:
            return self._read(chosen_N, obs, reward, terminated, truncated, infos)
        except (EnvFailed, NotFinite, SpecError):
            raise
        except Exception as error:  # whatever can be wrong with what it gave
            raise EnvFailed(f"what the env gave in a step cannot be read: {_said(error)}") from error

    def _read(
        self, chosen_N: np.ndarray, obs: Raw, reward: Raw, terminated: Raw, truncated: Raw, infos: Infos
    ) -> VectorStep:
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        seen = self._seen(obs)
        ended, failed = terminated | truncated, infos.get("failed", self._none)
        final, began, valid = seen, ended, ~failed
        info = {key: self._info(key, infos, ended) for key in self.info_keys}
        final_legal = None if self.legal is None else self._legal_after(infos, terminated, ended)
        if self.autoreset == AutoresetMode.NEXT_STEP:
            valid = ~self._ended  # an env that had ended was reset in this step, and nothing else
            began, self._ended = self._ended, ended & valid
        elif self.autoreset == AutoresetMode.SAME_STEP and ended.any():
            final = self._with_final(seen, infos, ended)
            self._refuse_observations(seen)
        reward = np.array(reward, np.float32)
        self._refuse_rewards(reward, valid)
        self._refuse_observations(final)  # of all envs: one that was only reset, or built anew, gave one too
        if self.autoreset == AutoresetMode.DISABLED and ended.any():
            seen = self.restart(ended)
        terminated, truncated, began = terminated & valid, truncated & valid, began | failed
        return VectorStep(
            seen,
            final,
            chosen_N,
            reward,
            terminated,
            truncated,
            valid,
            began,
            final_legal,
            self.legal,
            failed,
            info,
        )

    def _info(self, key: str, infos: Infos, ended: np.ndarray) -> np.ndarray:
        """One key of the infos; where an episode ended it must be there."""
        source = infos
        if self.autoreset == AutoresetMode.SAME_STEP and ended.any():
            source = infos.get("final_info", infos)
        try:
            values = np.asarray(source.get(key, self._missing), np.float64)
        except (TypeError, ValueError):
            raise SpecError(f"env.info: '{key}' is not a number") from None
        values = np.where(source.get(f"_{key}", True), values, np.nan)  # Gymnasium fills what is missing with zeros
        is_complete = key in source and f"_{key}" not in source and not hasattr(self.env, "last_info_keys")
        if ended.any() and not is_complete and np.isnan(values[ended]).any():
            given = sorted(name for name in source if not name.startswith("_"))
            known = getattr(self.env, "last_info_keys", given)
            raise SpecError(f"env.info: the env gave no '{key}' at the end of an episode; it gave {known}")
        return values

    def _legal_after(self, infos: Infos, terminated: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """The masks of the states a step led to; takes over those of the states the next one starts from.

        Nothing follows a terminal state, so its mask may be missing.
        """
        if self.autoreset != AutoresetMode.SAME_STEP:
            final = self.legal = self._masks(infos, ~terminated, "in a step")
            return final
        self.legal = self._masks(infos, ~self._none, "in a step")
        if not ended.any():
            return self.legal
        last = self._masks(infos.get("final_info", {}), ended & ~terminated, "in infos['final_info']")
        return np.where(ended[:, None], last, self.legal)

    def _masks(self, infos: Infos, needed_N: np.ndarray, where: str) -> np.ndarray:
        """Which actions each env calls legal, bool (N, A), nothing where it says none; where needed it must."""
        given: Raw = infos.get(MASK)
        is_given = infos.get(f"_{MASK}")
        legal = self._no_masks.copy()
        is_whole = isinstance(given, np.ndarray) and given.shape == legal.shape and given.dtype.kind in "biuf"
        if is_whole and (is_given is None or is_given.all()):
            masks: np.ndarray = given.astype(bool)
            return masks
        for i in range(self.num_envs):
            one = given[i] if given is not None and (is_given is None or is_given[i]) else None
            if one is not None:
                legal[i] = self.spaces.mask(one, self._env_id)
            elif needed_N[i]:
                known = sorted(name for name in infos if not name.startswith("_") and name != MASK)
                raise SpecError(
                    f"env.action_mask is true, but {self._env_id} gave no info['{MASK}'] {where} (it gave "
                    f"{known or 'nothing'}); let the env name its legal actions there, or leave env.action_mask out"
                )
        return legal

    def goals(self, env_id: str, options: Options) -> Env:
        """An env apart, which says what a step would earn with another goal (`compute_reward`)."""
        space = self.spaces.observation
        goal = space.spaces.get("achieved_goal") if isinstance(space, gym.spaces.Dict) else None
        if goal is not None and not isinstance(goal, gym.spaces.Box | gym.spaces.MultiBinary):
            raise SpecError(f"replay.hindsight needs goals that are Box or MultiBinary; this env's are {goal}")
        try:
            return one_env(env_id, **options).unwrapped
        except Exception as error:  # whatever the user's own code raises
            raise SpecError(f"replay.hindsight needs one env by itself as a judge: {_said(error)}") from error

    @property
    def failures(self) -> int:
        """Times an env raised and was built anew."""
        return int(getattr(self.env, "failures", 0))

    @property
    def last_failure(self) -> str:
        """What the env that last had to be built anew had raised."""
        return str(getattr(self.env, "last_failure", ""))

    def close(self) -> None:
        """Let the envs go; what cannot be closed must not end a run that is saved."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.env.close()
        except Exception:  # such as the error of a process that has died
            for process in getattr(self.env, "processes", []):
                process.terminate()
                process.join()
            if isinstance(self.env, gym.vector.VectorEnv):
                self.env.closed = True  # else it tries again when it is collected

    # -- saving ----------------------------------------------------------------------------------------

    def arrays(self) -> EnvArrays:
        """What a checkpoint can hold of the envs: all of their state if they offer it, else their random numbers.

        An env offers it with `get_state() -> tree of arrays` and `set_state(tree)`; shapes must not change.
        """
        envs = self._envs()
        parts = [env.unwrapped for env in envs]
        limits = [_time_limits(env) for env in envs]
        if all(limit is not None for limit in limits) and all(_can_be_saved(part) for part in parts):
            states = {str(i): tree_map(np.asarray, part.get_state()) for i, part in enumerate(parts)}
            if all(leaf.dtype.kind in "biuf" for leaf in leaves(states)):
                elapsed = np.array([[limit._elapsed_steps or 0 for limit in each or []] for each in limits], np.int64)
                saved: EnvArrays = {"state": states, "elapsed": elapsed, "ended": self._ended}
                if self.legal is not None:
                    saved["legal"] = self.legal
                return saved
        generators = [getattr(part, "_np_random", None) for part in parts]  # None where the env has not made one
        if any(not isinstance(getattr(g, "bit_generator", None), np.random.PCG64) for g in generators):
            return {}
        return {"random": np.stack([generator_to_array(generator) for generator in generators if generator])}

    def restore(self, arrays: EnvArrays) -> bool:
        """Take back what `arrays` gave, after a reset; returns whether the episodes go on where they were."""
        for i, env in enumerate(self._envs()):
            if "state" in arrays:
                env.unwrapped.set_state(arrays["state"][str(i)])
                for limit, elapsed in zip(_time_limits(env) or [], arrays["elapsed"][i], strict=True):
                    limit._elapsed_steps = int(elapsed)  # type: ignore[assignment]
            elif "random" in arrays:
                env.unwrapped.np_random = generator_from_array(arrays["random"][i])
        if "state" in arrays:
            self._ended = np.array(arrays["ended"])
            if self.legal is not None:
                self.legal = np.array(arrays["legal"])
        return "state" in arrays

    def _envs(self) -> list[Raw]:
        return self.env.envs if isinstance(self.env, SerialEnvs) else [self.env]

    def _seen(self, obs: Raw) -> Arrays:
        seen = self.observations.encode(obs)
        for leaf, shape in zip(_leaves(seen), self._shapes, strict=True):
            if leaf.shape != shape:
                raise _another_shape("the env gave observations", leaf, shape)
        return seen

    def _with_final(self, seen: Arrays, infos: Infos, ended: np.ndarray) -> Arrays:
        """The last observations of ended episodes in place of the first ones of the next."""
        last = infos.get("final_obs")
        if last is None:
            raise SpecError(
                "the env says autoreset_mode SAME_STEP but gives no infos['final_obs'] where an episode ends; "
                "its last observations are lost"
            )
        if self._observe and isinstance(last, dict):
            last = {name: last[name] for name in self._observe}
        final = tree_map(np.copy, seen)
        for i in np.flatnonzero(ended):
            one = tree_map(lambda leaf: np.asarray(leaf)[None], _one_of(last, int(i)))
            encoded = self.observations.encode(one)
            for new, shape in zip(_leaves(encoded), self._shapes, strict=True):
                if new.shape[1:] != shape[1:]:  # NumPy would spread one number over all
                    raise _another_shape(f"env {i} gave a last observation", new, shape)
            tree_map(lambda kept, new, i=i: kept.__setitem__(i, new[0]), final, encoded)
        return final

    def _refuse_rewards(self, reward_N: np.ndarray, valid_N: np.ndarray) -> None:
        """NaN never enters the replay: name the env and stop."""
        bad_N = valid_N & ~np.isfinite(reward_N)
        if bad_N.any():
            raise NotFinite(f"env {int(np.flatnonzero(bad_N)[0])} gave a reward that is not finite")

    def _refuse_observations(self, obs: Arrays, where: str = "") -> None:
        """The same for observations, whichever part of them it is."""
        for leaf in _leaves(obs):
            if leaf.dtype == np.float32 and not np.isfinite(leaf).all():
                bad_N = ~np.isfinite(leaf.reshape(self.num_envs, -1)).all(axis=1)
                raise NotFinite(f"env {int(np.flatnonzero(bad_N)[0])} gave an observation{where} that is not finite")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _another_shape(what: str, seen: np.ndarray, expected: tuple[int, ...]) -> EnvFailed:
    return EnvFailed(f"{what} of shape {seen.shape[1:]}, its space says {expected[1:]}; {REMEDY}")


def _leaves(obs: Arrays) -> list[np.ndarray]:
    return [obs] if type(obs) is np.ndarray else leaves(obs)  # each vector step asks, and most are one array


def _says_it_can_draw(env: VectorEnv) -> bool:
    """Whether metadata name pictures among what an env of this vector env can render.

    One that is made by a function, and as a vector from the start, may say nothing before it is tried.
    """
    if isinstance(env, SerialEnvs):
        return "rgb_array" in (env.envs[0].metadata.get("render_modes") or ())
    entry_point = getattr(getattr(env, "spec", None), "entry_point", None)
    if entry_point is None:  # there is no such env alone
        return "rgb_array" in (env.metadata.get("render_modes") or ())
    maker = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    says = getattr(maker, "metadata", {"render_modes": env.metadata.get("render_modes", ["rgb_array"])})
    return "rgb_array" in (says.get("render_modes") or ())


def _can_be_saved(env: object) -> bool:
    return callable(getattr(env, "get_state", None)) and callable(getattr(env, "set_state", None))


def _time_limits(env: Raw) -> list[TimeLimit] | None:
    """The time limits around an env; None if a wrapper around it may have a state that nobody can save."""
    limits = []
    while env is not env.unwrapped:
        if isinstance(env, gym.wrappers.TimeLimit):
            limits.append(env)
        elif not isinstance(env, gym.wrappers.OrderEnforcing | gym.wrappers.PassiveEnvChecker):
            return None
        env = env.env
    return limits


def _one_of(last: Raw, index: int) -> Raw:
    """One env's final observation: Gymnasium gives an object array, or a batch (a tree of arrays)."""
    if isinstance(last, dict):
        return {name: _one_of(part, index) for name, part in last.items()}
    if isinstance(last, tuple):
        return tuple(_one_of(part, index) for part in last)
    return last[index]
