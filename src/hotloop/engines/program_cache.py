"""Where compiled programs are kept between runs: in the user's own cache, not in a folder that others can write to."""

import os
from pathlib import Path

PLACE = "HOTLOOP_CACHE"


def program_cache(engine: str) -> Path:
    """The folder of an engine's compiled programs."""
    if PLACE in os.environ:
        return Path(os.environ[PLACE]) / engine
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hotloop" / engine
