"""A Nintendo Entertainment System: the emulator of the package `nes_py`, called directly.

`nes_py` itself is never imported: its Python half needs the old `gym` and does not know NumPy 2.
"""

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hotloop.errors import SpecError

HEIGHT, WIDTH, RAM_BYTES = 240, 256, 2048
A, B, SELECT, START, UP, DOWN, LEFT, RIGHT = (1 << bit for bit in range(8))
MAPPERS = (0, 1, 2, 3)
"""Kinds of cartridge that the emulator knows."""


class Nes:
    """One console with one cartridge; any number of them live in a process, each its own.

    `screen` (240, 256, 3) RGB, `pixels` (240, 256) 0x00RRGGBB and `ram` (2048,) are views into the emulator: they
    change with every frame and must not be used after `close()`.
    """

    def __init__(self, rom_path: Path | str) -> None:
        self._console: int | None = None
        check_rom(Path(rom_path))
        self._library = _library()
        self._console = self._library.Initialize(str(rom_path))
        if not self._console:
            raise MemoryError("the emulator could not be started")
        self.pixels = _view(self._library.Screen(self._console), 4 * HEIGHT * WIDTH).view(np.uint32)
        self.pixels = self.pixels.reshape(HEIGHT, WIDTH)
        in_memory = self.pixels.view(np.uint8).reshape(HEIGHT, WIDTH, 4)
        self.screen = in_memory[:, :, 2::-1] if np.little_endian else in_memory[:, :, 1:]
        self.ram = _view(self._library.Memory(self._console), RAM_BYTES)
        self._buttons = ctypes.c_ubyte.from_address(self._library.Controller(self._console, 0))
        self._step = self._library.Step
        self._has_backup = False

    def reset(self) -> None:
        """Switch off and on."""
        self._library.Reset(self._running())

    def step_frame(self, buttons: int) -> None:
        """Run for one frame, a 60th of a second, with these buttons held (a sum of A, B, …)."""
        console = self._console
        if console is None:  # not _running(): this is called hundreds of times a second
            raise ValueError("the console is closed")
        self._buttons.value = buttons
        self._step(console)

    def backup(self) -> None:
        """Keep this moment, in place of the one kept before."""
        self._library.Backup(self._running())
        self._has_backup = True

    def restore(self) -> None:
        """Go back to the moment that was kept, its picture included."""
        console = self._running()
        if not self._has_backup:
            raise ValueError("there is nothing to restore; call backup() first")
        self._library.Restore(console)

    def close(self) -> None:
        """Give the memory back; closing twice does nothing."""
        if self._console is not None:
            self._library.Close(self._console)
            self._console = None
            del self.pixels, self.screen, self.ram, self._buttons

    def __del__(self) -> None:
        self.close()

    def _running(self) -> int:
        if self._console is None:
            raise ValueError("the console is closed")
        return self._console


def package_folder(package: str) -> Path:
    """Where a package of the extra `mario` lies, without importing it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SpecError(f"env hotloop/Mario-v0 needs the package {package}; pip install 'hotloop[mario]'")
    return Path(found.submodule_search_locations[0])


def check_rom(path: Path) -> None:
    """Refuse what the emulator would crash on: a file in the iNES format that is whole, NTSC and of a known mapper."""
    rom = path.read_bytes()
    if len(rom) < 16 or rom[:4] != b"NES\x1a":
        raise ValueError(f"{path} is not a ROM in the iNES format")
    program, pictures, flags6, flags7, flags9 = rom[4], rom[5], rom[6], rom[7], rom[9]
    expected = 16 + program * 16 * 1024 + pictures * 8 * 1024
    mapper = (flags7 & 0xF0) | (flags6 >> 4)
    if not program:
        raise ValueError(f"{path} holds no program")
    if flags6 & 4:
        raise ValueError(f"{path} has a trainer, which the emulator does not know")
    if flags9 & 1:
        raise ValueError(f"{path} is for PAL; the emulator is an NTSC console")
    if mapper not in MAPPERS:
        raise ValueError(f"{path} needs mapper {mapper}; the emulator knows {', '.join(map(str, MAPPERS))}")
    if len(rom) < expected:
        raise ValueError(f"{path} has {len(rom)} bytes, but its header speaks of {expected}")


@cache
def _library() -> ctypes.CDLL:
    folder = package_folder("nes_py")
    files = sorted(folder.glob("lib_nes_env*"))
    if not files:
        raise SpecError(f"{folder} holds no library lib_nes_env*, as nes-py 8 does; pip install 'nes-py>=8.2.1,<9'")
    library = ctypes.CDLL(str(files[0]))  # a CDLL lets other threads run during a call
    console = ctypes.c_void_p
    for name, arguments, result in (
        ("Initialize", [ctypes.c_wchar_p], console),
        ("Reset", [console], None),
        ("Step", [console], None),
        ("Backup", [console], None),
        ("Restore", [console], None),
        ("Close", [console], None),
        ("Screen", [console], ctypes.c_void_p),
        ("Memory", [console], ctypes.c_void_p),
        ("Controller", [console, ctypes.c_uint], ctypes.c_void_p),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def _view(address: int, size: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
