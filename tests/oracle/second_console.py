"""Super Mario Bros on another emulator, that of `nes_py`: what the first one is compared with."""

import ctypes

import numpy as np

from hotloop.envs import nes
from hotloop.envs.mario import FREE, MODE, PLAYING, STATE

BUTTONS = (nes.A, nes.B, nes.SELECT, nes.START, nes.UP, nes.DOWN, nes.LEFT, nes.RIGHT)
"""In the order of its bits."""
ROM = nes.package_folder("gym_super_mario_bros") / "_roms" / "super-mario-bros.nes"


class SecondConsole:
    """One console, for as long as the process lives."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(next(nes.package_folder("nes_py").glob("lib_nes_env*"))))
        for name in ("Initialize", "Memory", "Controller"):
            getattr(self._library, name).restype = ctypes.c_void_p
        self._console = ctypes.c_void_p(self._library.Initialize(ctypes.c_wchar_p(str(ROM))))
        memory = ctypes.c_ubyte * nes.RAM_BYTES
        self.ram = np.ctypeslib.as_array(memory.from_address(self._library.Memory(self._console)))
        self._held = ctypes.c_ubyte.from_address(self._library.Controller(self._console, 0))
        self._library.Reset(self._console)

    def begin(self) -> None:
        """Go to the moment when Mario can move in 1-1."""
        frame = 0
        while not (self.ram[MODE] == PLAYING and self.ram[STATE] == FREE):
            if self.ram[0x7F8:0x7FB].any():
                self.ram[0x7A0] = 0  # the announcement is over
            self.step(nes.START if self.ram[MODE] == 0 and frame % 2 == 0 else 0, frames=1)
            frame += 1

    def step(self, buttons: int, frames: int) -> None:
        """Hold buttons."""
        self._held.value = sum(1 << bit for bit, button in enumerate(BUTTONS) if buttons & button)
        for _ in range(frames):
            self._library.Step(self._console)
