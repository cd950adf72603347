"""Modules from outside that register heads, torsos, networks and envs: of installed packages, or named by a user.

An installed package names its module as an entry point of the group `hotloop.plugins`. A user names modules in a spec
(`plugins: [my_module]`); whoever reads a spec decides whether they may be imported.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hotloop.errors import SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hotloop.plugins"


@cache
def load_installed() -> bool:
    """Import the plug-ins of installed packages, once; says whether there are any. One that fails is warned of."""
    found = installed()
    for point in found:
        try:
            import_module(point.module)
        except (Exception, SystemExit) as error:  # whatever someone else's code raises: the others go on
            text = f"the plug-in {point.value} cannot be imported: {type(error).__name__}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return bool(found)


def installed() -> list["EntryPoint"]:
    """Entry points of installed packages. The current folder is not a place of these: it may be someone else's."""
    from importlib.metadata import distributions

    here = current_folder()
    places = [place for place in sys.path if place and os.path.realpath(place) != os.path.realpath(here)]
    return [point for package in distributions(path=places) for point in package.entry_points if point.group == GROUP]


def from_outside(modules: Iterable[str]) -> str | None:
    """The first of these modules that is no plug-in of an installed package."""
    named = list(modules)
    known = {point.module for point in installed()} if named else set()
    return next((module for module in named if module not in known), None)


def import_named(modules: Iterable[str], *folders: str) -> None:
    """Import plug-ins that may be; a module that is nowhere else is looked for in these folders."""
    for module in modules:
        for folder in folders:
            look_for(module, folder)
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise SpecError(f"plugins: {not_found(module, error)}") from None
        except (Exception, SystemExit) as error:  # whatever the user's own code raises
            raise SpecError(f"plugins: {module}: {type(error).__name__}: {error}") from error


def not_found(module: str, error: ModuleNotFoundError) -> str:
    """What to say when a module that the user named could not be imported: it is not there, or one that it imports."""
    if error.name and not f"{module}.".startswith(f"{error.name}."):
        return f"the module {module} imports {error.name}, which is neither installed nor in the current folder"
    return f"there is no module {error.name}, installed or in the current folder; is it spelt so?"


def look_for(module: str, folder: str) -> None:
    """Have a module that the user chose, if it is nowhere else, be found in a folder of theirs.

    The folder goes to the end of the path, where it hides nothing; processes that are started inherit the path.
    """
    package = module.partition(".")[0]
    if not package or package in sys.modules:
        return
    with contextlib.suppress(OSError, ValueError):  # a folder that was removed; no name of a module
        if folder and find_spec(package) is None and PathFinder.find_spec(package, [folder]) is not None:
            sys.path.append(folder)


def place_of(module: str, *folders: str) -> str | None:
    """Where a module, or the package it is of, would be imported from, or was: the path, else these folders."""
    package = module.partition(".")[0]
    if package in sys.modules:
        return getattr(sys.modules[package], "__file__", None) or package
    with contextlib.suppress(OSError, ValueError, ImportError):  # a folder that was removed; no name of a module
        found = find_spec(package) or PathFinder.find_spec(package, list(filter(None, folders)))
        if found is not None:
            return found.origin or next(iter(found.submodule_search_locations or ()), None)
    return None


def current_folder() -> str:
    """The current folder; "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_in(folder: str, module: str) -> bool:
    """Whether a module, or the package it is of, was imported from this very folder."""
    package = sys.modules.get(module.partition(".")[0])
    places = getattr(package, "__path__", None) or [getattr(package, "__file__", None)]
    return any(place and os.path.dirname(os.path.realpath(place)) == os.path.realpath(folder) for place in places)
