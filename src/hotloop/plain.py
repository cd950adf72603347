"""Plain data, as JSON has it: what is written to files and told to whoever listens."""

from collections.abc import Mapping, Sequence
from typing import Union

Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]  # noqa: UP007  # it names itself
Figures = dict[str, Json]
"""Numbers of a run by name, and what else a line of metrics says."""
