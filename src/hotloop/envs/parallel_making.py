"""What makes the ParallelEnv of an id: `pettingzoo:module`, `pettingzoo:module:Name`, or one of the user's own."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from hotloop import plugins
from hotloop.envs.gym_types import Options, Raw
from hotloop.envs.host_recording import quieten_pygame
from hotloop.envs.naming import split_id
from hotloop.envs.own import OwnEnvId, is_parallel_env
from hotloop.errors import SpecError, said

Make = Callable[[], Raw]
"""Makes a ParallelEnv."""


def maker_of(env_id: str, options: Options, *, draws: bool = False) -> Make:
    """What makes the ParallelEnv of an id, checked once it is called; raises SpecError for an id that names none."""
    how = {**options, "render_mode": "rgb_array"} if draws else dict(options)
    if isinstance(env_id, OwnEnvId):
        return partial(_made, env_id, env_id.make, dict(options))  # which draws itself as it was made to
    if find_spec("pettingzoo") is None:
        raise SpecError(f"env.id {env_id} needs the package pettingzoo; pip install 'hotloop[multi]'")
    module, name = split_id(env_id)
    quieten_pygame()
    try:
        found: Raw = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise SpecError(f"env.id {env_id}: {plugins.not_found(module, error)}") from None
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env.id {env_id}: {said(error)}") from error
    if not callable(found):
        raise SpecError(
            f"env.id {env_id}: the module {module} has no function or class {name}; name what makes the env: "
            f"pettingzoo:{module}:Name"
        )
    return partial(_made, env_id, found, how)


def _made(env_id: str, make: Callable[..., Raw], options: Mapping[str, Raw]) -> Raw:
    try:
        env = make(**options)
    except TypeError as error:
        raise SpecError(f"env.options: {said(error)}") from error
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"env.id {env_id}: {said(error)}") from error
    if hasattr(env, "agent_iter"):
        raise SpecError(
            f"env.id {env_id} is an AEC env, whose agents act one after the other; expected a ParallelEnv: name its "
            "parallel_env, or wrap it in pettingzoo.utils.aec_to_parallel"
        )
    if not is_parallel_env(env):
        missing = "without possible_agents" if callable(getattr(env, "observation_space", None)) else "no ParallelEnv"
        raise SpecError(f"env.id {env_id} made a {type(env).__name__}, {missing}; expected a PettingZoo ParallelEnv")
    return env
