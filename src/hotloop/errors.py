"""What ends a command with one line for the user: each kind of error, and the exit code it stands for."""


class HotloopError(Exception):
    """An error whose message is one line for the user."""

    exit_code = 1


class SpecError(HotloopError, ValueError):
    """A spec, a command or a file that cannot be used: bad input."""

    exit_code = 2


class NotFinite(HotloopError):
    """An env gave a NaN or an infinity; the message names it. The run is saved."""


class EnvFailed(HotloopError):
    """An env raises whatever is done; the message names it and the error. The run is saved."""


class DeviceFailed(HotloopError):
    """One of several devices that learn together is gone; the message says which, and why. The run is saved."""


class NetworkFailed(HotloopError):
    """A network of the user's own raised in mid-run; the message says what. The run is saved."""


class ActorsFailed(HotloopError):
    """An actor cannot do its work, nor another process in its place; the message says why. The run is saved."""

    def __init__(self, message: str, words: str = "") -> None:
        """`words` are what it said last: a traceback, or what its threads were doing."""
        super().__init__(message)
        self.words = words
        if words:
            self.add_note(words)  # which Python shows below the message


class Diverged(HotloopError):
    """Too many updates in a row were not finite; the message says where the state was saved."""


class SearchFailed(HotloopError):
    """A search cannot go on: its first trials all fail, or its folder cannot be written; the message says why."""


def said(error: Exception) -> str:
    """What an error of someone else's code says: its kind, and the first line of its message."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
