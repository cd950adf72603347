"""The module that an env id names: where it is looked for, and which ones a run from elsewhere may name."""

import contextlib
from importlib import import_module

from hotloop import plugins, registry
from hotloop.errors import SpecError
from hotloop.registry import PETTINGZOO
from hotloop.spec import Spec

SUPPORTED_MODULES = ("ale_py", "hotloop.envs.bit_flip", "hotloop.envs.gymnasium", "hotloop.envs.mario")
"""What a run from elsewhere may have imported."""
SUPPORTED_PACKAGES = ("ale_py", "gymnasium", "hotloop")
"""Where the envs it names must be written."""
OF_GYMNASIUM = ("disable_env_checker", "id", "num_envs", "vector_kwargs", "vectorization_mode", "wrappers")
"""Arguments of Gymnasium's `make` and `make_vec` that are no options of an env."""


def split_id(env_id: str) -> tuple[str, str]:
    """The module that an id names, "" for none, and the name under which it registers the env.

    Of a PettingZoo env that is what makes it: by default the module's `parallel_env`.
    """
    if env_id.startswith(PETTINGZOO):
        module, colon, name = env_id.removeprefix(PETTINGZOO).partition(":")
        if not module or ":" in name or (colon and not name):
            raise SpecError(
                f"env.id: {env_id[:80]!r} cannot be read; expected {PETTINGZOO}module, or {PETTINGZOO}module:Name"
            )
        return module, name or "parallel_env"
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
    look_for_module_in(plugins.current_folder(), env_id)


def look_for_module_in(folder: str, env_id: str) -> None:
    """Have the module of an id that the user chose, if it is nowhere else, be found in a folder of theirs."""
    if not registry.is_device_env(env_id):
        plugins.look_for(split_id(env_id)[0], folder)


def folder_of_modules(spec: Spec) -> str:
    """The current folder, if a module that a spec names (of its env, or a plug-in) was found in it; else "".

    A run remembers it, so that its maker can load it from elsewhere; a module that is installed is found anyway.
    """
    here, env_id = plugins.current_folder(), spec.env.id
    modules = [*spec.plugins, "" if registry.is_device_env(env_id) else split_id(env_id)[0]]
    return here if here and any(plugins.is_in(here, module) for module in modules) else ""


def from_outside(spec: Spec) -> str | None:
    """What a spec names that is neither hotloop's nor of the packages it may name, in words; None for nothing."""
    plugin = plugins.from_outside(spec.plugins)
    return env_from_outside(spec) if plugin is None else f"the module {plugin[:80]!r}"


def env_from_outside(spec: Spec) -> str | None:
    """The same of its env alone: those of hotloop, of installed plug-ins and of the packages it supports are not."""
    env = spec.env
    if registry.is_device_env(env.id):  # made from the registry, whatever its name
        return None
    for path, options in (("env.options", env.options), ("evaluation.options", spec.evaluation.options)):
        if found := sorted(set(OF_GYMNASIUM) & set(options)):
            return f"{path}.{found[0]}, an argument of Gymnasium's own"
    module, name = split_id(env.id)
    if module and (module not in SUPPORTED_MODULES or env.id.startswith(PETTINGZOO)):
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


def _module(target: object) -> str:
    """Where an entry point lies: `module:attr`, or a class or function."""
    return target.partition(":")[0] if isinstance(target, str) else str(getattr(target, "__module__", "?"))
