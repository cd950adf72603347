import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from hotloop_process import hotloop, hotloop_here, spec_file

__all__ = ["hotloop", "hotloop_here", "spec_file"]
