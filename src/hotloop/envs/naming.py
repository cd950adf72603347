"""The module that an env id names: where it is looked for, and which ones a run from elsewhere may name."""

import contextlib
import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from hotloop import registry
from hotloop.errors import SpecError
from hotloop.spec import Spec

SUPPORTED_MODULES = ("ale_py", "hotloop.envs.bit_flip", "hotloop.envs.gymnasium", "hotloop.envs.mario")
"""What a run from elsewhere may have imported."""
SUPPORTED_PACKAGES = ("ale_py", "gymnasium", "hotloop")
"""Where the envs it names must be written."""
OF_GYMNASIUM = ("disable_env_checker", "id", "num_envs", "vector_kwargs", "vectorization_mode", "wrappers")
"""Arguments of Gymnasium's `make` and `make_vec` that are no options of an env."""


def split_id(env_id: str) -> tuple[str, str]:
    """The module that a Gymnasium id names, "" for none, and the name under which it registers the env."""
    module, colon, name = env_id.rpartition(":")
    if ":" in module or (colon and not module):
        raise SpecError(f"env.id: {env_id[:80]!r} cannot be read; expected a Gymnasium id, or module:Id")
    return ("ale_py" if not module and name.startswith("ALE/") else module), name


def import_registering(env_id: str) -> str:
    """Import the module of a Gymnasium id, which registers the env; returns the id without it."""
    module, name = split_id(env_id)
    if module:
        import_module(module)
    return name


def look_in_current_folder(env_id: str) -> None:
    """Have the module of an id that the user has just given be found in the current folder, too."""
    with contextlib.suppress(OSError):  # a folder that was removed
        look_for_module_in(os.getcwd(), env_id)


def look_for_module_in(folder: str, env_id: str) -> None:
    """Have the module of an id that the user chose, if it is nowhere else, be found in a folder of theirs.

    It goes to the end of the path, where it hides nothing; processes that are started inherit the path.
    """
    if registry.is_device_env(env_id):
        return
    package = split_id(env_id)[0].partition(".")[0]
    if not package or package in sys.modules:
        return
    with contextlib.suppress(OSError, ValueError):  # a folder that was removed; no name of a module
        if folder and find_spec(package) is None and PathFinder.find_spec(package, [folder]) is not None:
            sys.path.append(folder)


def folder_of_module(env_id: str) -> str:
    """The current folder, if the module that an id names was found in it; else "".

    A run remembers it, so that its maker can load it from elsewhere; a module that is installed is found anyway.
    """
    package = "" if registry.is_device_env(env_id) else split_id(env_id)[0].partition(".")[0]
    module = sys.modules.get(package)
    places = getattr(module, "__path__", None) or [getattr(module, "__file__", None)]
    try:
        here = os.getcwd()
        is_here = any(place and os.path.dirname(os.path.realpath(place)) == os.path.realpath(here) for place in places)
    except OSError:  # a folder that was removed
        return ""
    return here if is_here else ""


def from_outside(spec: Spec) -> str | None:
    """What a spec names that is neither hotloop's nor of the env packages it supports, in words; None for nothing."""
    env = spec.env
    if registry.is_device_env(env.id):  # made from our own registry, whatever its name
        return None
    for path, options in (("env.options", env.options), ("evaluation.options", spec.evaluation.options)):
        if found := sorted(set(OF_GYMNASIUM) & set(options)):
            return f"{path}.{found[0]}, an argument of Gymnasium's own"
    module, name = split_id(env.id)
    if module and module not in SUPPORTED_MODULES:
        return f"the module {module[:80]!r}"
    import gymnasium

    with contextlib.suppress(ImportError):  # an extra that is not installed: making the env will say so
        import_registering(env.id)
    registered = gymnasium.registry.get(name)
    if registered is None:
        return None
    wrappers = [wrapper.entry_point for wrapper in registered.additional_wrappers]
    for target in (registered.entry_point, registered.vector_entry_point, *wrappers):
        if target is not None and _module(target).partition(".")[0] not in SUPPORTED_PACKAGES:
            return f"the env {name[:80]!r} of the module {_module(target)!r}"
    return None


def _module(target: Any) -> str:
    """Where an entry point lies: `module:attr`, or a class or function."""
    return target.partition(":")[0] if isinstance(target, str) else str(getattr(target, "__module__", "?"))
