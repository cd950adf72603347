"""Plain data, as JSON has it: what is written to files and told to whoever listens."""

from collections.abc import Mapping, Sequence
from typing import Union

Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007  # it names itself
Figures = dict[str, Json]
"""Numbers of a run by name, and what else a line of metrics says."""


# What is known to be there, as what it is known to be.


def number(figures: Mapping[str, Json], name: str) -> float:
    """A figure that is a number."""
    return _number(figures[name], name)


def numbers(figures: Mapping[str, Json], name: str) -> list[float]:
    """A figure that is several numbers."""
    value = figures[name]
    if not isinstance(value, list):
        raise TypeError(f"{name} is {value!r}, expected a list of numbers")
    return [_number(each, name) for each in value]


def inner(figures: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    """Figures within a figure."""
    value = figures[name]
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {value!r}, expected figures by name")
    return value


def _number(value: Json, name: str) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return value
