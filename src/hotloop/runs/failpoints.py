"""Named places where a test can kill the process or make the disk fail, through an environment variable."""

import errno
import os
import signal

VARIABLE = "HOTLOOP_FAILPOINT"


def is_set() -> bool:
    """Whether any is wanted."""
    return VARIABLE in os.environ


def reach(name: str) -> None:
    """Do nothing, unless HOTLOOP_FAILPOINT is `name=kill` or `name=enospc`."""
    wanted, _, action = os.environ.get(VARIABLE, "").partition("=")
    if wanted != name:
        return
    if action == "kill":
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    if action == "enospc":
        raise OSError(errno.ENOSPC, f"No space left on device (failpoint {name})")
