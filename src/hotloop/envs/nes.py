"""A Nintendo Entertainment System: the emulator FCEUmm, which the package `stable_retro` brings, called directly.

`stable_retro` itself is never imported: it allows one console in a process. FCEUmm keeps its console in global
variables, so every console here has a copy of the library of its own. How a frontend talks to such a library is
libretro's interface: https://docs.libretro.com/development/cores/developing-cores/
"""

import ctypes
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hotloop.errors import SpecError

HEIGHT, WIDTH, RAM_BYTES = 240, 256, 2048
B, _, SELECT, START, UP, DOWN, LEFT, RIGHT, A = (1 << bit for bit in range(9))
MAPPERS = (0, 1, 2, 3)
"""Kinds of cartridge that it takes; the game's is 0."""


class Nes:
    """One console with one cartridge; any number of them live in a process, each its own.

    `pixels` (240, 256) holds the last frame, 5 bits of red, 6 of green, 5 of blue; `ram` (2048,) is a view into the
    emulator: it changes with every frame, may be written, and must not be used after `close()`.
    """

    def __init__(self, rom_path: Path | str) -> None:
        self._core: _Core | None = None
        check_rom(Path(rom_path))
        self.pixels = np.zeros((HEIGHT, WIDTH), np.uint16)
        # One for the same game: the library remembers how large the state of its first one was.
        self._like = _idle.setdefault(str(rom_path), [])
        try:
            core = self._like.pop()
        except IndexError:
            core = _Core()
        core.insert(Path(rom_path), self.pixels)
        self._run, self.ram = core.library.retro_run, core.memory()
        self._core = core
        self._backup: tuple[ctypes.Array[ctypes.c_char], np.ndarray] | None = None

    @property
    def screen(self) -> np.ndarray:
        """The last frame in colour, uint8 (240, 256, 3)."""
        return rgb_of(self.pixels)

    def reset(self) -> None:
        """Press the reset button."""
        self._running().library.retro_reset()

    def step_frame(self, buttons: int) -> None:
        """Run for one frame, a 60th of a second, with these buttons held (a sum of A, B, …)."""
        core = self._core
        if core is None:  # not _running(): this is called thousands of times a second
            raise ValueError("the console is closed")
        core.buttons = buttons
        self._run()
        if core.misfit:
            raise RuntimeError(f"the emulator drew {core.misfit}, expected {WIDTH} x {HEIGHT} pixels of two bytes")

    def backup(self) -> None:
        """Keep this moment, in place of the one kept before."""
        self._backup = self._running().state(), self.pixels.copy()

    def restore(self) -> None:
        """Go back to the moment that was kept, its picture included."""
        core = self._running()
        if self._backup is None:
            raise ValueError("there is nothing to restore; call backup() first")
        state, self.pixels[:] = self._backup
        core.set_state(state)

    def close(self) -> None:
        """Give the emulator back; closing twice does nothing."""
        if self._core is not None:
            self._core.eject()
            self._like.append(self._core)
            self._core = None
            del self.ram, self._run

    def __del__(self) -> None:
        self.close()

    def _running(self) -> "_Core":
        if self._core is None:
            raise ValueError("the console is closed")
        return self._core


def rgb_of(pixels: np.ndarray) -> np.ndarray:
    """Colours uint8 (…, 3) of pixels with 5, 6 and 5 bits."""
    red, green, blue = pixels >> 11, (pixels >> 5) & 63, pixels & 31
    return np.stack([red << 3 | red >> 2, green << 2 | green >> 4, blue << 3 | blue >> 2], axis=-1).astype(np.uint8)


def package_folder(package: str) -> Path:
    """Where a package of the extra `mario` lies, without importing it."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SpecError(f"env hotloop/Mario-v0 needs the package {package}; pip install 'hotloop[mario]'")
    return Path(found.submodule_search_locations[0])


def check_rom(path: Path) -> None:
    """Refuse what was never tried: all but a whole file in the iNES format, for NTSC and of a mapper named above."""
    rom = path.read_bytes()
    if len(rom) < 16 or rom[:4] != b"NES\x1a":
        raise ValueError(f"{path} is not a ROM in the iNES format")
    program, pictures, flags6, flags7, flags9 = rom[4], rom[5], rom[6], rom[7], rom[9]
    expected = 16 + program * 16 * 1024 + pictures * 8 * 1024
    mapper = (flags7 & 0xF0) | (flags6 >> 4)
    if not program:
        raise ValueError(f"{path} holds no program")
    if flags6 & 4:
        raise ValueError(f"{path} has a trainer, which was never tried")
    if flags9 & 1:
        raise ValueError(f"{path} is for PAL, which was never tried")
    if mapper not in MAPPERS:
        raise ValueError(f"{path} needs mapper {mapper}; this one plays {', '.join(map(str, MAPPERS))}")
    if len(rom) < expected:
        raise ValueError(f"{path} has {len(rom)} bytes, but its header speaks of {expected}")


# -- libretro ---------------------------------------------------------------------------------------------

_ENVIRONMENT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint, ctypes.c_void_p)
_VIDEO = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t)
_SAMPLE = ctypes.CFUNCTYPE(None, ctypes.c_int16, ctypes.c_int16)
_SAMPLES = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)
_POLL = ctypes.CFUNCTYPE(None)
_INPUT = ctypes.CFUNCTYPE(ctypes.c_int16, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
_SET_PIXEL_FORMAT, _GET_VARIABLE = 10, 15
_RGB565, _SYSTEM_RAM = 2, 2
_OPTIONS = {b"fceumm_overscan": b"disabled"}
"""Of the emulator, where they are not its defaults: the whole picture is drawn."""


class _Variable(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Game(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("meta", ctypes.c_char_p),
    )


class _Core:
    """A copy of the emulator's library, and what it calls while it runs."""

    def __init__(self) -> None:
        self.buttons, self.misfit = 0, ""
        self.library = _fresh_copy()
        self._picture: np.ndarray | None = None
        self._called = {  # kept, because the library keeps their addresses
            "environment": _ENVIRONMENT(self._environment),
            "video_refresh": _VIDEO(self._show),
            "audio_sample": _SAMPLE(lambda left, right: None),
            "audio_sample_batch": _SAMPLES(lambda samples, count: count),
            "input_poll": _POLL(lambda: None),
            "input_state": _INPUT(self._is_held),
        }
        for name, function in self._called.items():
            getattr(self.library, f"retro_set_{name}")(function)

    def insert(self, rom: Path, picture: np.ndarray) -> None:
        """Switch on with a cartridge; frames go to `picture`."""
        data = rom.read_bytes()
        self._picture, self.buttons = picture, 0
        self.library.retro_init()
        if not self.library.retro_load_game(ctypes.byref(_Game(str(rom).encode(), data, len(data), None))):
            raise ValueError(f"the emulator could not read {rom}")

    def eject(self) -> None:
        """Switch off."""
        self.library.retro_unload_game()
        self.library.retro_deinit()
        self._picture = None

    def memory(self) -> np.ndarray:
        """The console's, as it is now and will be."""
        address = self.library.retro_get_memory_data(_SYSTEM_RAM)
        return np.ctypeslib.as_array((ctypes.c_ubyte * RAM_BYTES).from_address(address))

    def state(self) -> "ctypes.Array[ctypes.c_char]":
        """The whole console at this moment."""
        state = ctypes.create_string_buffer(self.library.retro_serialize_size())
        if not self.library.retro_serialize(state, len(state)):
            raise RuntimeError("the emulator could not save its state")
        return state

    def set_state(self, state: "ctypes.Array[ctypes.c_char]") -> None:
        """Be as at another moment."""
        if not self.library.retro_unserialize(state, len(state)):
            raise RuntimeError("the emulator could not read its own state")

    def _environment(self, question: int, data: int) -> bool:
        """Answer what the library asks; False is "not supported"."""
        if question == _SET_PIXEL_FORMAT:
            return ctypes.c_int.from_address(data).value == _RGB565
        if question == _GET_VARIABLE:
            variable = _Variable.from_address(data)
            variable.value = _OPTIONS.get(variable.key)
            return variable.value is not None
        return False

    def _show(self, data: int | None, width: int, height: int, pitch: int) -> None:
        if (height, width, pitch) != (HEIGHT, WIDTH, 2 * WIDTH):
            self.misfit = f"{width} x {height} pixels, {pitch} bytes a row"  # what is raised here is heard by nobody
        elif data and self._picture is not None:
            ctypes.memmove(self._picture.ctypes.data, data, self._picture.nbytes)

    def _is_held(self, port: int, device: int, index: int, button: int) -> int:
        return self.buttons >> button & 1 if port == 0 else 0


_idle: dict[str, list[_Core]] = {}
"""Copies whose consoles were closed, by their game: the next ones take them, because a library is never unloaded."""


def _fresh_copy() -> ctypes.CDLL:
    """The library with global variables of its own: another file is another library to the loader."""
    folder = package_folder("stable_retro") / "cores"
    files = sorted(folder.glob("fceumm_libretro.*"))
    if not files:
        raise SpecError(
            f"{folder} holds no library fceumm_libretro.*, as stable-retro does; pip install 'hotloop[mario]'"
        )
    with tempfile.TemporaryDirectory(prefix="hotloop-nes-", ignore_cleanup_errors=True) as folder_of_copy:
        copy = shutil.copy(files[0], folder_of_copy)
        try:
            library = ctypes.CDLL(copy)  # a CDLL lets other threads run during a call
        except OSError as error:
            raise SpecError(
                f"the emulator cannot be loaded: {error}; TMPDIR may name a folder that allows it"
            ) from None
    for name, arguments, result in (
        ("load_game", [ctypes.c_void_p], ctypes.c_bool),
        ("get_memory_data", [ctypes.c_uint], ctypes.c_void_p),
        ("serialize_size", [], ctypes.c_size_t),
        ("serialize", [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_bool),
        ("unserialize", [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_bool),
    ):
        function = getattr(library, f"retro_{name}")
        function.argtypes, function.restype = arguments, result
    for name in ("init", "deinit", "unload_game", "run", "reset"):
        getattr(library, f"retro_{name}").restype = None
    return library
