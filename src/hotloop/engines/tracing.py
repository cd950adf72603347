"""What an engine gives to whoever has its own profiler trace some work; each engine has its own way to do it."""

from pathlib import Path
from typing import NamedTuple

from hotloop.spans import Region


class Trace(NamedTuple):
    """A trace that is being taken."""

    path: Path
    """A Chrome trace, which Perfetto opens; written when all is over."""
    region: Region
    """Makes a named region of it."""
