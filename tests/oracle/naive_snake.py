"""Snake once more, cell by cell and without a thought for speed: a deque of cells, sets, and breadth-first search."""

from collections import deque
from collections.abc import Iterable

import numpy as np

Cell = tuple[int, int]
STEPS: tuple[Cell, ...] = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Headings 0 up, 1 right, 2 down, 3 left, as (dx, dy)."""
UP, RIGHT, DOWN, LEFT = range(4)


def neighbour(cell: Cell, heading: int) -> Cell:
    return cell[0] + STEPS[heading][0], cell[1] + STEPS[heading][1]


def distance(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def reach(free: set[Cell], starts: Iterable[Cell]) -> set[Cell]:
    """The starts, and all free cells that can be walked to from them."""
    seen = set(starts)
    queue = deque(seen)
    while queue:
        x, y = queue.popleft()
        for cell in ((x, y - 1), (x + 1, y), (x, y + 1), (x - 1, y)):
            if cell in free and cell not in seen:
                seen.add(cell)
                queue.append(cell)
    return seen


class NaiveSnake:
    """One game. Food is a matter of chance: whoever plays puts it on the board after every meal."""

    def __init__(self, grid: int, actions: str = "relative", start_length: int = 3, max_steps: int = 1000) -> None:
        self.grid, self.actions, self.start_length, self.max_steps = grid, actions, start_length, max_steps
        self.cells = {(x, y) for x in range(grid) for y in range(grid)}
        middle = grid // 2
        self.place([(middle - i, middle) for i in range(start_length)], RIGHT)

    def place(self, body: Iterable[Cell], heading: int, food: Cell = (-1, -1), t: int = 0) -> None:
        """Put a snake on the board, head first, as if it had grown there."""
        self.body, self.heading, self.food, self.t = deque(body), heading, food, t
        self.eaten = len(self.body) - self.start_length

    @property
    def head(self) -> Cell:
        return self.body[0]

    @property
    def tail(self) -> Cell:
        return self.body[-1]

    def free(self) -> set[Cell]:
        return self.cells - set(self.body)

    def step(self, action: int) -> tuple[float, bool, bool, int]:
        """Move; return reward, terminated, truncated and score."""
        self.heading = self.turned(action)
        goal = neighbour(self.head, self.heading)
        self.t += 1
        terminated = False
        if goal not in self.cells or goal in self.body:
            reward, terminated = -10.0, True
        elif goal == self.food:
            self.body.appendleft(goal)
            self.eaten += 1
            reward, terminated = 10.0, len(self.body) == self.grid**2
        else:
            gained = distance(self.head, self.food) - distance(goal, self.food)
            self.body.appendleft(goal)
            self.body.pop()
            reward = -0.01 + gained * 0.5 / self.grid
        truncated = self.t >= self.max_steps
        return reward - 5.0 * truncated, terminated, truncated, self.eaten

    def turned(self, action: int) -> int:
        """The heading after an action."""
        if self.actions == "absolute":
            return self.heading if STEPS[action] == tuple(-d for d in STEPS[self.heading]) else action
        return {0: self.heading, 1: self.to_the_left(), 2: self.to_the_right()}[action]

    def to_the_left(self) -> int:
        return {UP: LEFT, LEFT: DOWN, DOWN: RIGHT, RIGHT: UP}[self.heading]

    def to_the_right(self) -> int:
        return {UP: RIGHT, RIGHT: DOWN, DOWN: LEFT, LEFT: UP}[self.heading]

    def observations(self) -> dict[str, np.ndarray]:
        """All kinds of observation of the present board."""
        free, room = self.free(), np.float32(self.grid**2 - len(self.body))
        straight, left, right = (
            neighbour(self.head, heading) for heading in (self.heading, self.to_the_left(), self.to_the_right())
        )
        basic = [cell not in free for cell in (straight, left, right)]
        basic += self.directions(self.food)
        basic += [self.heading == heading for heading in (UP, RIGHT, DOWN)]
        floods, ways_on = [], []
        for cell in (straight, right, left):
            floods.append(np.float32(len(reach(free, [cell]))) / room if cell in free else 0)
            ways_on.append(sum(neighbour(cell, d) in free for d in range(4)) / 4 if cell in free else 0)
        tail = [*self.directions(self.tail), self.tail in reach(free | {self.tail}, [self.head])]
        sizes = [distance(self.head, self.tail) / (2 * (self.grid - 1)), len(self.body) / self.grid**2]
        features = {
            "basic": basic,
            "flood": basic + floods,
            "selective": basic + floods + tail,
            "enhanced": basic + floods + ways_on + tail + sizes,
        }
        vectors = {kind: np.array(numbers, np.float32) for kind, numbers in features.items()}
        return {**vectors, "grid": self.image()}

    def directions(self, cell: Cell) -> list[bool]:
        """Whether a cell lies further up, right, down and left than the head."""
        (x, y), (to_x, to_y) = self.head, cell
        return [to_y < y, to_x > x, to_y > y, to_x < x]

    def image(self) -> np.ndarray:
        pixels = np.zeros((self.grid, self.grid, 3), np.uint8)
        for channel, cells in enumerate(([self.head], list(self.body)[1:], [self.food])):
            for x, y in cells:
                pixels[y, x, channel] = 255
        return pixels
