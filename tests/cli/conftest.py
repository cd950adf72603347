import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from hotloop_process import finished, finished_once, hotloop, hotloop_here, spec_file

__all__ = ["finished", "finished_once", "hotloop", "hotloop_here", "spec_file"]
