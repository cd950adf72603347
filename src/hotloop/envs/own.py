"""An env that a user brings along from Python: an instance, or a factory that makes them."""

import contextlib
import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self, TypeGuard

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing

from hotloop import registry
from hotloop.envs.gym_types import Env, Make, Options, Raw, Wrap
from hotloop.errors import SpecError
from hotloop.spec.reading import OWN_ENV

if TYPE_CHECKING:
    from hotloop.envs.device import DeviceEnv

EXPECTED = "a section (mapping), an id, a Gymnasium env, a device env, or a function that makes one of the two"


class OwnEnvId(str):
    """The id of a Gymnasium env of the user's own; beside its name it knows how one is made.

    It goes wherever the spec goes in this process; what is written of the spec is the name alone.
    """

    make: Make
    device: "DeviceEnv | None"

    def __new__(cls, name: str, make: Make, device: "DeviceEnv | None" = None) -> Self:
        """Name it; `make(**options)` makes one. `device` is what is stepped behind it, if that is a device env."""
        made = super().__new__(cls, f"{OWN_ENV}{name}")
        made.make, made.device = make, device
        return made

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class OwnEnv(NamedTuple):
    """What was given, understood: `device` is a device env; else envs are made by their ids."""

    name: str
    device: "DeviceEnv | None" = None
    trained: OwnEnvId | None = None
    """Makes the envs that are trained on."""
    played: OwnEnvId | None = None
    """Makes those of evaluations and recordings: of an instance copies, or an error that says why not."""
    is_instance: bool = False
    can_be_played: bool = True
    """False for an instance that cannot be copied."""
    has_agents: bool = False
    """Whether several agents act in it."""


def understand(given: object, options: Options) -> OwnEnv:
    """Find out what a user gave as `env`; a factory is called once with the options, and what it made is closed."""
    if not isinstance(given, type):
        if isinstance(given, gym.Env):
            return _instance(given, options)
        if _is_device_env(given):
            return _on_device(given)
        if is_parallel_env(given):
            name = type(given).__qualname__
            raise SpecError(f"env is one instance of {name}, a ParallelEnv; give a factory, a function that makes it")
    if isinstance(given, VectorEnv) or not callable(given):
        raise SpecError(f"env is {type(given).__qualname__}, expected {EXPECTED}")
    try:
        made = given(**options)
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env: {_called(given)} raised {type(error).__name__}: {error}") from error
    if isinstance(made, gym.Env) or is_parallel_env(made):
        name = type(made.unwrapped).__qualname__
        with contextlib.suppress(Exception):  # whatever the user's own code raises
            made.close()
        identity = OwnEnvId(name, given)
        return OwnEnv(name, trained=identity, played=identity, has_agents=is_parallel_env(made))
    if _is_device_env(made):
        return _on_device(made)
    raise SpecError(f"env: {_called(given)} made {type(made).__qualname__}, expected a Gymnasium env or a device env")


def stepped_on_host(found: OwnEnv) -> OwnEnv:
    """The same env, as a Gymnasium env if it is a device env."""
    if (device := found.device) is None:
        return found
    from hotloop.envs.gymnasium import GymnasiumEnv

    identity = OwnEnvId(found.name, lambda **_: GymnasiumEnv(device), device)  # which was made with its options
    return found._replace(device=None, trained=identity, played=identity)


def device_env_of(env_id: str, options: Options) -> "DeviceEnv | None":
    """The device env that an id names, or that stands behind it; None if it is a Gymnasium env."""
    if isinstance(env_id, OwnEnvId):
        return env_id.device
    if not registry.is_device_env(env_id):
        return None
    from hotloop.envs.device import make_env

    return make_env(env_id, options)


def one_env(env_id: str, **options: Raw) -> Env:
    """One Gymnasium env by its id; one of the user's own draws itself as it was made to."""
    render_mode = options.pop("render_mode", None)
    if (device := device_env_of(env_id, options)) is not None:
        from hotloop.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(device, render_mode)
    if not isinstance(env_id, OwnEnvId):
        how = {} if render_mode is None else {"render_mode": render_mode}
        return gym.make(env_id, disable_env_checker=True, **how, **options)
    return env_id.make(**options)


def in_processes(make: Callable[[], Env], num_envs: int, wrappers: list[Wrap], **how: Raw) -> AsyncVectorEnv:
    """Envs of the user's own in processes of their own, which get `make` by cloudpickle."""
    return AsyncVectorEnv([partial(_wrapped, make, wrappers)] * num_envs, **how)


def _wrapped(make: Callable[[], Env], wrappers: list[Wrap]) -> Env:
    env = make()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _instance(env: Env, options: Options) -> OwnEnv:
    name = type(env.unwrapped).__qualname__
    if options:
        raise SpecError(f"env is one instance of {name}, which is made already: env.options are for a factory")

    def copied() -> Env:
        try:
            return copy.deepcopy(env)
        except Exception as error:  # whatever the user's own code raises
            raise SpecError(
                f"env is one instance of {name} and cannot be copied ({type(error).__name__}: {error}); give a factory"
            ) from error

    can_be_played = True
    try:
        copied().close()
    except Exception:  # it cannot be copied, or its copy cannot be closed
        can_be_played = False
    trained, played = OwnEnvId(name, lambda: _Lent(env)), OwnEnvId(name, copied)
    return OwnEnv(name, trained=trained, played=played, is_instance=True, can_be_played=can_be_played)


class _Lent(OrderEnforcing[Raw, Raw]):
    """The user's own instance, which stays open: whoever made it closes it."""

    def close(self) -> None:
        """Leave it open."""


def _is_device_env(env: object) -> "TypeGuard[DeviceEnv]":
    return all(hasattr(env, name) for name in ("obs_spec", "num_actions", "reset", "step"))


def _on_device(env: "DeviceEnv") -> OwnEnv:
    return OwnEnv(type(env).__qualname__, device=env, has_agents=hasattr(env, "num_agents"))


def is_parallel_env(env: object) -> "TypeGuard[Raw]":
    """Whether it works as PettingZoo's ParallelEnv does."""
    return hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None))


def _called(factory: object) -> str:
    return str(getattr(factory, "__qualname__", type(factory).__qualname__))
