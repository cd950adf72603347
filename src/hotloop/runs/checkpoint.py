"""Checkpoints: named arrays in one safetensors file beside a manifest, whole or invisible.

A checkpoint is written under a temporary name, flushed to disk, and renamed: a reader sees all of it or
nothing. Loading reads bytes into arrays and executes nothing; a file that is damaged or does not match its
manifest is refused, and the one before it is used.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hotloop.plain import Figures, Json
from hotloop.runs.failpoints import reach

FORMAT = 1
ARRAYS = "arrays.safetensors"
MANIFEST = "manifest.json"
_TEMPORARY, _ASIDE = ".writing-", ".old"
_LARGEST_MANIFEST = 1 << 20


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says which and why."""


class NewerFormat(CheckpointError):
    """A checkpoint written by a newer hotloop."""


def save(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Json]) -> Path:
    """Write a checkpoint at `folder`, replacing one already there; raises OSError with nothing half-visible."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f"{_TEMPORARY}{folder.name}-{os.getpid()}"
    aside = folder.with_name(folder.name + _ASIDE)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        reach("checkpoint.begin")
        temporary.mkdir()
        # Written straight from the arrays' own memory: a large replay is not copied on its way to disk.
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, temporary / ARRAYS)
        reach("checkpoint.arrays_written")
        _flush(temporary / ARRAYS)
        manifest = {"format": FORMAT, **_fingerprint(temporary / ARRAYS), **facts}
        with (temporary / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=1)
        reach("checkpoint.manifest_written")
        _flush(temporary / MANIFEST)
        _flush(temporary)
        reach("checkpoint.before_rename")
        if folder.exists():
            # A folder cannot be replaced in one step: the old one goes aside first, and readers look there too.
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(folder, aside)
            reach("checkpoint.old_aside")
        os.replace(temporary, folder)
        _flush(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
        reach("checkpoint.done")
    except (OSError, SafetensorError) as error:
        if aside.exists() and not folder.exists():
            os.replace(aside, folder)
        shutil.rmtree(temporary, ignore_errors=True)
        # The safetensors library wraps what the disk said in an exception of its own.
        raise error if isinstance(error, OSError) else OSError(str(error)) from None
    return folder


def load(folder: Path) -> tuple[dict[str, np.ndarray], Figures]:
    """Read one checkpoint, or raise CheckpointError. Executes nothing; allocates no more than the file's size."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    manifest = read_manifest(folder)
    try:
        seen = _fingerprint(folder / ARRAYS)
    except OSError as error:
        raise CheckpointError(f"{folder}: {ARRAYS} cannot be read: {error}") from None
    if any(seen[name] != manifest[name] for name in seen):
        raise CheckpointError(f"{folder}: {ARRAYS} is damaged (its size or SHA-256 differs from the manifest)")
    try:
        return load_file(folder / ARRAYS), manifest
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: {ARRAYS} is not a safetensors file: {error}") from None


def read_manifest(folder: Path) -> Figures:
    """Read and check a checkpoint's manifest."""
    path = folder / MANIFEST
    try:
        if not path.is_file():
            raise CheckpointError(f"{folder}: it has no {MANIFEST}")
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"{folder}: {MANIFEST} is larger than 1 MiB")
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{folder}: {MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{folder}: {MANIFEST} is not a checkpoint manifest")
    if manifest["format"] > FORMAT:
        raise NewerFormat(
            f"{folder} has checkpoint format {manifest['format']}, this hotloop reads up to {FORMAT}; "
            "it was made by a newer hotloop"
        )
    if not isinstance(manifest.get("bytes"), int) or not isinstance(manifest.get("sha256"), str):
        raise CheckpointError(f"{folder}: {MANIFEST} lacks bytes or sha256")
    return manifest


def newest_first(parent: Path) -> list[Path]:
    """Finished checkpoints below `parent`, newest first; torn ones never appear."""
    if not parent.is_dir():
        return []
    found = [p for p in parent.iterdir() if p.name.removesuffix(_ASIDE).isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: (-int(p.name.removesuffix(_ASIDE)), p.name))


def place(folder: Path) -> Path:
    """Where the checkpoint of that name is: aside, if its replacement was interrupted between two renames."""
    aside = folder.with_name(folder.name + _ASIDE)
    return aside if aside.is_dir() and not folder.is_dir() else folder


def torn(parent: Path) -> list[Path]:
    """What interrupted writes left behind."""
    return sorted(parent.glob(f"{_TEMPORARY}*")) if parent.is_dir() else []


def prune(parent: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints, and the remains of interrupted writes."""
    for old in [*newest_first(parent)[keep:], *torn(parent)]:
        shutil.rmtree(old, ignore_errors=True)


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes: equal digests mean equal state, bit for bit."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)  # the bytes themselves, not a copy of them
    return total.hexdigest()


def _fingerprint(path: Path) -> dict[str, int | str]:
    if not path.is_file():  # reading a pipe would wait for ever
        raise OSError("it is not a file")
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(path: Path) -> None:
    """Force a file or folder to disk."""
    if os.name == "nt" and path.is_dir():  # a folder cannot be opened there
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
