"""Gymnasium envs that are slow for one reason that is known, for the doctor to find.

`hotloop.bench.planted_envs:planted/NAME-v0` makes them; what they show and pay is of no interest.
"""

import time
from collections import deque

import gymnasium as gym
import numpy as np

BOARD = 24
"""Cells a side of the board that is searched."""


class Cheap(gym.Env[np.ndarray, int]):
    """Does next to nothing; an episode has `length` steps."""

    def __init__(self, length: int = 100, shape: tuple[int, ...] = (4,), image: bool = False) -> None:
        low, high, dtype = (0, 255, np.uint8) if image else (-1, 1, np.float32)
        self.observation_space = gym.spaces.Box(low, high, tuple(shape), dtype)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.steps = length, 0
        self._obs = np.zeros(tuple(shape), dtype)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Begin."""
        super().reset(seed=seed)
        self.steps = 0
        return self._obs.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Work, then count."""
        self.work()
        self.steps += 1
        self._obs.flat[0] = self.steps % 2
        return self._obs.copy(), float(action), self.steps >= self.length, False, {}

    def work(self) -> None:
        """What it is slow by."""


class Searches(Cheap):
    """Looks for the way to a corner of a board by breadth-first search in Python, in every step."""

    def work(self) -> None:
        """Flood the board."""
        self.reached = self.flood((0, 0))

    def flood(self, start: tuple[int, int]) -> int:
        """Cells that can be reached."""
        seen, queue = {start}, deque([start])
        while queue:
            row, column = queue.popleft()
            for to in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                if 0 <= to[0] < BOARD and 0 <= to[1] < BOARD and to not in seen:
                    seen.add(to)
                    queue.append(to)
        return len(seen)


class Waits(Cheap):
    """Waits, as for a simulator over a network."""

    seconds = 3e-3

    def work(self) -> None:
        """Let others work."""
        time.sleep(self.seconds)


class Renders(Cheap):
    """Draws itself in every step, whether anybody looks or not."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012

    def __init__(self, length: int = 100, render_mode: str | None = "rgb_array") -> None:
        super().__init__(length)
        self.render_mode = render_mode

    def work(self) -> None:
        """Draw."""
        if self.render_mode == "rgb_array":
            self.render()

    def render(self) -> np.ndarray:
        """A picture, circle by circle."""
        picture = np.zeros((96, 96, 3), np.uint8)
        rows, columns = np.mgrid[:96, :96]
        for centre in range(8, 96, 8):
            picture[(rows - centre) ** 2 + (columns - self.steps % 96) ** 2 < 64] = centre
        return picture


class Litters(Cheap):
    """Remembers its last steps in cycles of objects, which only the garbage collector clears away."""

    def __init__(self, length: int = 100) -> None:
        super().__init__(length)
        self.remembered: deque[list[object]] = deque(maxlen=100_000)

    def work(self) -> None:
        """Make cycles."""
        for _ in range(500):
            one: list[object] = []
            one.append([one])
            self.remembered.append(one)


class Lengthens(Cheap):
    """Every episode lasts a twentieth longer than the one before."""

    def __init__(self, length: int = 20) -> None:
        super().__init__(length)
        self._wanted = float(length)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[np.ndarray, dict[str, object]]:
        """Begin a longer one."""
        self._wanted = min(1.05 * self._wanted, 1e6)
        self.length = int(self._wanted)
        return super().reset(seed=seed, options=options)


PLANTED: dict[str, type[Cheap]] = {
    "Cheap": Cheap,
    "Searches": Searches,
    "Waits": Waits,
    "Renders": Renders,
    "Litters": Litters,
    "Lengthens": Lengthens,
}
for _name, _made in PLANTED.items():
    gym.register(f"planted/{_name}-v0", entry_point=f"{__name__}:{_made.__name__}", disable_env_checker=True)
