"""A keyed signature: it tells the runs that this user made from all others.

The key is a random secret in the user's own config folder, made with the first run. Whoever does not have it can
neither sign a run nor change the spec of a signed one unnoticed.
"""

import hmac
import os
import secrets
import stat
from pathlib import Path

KEY_BYTES = 32


class NoKey(Exception):
    """There is no key to sign or to check with; the message says why."""


def sign(run_format: int, made_in: str, spec: bytes) -> str:
    """The signature of a run with this format and these bytes of spec.yaml; makes the key if there is none yet.

    `made_in` is the folder where a module of the user's own that the spec names is looked for again.
    """
    try:
        path = key_file()
        if not path.exists():
            _make(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise NoKey(f"the key cannot be written: {error}") from None
    return _digest(_read(path), run_format, made_in, spec)


def is_signed(signature: object, run_format: int, made_in: str, spec: bytes) -> bool:
    """Whether `signature`, whatever a file holds in its place, is the one that `sign` gives; makes no key."""
    try:
        path = key_file()
    except RuntimeError as error:
        raise NoKey(str(error)) from None
    expected = _digest(_read(path), run_format, made_in, spec)
    return isinstance(signature, str) and signature.isascii() and hmac.compare_digest(signature, expected)


def key_file() -> Path:
    """Where the key is kept; never a place that depends on the current folder, which may be someone else's."""
    if "HOTLOOP_KEY_FOLDER" in os.environ:
        if not (chosen := Path(os.environ["HOTLOOP_KEY_FOLDER"])).is_absolute():
            raise RuntimeError(f"HOTLOOP_KEY_FOLDER is {str(chosen)!r}, expected an absolute path")
        return chosen / "key"
    config = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (config if config.is_absolute() else Path.home() / ".config") / "hotloop" / "key"


def _digest(key: bytes, run_format: int, made_in: str, spec: bytes) -> str:
    signed = b"hotloop run %d\0%s\0%s" % (run_format, made_in.encode("utf-8", "surrogatepass"), spec)
    return hmac.digest(key, signed, "sha256").hex()


def _make(path: Path) -> None:
    """Write a new key, whole or not at all; of several processes that try at once the first one's stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".key-{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename it replaces nothing
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise NoKey(f"{path} is not a file")
        if os.name == "posix" and mode & 0o077:
            raise NoKey(f"{path} is open to other users; chmod 600 {path}")
        key = path.read_bytes()
    except OSError as error:
        raise NoKey(f"the key cannot be read: {error}") from None
    if len(key) != KEY_BYTES:
        raise NoKey(f"{path} has {len(key)} bytes, expected {KEY_BYTES}; remove it, and the next run makes a new one")
    return key
