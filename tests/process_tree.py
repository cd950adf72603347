"""Processes below one of the tests', some of which end while they are looked at."""

from collections.abc import Callable
from typing import Any

import psutil


def children_of(pid: int | None = None) -> list[tuple[psutil.Process, str]]:
    """Living descendants of a process (of this one), each with its command line."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        if words := of_a_living_one(lambda child=child: child.cmdline()):
            found.append((child, " ".join(words)))
    return found


def actors_of(pid: int | None = None) -> list[psutil.Process]:
    return [child for child, command in children_of(pid) if "actor_process" in command]


def sockets_of(pid: int) -> list[Any]:
    """Internet sockets of a process and all its descendants."""
    tree = [psutil.Process(pid), *(child for child, _ in children_of(pid))]
    return [found for one in tree for found in of_a_living_one(lambda one=one: one.net_connections(kind="inet"))]


def of_a_living_one(read: Callable[[], list[Any]]) -> list[Any]:
    """Nothing, of a process that has just ended; a zombie has no command line either."""
    try:
        return read()
    except psutil.NoSuchProcess:  # of which a zombie is one
        return []
