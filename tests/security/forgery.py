"""Checkpoints as an attacker would write them: the manifest always agrees with the bytes beside it."""

import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save


class Bomb:
    """An object whose unpickling leaves a mark on the disk."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickled(mark: Path) -> bytes:
    """Bytes that create `mark` when they are unpickled."""
    data = pickle.dumps(Bomb(mark))
    pickle.loads(data)  # noqa: S301 (the weapon works)
    assert mark.exists()
    mark.unlink()
    return data


def safetensors_file(header: dict[str, Any], data: bytes, header_length: int | None = None) -> bytes:
    """A safetensors file with whatever header is given."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text) if header_length is None else header_length) + text + data


def forge(folder: Path, arrays: bytes | None = None, **facts: Any) -> None:
    """Replace a checkpoint's arrays, and make its manifest agree; `facts` replace entries of the manifest."""
    if arrays is not None:
        (folder / "arrays.safetensors").write_bytes(arrays)
    data = (folder / "arrays.safetensors").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **facts}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def changed(folder: Path, **arrays: np.ndarray | None) -> bytes:
    """The arrays of a checkpoint with some replaced, added or (None) left out; `__` in a name stands for `/`."""
    seen = load_file(folder / "arrays.safetensors")
    seen.update({name.replace("__", "/"): array for name, array in arrays.items()})
    return save({name: array for name, array in seen.items() if array is not None})
