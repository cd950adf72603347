"""Super Mario Bros: one stage, seen as a stack of small grey pictures or as the tiles around Mario; right is forward.

Importing this module registers it: `gymnasium.make("hotloop.envs.mario:hotloop/Mario-v0")`.

| open question | decision |
|---|---|
| a step | `skip` frames with the same buttons held, fewer if the episode ends within them; the last one is seen |
| reward | dx / 6 forward, dx / 12 backward; dx is the change of Mario's x in pixels over the step |
| a pipe or a vine | x jumps to another area: such a step counts as dx = 0, and progress is measured from there |
| death | -1 is added and the episode terminates the moment he begins to die or falls below the screen |
| flag | `flag_bonus` is added and it terminates the moment he holds the pole, or takes the axe in a castle |
| no progress | `patience` steps without a new largest x: truncated |
| start | when Mario can first move; title and announcement are skipped, all three lives are left |
| chance | none: the same buttons give the same episode whatever the seed, unless `noop_max` is above 0 |
"""

import math
from typing import Protocol

import gymnasium as gym
import numpy as np

from hotloop.envs.mario_pictures import StackedPictures
from hotloop.envs.mario_tiles import FLOATS, X_PAGE, Y_PAGE, Tiles, X
from hotloop.envs.nes import DOWN, LEFT, RIGHT, START, UP, A, B, Nes, package_folder
from hotloop.registry import nearest

_RIGHT_ONLY = (0, RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B)
_SIMPLE = (*_RIGHT_ONLY, A, LEFT)
ACTIONS = {"right": _RIGHT_ONLY, "simple": _SIMPLE, "complex": (*_SIMPLE, LEFT | A, LEFT | B, LEFT | A | B, DOWN, UP)}
"""Buttons of each action: nothing, right with jump (A) and run (B), then jump, left, left with both, down, up."""

OBSERVATIONS = ("pixels", "tiles")
FORWARD, BACKWARD, DEATH = 6.0, 12.0, -1.0
JUMP_PIXELS = 4  # a frame; he runs 3
SIZE, STACK = 128, 8
SMALLEST, LARGEST = 36, 240  # what a DQN's convolutions need, and the screen's height
LONGEST_START = 600  # frames; 62 … 93 are needed

# Where the game keeps things.
STATE = 0x0E
THINGS = slice(0x16, 0x1B)
LIVES, STAGE, WORLD, AREA, MODE = 0x75A, 0x75C, 0x75F, 0x760, 0x770
ANNOUNCEMENT = 0x7A0
SCORE, COINS, CLOCK = slice(0x7DE, 0x7E4), slice(0x7ED, 0x7EF), slice(0x7F8, 0x7FB)

DEAD, DYING, FREE = 0x06, 0x0B, 0x08  # of STATE
TITLE, PLAYING, WORLD_WON = 0, 1, 2  # of MODE
ON_POLE = 3  # of FLOATS; on a vine, too
BOWSER, FLAGPOLE = 0x2D, 0x31  # of THINGS


class Eyes(Protocol):
    """What is made of the console at the moments an agent sees."""

    space: gym.spaces.Box

    def begin(self) -> np.ndarray:
        """The first observation of an episode."""

    def look(self) -> np.ndarray:
        """The one after a step."""


class Mario(gym.Env[np.ndarray, np.int64]):
    """Observations are pictures uint8 (stack, size, size), the newest last, or tiles float32 (`Tiles`)."""

    metadata: dict[str, object] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        world: int = 1,
        stage: int = 1,
        size: int | None = None,
        skip: int = 6,
        stack: int | None = None,
        observation: str = "pixels",
        actions: str = "complex",
        flag_bonus: float = 5.0,
        patience: int = 40,
        noop_max: int = 0,
        render_mode: str | None = None,
    ) -> None:
        _check("world", world, 1, 8)
        _check("stage", stage, 1, 4)
        if observation == "tiles" and (size, stack) != (None, None):
            raise ValueError("size and stack are those of pictures; observation is 'tiles'")
        size, stack = SIZE if size is None else size, STACK if stack is None else stack
        _check("size", size, SMALLEST, LARGEST)
        _check("skip", skip, 1, 60)
        _check("stack", stack, 1, 64)
        _check("patience", patience, 1, 2**31 - 1)
        _check("noop_max", noop_max, 0, 60)
        if observation not in OBSERVATIONS:
            raise ValueError(f"unknown observation {observation!r}; {nearest(str(observation), list(OBSERVATIONS))}")
        if actions not in ACTIONS:
            raise ValueError(f"unknown actions {actions!r}; {nearest(str(actions), list(ACTIONS))}")
        if type(flag_bonus) not in (int, float) or not math.isfinite(flag_bonus):
            raise ValueError(f"flag_bonus is {flag_bonus!r}, expected a finite number")
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}, expected None or 'rgb_array'")
        self.skip, self.patience, self.noop_max = skip, patience, noop_max
        self.flag_bonus, self.render_mode = float(flag_bonus), render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(1, round(60 / skip))}
        self.buttons = ACTIONS[actions]
        self.action_space = gym.spaces.Discrete(len(self.buttons))
        self.nes = Nes(package_folder("gym_super_mario_bros") / "_roms" / "super-mario-bros.nes")
        self._eyes: Eyes = Tiles(self.nes.ram) if observation == "tiles" else StackedPictures(self.nes, size, stack)
        self.observation_space = self._eyes.space
        self._ram = self.nes.ram.data  # a memoryview, whose items are Python ints: no sum of them overflows
        self._begin(world - 1, stage - 1)
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Begin at the start of the stage, after up to `noop_max` frames of waiting."""
        super().reset(seed=seed)
        self.nes.restore()
        for _ in range(int(self.np_random.integers(self.noop_max + 1)) if self.noop_max else 0):
            self.nes.step_frame(0)
        self._x = self._largest_x = self._read_x()
        self._idle, self._over = 0, False
        return self._eyes.begin(), self._info(flag=False)

    def step(self, action: int | np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Hold the action's buttons for `skip` frames."""
        if not self.action_space.contains(np.int64(action)):
            raise ValueError(f"action is {action!r}, expected one of 0 … {len(self.buttons) - 1}")
        if self._over:
            raise ValueError("the episode has ended; call reset()")
        buttons, dead, flag = self.buttons[int(action)], False, False
        for _ in range(self.skip):
            self.nes.step_frame(buttons)
            dead, flag = self._is_dead(), self._has_flag()
            if dead or flag:
                break
        dx = self._move()
        reward = dx / (FORWARD if dx > 0 else BACKWARD) + DEATH * dead + self.flag_bonus * flag
        terminated = dead or flag
        truncated = self._idle >= self.patience and not terminated
        self._over = terminated or truncated
        return self._eyes.look(), reward, terminated, truncated, self._info(flag=flag)

    def render(self) -> np.ndarray | None:
        """Return the screen in colour (240, 256, 3)."""
        return None if self.render_mode is None else self.nes.screen

    def close(self) -> None:
        """Let the console go."""
        self._ram.release()
        self.nes.close()

    def _begin(self, world: int, stage: int) -> None:
        """Press start, choose the stage while the title is shown, and keep the moment when Mario can move."""
        self.nes.reset()
        ram = self._ram
        # Before their second stage these worlds have an area in which Mario only walks into a pipe.
        area = stage + (world in (0, 1, 3, 6) and stage > 0)
        for frame in range(LONGEST_START):
            if ram[MODE] == PLAYING and ram[STATE] == FREE:
                self.nes.backup()
                return
            if _number(ram[CLOCK]) == 0:  # it is set when the stage is loaded
                ram[WORLD], ram[STAGE], ram[AREA] = world, stage, area
            else:
                ram[ANNOUNCEMENT] = 0
            pressed = ram[MODE] == TITLE and frame % 2 == 0  # later on, start would pause the game
            self.nes.step_frame(START if pressed else 0)
        raise RuntimeError(f"stage {world + 1}-{stage + 1} did not begin within {LONGEST_START} frames")

    def _move(self) -> int:
        """How far Mario came since the last step, in pixels; counts the steps without progress."""
        x = self._read_x()
        dx, self._x = x - self._x, x
        self._idle += 1
        entered_an_area = abs(dx) > JUMP_PIXELS * self.skip
        if entered_an_area or x > self._largest_x:
            self._largest_x, self._idle = x, 0
        return 0 if entered_an_area else dx

    def _read_x(self) -> int:
        return self._ram[X_PAGE] * 256 + self._ram[X]

    def _is_dead(self) -> bool:
        return self._ram[STATE] in (DYING, DEAD) or self._ram[Y_PAGE] > 1

    def _has_flag(self) -> bool:
        ram = self._ram
        if ram[FLOATS] == ON_POLE and not {BOWSER, FLAGPOLE}.isdisjoint(ram[THINGS]):
            return True
        return ram[MODE] == WORLD_WON

    def _info(self, *, flag: bool) -> dict[str, object]:
        ram = self._ram
        return {
            "x_pos": self._x,
            "flag": int(flag),
            "score": _number(ram[SCORE]),
            "coins": _number(ram[COINS]),
            "life": ram[LIVES],
            "time": _number(ram[CLOCK]),
        }


def _number(digits: memoryview) -> int:
    number = 0
    for digit in digits:
        number = number * 10 + digit
    return number


def _check(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}, expected a whole number of {low} … {high}")


gym.register(id="hotloop/Mario-v0", entry_point="hotloop.envs.mario:Mario")
