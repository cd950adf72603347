"""What is around Mario as the game itself keeps it: tiles of 16x16 pixels, read from its memory. No picture is needed.

| numbers | what |
|---|---|
| 13 x 16 | 1 where a tile is solid, a lift too; 4 columns behind Mario's to 11 ahead, top row first |
| 13 x 16 | 1 where something that hurts is, and -1 where something is that he wants: mushroom, flower, star |
| 13 x 16 | how fast what walks or flies there moves to the right, 1 being as fast as Mario can run |
| 15 | 1 at the row of his feet: above the screen, one of 13, below |
| 2 | how far into its tile he is, to the right and down, 0 … 1 |
| 2 | his speed, to the right and down; 1 is as fast as he can run (3 pixels a frame), or fall |
| 4 | whether he stands, is big, throws fire; whether A was held: he jumps only if it was not |

Not seen: hammers, the flames of a firebar (its hub is), how fast lifts and things that go up and down move. A shell
counts as something that hurts, at rest too; lifts are as wide as in most stages.
"""

import gymnasium as gym
import numpy as np

ROWS, BEHIND, AHEAD = 13, 4, 11
COLUMNS = BEHIND + 1 + AHEAD
PLANES = 3
LENGTH = PLANES * ROWS * COLUMNS + ROWS + 2 + 2 + 2 + 4
TILE, TOP = 16, 32  # pixels: of a tile, and of the status line above the first row

# Where the game keeps things; of the six things there can be, item i is at the address + i.
HELD, FLOATS, X_SPEED, X_PAGE, X, Y_SPEED, Y_PAGE, Y, POWER = 0x0A, 0x1D, 0x57, 0x6D, 0x86, 0x9F, 0xB5, 0xCE, 0x756
NUM_THINGS = 6
ALIVE, KIND, CONDITION = 0x0F, 0x16, 0x1E
THING_SPEED, THING_X_PAGE, THING_X, THING_Y_PAGE, THING_Y = 0x58, 0x6E, 0x87, 0xB6, 0xCF
TILES, PAGE_BYTES = 0x500, 13 * 16  # two pages of 16 columns, the even and the odd ones

STANDS, A_HELD, TRODDEN_ON, KNOCKED_OUT = 0, 0x80, 0x04, 0x20
GOOMBA = 0x06  # others become shells
LIFTS, SMALL_LIFTS, WANTED = range(0x24, 0x2D), (0x2B, 0x2C), 0x2E
MOVES_ALONG = (0x00, 0x01, 0x02, 0x03, 0x05, 0x06, 0x08, 0x0E, 0x12, WANTED)
"""Kinds whose speed is one to the right: koopas, beetle, hammer brother, goomba, bullet, spiny. Others keep something
else there."""
HARMLESS = (0x2F, 0x30, 0x31, 0x32, 0x34, 0x35)  # vine, flags, springboard, warp zone, the one who is rescued
NOT_SOLID = (0x00, 0x24, 0x25, 0x26, 0x5F, 0x60, 0xC2, 0xC3, 0xC5)  # nothing, flagpole, vine, hidden blocks, coins, axe
FASTEST, FASTEST_FALL = 48.0, 6.0

_SOLID = np.ones(256, np.float32)
_SOLID[list(NOT_SOLID)] = 0.0


class Tiles:
    """Observations are float32 (LENGTH,), each an array of its own."""

    def __init__(self, ram: np.ndarray) -> None:
        self.space = gym.spaces.Box(-1.0, 1.0, (LENGTH,), np.float32)
        self._ram = ram
        columns = np.arange(2 * TILE)
        of_column = TILES + PAGE_BYTES * (columns // TILE) + columns % TILE
        self._addresses = of_column[None, :] + TILE * np.arange(ROWS)[:, None]
        """Of each tile, (rows, 32 columns)."""

    def begin(self) -> np.ndarray:
        """The first of an episode."""
        return self.look()

    def look(self) -> np.ndarray:
        """What is around Mario now."""
        ram = self._ram.tobytes()
        seen = np.zeros(LENGTH, np.float32)
        solid, things, speeds = (
            seen[plane * ROWS * COLUMNS :][: ROWS * COLUMNS].reshape(ROWS, COLUMNS) for plane in range(PLANES)
        )
        x, y = 256 * ram[X_PAGE] + ram[X] + TILE // 2, 256 * (ram[Y_PAGE] - 1) + ram[Y] + TILE - TOP
        first = x // TILE - BEHIND
        columns = np.arange(first, first + COLUMNS)
        solid[:] = _SOLID[self._ram[self._addresses[:, columns % (2 * TILE)]]]
        solid[:, columns < 0] = 0.0
        for thing in range(NUM_THINGS):
            if ram[ALIVE + thing]:
                self._add_thing(ram, thing, first, solid, things, speeds)
        self._add_mario(ram, seen[PLANES * ROWS * COLUMNS :], x, y)
        return seen

    def _add_thing(
        self, ram: bytes, thing: int, first: int, solid: np.ndarray, things: np.ndarray, speeds: np.ndarray
    ) -> None:
        kind, condition = ram[KIND + thing], ram[CONDITION + thing]
        is_flat = kind == GOOMBA and condition & TRODDEN_ON
        if kind in HARMLESS or is_flat or condition & KNOCKED_OUT:
            return
        x = 256 * ram[THING_X_PAGE + thing] + ram[THING_X + thing] + TILE // 2
        y = 256 * (ram[THING_Y_PAGE + thing] - 1) + ram[THING_Y + thing] + TILE - TOP
        is_lift = kind in LIFTS
        row, column = (y - TILE if is_lift else y) // TILE, x // TILE - first
        if not 0 <= row < ROWS:
            return
        tiles = 1 if not is_lift else 2 if kind in SMALL_LIFTS else 3
        for place in range(column, column + tiles):
            if 0 <= place < COLUMNS:
                if is_lift:
                    solid[row, place] = 1.0
                else:
                    things[row, place] = -1.0 if kind == WANTED else 1.0
                if kind in MOVES_ALONG:
                    speeds[row, place] = np.clip(_signed(ram[THING_SPEED + thing]) / FASTEST, -1.0, 1.0)

    def _add_mario(self, ram: bytes, seen: np.ndarray, x: int, y: int) -> None:
        row = int(np.clip(y // TILE, -1, ROWS))
        seen[1 + row] = 1.0
        seen[ROWS + 2 :] = (
            x % TILE / TILE,
            y % TILE / TILE,
            np.clip(_signed(ram[X_SPEED]) / FASTEST, -1.0, 1.0),
            np.clip(_signed(ram[Y_SPEED]) / FASTEST_FALL, -1.0, 1.0),
            ram[FLOATS] == STANDS,
            ram[POWER] > 0,
            ram[POWER] > 1,
            bool(ram[HELD] & A_HELD),
        )


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def drawn(seen: np.ndarray) -> str:
    """An observation as text: # solid, ! what hurts, ? what he wants, M his feet."""
    solid, things = (seen[plane * ROWS * COLUMNS :][: ROWS * COLUMNS].reshape(ROWS, COLUMNS) for plane in range(2))
    letters = np.where(things > 0, "!", np.where(things < 0, "?", np.where(solid > 0, "#", ".")))
    row = int(seen[PLANES * ROWS * COLUMNS :][: ROWS + 2].argmax()) - 1
    if 0 <= row < ROWS:
        letters[row, BEHIND] = "M"
    return "\n".join("".join(line) for line in letters)
